// What the access patterns of the benchmark share: who touches which page when, and how long it took.
#pragma once

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace bench {

inline std::uint64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
    timespec t{};
    ::clock_gettime(clock, &t);
    return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

struct pattern {
    std::byte* base = nullptr;
    std::size_t page_bytes = 4096;
    std::size_t pages = 0;
    unsigned threads = 1;
    bool write = false;
    unsigned rounds = 1;  ///< each touches every page once, in another random order
};

struct outcome {
    std::vector<std::uint32_t> slowest_first;  ///< time of every access, ns
    std::uint64_t wall_ns = 0;
    std::uint64_t processor_ns = 0;  ///< of all threads together
};

/// Every thread touches the pages of its own share in random order; one access to a page a round.
inline outcome run(const pattern& p) {
    std::vector<std::vector<std::uint32_t>> times(p.threads);
    std::atomic<std::uint64_t> processor_ns{0};
    std::vector<std::thread> threads;
    std::atomic<unsigned> ready{0};
    std::atomic<bool> go{false};
    for (unsigned t = 0; t < p.threads; ++t) {
        threads.emplace_back([&, t] {
            const std::size_t share = p.pages / p.threads;
            std::vector<std::uint32_t> order(share * p.rounds);
            std::mt19937_64 random(t + 1);
            for (unsigned r = 0; r < p.rounds; ++r) {
                const auto first = order.begin() + static_cast<std::ptrdiff_t>(r * share);
                std::iota(first, first + static_cast<std::ptrdiff_t>(share), static_cast<std::uint32_t>(t * share));
                std::shuffle(first, first + static_cast<std::ptrdiff_t>(share), random);
            }
            auto& mine = times[t];
            mine.resize(order.size());
            ready.fetch_add(1);
            while (!go.load()) {
                std::this_thread::yield();
            }
            const std::uint64_t processor_before = now_ns(CLOCK_THREAD_CPUTIME_ID);
            for (std::size_t i = 0; i < order.size(); ++i) {
                auto* const at =
                    reinterpret_cast<volatile unsigned char*>(p.base + std::size_t{order[i]} * p.page_bytes);
                const std::uint64_t before = now_ns();
                if (p.write) {
                    *at = static_cast<unsigned char>(i);
                } else {
                    (void)*at;
                }
                mine[i] = static_cast<std::uint32_t>(now_ns() - before);
            }
            processor_ns += now_ns(CLOCK_THREAD_CPUTIME_ID) - processor_before;
        });
    }
    while (ready.load() != p.threads) {
        std::this_thread::yield();
    }
    outcome result;
    const std::uint64_t start = now_ns();
    go.store(true);
    for (std::thread& t : threads) {
        t.join();
    }
    result.wall_ns = now_ns() - start;
    result.processor_ns = processor_ns;
    for (const auto& part : times) {
        result.slowest_first.insert(result.slowest_first.end(), part.begin(), part.end());
    }
    std::sort(result.slowest_first.rbegin(), result.slowest_first.rend());
    return result;
}

struct summary {
    std::uint64_t faults = 0;
    double mean_us = 0, p50_us = 0, p99_us = 0, p999_us = 0, per_second = 0;
    double processor_us = 0;  ///< processor time per fault: what other programs take meanwhile is not in it
};

/// `faults` of the accesses faulted: the slowest ones. A hit costs some 30 ns, a fault thousands.
inline summary summarise(const outcome& o, std::uint64_t faults) {
    summary s;
    s.faults = std::min<std::uint64_t>(faults, o.slowest_first.size());
    if (s.faults == 0) {
        return s;
    }
    const auto end = o.slowest_first.begin() + static_cast<std::ptrdiff_t>(s.faults);
    s.mean_us = std::accumulate(o.slowest_first.begin(), end, 0.0) / static_cast<double>(s.faults) / 1e3;
    const auto at = [&](double share) {
        return o.slowest_first[static_cast<std::size_t>((1 - share) * static_cast<double>(s.faults - 1))] / 1e3;
    };
    s.p50_us = at(0.5);
    s.p99_us = at(0.99);
    s.p999_us = at(0.999);
    s.processor_us = static_cast<double>(o.processor_ns) / static_cast<double>(s.faults) / 1e3;
    s.per_second = static_cast<double>(s.faults) / (static_cast<double>(o.wall_ns) / 1e9);
    return s;
}

}  // namespace bench
