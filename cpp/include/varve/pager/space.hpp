// Memory larger than memory: a range of addresses whose pages live in a store while they are not in use.
#pragma once

#include <span>
#include <utility>

#include "varve/core/errors.hpp"
#include "varve/pager/engine.hpp"

namespace varve::pager {

/// A range of addresses over a store; a `varve::swap_space`. Read and write it like any memory: what is not there is
/// fetched, what was written goes back to the store when local memory is full. All operations are thread-safe.
///
/// **When the store fails.** An access whose page cannot be fetched, or is not what was written any more, or for which
/// nothing can leave because writes fail, raises SIGBUS at its address, through the handler that the program had before
/// the first space was made, or by default ends the process. The next access asks the store again. A page that cannot
/// be written stays in local memory. (With fault_path::handlers on kernels without UFFDIO_POISON it is SIGSEGV, until
/// `retry`.)
///
/// **System calls.** With fault_path::in_thread, the kernel itself cannot fetch: a system call that is given memory of
/// the space fails with EFAULT unless the pages are pinned.
///
/// **fork.** A child does not inherit the range; touching it there raises SIGSEGV. The parent goes on undisturbed.
///
/// **Signals.** SIGBUS must not be blocked in threads that use the space. A handler that the program installs later
/// must call the one that it replaced. Faults need up to 24 KiB of stack. With fault_path::in_thread the store runs in
/// the signal handler, and compressed_store and tcp_store allocate: the program's `malloc` must not itself live on
/// paged memory.
///
/// **Destruction** forgets local memory: call `flush` or `snapshot` first to keep what it holds. Nobody may use the
/// range any more by then.
class paged_space {
public:
    /// `capacity` is rounded up to whole pages; that many bytes of the store are used, from its start on. Throws
    /// std::invalid_argument, or std::system_error where the kernel does not permit or offer what is needed.
    template <store S>
    paged_space(byte_count capacity, S s, const options& o = {}) : paged_space(capacity, any_store(std::move(s)), o) {}
    paged_space(byte_count capacity, any_store s, const options& o = {})
        : engine_(std::make_unique<detail::engine>(
              page_count{(capacity.value + detail::checked(o).page.value - 1) / o.page.value}, o, std::move(s))) {}

    [[nodiscard]] std::byte* base() const noexcept { return engine_->base(); }
    [[nodiscard]] byte_count page_bytes() const noexcept { return {engine_->page_bytes()}; }
    [[nodiscard]] page_count pages() const noexcept { return {engine_->pages()}; }

    /// Nothing to do: pages come to be when they are touched.
    bool acquire(page_index, page_count) noexcept { return true; }

    /// Forgets the content of pages, here and in the store; they read as zero. Where the store refuses, they read as it
    /// pleases, and `release_failures` counts.
    void release(page_index first, page_count count) noexcept {
        if (engine_->discard(to_number(first), count.value) != 0) {
            release_failures_.fetch_add(1, std::memory_order_relaxed);
        }
    }
    [[nodiscard]] std::uint64_t release_failures() const noexcept { return release_failures_.load(); }

    /// Fetches a page and keeps it, open for reading and writing, also by system calls. Pins nest. Throws out_of_room
    /// when all but `least_pages` pages of local memory are pinned, std::system_error (EIO) when the store fails.
    void pin(page_index page) {
        if (const int error = engine_->pin(to_number(page)); error == ENOMEM) {
            throw out_of_room();
        } else if (error != 0) {
            throw std::system_error(error, std::generic_category(), "varve: pin");
        }
    }
    void unpin(page_index page) noexcept { engine_->unpin(to_number(page)); }

    /// Fetches what is absent. False if some of it could not be had; what local memory cannot hold leaves again.
    bool prefetch(page_index first, page_count count) noexcept {
        return engine_->prefetch(to_number(first), count.value);
    }

    /// The same for pages that lie anywhere: the store reads them together, if it can. Their order is of no account.
    bool prefetch(std::span<const page_index> pages) noexcept { return engine_->prefetch(pages); }

    /// For code that also runs on a `simulator`: here the hardware tells.
    void touch(const void*, byte_count, access) noexcept {}

    /// Writes all dirty pages to the store and makes it durable; they stay in local memory. Writes that other threads
    /// make meanwhile may or may not be included. Throws std::system_error; what could not be written stays dirty. A
    /// later success covers everything; a store that cannot promise that (store.hpp) fails from then on.
    void flush() { raise(engine_->sync(), "varve: flush"); }

    /// Writes all dirty pages and commits the store: a later attachment finds the content of this moment, whole.
    /// Threads that write wait until it is done, readers go on. Pinned pages are not held: what is written to them
    /// meanwhile may be included. Throws std::system_error; then the snapshot before stays the last one, or, if the
    /// last step failed, a later attachment may find this one. After a failure as `flush`.
    void snapshot() { raise(engine_->snapshot(), "varve: snapshot"); }

    /// Writes dirty pages to the store and lets all go that are not pinned: the next access to each is a fetch. What
    /// other threads use meanwhile may be there afterwards. Throws std::system_error; what could not be written stays.
    void page_out() { raise(engine_->page_out(), "varve: page_out"); }

    /// After an access failed: the next one asks the store again. Needed only without UFFDIO_POISON.
    void retry(page_index page) noexcept { engine_->retry(to_number(page)); }

    [[nodiscard]] statistics read_statistics() const noexcept { return engine_->read_statistics(); }
    /// What the kernel offers to this space.
    [[nodiscard]] const kernel::abilities& abilities() const noexcept { return engine_->able(); }

private:
    static void raise(int error, const char* what) {
        if (error != 0) {
            throw std::system_error(error, std::generic_category(), what);
        }
    }

    std::unique_ptr<detail::engine> engine_;
    std::atomic<std::uint64_t> release_failures_{0};
};

/// Keeps the pages of [address, address + size) in local memory while it lives.
template <class Space>
class pinned {
public:
    pinned(Space& space, const void* address, byte_count size) : space_(&space) {
        const auto offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) - space.base());
        const std::size_t page = space.page_bytes().value;
        first_ = next_ = offset / page;
        const std::size_t end = size.value == 0 ? first_ : (offset + size.value - 1) / page + 1;
        try {
            for (; next_ < end; ++next_) {
                space.pin(page_index{next_});
            }
        } catch (...) {
            let_go();
            throw;
        }
    }
    pinned(const pinned&) = delete;
    pinned& operator=(const pinned&) = delete;
    ~pinned() { let_go(); }

private:
    void let_go() noexcept {
        for (std::size_t page = first_; page < next_; ++page) {
            space_->unpin(page_index{page});
        }
    }
    Space* space_;
    std::size_t first_ = 0;
    std::size_t next_ = 0;
};

}  // namespace varve::pager
