// How one paged region shall work.
#pragma once

#include <bit>
#include <stdexcept>

#include "varve/core/quantities.hpp"
#include "varve/pager/residency.hpp"

namespace varve::pager {

/// Who handles an access to a page that is not there.
enum class fault_path {
    /// The thread that made the access, in a SIGBUS handler: the fastest, and it scales with the threads. System calls
    /// on memory that is not resident fail with EFAULT: pin it first. Works without privilege.
    in_thread,
    /// Threads of the pager's own, while the accessing thread sleeps in the kernel: system calls on paged memory work.
    /// Without privilege (vm.unprivileged_userfaultfd=0 and no CAP_SYS_PTRACE) they fail with EFAULT here too.
    handlers
};

struct options {
    /// Size of a page: a power of two from 4 KiB to 2 MiB.
    byte_count page{4096};
    /// Most memory that pages may take at any time; at least `least_pages` pages.
    byte_count local{std::size_t{64} << 20};
    fault_path path = fault_path::in_thread;
    /// Threads that handle faults, for fault_path::handlers.
    unsigned handlers = 1;
    /// True starts a thread that makes room when local memory is `high` full until it is `low` full, so that faults
    /// need not. It wants a processor of its own; at the budget, faults make room by themselves in any case.
    bool evictor = false;
    percent high{97};
    percent low{93};
    replacement policy = replacement::refault;
    /// Pages that leave at once, 1 to 128. More share the cost of a TLB flush; the fault that pays waits longer.
    page_count batch{128};
    /// Most pages fetched ahead of a run of sequential faults, 0 to 63; 0 fetches what is asked for only.
    page_count prefetch{0};
    /// False takes every page that was read in for written. It saves a trap at the first write to a page that was read
    /// before, and writes clean pages back too.
    bool track_writes = true;
    /// Leaves features of the kernel unused (UFFD_FEATURE_*), for tests of what happens without them.
    std::uint64_t without_features = 0;
};

/// One instruction may need several pages at once, in each of several threads.
inline constexpr page_count least_pages{8};

namespace detail {

[[nodiscard]] inline const options& checked(const options& o) {
    if (!std::has_single_bit(o.page.value) || o.page.value < 4096 || o.page.value > (std::size_t{2} << 20)) {
        throw std::invalid_argument("varve: a page is a power of two from 4 KiB to 2 MiB");
    }
    if (o.local.value / o.page.value < least_pages.value) {
        throw std::invalid_argument("varve: local memory must hold at least 8 pages");
    }
    if (o.batch.value == 0 || o.batch.value > most_victims || o.prefetch.value >= block_pages) {
        throw std::invalid_argument("varve: batch is 1 to 128 pages and prefetch 0 to 63");
    }
    if (o.low.value > o.high.value || o.high.value > 100 || o.handlers == 0) {
        throw std::invalid_argument("varve: watermarks are low <= high <= 100 percent, handlers at least 1");
    }
    return o;
}

/// Pages that one transfer of `prefetch` brings at most: as many as faults fetch ahead, or 64 KiB.
[[nodiscard]] inline std::size_t most_together(const options& o) noexcept {
    const std::size_t several = (std::size_t{64} << 10) / o.page.value;
    return several > o.prefetch.value + 1 ? several : o.prefetch.value + 1;
}

}  // namespace detail

}  // namespace varve::pager
