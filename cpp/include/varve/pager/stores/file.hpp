// Stores in a file: with a system call for each transfer, or with an io_uring for batches of writes.
#pragma once

#include <sys/stat.h>

#include <filesystem>
#include <mutex>

#include "varve/pager/kernel.hpp"
#include "varve/pager/store.hpp"

#if __has_include(<liburing.h>)
#include <liburing.h>
#define VARVE_PAGER_HAS_URING 1
#endif

namespace varve::pager {

namespace detail {

inline io_result read_fully(int fd, std::byte* to, std::size_t n, std::uint64_t at) noexcept {
    for (std::size_t done = 0; done < n;) {
        const ssize_t got = ::pread(fd, to + done, n - done, static_cast<off_t>(at + done));
        if (got > 0) {
            done += static_cast<std::size_t>(got);
        } else if (got == 0 || errno != EINTR) {
            return {done, got == 0 ? 0 : errno};
        }
    }
    return {n, 0};
}

inline io_result write_fully(int fd, const std::byte* from, std::size_t n, std::uint64_t at) noexcept {
    for (std::size_t done = 0; done < n;) {
        const ssize_t put = ::pwrite(fd, from + done, n - done, static_cast<off_t>(at + done));
        if (put >= 0) {
            done += static_cast<std::size_t>(put);
        } else if (errno != EINTR) {
            return {done, errno};
        }
    }
    return {n, 0};
}

}  // namespace detail

/// A file, page by page at the same offsets. It may be attached again, by this store or by anything else that reads
/// files. After a crash each page holds what it held at some moment since the last `flush`: for one moment's content
/// of all pages, see snapshot_store.
class file_store {
public:
    /// Opens or creates `path` and makes it at least `capacity` long; the new part is a hole. Throws std::system_error.
    file_store(const std::filesystem::path& path, byte_count capacity)
        : fd_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
        struct stat status {};
        if (!fd_.open() || ::fstat(fd_.get(), &status) != 0 ||
            (static_cast<std::uint64_t>(status.st_size) < capacity.value &&
             ::ftruncate(fd_.get(), static_cast<off_t>(capacity.value)) != 0)) {
            throw std::system_error(errno, std::generic_category(), "varve: " + path.string());
        }
    }

    io_result read(store_offset at, std::span<std::byte> in) noexcept {
        return detail::read_fully(fd_.get(), in.data(), in.size(), to_number(at));
    }
    io_result write(store_offset at, std::span<const std::byte> out) noexcept {
        return detail::write_fully(fd_.get(), out.data(), out.size(), to_number(at));
    }
    int discard(store_offset at, byte_count n) noexcept {
        const int result = ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                       static_cast<off_t>(to_number(at)), static_cast<off_t>(n.value));
        return result == 0 ? 0 : errno;
    }
    int sync() noexcept { return ::fdatasync(fd_.get()) == 0 ? 0 : errno; }

    [[nodiscard]] int fd() const noexcept { return fd_.get(); }

private:
    kernel::descriptor fd_;
};
static_assert(store<file_store> && detail::discarding<file_store>);

#ifdef VARVE_PAGER_HAS_URING

/// As file_store; the writes of an evicted batch go to the kernel in one call. Where io_uring is not permitted they go
/// one by one.
class uring_store {
public:
    /// Throws std::system_error.
    uring_store(const std::filesystem::path& path, byte_count capacity)
        : file_(path, capacity), ring_(std::make_unique<ring>()) {}

    [[nodiscard]] bool uses_ring() const noexcept { return ring_->usable; }

    io_result read(store_offset at, std::span<std::byte> in) noexcept { return file_.read(at, in); }
    io_result write(store_offset at, std::span<const std::byte> out) noexcept { return file_.write(at, out); }
    int discard(store_offset at, byte_count n) noexcept { return file_.discard(at, n); }
    int sync() noexcept { return file_.sync(); }

    void write_batch(std::span<write_request> requests) noexcept {
        const std::lock_guard guard(ring_->lock);
        while (!requests.empty()) {
            const std::size_t count = std::min<std::size_t>(requests.size(), depth);
            if (ring_->usable && requests.size() > 1) {
                through_ring(requests.first(count));
            }
            for (write_request& r : requests.first(count)) {
                if (!r.result.complete(r.data.size())) {
                    r.result = file_.write(r.offset, r.data);
                }
            }
            requests = requests.subspan(count);
        }
    }

private:
    static constexpr unsigned depth = 128;
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

    /// Tries all of them; those that fail, fall short or could not be submitted are left to plain writes.
    void through_ring(std::span<write_request> requests) noexcept {
        for (std::size_t i = 0; i < requests.size(); ++i) {
            const write_request& r = requests[i];
            io_uring_sqe* entry = ::io_uring_get_sqe(&ring_->state);
            ::io_uring_prep_write(entry, file_.fd(), r.data.data(), static_cast<unsigned>(r.data.size()),
                                  to_number(r.offset));
            ::io_uring_sqe_set_data64(entry, i);
        }
        std::size_t submitted = 0;
        while (submitted < requests.size()) {
            const int n = ::io_uring_submit(&ring_->state);
            if (n <= 0 && n != -EINTR && n != -EAGAIN && n != -EBUSY) {
                ring_->usable = false;  // its queue is in an unknown state: plain writes from now on
                break;
            }
            submitted += n > 0 ? static_cast<std::size_t>(n) : 0;
        }
        for (std::size_t seen = 0; seen < submitted;) {
            io_uring_cqe* done = nullptr;
            if (::io_uring_wait_cqe(&ring_->state, &done) != 0) {
                continue;
            }
            write_request& r = requests[static_cast<std::size_t>(done->user_data)];
            r.result = done->res < 0 ? io_result{0, -done->res} : io_result{static_cast<std::size_t>(done->res), 0};
            ::io_uring_cqe_seen(&ring_->state, done);
            ++seen;
        }
    }

    file_store file_;
    std::unique_ptr<ring> ring_;
};
static_assert(store<uring_store> && detail::batching<uring_store>);

#endif

}  // namespace varve::pager
