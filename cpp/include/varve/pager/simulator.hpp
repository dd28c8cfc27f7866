// The pager on paper, for where userfaultfd is not permitted and for counts that depend on nothing but the program:
// memory stays where it is, and the program says what it touches.
#pragma once

#include <map>

#include "varve/core/errors.hpp"
#include "varve/pager/kernel.hpp"
#include "varve/pager/options.hpp"
#include "varve/pager/signals.hpp"
#include "varve/pager/statistics.hpp"

namespace varve::pager {

/// Has the interface of `paged_space` and takes the same decisions: a program with one thread that reports each of its
/// accesses gets the counts that `paged_space` with `fault_path::in_thread` and the same options would give it, save
/// `waits`. There is no store: nothing moves, nothing fails, and the local budget bounds counts, not memory.
class simulator {
public:
    explicit simulator(byte_count capacity, const options& o = {})
        : options_(detail::checked(o)),
          pages_((capacity.value + o.page.value - 1) / o.page.value),
          table_({pages_}, {o.local.value / o.page.value}, o.policy),
          memory_({pages_ * o.page.value}, o.page) {}

    [[nodiscard]] std::byte* base() const noexcept { return memory_.start(); }
    [[nodiscard]] byte_count page_bytes() const noexcept { return options_.page; }
    [[nodiscard]] page_count pages() const noexcept { return {pages_}; }

    bool acquire(page_index, page_count) noexcept { return true; }

    /// The pages read as zero and are no longer resident.
    void release(page_index first, page_count count) noexcept {
        const std::lock_guard guard(lock_);
        const kernel::extent gone{base() + to_number(first) * options_.page.value, count.value * options_.page.value};
        kernel::forget({&gone, 1});
        for (std::size_t page = to_number(first); page < to_number(first) + count.value; ++page) {
            detail::block& b = table_.at(page);
            const std::uint64_t bit = detail::residency::bit(page);
            table_.give_back((b.resident & bit) != 0 ? 1 : 0);
            b.resident &= ~bit;
            b.dirty &= ~bit;
            b.ghost &= ~bit;
        }
    }

    /// Throws out_of_room as `paged_space::pin` does.
    void pin(page_index page) {
        const std::lock_guard guard(lock_);
        if (pins_.find(to_number(page)) == pins_.end() && pins_.size() + least_pages.value > table_.budget()) {
            throw out_of_room();
        }
        access_page(to_number(page), access::write);
        ++pins_[to_number(page)];
        table_.at(to_number(page)).pinned |= detail::residency::bit(to_number(page));
    }
    void unpin(page_index page) noexcept {
        const std::lock_guard guard(lock_);
        const auto at = pins_.find(to_number(page));
        if (at == pins_.end() || --at->second != 0) {
            return;
        }
        pins_.erase(at);
        table_.at(to_number(page)).pinned &= ~detail::residency::bit(to_number(page));
    }

    bool prefetch(page_index first, page_count count) noexcept {
        const std::lock_guard guard(lock_);
        const std::size_t end = to_number(first) + count.value;
        for (std::size_t page = to_number(first); page < end;) {
            if ((table_.at(page).resident & detail::residency::bit(page)) != 0) {
                ++page;
                continue;
            }
            page += fetch(page, std::min(detail::most_together(options_), end - page), access::read, 0);
        }
        return true;
    }

    bool prefetch(std::span<const page_index> pages) noexcept {
        for (const page_index page : pages) {
            prefetch(page, page_count{1});
        }
        return true;
    }

    /// Says that the program reads or writes [address, address + size). What lies outside does not count.
    void touch(const void* address, byte_count size, access kind) noexcept {
        const auto offset = reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(base());
        const std::size_t page = options_.page.value;
        if (size.value == 0 || offset >= pages_ * page) {
            return;
        }
        const std::lock_guard guard(lock_);
        const std::size_t last = std::min((offset + size.value - 1) / page, pages_ - 1);
        for (std::size_t p = offset / page; p <= last; ++p) {
            const detail::block& b = table_.at(p);
            const std::uint64_t bit = detail::residency::bit(p);
            if ((b.resident & bit) == 0 || (kind != access::read && (b.dirty & bit) == 0)) {
                counters_.add(detail::counted::faults);
                access_page(p, kind);
            }
        }
    }

    void flush() noexcept {
        const std::lock_guard guard(lock_);
        for (std::size_t i = 0; i < table_.blocks(); ++i) {
            detail::block& b = table_.block_at(i);
            counters_.add(detail::counted::page_writes, static_cast<std::size_t>(std::popcount(b.dirty)));
            b.dirty &= b.pinned;
        }
    }
    void snapshot() noexcept { flush(); }
    void page_out() noexcept {
        const std::lock_guard guard(lock_);
        for (std::size_t left = table_.used(); left != 0;) {
            const std::size_t gone = evict(detail::most_victims);
            if (gone == 0) {
                break;
            }
            left -= gone;
        }
    }
    void retry(page_index) noexcept {}

    [[nodiscard]] statistics read_statistics() const noexcept {
        statistics s = counters_.read();
        s.resident_pages = table_.used();
        s.peak_resident_pages = table_.peak();
        return s;
    }

private:
    void access_page(std::size_t page, access kind) noexcept {
        detail::block& b = table_.at(page);
        const std::uint64_t bit = detail::residency::bit(page);
        if ((b.resident & bit) == 0) {
            fetch(page, 1 + table_.ahead(b, page, options_.prefetch), kind, 1);
        } else if (kind != access::read && (b.dirty & bit) == 0) {
            counters_.add(detail::counted::write_traps);
            b.dirty |= bit;
        }
    }

    std::size_t fetch(std::size_t page, std::size_t most, access kind, std::size_t asked) noexcept {
        detail::block& b = table_.at(page);
        std::size_t length = table_.claim_run(b, page, std::min(most, pages_ - page));
        if (!make_room(length)) {
            b.busy &= ~(detail::span_mask(page % detail::block_pages, length) ^ detail::residency::bit(page));
            length = 1;
            make_room(1);
        }
        const std::uint64_t filled = detail::span_mask(page % detail::block_pages, length);
        const bool writable = kind == access::write || !options_.track_writes;
        const std::size_t back =
            table_.arrived(b, filled, options_.track_writes ? detail::residency::bit(page) : filled, writable);
        b.busy &= ~filled;
        counters_.add(detail::counted::refaults, back);
        counters_.add(detail::counted::page_reads, length);
        counters_.add(detail::counted::prefetched, length - asked);
        return length;
    }

    bool make_room(std::size_t n) noexcept {
        while (!table_.reserve(n)) {
            if (evict(std::min(std::max(n, table_.batch(options_.batch)), detail::most_victims)) == 0) {
                return false;
            }
        }
        return true;
    }

    std::size_t evict(std::size_t goal) noexcept {
        std::array<detail::victims, detail::most_victims> taken;
        const std::size_t count = table_.take(goal, taken);
        if (count == 0) {
            return 0;
        }
        counters_.add(detail::counted::eviction_batches);
        std::size_t all_gone = 0;
        for (std::size_t i = 0; i < count; ++i) {
            counters_.add(detail::counted::page_writes, static_cast<std::size_t>(std::popcount(taken[i].dirty)));
            const std::size_t gone = detail::depart(table_, taken[i], taken[i].pages, 0);
            counters_.add(detail::counted::evictions, gone);
            all_gone += gone;
        }
        return all_gone;
    }

    const options options_;
    std::size_t pages_;
    detail::residency table_;
    kernel::memory memory_;
    detail::counters counters_;
    std::mutex lock_;
    std::map<std::uint64_t, std::size_t> pins_;
};

}  // namespace varve::pager
