// Stores in a file: with a system call for each transfer, or with an io_uring for batches of writes.
#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>

#include "varve/pager/kernel.hpp"
#include "varve/pager/store.hpp"
#include "varve/pager/stores/medium.hpp"

#if __has_include(<liburing.h>)
#include <liburing.h>
#define VARVE_PAGER_HAS_URING 1
#endif

namespace varve::pager {

/// Pages at the same offsets of a medium. It remembers a sum of every block of 4096 bytes that it wrote or read (8
/// bytes each): a block that comes back as anything else, since the file was cut off, changed by others, or lost what
/// the kernel could not write, fails the read with EIO.
template <medium M>
class basic_file_store {
public:
    static constexpr bool recovers_sync = true;

    /// Makes the medium `capacity` long if it is empty; the new part is a hole. Throws std::system_error, or
    /// std::runtime_error if it is not empty and shorter.
    basic_file_store(M file, byte_count capacity)
        : file_(std::move(file)), sums_(capacity), state_(std::make_unique<state>(sums_.blocks())) {
        const std::uint64_t there = file_.size();
        if (there == 0) {
            file_.resize(capacity.value);
        } else if (there < capacity.value) {
            throw std::runtime_error("varve: " + file_.name() + " is " + std::to_string(there) +
                                     " bytes long, shorter than the " + std::to_string(capacity.value) +
                                     " asked for: it was cut off, or made for less (truncate -s lengthens it)");
        }
    }

    io_result read(store_offset at, std::span<std::byte> in) noexcept {
        if (!within(at, in.size())) {
            return {0, EINVAL};
        }
        const std::shared_lock guard(state_->lock);
        const io_result r = file_.read(to_number(at), in);
        const std::size_t good = sums_.accept(to_number(at), in.first(r.bytes));
        return good == r.bytes ? r : io_result{good, EIO};
    }
    io_result write(store_offset at, std::span<const std::byte> out) noexcept {
        if (!within(at, out.size())) {
            return {0, ENOSPC};
        }
        const std::shared_lock guard(state_->lock);
        const io_result r = file_.write(to_number(at), out);
        wrote(at, out, r.complete(out.size()));
        return r;
    }
    int discard(store_offset at, byte_count n) noexcept {
        if (!within(at, n.value)) {
            return EINVAL;
        }
        const std::shared_lock guard(state_->lock);
        const int error = file_.discard(to_number(at), n.value);
        sums_.discarded(to_number(at), n.value, error == 0);
        add_pending(at, n.value);
        return error;
    }

    /// After one that failed, it writes what was written since the last good one again, from what the medium still has.
    /// EIO if that is not what was written: then it fails until those pages are written anew.
    int sync() noexcept {
        const std::lock_guard one_at_a_time(state_->syncing);
        {
            const std::unique_lock guard(state_->lock);
            if (const int error = state_->pending.resolve([this](std::size_t b) { return write_again(b); });
                error != 0) {
                return error;
            }
            state_->pending.begin();
        }
        const int error = file_.sync();
        state_->pending.end(error == 0);
        return error;
    }

    [[nodiscard]] std::uint64_t identity() const noexcept requires requires(const M& m) { m.identity(); }
    { return file_.identity(); }

protected:
    [[nodiscard]] M& file() noexcept { return file_; }
    /// For transfers that go past `write`: held during them, and `wrote` called before it is let go.
    [[nodiscard]] std::shared_lock<std::shared_mutex> transfers() noexcept { return std::shared_lock(state_->lock); }
    template <class Request>
    [[nodiscard]] bool all_within(std::span<Request> requests) const noexcept {
        return std::all_of(requests.begin(), requests.end(),
                           [this](const Request& r) { return within(r.offset, r.data.size()); });
    }
    /// For transfers that go past `read`: what is not what was written there counts as not read.
    void accept(read_request& r) noexcept {
        const std::size_t good = sums_.accept(to_number(r.offset), r.data.first(r.result.bytes));
        if (good != r.result.bytes) {
            r.result = {good, EIO};
        }
    }
    void wrote(store_offset at, std::span<const std::byte> out, bool whole) noexcept {
        sums_.wrote(to_number(at), out, whole);
        add_pending(at, out.size());
    }

private:
    static constexpr std::size_t block = detail::block_sums::block;

    /// Behind a pointer, so that the store can be moved.
    struct state {
        explicit state(std::size_t blocks) : pending(blocks) {}
        std::shared_mutex lock;  ///< shared by transfers, which are of different pages
        std::mutex syncing;
        detail::unsynced pending;
    };

    [[nodiscard]] bool within(store_offset at, std::size_t n) const noexcept { return sums_.within(to_number(at), n); }
    /// After the transfer that changed them.
    void add_pending(store_offset at, std::size_t bytes) noexcept {
        for (std::uint64_t b = to_number(at) / block; b * block < to_number(at) + bytes; ++b) {
            state_->pending.add(static_cast<std::size_t>(b));
        }
    }

    int write_again(std::size_t b) noexcept {
        alignas(locked_file::direct_alignment) std::array<std::byte, block> content;
        const std::uint64_t at = std::uint64_t{b} * block;
        const io_result got = file_.read(at, content);
        const bool ours = sums_.agrees(at, std::span<const std::byte>(content).first(got.bytes));
        if (got.error != 0 || !ours) {
            return got.error != 0 ? got.error : EIO;
        }
        const io_result put = file_.write(at, std::span<const std::byte>(content).first(got.bytes));
        return put.complete(got.bytes) ? 0 : put.error != 0 ? put.error : EIO;
    }

    M file_;
    detail::block_sums sums_;
    std::unique_ptr<state> state_;
};

/// A file, page by page at the same offsets. It may be attached again, by this store or by anything else that reads
/// files; while it is attached it is locked. After a crash each page holds what it held at some moment since the last
/// `flush`: for one moment's content of all pages, see snapshot_store.
class file_store : public basic_file_store<locked_file> {
public:
    /// Opens or creates `path`. An empty one becomes `capacity` long. Throws std::system_error, with EBUSY if another
    /// store has the file, or std::runtime_error if it is shorter than `capacity`.
    /// With kernel_cache::none, pages and buffers are aligned as `locked_file::direct_alignment` says; the pager's are.
    file_store(const std::filesystem::path& path, byte_count capacity, opening how = opening::attach_or_create,
               kernel_cache cache = kernel_cache::kept)
        : basic_file_store(locked_file(path, how, cache), capacity) {}
};
static_assert(store<file_store> && detail::discarding<file_store> && detail::recovering<file_store>);

#ifdef VARVE_PAGER_HAS_URING

/// As file_store; the writes of an evicted batch go to the kernel in one call, and so do the reads of pages that are
/// fetched together. Where io_uring is not permitted they go one by one.
class uring_store : public file_store {
public:
    /// As file_store.
    uring_store(const std::filesystem::path& path, byte_count capacity, opening how = opening::attach_or_create,
                kernel_cache cache = kernel_cache::kept)
        : file_store(path, capacity, how, cache), rings_(std::make_unique<std::array<ring, ring_count>>()) {}

    [[nodiscard]] bool uses_ring() const noexcept { return (*rings_)[0].usable; }

    void write_batch(std::span<write_request> requests) noexcept { all_of(requests); }
    void read_batch(std::span<read_request> requests) noexcept { all_of(requests); }

private:
    static constexpr unsigned depth = 128;
    static constexpr std::size_t ring_count = 4;
    struct ring {
        ring() noexcept : open(::io_uring_queue_init(depth, &state, 0) == 0), usable(open) {}
        ring(const ring&) = delete;
        ring& operator=(const ring&) = delete;
        ~ring() {
            if (open) {
                ::io_uring_queue_exit(&state);
            }
        }
        io_uring state{};
        const bool open;
        bool usable;
        std::mutex lock;
    };

    io_result one(const write_request& r) noexcept { return write(r.offset, r.data); }
    io_result one(const read_request& r) noexcept { return read(r.offset, r.data); }

    /// One that nobody uses, if there is one: threads that wait for the disk do not wait for each other.
    [[nodiscard]] std::unique_lock<std::mutex> take(ring*& chosen) noexcept {
        for (ring& r : *rings_) {
            if (std::unique_lock<std::mutex> guard(r.lock, std::try_to_lock); guard) {
                chosen = &r;
                return guard;
            }
        }
        chosen = &rings_->front();
        return std::unique_lock<std::mutex>(chosen->lock);
    }

    template <class Request>
    void all_of(std::span<Request> requests) noexcept {
        ring* chosen = nullptr;
        const auto guard = take(chosen);
        while (!requests.empty()) {
            const std::size_t count = std::min<std::size_t>(requests.size(), depth);
            if (chosen->usable && requests.size() > 1 && all_within(requests.first(count))) {
                const auto held = transfers();
                through(*chosen, requests.first(count));
            }
            for (Request& r : requests.first(count)) {
                if (!r.result.complete(r.data.size())) {
                    r.result = one(r);
                }
            }
            requests = requests.subspan(count);
        }
    }

    void prepare(io_uring_sqe* entry, const write_request& r) noexcept {
        ::io_uring_prep_write(entry, file().fd(), r.data.data(), static_cast<unsigned>(r.data.size()),
                              to_number(r.offset));
    }
    void prepare(io_uring_sqe* entry, const read_request& r) noexcept {
        ::io_uring_prep_read(entry, file().fd(), r.data.data(), static_cast<unsigned>(r.data.size()),
                             to_number(r.offset));
    }
    void completed(write_request& r) noexcept {
        file().reach(to_number(r.offset) + r.result.bytes);
        wrote(r.offset, r.data, r.result.complete(r.data.size()));
    }
    void completed(read_request& r) noexcept { accept(r); }

    /// Tries all of them; those that fail, fall short or could not be submitted are left to plain transfers.
    template <class Request>
    void through(ring& with, std::span<Request> requests) noexcept {
        for (std::size_t i = 0; i < requests.size(); ++i) {
            io_uring_sqe* entry = ::io_uring_get_sqe(&with.state);
            prepare(entry, requests[i]);
            ::io_uring_sqe_set_data64(entry, i);
        }
        std::size_t submitted = 0;
        while (submitted < requests.size()) {
            const int n = ::io_uring_submit(&with.state);
            if (n <= 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY) {
                with.usable = false;  // its queue is in an unknown state: plain transfers from now on
                break;
            }
            submitted += n > 0 ? static_cast<std::size_t>(n) : 0;
        }
        for (std::size_t seen = 0; seen < submitted;) {
            io_uring_cqe* done = nullptr;
            // It sleeps once for all of them, not once for each.
            if (::io_uring_peek_cqe(&with.state, &done) != 0 &&
                ::io_uring_wait_cqe_nr(&with.state, &done, static_cast<unsigned>(submitted - seen)) != 0) {
                continue;
            }
            Request& r = requests[static_cast<std::size_t>(done->user_data)];
            r.result = done->res < 0 ? io_result{0, -done->res} : io_result{static_cast<std::size_t>(done->res), 0};
            ::io_uring_cqe_seen(&with.state, done);
            ++seen;
            completed(r);
        }
    }

    std::unique_ptr<std::array<ring, ring_count>> rings_;
};
static_assert(store<uring_store> && detail::batching<uring_store> && detail::gathering<uring_store>);

#endif

}  // namespace varve::pager
