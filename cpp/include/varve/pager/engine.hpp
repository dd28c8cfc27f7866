// The pager proper: brings pages in when they are touched and takes others out to stay within the budget.
//
// One fault, start to end: the access stops (signals.hpp or a handler thread) -> `resolve` claims the page in its block
// -> `make_room` reserves a place, and evicts a batch if there is none -> `fill` reads the store and maps the copy,
// write-protected unless the access was a write -> the claim ends and who waited goes on.
//
// A page is claimed (`busy`) by at most one thread while it moves. No lock is held over a call to the kernel or the
// store, so a store that stalls holds up those who want its pages, and nobody else.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <map>
#include <thread>
#include <vector>

#include "varve/pager/incoming.hpp"
#include "varve/pager/options.hpp"
#include "varve/pager/outgoing.hpp"
#include "varve/pager/signals.hpp"

namespace varve::pager::detail {

class engine final : public fault_target {
public:
    engine(page_count pages, const options& o, any_store s)
        : options_(checked(o)),
          page_(o.page.value),
          pages_(pages.value),
          store_(std::move(s)),
          table_(pages, {o.local.value / o.page.value}, o.policy),
          memory_({pages.value * o.page.value}, o.page),
          faults_((UFFD_FEATURE_PAGEFAULT_FLAG_WP | kernel::feature_poison |
                   (o.path == fault_path::in_thread ? UFFD_FEATURE_SIGBUS : 0)) &
                  ~o.without_features),
          most_together_(most_together(o)),
          staging_({o.page.value * most_together_}),
          incoming_(memory_, faults_, store_, staging_, counters_, page_, most_together_),
          outgoing_(table_, memory_, faults_, store_, staging_, counters_, page_, pages_) {
        const std::uint64_t needed =
            UFFD_FEATURE_PAGEFAULT_FLAG_WP | (o.path == fault_path::in_thread ? std::uint64_t{UFFD_FEATURE_SIGBUS} : 0);
        if (!faults_.able().has(needed)) {
            throw std::system_error(ENOTSUP, std::generic_category(),
                                    "varve: this kernel's userfaultfd has no write protection or no SIGBUS feature");
        }
        memory_.keep_from_children();
        (void)kernel::forgets_together();  // asked here, not in a signal handler
        if (const int error = faults_.watch(memory_.all()); error != 0) {
            throw std::system_error(error, std::generic_category(), "varve: UFFDIO_REGISTER");
        }
        fault_registry::instance().add(memory_.start(), pages_ * page_, *this);
        try {
            start_threads();
        } catch (...) {
            stop_threads();
            fault_registry::instance().remove(*this);
            throw;
        }
    }
    engine(const engine&) = delete;
    engine& operator=(const engine&) = delete;
    ~engine() {
        stop_threads();
        fault_registry::instance().remove(*this);
    }

    [[nodiscard]] std::byte* base() const noexcept { return memory_.start(); }
    [[nodiscard]] std::size_t page_bytes() const noexcept { return page_; }
    [[nodiscard]] std::size_t pages() const noexcept { return pages_; }
    [[nodiscard]] const kernel::abilities& able() const noexcept { return faults_.able(); }

    [[nodiscard]] statistics read_statistics() const noexcept {
        statistics s = counters_.read();
        s.resident_pages = table_.used();
        s.peak_resident_pages = table_.peak();
        return s;
    }

    bool on_fault(std::byte* address, access kind) noexcept override {
        const std::size_t page = page_of(address);
        if (options_.path == fault_path::in_thread) {
            return resolve(page, kind);
        }
        // With handler threads, the only SIGBUS is that of a page whose fetch failed. The next access asks again.
        heal(page);
        return false;
    }

    /// Brings `page` in and, unless `kind` is read, lets writes to it through. False if that failed.
    bool resolve(std::size_t page, access kind) noexcept {
        counters_.add(counted::faults);
        return kind == access::read ? bring(page, kind) : open(page, kind);
    }

    /// Brings `page` in and lets writes to it through, unless a snapshot is being taken: then after that.
    bool open(std::size_t page, access kind) noexcept {
        writers_.enter();
        const bool done = bring(page, kind);
        writers_.leave();
        return done;
    }

    /// Fetches those of [first, first + count) that are absent. False if one of them could not be had.
    bool prefetch(std::size_t first, std::size_t count) noexcept {
        bool all = true;
        for (std::size_t page = first; page < first + count;) {
            block& b = table_.at(page);
            holding hold(b);
            if (((b.resident | b.busy) & residency::bit(page)) != 0) {
                ++page;
                continue;
            }
            const std::size_t length = table_.claim_run(b, page, std::min(most_together_, first + count - page));
            hold.release();
            const std::size_t there = fill(page, length, access::read, 0);
            all = all && there != 0;
            page += std::max<std::size_t>(there, 1);
        }
        return all;
    }

    /// The same for pages anywhere: those that are absent are read together, batch by batch.
    bool prefetch(std::span<const page_index> pages) noexcept {
        const std::size_t most = std::clamp<std::size_t>(table_.budget() / 4, 1, incoming_.gathered_at_most());
        bool all = true;
        std::array<std::size_t, incoming::most_gathered> claimed;
        std::size_t count = 0;
        for (std::size_t i = 0; i < pages.size(); ++i) {
            const std::size_t page = to_number(pages[i]);
            block& b = table_.at(page);
            {
                const holding hold(b);
                if (((b.resident | b.busy) & residency::bit(page)) == 0) {
                    b.busy |= residency::bit(page);
                    claimed[count++] = page;
                }
            }
            if (count == most || (count != 0 && i + 1 == pages.size())) {
                std::sort(claimed.begin(), claimed.begin() + static_cast<std::ptrdiff_t>(count));
                all = gather({claimed.data(), count}) && all;
                count = 0;
            }
        }
        return all;
    }

    /// Writes dirty pages to the store; they stay. Returns 0 or an errno value.
    int flush() noexcept {
        int error = 0;
        for (std::size_t index = 0; index < table_.blocks(); ++index) {
            block& b = table_.block_at(index);
            for (std::uint64_t done = 0;;) {
                holding hold(b);
                const std::uint64_t wanted = b.dirty & b.resident & ~done;
                if (wanted == 0) {
                    break;
                }
                victims v;
                v.block = index;
                v.pages = v.dirty = wanted & ~b.busy;
                v.open = v.pages & b.pinned;
                v.bystanders_clean = false;
                if (v.pages == 0) {
                    wait_settled(b, hold);
                    continue;
                }
                b.busy |= v.pages;
                hold.release();
                done |= v.pages;
                std::uint64_t kept = 0;
                const int failed = outgoing_.write_out({&v, 1}, {&kept, 1}, outgoing_.protect_dirty({&v, 1}));
                error = error != 0 ? error : failed;
                finish_flush(b, v, kept);
            }
        }
        return error;
    }

    int sync() noexcept {
        const int error = flush();
        const int synced = store_.sync();
        if (synced != 0) {
            write_all_again();
        }
        return error != 0 ? error : synced;
    }

    /// Writers wait from here on until `commit` of the store returned: what it keeps is one moment's content.
    int snapshot() noexcept {
        const std::lock_guard one_at_a_time(snapshot_);
        writers_.close();
        // A write either reaches its page before the page is protected, or its thread stops at the gate: no write that
        // came after a stopped one, in this thread or because of it in another, can be in what `flush` writes.
        int error = flush();
        if (error == 0) {
            error = store_.commit();
            if (error != 0) {
                write_all_again();
            }
        }
        writers_.open();
        return error;
    }

    /// Takes out everything that may leave. 0 or an errno value.
    int page_out() noexcept {
        standstill nothing(table_, 0);
        for (std::size_t left = table_.used(); left != 0;) {
            const eviction result = outgoing_.evict(most_victims);
            if (result.failed != 0) {
                return EIO;
            }
            if (result.gone == 0) {
                if (nothing.lasts()) {
                    break;
                }
                // A page is there for its reader a moment before the thread that fetched it is done with it.
                std::this_thread::yield();
            }
            left -= std::min(left, result.gone);
        }
        return 0;
    }

    /// Lets the next access to `page` ask the store again, after one that failed.
    void retry(std::size_t page) noexcept { heal(page); }

    /// Brings a page in, writable, and keeps it. 0 or an errno value.
    int pin(std::size_t page) {
        const std::lock_guard guard(pins_lock_);
        if (pins_.find(page) == pins_.end() && pins_.size() + least_pages.value > table_.budget()) {
            return ENOMEM;
        }
        block& b = table_.at(page);
        for (;;) {
            {
                holding hold(b);
                if ((b.busy & residency::bit(page)) != 0) {
                    wait_settled(b, hold);
                    continue;
                }
                if ((b.resident & b.dirty & residency::bit(page)) != 0) {
                    b.pinned |= residency::bit(page);
                    break;
                }
            }
            if (!open(page, access::write)) {
                return EIO;
            }
        }
        if (++pins_[page] == 1) {
            // An eviction that looked at the block before may protect this page along with its neighbours.
            outgoing_.let_protections_pass();
            (void)faults_.protect(extent_of(page), false);
        }
        return 0;
    }

    void unpin(std::size_t page) noexcept {
        const std::lock_guard guard(pins_lock_);
        const auto at = pins_.find(page);
        if (at == pins_.end() || --at->second != 0) {
            return;
        }
        pins_.erase(at);
        block& b = table_.at(page);
        const holding hold(b);
        b.pinned &= ~residency::bit(page);
    }

    /// Forgets pages, here and in the store: they read as zero. 0 or an errno value.
    int discard(std::size_t first, std::size_t count) noexcept {
        int error = 0;
        for (std::size_t page = first; page < first + count;) {
            block& b = table_.at(page);
            const std::size_t here = std::min(first + count - page, block_pages - page % block_pages);
            const std::uint64_t mask = span_mask(page % block_pages, here);
            for (;;) {
                holding hold(b);
                if ((b.busy & mask) == 0) {
                    b.busy |= mask;
                    break;
                }
                wait_settled(b, hold);
            }
            const int failed = store_.discard(offset_of(page), {here * page_});
            error = error != 0 ? error : failed;
            const kernel::extent gone{memory_.start() + page * page_, here * page_};
            kernel::forget({&gone, 1});
            holding hold(b);
            const auto freed = static_cast<std::size_t>(std::popcount(b.resident & mask));
            b.resident &= ~mask;
            b.dirty &= ~mask;
            b.ghost &= ~mask;
            table_.give_back(freed);
            residency::settle(b, mask, hold);
            page += here;
        }
        return error;
    }

private:
    [[nodiscard]] std::size_t page_of(const std::byte* address) const noexcept {
        return static_cast<std::size_t>(address - memory_.start()) / page_;
    }
    [[nodiscard]] kernel::extent extent_of(std::size_t page, std::size_t count = 1) const noexcept {
        return {memory_.start() + page * page_, count * page_};
    }
    [[nodiscard]] store_offset offset_of(std::size_t page) const noexcept { return store_offset{page * page_}; }
    /// Waits until some page of the block is no longer busy. Lets go of the lock.
    static void wait_settled(block& b, holding& hold) noexcept {
        const std::uint32_t before = b.epoch.load(std::memory_order_relaxed);
        hold.release();
        b.epoch.wait(before);
    }

    bool bring(std::size_t page, access kind) noexcept {
        block& b = table_.at(page);
        const std::uint64_t bit = residency::bit(page);
        for (;;) {
            holding hold(b);
            if ((b.busy & bit) != 0) {
                counters_.add(counted::waits);
                wait_settled(b, hold);
                continue;
            }
            if ((b.resident & bit) == 0) {
                const std::size_t length =
                    table_.claim_run(b, page, std::min(1 + table_.ahead(b, page, options_.prefetch), pages_ - page));
                hold.release();
                return fill(page, length, kind, 1) != 0;
            }
            if (kind == access::read) {
                // Another thread was faster.
                hold.release();
                if (options_.path == fault_path::handlers) {
                    faults_.wake(extent_of(page));
                }
                return true;
            }
            b.busy |= bit;
            b.dirty |= bit;
            hold.release();
            counters_.add(counted::write_traps);
            const bool opened = faults_.protect(extent_of(page), false) == 0;
            holding again(b);
            residency::settle(b, bit, again);
            return opened;
        }
    }

    /// After a sync that failed nobody knows which of the pages written since the last good one the store still has.
    /// Those that are here are written again next time; the others are the store's to judge (store.hpp).
    void write_all_again() noexcept {
        for (std::size_t index = 0; index < table_.blocks(); ++index) {
            block& b = table_.block_at(index);
            const holding hold(b);
            b.dirty |= b.resident & ~b.busy;
        }
    }

    void abandon(std::size_t page, std::size_t length) noexcept {
        block& b = table_.at(page);
        holding hold(b);
        residency::settle(b, span_mask(page % block_pages, length), hold);
    }

    /// Fetches a claimed run; the first `asked` pages of it, 0 or 1, were asked for. Ends the claim. Returns how many
    /// are there: all, the first one where the others could not be had with it, or 0 if that one failed.
    std::size_t fill(std::size_t page, std::size_t length, access kind, std::size_t asked) noexcept {
        if (!make_room(length)) {
            if (length > 1) {
                // What nobody asked for is not worth failing for.
                abandon(page + 1, length - 1);
                return fill(page, 1, kind, asked);
            }
            give_up(page, asked != 0);
            return 0;
        }
        const bool writable = kind == access::write || !options_.track_writes;
        if (!incoming_.map(page, length, writable ? (options_.track_writes ? std::size_t{1} : length) : 0)) {
            table_.give_back(length);
            if (length > 1) {
                abandon(page + 1, length - 1);
                return fill(page, 1, kind, asked);
            }
            counters_.add(counted::read_failures);
            give_up(page, asked != 0);
            return 0;
        }
        if (length > asked) {
            counters_.add(counted::prefetched, length - asked);
        }
        block& b = table_.at(page);
        const std::size_t slot = page % block_pages;
        const std::uint64_t filled = span_mask(slot, length);
        holding hold(b);
        if (const std::size_t back =
                table_.arrived(b, filled, options_.track_writes ? span_mask(slot, 1) : filled, writable);
            back != 0) {
            counters_.add(counted::refaults, back);
        }
        residency::settle(b, filled, hold);
        if (options_.evictor && table_.used() * 100 > table_.budget() * options_.high.value) {
            call_evictor();
        }
        return length;
    }

    /// Fetches claimed pages, which are in order, and ends the claims.
    bool gather(std::span<const std::size_t> pages) noexcept {
        bool all = true;
        while (!make_room(pages.size())) {
            // What nobody asked for is not worth failing for.
            all = false;
            for (std::size_t i = pages.size() / 2; i < pages.size(); ++i) {
                abandon(pages[i], 1);
            }
            pages = pages.first(pages.size() / 2);
            if (pages.empty()) {
                return false;
            }
        }
        const std::uint64_t there = incoming_.map_all(pages, !options_.track_writes);
        std::size_t failed = 0;
        std::size_t back = 0;
        for (std::size_t i = 0; i < pages.size(); ++i) {
            block& b = table_.at(pages[i]);
            const std::uint64_t bit = residency::bit(pages[i]);
            holding hold(b);
            if ((there >> i & 1) != 0) {
                back += table_.arrived(b, bit, bit, !options_.track_writes);
            } else {
                ++failed;
                table_.give_back(1);
            }
            residency::settle(b, bit, hold);
        }
        counters_.add(counted::read_failures, failed);
        counters_.add(counted::prefetched, pages.size() - failed);
        counters_.add(counted::refaults, back);
        if (options_.evictor && table_.used() * 100 > table_.budget() * options_.high.value) {
            call_evictor();
        }
        return all && failed == 0;
    }

    /// A fetch failed: who waits for the page shall know.
    void give_up(std::size_t page, bool asked) noexcept {
        if (asked && options_.path == fault_path::handlers) {
            if (!faults_.able().has(kernel::feature_poison) || faults_.poison(extent_of(page)) != 0) {
                kernel::memory::forbid(extent_of(page), true);
                forbidden_.store(true);
                faults_.wake(extent_of(page));
            }
        }
        abandon(page, 1);
    }

    /// Takes back what `give_up` did to a page, if it is still absent.
    void heal(std::size_t page) noexcept {
        block& b = table_.at(page);
        const std::uint64_t bit = residency::bit(page);
        for (;;) {
            holding hold(b);
            if ((b.busy & bit) != 0) {
                wait_settled(b, hold);
                continue;
            }
            if ((b.resident & bit) != 0) {
                return;
            }
            b.busy |= bit;
            break;
        }
        const kernel::extent poisoned = extent_of(page);
        kernel::forget({&poisoned, 1});
        if (forbidden_.load()) {
            kernel::memory::forbid(poisoned, false);
        }
        abandon(page, 1);
    }

    /// Reserves room for the `n` pages that the caller has claimed. False if nothing can leave.
    bool make_room(std::size_t n) noexcept {
        for (standstill nothing(table_, n); !table_.reserve(n);) {
            const eviction result = outgoing_.evict(std::max(n, batch()));
            if (result.gone != 0) {
                continue;
            }
            // Who wants several pages holds several that others may be waiting for in the same way.
            if (result.failed != 0 || n > 1 || nothing.lasts()) {
                return false;
            }
            // What others are moving in or out can leave when they are done.
            std::this_thread::yield();
        }
        return true;
    }
    [[nodiscard]] std::size_t batch() const noexcept { return table_.batch(options_.batch); }

    static void finish_flush(block& b, const victims& v, std::uint64_t kept) noexcept {
        holding hold(b);
        // System calls may be under way on pinned pages: those stayed open, and so may have changed meanwhile.
        b.dirty &= ~(v.pages & ~kept & ~v.open);
        residency::settle(b, v.pages, hold);
    }

    void start_threads() {
        stop_ = kernel::descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        if (options_.path == fault_path::handlers) {
            for (unsigned i = 0; i < options_.handlers; ++i) {
                threads_.emplace_back([this] { handle_faults(); });
            }
        }
        if (options_.evictor) {
            threads_.emplace_back([this] { keep_room(); });
        }
    }

    void stop_threads() noexcept {
        stopping_.store(true);
        const std::uint64_t one = 1;
        (void)!::write(stop_.get(), &one, sizeof one);
        call_evictor();
        for (std::thread& t : threads_) {
            t.join();
        }
        threads_.clear();
    }

    void handle_faults() noexcept {
        pollfd sources[2] = {{faults_.fd(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
        while (!stopping_.load(std::memory_order_relaxed)) {
            uffd_msg message;
            if (::read(faults_.fd(), &message, sizeof message) != static_cast<ssize_t>(sizeof message)) {
                ::poll(sources, 2, -1);
                continue;
            }
            if (message.event == UFFD_EVENT_PAGEFAULT) {
                const auto flags = message.arg.pagefault.flags;
                const bool write = (flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0;
                auto* const address = reinterpret_cast<std::byte*>(message.arg.pagefault.address);
                resolve(page_of(address), write ? access::write : access::read);
            }
        }
    }

    void call_evictor() noexcept {
        wanted_.store(1);
        wanted_.notify_one();
    }

    void keep_room() noexcept {
        while (!stopping_.load()) {
            wanted_.wait(0);
            wanted_.store(0);
            while (!stopping_.load() && table_.used() * 100 > table_.budget() * options_.low.value) {
                if (outgoing_.evict(batch()).gone == 0) {
                    break;
                }
            }
        }
    }

    const options options_;
    const std::size_t page_;
    const std::size_t pages_;
    any_store store_;
    residency table_;
    kernel::memory memory_;
    kernel::userfault faults_;
    const std::size_t most_together_;  ///< pages that one transfer brings
    staging staging_;
    gate writers_;
    counters counters_;
    incoming incoming_;
    outgoing outgoing_;
    std::atomic<bool> forbidden_{false};
    std::mutex snapshot_;
    std::mutex pins_lock_;
    std::map<std::size_t, std::size_t> pins_;
    kernel::descriptor stop_;
    std::atomic<bool> stopping_{false};
    std::atomic<std::uint32_t> wanted_{0};
    std::vector<std::thread> threads_;
};

}  // namespace varve::pager::detail
