// Where pages live while they are not in local memory.
#pragma once

#include <cerrno>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "varve/core/quantities.hpp"

namespace varve::pager {

/// A position in a store, in bytes. The pager asks for whole pages only.
enum class store_offset : std::uint64_t {};
[[nodiscard]] constexpr std::uint64_t to_number(store_offset offset) noexcept {
    return static_cast<std::uint64_t>(offset);
}
[[nodiscard]] constexpr store_offset operator+(store_offset offset, std::size_t bytes) noexcept {
    return store_offset{to_number(offset) + bytes};
}

/// What became of a transfer: `bytes` were moved, and `error` (an errno value) is 0 or says why not more. A transfer
/// that is shorter than asked for counts as failed, whatever it says.
struct io_result {
    std::size_t bytes = 0;
    int error = 0;
    [[nodiscard]] bool complete(std::size_t wanted) const noexcept { return error == 0 && bytes == wanted; }
};

/// One write of a batch; the store fills in `result`.
struct write_request {
    store_offset offset{};
    std::span<const std::byte> data;
    io_result result{};
};

/// One read of a batch; the store fills in `data` and `result`.
struct read_request {
    store_offset offset{};
    std::span<std::byte> data;
    io_result result{};
};

/// A store reads and writes pages; what was never written reads as zero. A store that lost a page, or cannot tell, must
/// fail its reads: whatever it answers is taken for the page. `sync` returns when all that was written will outlive the
/// process (0, or an errno value).
/// Operations are called by several threads at once, but never two for the same page, and what is written does not
/// change meanwhile. They must not touch memory of the space that they serve, nor throw.
/// **After a sync that failed** most storage does not know any more what is missing: it takes for clean what it could
/// not write, and the next sync succeeds without it. So a store whose `sync` or `commit` has failed once is not asked
/// again: all later ones fail with the same error. A store that can do better says so with
/// - `static constexpr bool recovers_sync = true`: a success covers everything, also what was written before failures.
/// A store may also offer
/// - `view(offset, bytes)`: a span of the content that stays valid until that page's next write, or an empty one;
/// - `write_batch(span<write_request>)`, `read_batch(span<read_request>)`: all of them at once;
/// - `discard(offset, bytes)`: reads as zero from now on; 0 or an errno value;
/// - `commit()`: what was written so far is what a later attachment finds, whole; 0 or an errno value;
/// - `identity()`: a number, the same for whatever has the same content, in this process or after it, including every
///   write that returned, synced or not; 0 or none if it cannot promise that.
template <class S>
concept store = requires(S& s, store_offset at, std::span<std::byte> in, std::span<const std::byte> out) {
    { s.read(at, in) }
    noexcept->std::same_as<io_result>;
    { s.write(at, out) }
    noexcept->std::same_as<io_result>;
    { s.sync() }
    noexcept->std::same_as<int>;
};

namespace detail {

template <class S>
concept viewable = requires(S& s, store_offset at, byte_count n) {
    { s.view(at, n) }
    noexcept->std::same_as<std::span<const std::byte>>;
};
template <class S>
concept batching = requires(S& s, std::span<write_request> requests) {
    { s.write_batch(requests) }
    noexcept;
};
template <class S>
concept gathering = requires(S& s, std::span<read_request> requests) {
    { s.read_batch(requests) }
    noexcept;
};
template <class S>
concept discarding = requires(S& s, store_offset at, byte_count n) {
    { s.discard(at, n) }
    noexcept->std::same_as<int>;
};
template <class S>
concept committing = requires(S& s) {
    { s.commit() }
    noexcept->std::same_as<int>;
};

template <class S>
concept recovering = S::recovers_sync;
template <class S>
concept identified = requires(const S& s) {
    { s.identity() }
    noexcept->std::same_as<std::uint64_t>;
};

}  // namespace detail

/// Any store, behind one pointer: a store may be chosen while the program runs, and the fault path is compiled once.
class any_store {
public:
    template <store S>
        requires(!std::same_as<S, any_store>)
    explicit any_store(S s) : self_(std::make_unique<holder<S>>(std::move(s))) {}

    io_result read(store_offset at, std::span<std::byte> in) noexcept { return self_->read(at, in); }
    io_result write(store_offset at, std::span<const std::byte> out) noexcept { return self_->write(at, out); }
    void write_batch(std::span<write_request> requests) noexcept { self_->write_batch(requests); }
    void read_batch(std::span<read_request> requests) noexcept { self_->read_batch(requests); }
    std::span<const std::byte> view(store_offset at, byte_count n) noexcept { return self_->view(at, n); }
    int discard(store_offset at, byte_count n) noexcept { return self_->discard(at, n); }
    int sync() noexcept { return self_->sync(); }
    int commit() noexcept { return self_->commit(); }
    [[nodiscard]] bool commits() const noexcept { return self_->commits(); }
    /// 0: none.
    [[nodiscard]] std::uint64_t identity() const noexcept { return self_->identity(); }

private:
    struct base {
        virtual ~base() = default;
        virtual io_result read(store_offset, std::span<std::byte>) noexcept = 0;
        virtual io_result write(store_offset, std::span<const std::byte>) noexcept = 0;
        virtual void write_batch(std::span<write_request>) noexcept = 0;
        virtual void read_batch(std::span<read_request>) noexcept = 0;
        virtual std::span<const std::byte> view(store_offset, byte_count) noexcept = 0;
        virtual int discard(store_offset, byte_count) noexcept = 0;
        virtual int sync() noexcept = 0;
        virtual int commit() noexcept = 0;
        [[nodiscard]] virtual bool commits() const noexcept = 0;
        [[nodiscard]] virtual std::uint64_t identity() const noexcept = 0;
    };

    template <class S>
    struct holder final : base {
        explicit holder(S s) : inner(std::move(s)) {}
        io_result read(store_offset at, std::span<std::byte> in) noexcept override { return inner.read(at, in); }
        io_result write(store_offset at, std::span<const std::byte> out) noexcept override {
            return inner.write(at, out);
        }
        void write_batch(std::span<write_request> requests) noexcept override {
            if constexpr (detail::batching<S>) {
                inner.write_batch(requests);
            } else {
                for (write_request& request : requests) {
                    request.result = inner.write(request.offset, request.data);
                }
            }
        }
        void read_batch(std::span<read_request> requests) noexcept override {
            if constexpr (detail::gathering<S>) {
                inner.read_batch(requests);
            } else {
                for (read_request& request : requests) {
                    request.result = inner.read(request.offset, request.data);
                }
            }
        }
        std::span<const std::byte> view(store_offset at, byte_count n) noexcept override {
            if constexpr (detail::viewable<S>) {
                return inner.view(at, n);
            } else {
                return {};
            }
        }
        int discard(store_offset at, byte_count n) noexcept override {
            if constexpr (detail::discarding<S>) {
                return inner.discard(at, n);
            } else {
                static constexpr std::byte zeros[4096]{};
                for (std::size_t done = 0; done < n.value; done += sizeof zeros) {
                    const io_result result = inner.write(at + done, zeros);
                    if (!result.complete(sizeof zeros)) {
                        return result.error != 0 ? result.error : EIO;
                    }
                }
                return 0;
            }
        }
        int sync() noexcept override {
            return once_failed([this] { return inner.sync(); });
        }
        int commit() noexcept override {
            return once_failed([this] {
                if constexpr (detail::committing<S>) {
                    return inner.commit();
                } else {
                    return inner.sync();
                }
            });
        }
        [[nodiscard]] bool commits() const noexcept override { return detail::committing<S>; }
        [[nodiscard]] std::uint64_t identity() const noexcept override {
            if constexpr (detail::identified<S>) {
                return inner.identity();
            } else {
                return 0;
            }
        }

        /// One at a time: one that succeeds after another failed may have succeeded without what that one missed.
        template <class Sync>
        int once_failed(Sync sync) noexcept {
            if constexpr (detail::recovering<S>) {
                return sync();
            } else {
                const std::lock_guard guard(syncing);
                failure = failure != 0 ? failure : sync();
                return failure;
            }
        }
        S inner;
        std::mutex syncing;
        int failure = 0;
    };

    std::unique_ptr<base> self_;
};

}  // namespace varve::pager
