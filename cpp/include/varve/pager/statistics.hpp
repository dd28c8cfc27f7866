// What a paged region counts about itself.
#pragma once

#include <atomic>
#include <cstdint>

namespace varve::pager {

/// Counts since the region was made.
struct statistics {
    std::uint64_t faults = 0;           ///< accesses that the kernel stopped, of whatever kind
    std::uint64_t write_traps = 0;      ///< of those, first writes to pages that were read in clean
    std::uint64_t waits = 0;            ///< faults that found the page on its way in or out
    std::uint64_t page_reads = 0;       ///< pages fetched from the store
    std::uint64_t page_writes = 0;      ///< pages written to the store
    std::uint64_t prefetched = 0;       ///< of the pages read, those that nobody had asked for yet
    std::uint64_t refaults = 0;         ///< pages fetched that had left less than one round of the clock before
    std::uint64_t evictions = 0;        ///< pages that left local memory
    std::uint64_t eviction_batches = 0; ///< rounds of eviction
    std::uint64_t read_failures = 0;    ///< fetches that the store did not complete
    std::uint64_t write_failures = 0;   ///< writes that the store did not complete; the page stayed
    std::uint64_t resident_pages = 0;   ///< pages in local memory now, or about to be
    std::uint64_t peak_resident_pages = 0;
    friend bool operator==(const statistics&, const statistics&) = default;
};

namespace detail {

/// The counters behind `statistics`, one cache line apart from what else the fault path writes.
struct alignas(64) counters {
    std::atomic<std::uint64_t> faults, write_traps, waits, page_reads, page_writes, prefetched, refaults, evictions,
        eviction_batches, read_failures, write_failures;

    static void add(std::atomic<std::uint64_t>& counter, std::uint64_t n = 1) noexcept {
        counter.fetch_add(n, std::memory_order_relaxed);
    }
    [[nodiscard]] statistics read() const noexcept {
        statistics s;
        s.faults = faults.load();
        s.write_traps = write_traps.load();
        s.waits = waits.load();
        s.page_reads = page_reads.load();
        s.page_writes = page_writes.load();
        s.prefetched = prefetched.load();
        s.refaults = refaults.load();
        s.evictions = evictions.load();
        s.eviction_batches = eviction_batches.load();
        s.read_failures = read_failures.load();
        s.write_failures = write_failures.load();
        return s;
    }
};

}  // namespace detail

}  // namespace varve::pager
