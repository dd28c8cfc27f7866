#pragma once

#include <chrono>
#include <cstdint>

namespace bench {

class stopwatch {
public:
    [[nodiscard]] std::uint64_t nanoseconds() const {
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_).count());
    }

private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace bench
