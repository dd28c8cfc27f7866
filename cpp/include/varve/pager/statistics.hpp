// What a paged region counts about itself.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace varve::pager {

/// Counts since the region was made.
struct statistics {
    std::uint64_t faults = 0;            ///< accesses that the kernel stopped, of whatever kind
    std::uint64_t write_traps = 0;       ///< of those, first writes to pages that were read in clean
    std::uint64_t waits = 0;             ///< faults that found the page on its way in or out
    std::uint64_t page_reads = 0;        ///< pages fetched from the store
    std::uint64_t page_writes = 0;       ///< pages written to the store
    std::uint64_t prefetched = 0;        ///< of the pages read, those that nobody had asked for yet
    std::uint64_t refaults = 0;          ///< pages fetched that had left less than one round of the clock before
    std::uint64_t evictions = 0;         ///< pages that left local memory
    std::uint64_t eviction_batches = 0;  ///< rounds of eviction
    std::uint64_t read_failures = 0;     ///< fetches that the store did not complete
    std::uint64_t write_failures = 0;    ///< writes that the store did not complete; the page stayed
    std::uint64_t resident_pages = 0;    ///< pages in local memory now, or about to be
    std::uint64_t peak_resident_pages = 0;
    friend bool operator==(const statistics&, const statistics&) = default;
};

namespace detail {

/// Which of the counters in `statistics`.
enum class counted : unsigned {
    faults,
    write_traps,
    waits,
    page_reads,
    page_writes,
    prefetched,
    refaults,
    evictions,
    eviction_batches,
    read_failures,
    write_failures,
    end
};

/// The counters behind `statistics`: a set for each of some processors, so that threads do not share cache lines.
class counters {
public:
    void add(counted which, std::uint64_t n = 1) noexcept {
        const auto processor = static_cast<unsigned>(::sched_getcpu());
        shards_[processor % shards].values[static_cast<unsigned>(which)].fetch_add(n, std::memory_order_relaxed);
    }
    [[nodiscard]] statistics read() const noexcept {
        const auto sum = [&](counted which) {
            std::uint64_t total = 0;
            for (const shard& s : shards_) {
                total += s.values[static_cast<unsigned>(which)].load(std::memory_order_relaxed);
            }
            return total;
        };
        statistics s;
        s.faults = sum(counted::faults);
        s.write_traps = sum(counted::write_traps);
        s.waits = sum(counted::waits);
        s.page_reads = sum(counted::page_reads);
        s.page_writes = sum(counted::page_writes);
        s.prefetched = sum(counted::prefetched);
        s.refaults = sum(counted::refaults);
        s.evictions = sum(counted::evictions);
        s.eviction_batches = sum(counted::eviction_batches);
        s.read_failures = sum(counted::read_failures);
        s.write_failures = sum(counted::write_failures);
        return s;
    }

private:
    static constexpr unsigned shards = 16;
    struct alignas(128) shard {
        std::array<std::atomic<std::uint64_t>, static_cast<unsigned>(counted::end)> values{};
    };
    std::array<shard, shards> shards_{};
};

}  // namespace detail

}  // namespace varve::pager
