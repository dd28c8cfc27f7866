// A memory limit for a process of the benchmark: a control group of its own, of either version.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace bench {

/// Exists while it lives. Needs the right to make control groups.
class memory_limit {
public:
    explicit memory_limit(std::size_t bytes) {
        namespace fs = std::filesystem;
        const fs::path root = "/sys/fs/cgroup";
        const bool unified = fs::exists(root / "cgroup.controllers");
        folder_ = (unified ? root : root / "memory") / ("varve-bench-" + std::to_string(::getpid()));
        std::error_code error;
        fs::create_directory(folder_, error);
        if (!put(unified ? "memory.max" : "memory.limit_in_bytes", bytes)) {
            fs::remove(folder_, error);
            throw std::runtime_error("no memory limit could be set in " + folder_.string() +
                                     "; hint: run as root, with the memory controller enabled");
        }
        put(unified ? "memory.swap.max" : "memory.swappiness", 0);
    }
    memory_limit(const memory_limit&) = delete;
    memory_limit& operator=(const memory_limit&) = delete;
    ~memory_limit() {
        for (int tries = 0; ::rmdir(folder_.c_str()) != 0 && errno == EBUSY && tries < 100; ++tries) {
            ::usleep(10000);
        }
    }

    /// Puts this process into it; what it allocates from now on counts.
    void enter() const {
        if (!put("cgroup.procs", static_cast<std::size_t>(::getpid()))) {
            throw std::runtime_error("this process could not be put into " + folder_.string());
        }
    }

private:
    bool put(const char* file, std::size_t value) const {
        std::ofstream out(folder_ / file);
        out << value << std::flush;
        return out.good();
    }
    std::filesystem::path folder_;
};

}  // namespace bench
