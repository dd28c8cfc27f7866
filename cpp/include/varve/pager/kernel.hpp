// The kernel's interfaces that the pager stands on, wrapped once: no other file of the pager makes a raw call of them.
// Features are looked for, never versions; constants younger than the oldest supported headers are repeated here with
// the commit that brought them.
#pragma once

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <system_error>
#include <utility>

#include "varve/core/quantities.hpp"

namespace varve::pager::kernel {

/// UFFD_FEATURE_POISON and UFFDIO_POISON: Linux commit fc71884a5f59.
inline constexpr std::uint64_t feature_poison = std::uint64_t{1} << 14;
struct poison_request {
    uffdio_range range;
    std::uint64_t mode;
    std::int64_t updated;
};
inline constexpr unsigned long poison_ioctl = _IOWR(0xAA, 0x08, poison_request);
/// USERFAULTFD_IOC_NEW of /dev/userfaultfd: Linux commit 2d5de004e009.
inline constexpr unsigned long new_ioctl = _IO(0xAA, 0x00);
/// UFFD_USER_MODE_ONLY: Linux commit 37cd0575b851; does without privilege, and without faults of system calls.
inline constexpr int user_mode_only = 1;
/// PIDFD_SELF_THREAD_GROUP.
inline constexpr int pidfd_self = -10001;

/// An owned file descriptor.
class descriptor {
public:
    descriptor() noexcept = default;
    explicit descriptor(int number) noexcept : number_(number) {}
    descriptor(descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    descriptor& operator=(descriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~descriptor() {
        if (number_ >= 0) {
            ::close(number_);
        }
    }
    [[nodiscard]] int get() const noexcept { return number_; }
    [[nodiscard]] bool open() const noexcept { return number_ >= 0; }

private:
    int number_ = -1;
};

/// A range of addresses in whole pages.
struct extent {
    std::byte* start = nullptr;
    std::size_t bytes = 0;
};

/// What userfaultfd offers here, and whether faults of system calls reach it.
struct abilities {
    std::uint64_t features = 0;
    bool system_calls = false;
    [[nodiscard]] bool has(std::uint64_t feature) const noexcept { return (features & feature) == feature; }
};

/// A userfaultfd. All operations return 0 or an errno value.
class userfault {
public:
    userfault() noexcept = default;

    /// Opens one with those of `wanted` that the kernel has. Throws std::system_error where none is permitted.
    explicit userfault(std::uint64_t wanted) {
        bool calls = false;
        descriptor probe = any(calls);
        uffdio_api offer{};
        offer.api = UFFD_API;
        if (::ioctl(probe.get(), UFFDIO_API, &offer) != 0) {
            throw std::system_error(errno, std::generic_category(), "varve: userfaultfd handshake");
        }
        fd_ = any(calls);
        uffdio_api use{};
        use.api = UFFD_API;
        use.features = wanted & offer.features;
        if (::ioctl(fd_.get(), UFFDIO_API, &use) != 0) {
            throw std::system_error(errno, std::generic_category(), "varve: userfaultfd handshake");
        }
        able_ = {wanted & offer.features, calls};
    }

    [[nodiscard]] const abilities& able() const noexcept { return able_; }
    [[nodiscard]] int fd() const noexcept { return fd_.get(); }

    [[nodiscard]] int watch(extent range) const noexcept {
        uffdio_register request{};
        request.range = to_range(range);
        request.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP;
        if (::ioctl(fd_.get(), UFFDIO_REGISTER, &request) != 0) {
            return errno;
        }
        constexpr auto needed = (std::uint64_t{1} << _UFFDIO_COPY) | (std::uint64_t{1} << _UFFDIO_WRITEPROTECT);
        return (request.ioctls & needed) == needed ? 0 : EOPNOTSUPP;
    }

    /// Maps copies of `source` at `target`; pages that are mapped already are an error (EEXIST). Wakes who waits.
    [[nodiscard]] int copy(extent target, const std::byte* source, bool writable) const noexcept {
        while (target.bytes != 0) {
            uffdio_copy request{};
            request.dst = address(target.start);
            request.src = reinterpret_cast<std::uintptr_t>(source);
            request.len = target.bytes;
            request.mode = writable ? 0 : UFFDIO_COPY_MODE_WP;
            if (::ioctl(fd_.get(), UFFDIO_COPY, &request) == 0) {
                return 0;
            }
            const int error = errno;
            if (request.copy > 0) {
                target.start += request.copy;
                target.bytes -= static_cast<std::size_t>(request.copy);
                source += request.copy;
            }
            if (error != EAGAIN) {
                return error;
            }
        }
        return 0;
    }

    /// Write-protects, or lets writes through and wakes who waits.
    [[nodiscard]] int protect(extent range, bool on) const noexcept {
        uffdio_writeprotect request{};
        request.range = to_range(range);
        request.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
        int result = 0;
        do {
            result = ::ioctl(fd_.get(), UFFDIO_WRITEPROTECT, &request);
        } while (result != 0 && errno == EAGAIN);
        return result == 0 ? 0 : errno;
    }

    /// Makes accesses to absent pages raise SIGBUS (a system call sees EFAULT), and wakes who waits.
    [[nodiscard]] int poison(extent range) const noexcept {
        poison_request request{};
        request.range = to_range(range);
        int result = 0;
        do {
            result = ::ioctl(fd_.get(), poison_ioctl, &request);
        } while (result != 0 && errno == EAGAIN);
        return result == 0 ? 0 : errno;
    }

    void wake(extent range) const noexcept {
        uffdio_range request = to_range(range);
        ::ioctl(fd_.get(), UFFDIO_WAKE, &request);
    }

private:
    static std::uint64_t address(const std::byte* p) noexcept { return reinterpret_cast<std::uintptr_t>(p); }
    static uffdio_range to_range(extent e) noexcept { return {address(e.start), e.bytes}; }

    static descriptor any(bool& system_calls) {
        constexpr int flags = O_CLOEXEC | O_NONBLOCK;
        system_calls = true;
        if (const long fd = ::syscall(SYS_userfaultfd, flags); fd >= 0) {
            return descriptor(static_cast<int>(fd));
        }
        const int refused = errno;
        if (descriptor device(::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC)); device.open()) {
            if (const int fd = ::ioctl(device.get(), new_ioctl, flags); fd >= 0) {
                return descriptor(fd);
            }
        }
        system_calls = false;
        if (const long fd = ::syscall(SYS_userfaultfd, flags | user_mode_only); fd >= 0) {
            return descriptor(static_cast<int>(fd));
        }
        throw std::system_error(refused, std::generic_category(),
                                "varve: userfaultfd is not permitted; hint: use pager::simulator");
    }

    descriptor fd_;
    abilities able_;
};

/// Whether the kernel forgets many ranges of the caller in one call, the caller naming itself by PIDFD_SELF
/// (Linux 6.14):
[[nodiscard]] inline bool forgets_together() noexcept {
    static const bool works = [] {
        void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED) {
            return false;
        }
        const iovec vector{page, 4096};
        const long done = ::syscall(SYS_process_madvise, pidfd_self, &vector, 1, MADV_DONTNEED, 0);
        ::munmap(page, 4096);
        return done == 4096;
    }();
    return works;
}

/// Forgets the content of every extent: in one call, which flushes the TLB once, or else in one for each.
inline void forget(std::span<const extent> extents) noexcept {
    while (extents.size() > 1 && forgets_together()) {
        iovec vectors[128];
        const std::size_t count = extents.size() < 128 ? extents.size() : 128;
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < count; ++i) {
            vectors[i] = {extents[i].start, extents[i].bytes};
            bytes += extents[i].bytes;
        }
        if (::syscall(SYS_process_madvise, pidfd_self, vectors, count, MADV_DONTNEED, 0) != static_cast<long>(bytes)) {
            break;
        }
        extents = extents.subspan(count);
    }
    for (const extent& e : extents) {
        ::madvise(e.start, e.bytes, MADV_DONTNEED);
    }
}

/// Private memory, zero at first, aligned to `alignment` bytes.
class memory {
public:
    memory() noexcept = default;
    memory(byte_count size, byte_count alignment) : bytes_(size.value), mapped_(size.value + alignment.value) {
        void* raw =
            ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (raw == MAP_FAILED) {
            throw std::system_error(errno, std::generic_category(), "varve: mmap");
        }
        raw_ = static_cast<std::byte*>(raw);
        const auto address = reinterpret_cast<std::uintptr_t>(raw_);
        start_ = raw_ + (alignment.value - address % alignment.value) % alignment.value;
    }
    memory(memory&& other) noexcept
        : raw_(std::exchange(other.raw_, nullptr)),
          start_(std::exchange(other.start_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          mapped_(std::exchange(other.mapped_, 0)) {}
    memory& operator=(memory&& other) noexcept {
        std::swap(raw_, other.raw_);
        std::swap(start_, other.start_);
        std::swap(bytes_, other.bytes_);
        std::swap(mapped_, other.mapped_);
        return *this;
    }
    ~memory() {
        if (raw_ != nullptr) {
            ::munmap(raw_, mapped_);
        }
    }
    [[nodiscard]] std::byte* start() const noexcept { return start_; }
    [[nodiscard]] extent all() const noexcept { return {start_, bytes_}; }
    /// A forked child shall crash on a paged range rather than read zeros from it: it has no pager.
    void keep_from_children() const noexcept { ::madvise(start_, bytes_, MADV_DONTFORK); }
    void prefer_huge_pages() const noexcept { ::madvise(start_, bytes_, MADV_HUGEPAGE); }
    /// Where the kernel cannot poison: an access raises SIGSEGV.
    static void forbid(extent e, bool on) noexcept {
        ::mprotect(e.start, e.bytes, on ? PROT_NONE : PROT_READ | PROT_WRITE);
    }

private:
    std::byte* raw_ = nullptr;
    std::byte* start_ = nullptr;
    std::size_t bytes_ = 0;
    std::size_t mapped_ = 0;
};

}  // namespace varve::pager::kernel
