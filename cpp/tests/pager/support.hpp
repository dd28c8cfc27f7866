// What the pager's tests share: stores that fail on demand, files that go away, accesses that are allowed to fail.
#pragma once

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "varve/pager/space.hpp"
#include "varve/pager/stores/memory.hpp"
#include "varve/pager/stores/tcp.hpp"

namespace test {

using namespace varve;

/// For peers that are well: on a machine that has much else to do they may take long to answer, and to see that an
/// earlier client has gone. No test is judged by that.
inline pager::persistence patient() {
    pager::persistence p;
    p.stall = {300'000};
    p.tries = 200;
    p.pause = std::chrono::milliseconds(1);
    return p;
}

/// A folder that is removed at the end.
class temporary_folder {
public:
    temporary_folder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "varve-pager-XXXXXX").string();
        if (::mkdtemp(pattern.data()) == nullptr) {
            std::abort();
        }
        path_ = pattern;
    }
    temporary_folder(const temporary_folder&) = delete;
    temporary_folder& operator=(const temporary_folder&) = delete;
    ~temporary_folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    [[nodiscard]] std::filesystem::path file(const char* name) const { return path_ / name; }

private:
    std::filesystem::path path_;
};

/// What a faulty_store shall do; shared with the test that steers it.
struct misbehaviour {
    std::atomic<bool> reads_fail{false}, writes_fail{false}, reads_short{false}, writes_short{false};
    std::atomic<std::uint64_t> only_offset{~std::uint64_t{0}};     ///< if set, only this page misbehaves
    std::atomic<std::uint64_t> stalled_offset{~std::uint64_t{0}};  ///< its read waits until this changes
    std::atomic<int> stalled_now{0};
    [[nodiscard]] bool concerns(pager::store_offset at, std::size_t bytes) const {
        const std::uint64_t only = only_offset.load();
        return only == ~std::uint64_t{0} || only - to_number(at) < bytes;
    }
};

class faulty_store {
public:
    faulty_store(byte_count capacity, std::shared_ptr<misbehaviour> how) : inner_(capacity), how_(std::move(how)) {}
    pager::io_result read(pager::store_offset at, std::span<std::byte> in) noexcept {
        if (how_->stalled_offset.load() == to_number(at)) {
            how_->stalled_now.fetch_add(1);
            how_->stalled_offset.wait(to_number(at));
            how_->stalled_now.fetch_sub(1);
        }
        if (how_->concerns(at, in.size()) && how_->reads_fail) {
            return {0, EIO};
        }
        const pager::io_result r = inner_.read(at, in);
        return how_->concerns(at, in.size()) && how_->reads_short ? pager::io_result{r.bytes / 2, 0} : r;
    }
    pager::io_result write(pager::store_offset at, std::span<const std::byte> out) noexcept {
        if (how_->concerns(at, out.size()) && how_->writes_fail) {
            return {0, ENOSPC};
        }
        if (how_->concerns(at, out.size()) && how_->writes_short) {
            // Half of it arrives, and it says so.
            return inner_.write(at, out.first(out.size() / 2));
        }
        return inner_.write(at, out);
    }
    int sync() noexcept { return 0; }

private:
    pager::memory_store inner_;
    std::shared_ptr<misbehaviour> how_;
};
static_assert(pager::store<faulty_store>);

/// Jumps out of accesses that fail. Make one before the first space of the process.
class fault_catcher {
public:
    /// Runs `access` and returns the signal that it raised, or 0; `address` is where.
    template <class Access>
    static int run(Access access, void** address = nullptr) {
        install();
        armed() = true;
        if (sigsetjmp(jump(), 1) != 0) {
            if (address != nullptr) {
                *address = where();
            }
            return raised();
        }
        access();
        armed() = false;
        return 0;
    }
    static void install() {
        static const bool once = [] {
            struct sigaction action {};
            action.sa_sigaction = caught;
            action.sa_flags = SA_SIGINFO;
            ::sigaction(SIGBUS, &action, nullptr);
            ::sigaction(SIGSEGV, &action, nullptr);
            return true;
        }();
        (void)once;
    }

private:
    static sigjmp_buf& jump() {
        thread_local sigjmp_buf buffer;
        return buffer;
    }
    static bool& armed() {
        thread_local bool value = false;
        return value;
    }
    static int& raised() {
        thread_local int value = 0;
        return value;
    }
    static void*& where() {
        thread_local void* value = nullptr;
        return value;
    }
    static void caught(int signal, siginfo_t* info, void*) {
        if (!armed()) {
            ::signal(signal, SIG_DFL);
            return;
        }
        armed() = false;
        raised() = signal;
        where() = info->si_addr;
        siglongjmp(jump(), 1);
    }
};

/// Pages of [base, base + pages) that are in memory, from the page tables themselves.
inline std::size_t present_pages(const std::byte* base, std::size_t bytes) {
    const pager::kernel::descriptor map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    std::vector<std::uint64_t> entries(bytes / 4096);
    const auto want = static_cast<ssize_t>(entries.size() * 8);
    if (::pread(map.get(), entries.data(), entries.size() * 8,
                static_cast<off_t>(reinterpret_cast<std::uintptr_t>(base) / 4096 * 8)) != want) {
        std::abort();
    }
    std::size_t n = 0;
    for (const std::uint64_t e : entries) {
        n += e >> 63;
    }
    return n;
}

/// Names the cases of a test that runs over both fault paths.
template <class Parameter>
std::string path_name(const Parameter& parameter) {
    return parameter.param == pager::fault_path::handlers ? "handlers" : "in_thread";
}

inline std::uint64_t& word(pager::paged_space& space, std::size_t page, std::size_t index = 0) {
    return reinterpret_cast<std::uint64_t*>(space.base() + page * space.page_bytes().value)[index];
}

}  // namespace test
