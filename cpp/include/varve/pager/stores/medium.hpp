// What the stores that keep a file stand on: bytes at offsets, and a sync; and the file itself, locked.
#pragma once

#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <bit>
#include <concepts>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "varve/pager/kernel.hpp"
#include "varve/pager/store.hpp"
#include "varve/pager/stores/sums.hpp"

namespace varve::pager {

/// A file, or what stands for one. `sync` returns 0 when all that was written before will survive a power cut, or an
/// errno value: then nothing is known of what was written since the last one that returned 0. What was never written
/// reads as zero up to `size`, and not at all beyond it.
template <class M>
concept medium = std::movable<M> &&
    requires(M& m, std::uint64_t at, std::uint64_t bytes, std::span<std::byte> in, std::span<const std::byte> out) {
    { m.read(at, in) }
    noexcept->std::same_as<io_result>;
    { m.write(at, out) }
    noexcept->std::same_as<io_result>;
    { m.discard(at, bytes) }
    noexcept->std::same_as<int>;
    { m.sync() }
    noexcept->std::same_as<int>;
    { m.size() } -> std::same_as<std::uint64_t>;
    {m.resize(bytes)};
    { m.name() } -> std::same_as<std::string>;
};

/// Whether a store may begin a new file. With `attach`, one that is absent or empty is an error: a file that somebody
/// emptied does not pass for a new one.
enum class opening { attach_or_create, attach };

/// Whether the kernel keeps copies of a file's pages too. `none` is direct I/O: local memory is then all the memory
/// that pages take, where the kernel's copies would count against the same limit; transfers wait for the device.
enum class kernel_cache { kept, none };

/// A file that this process has to itself. While one of these exists, another for the same file, here or in another
/// process, is refused. The lock is flock's: a forked child that lives on keeps it.
class locked_file {
public:
    static constexpr std::size_t direct_alignment = 4096;

    /// Throws std::system_error; EBUSY when somebody else has it, EINVAL where the file system has no direct I/O. With
    /// kernel_cache::none, offsets, lengths and buffers are multiples of `direct_alignment`.
    locked_file(const std::filesystem::path& path, opening how, kernel_cache cache = kernel_cache::kept)
        : path_(std::filesystem::absolute(path)), state_(std::make_unique<state>()) {
        bool created = false;
        do {
            created = false;
            fd_ = kernel::descriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
            if (!fd_.open() && errno == ENOENT && how != opening::attach) {
                fd_ = kernel::descriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0600));
                created = fd_.open();
                if (!created && errno == EEXIST) {  // a link to nothing, or made by somebody between the two calls
                    fd_ = kernel::descriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC | O_CREAT, 0600));
                }
            }
            if (!fd_.open()) {
                raise(errno);
            }
            if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
                const int error = errno;
                if (error == EWOULDBLOCK) {
                    throw std::system_error(EBUSY, std::generic_category(),
                                            "varve: " + name() + " is in use by another store, here or elsewhere");
                }
                throw std::system_error(error, std::generic_category(), "varve: " + name() + " cannot be locked");
            }
            // Whoever had it may have put another file in its place while this one waited between the two calls.
        } while (!in_place());
        if (cache == kernel_cache::none && ::fcntl(fd_.get(), F_SETFL, O_DIRECT) != 0) {
            throw std::system_error(
                errno, std::generic_category(),
                "varve: the file system of " + name() + " has no direct I/O; hint: use kernel_cache::kept");
        }
        if (how == opening::attach && size() == 0) {
            throw std::system_error(ENODATA, std::generic_category(), "varve: " + name() + " is empty");
        }
        state_->reached.store(size());
        state_->emptied = !created && size() == 0;
    }

    io_result read(std::uint64_t at, std::span<std::byte> in) noexcept {
        for (std::size_t done = 0; done < in.size();) {
            const ssize_t got = ::pread(fd_.get(), in.data() + done, in.size() - done, static_cast<off_t>(at + done));
            if (got > 0) {
                done += static_cast<std::size_t>(got);
            } else if (got == 0 || errno != EINTR) {
                return {done, got == 0 ? 0 : errno};
            }
        }
        return {in.size(), 0};
    }
    io_result write(std::uint64_t at, std::span<const std::byte> out) noexcept {
        for (std::size_t done = 0; done < out.size();) {
            const ssize_t put =
                ::pwrite(fd_.get(), out.data() + done, out.size() - done, static_cast<off_t>(at + done));
            if (put >= 0) {
                done += static_cast<std::size_t>(put);
            } else if (errno != EINTR) {
                return {done, errno};
            }
        }
        reach(at + out.size());
        return {out.size(), 0};
    }
    int discard(std::uint64_t at, std::uint64_t bytes) noexcept {
        const int result = ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                                       static_cast<off_t>(bytes));
        return result == 0 ? 0 : errno;
    }
    /// ESTALE when the path names another file by now, or none: nobody would find what is made durable. EIO when the
    /// file was cut off.
    int sync() noexcept {
        if (::fdatasync(fd_.get()) != 0) {
            return errno;
        }
        struct stat status {};
        if (::fstat(fd_.get(), &status) != 0) {
            return errno;
        }
        if (static_cast<std::uint64_t>(status.st_size) < state_->reached.load()) {
            return EIO;
        }
        if (!in_place()) {
            return ESTALE;
        }
        return state_->named.load() ? 0 : sync_name();
    }
    /// Throws std::system_error.
    [[nodiscard]] std::uint64_t size() {
        struct stat status {};
        if (::fstat(fd_.get(), &status) != 0) {
            raise(errno);
        }
        return static_cast<std::uint64_t>(status.st_size);
    }
    /// The new part is a hole. Throws std::system_error.
    void resize(std::uint64_t bytes) {
        if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) {
            raise(errno);
        }
        state_->reached.store(bytes);
    }
    [[nodiscard]] std::string name() const { return path_.string(); }

    /// The same for as long as the machine runs and the file exists, whoever opens it; no other file has it. 0 where
    /// that cannot be known, and of a file that was there and empty when it was opened: it may have had other content.
    [[nodiscard]] std::uint64_t identity() const noexcept;

    [[nodiscard]] int fd() const noexcept { return fd_.get(); }
    /// Something else wrote up to `end`, through `fd`.
    void reach(std::uint64_t end) noexcept {
        std::uint64_t now = state_->reached.load(std::memory_order_relaxed);
        while (now < end && !state_->reached.compare_exchange_weak(now, end, std::memory_order_relaxed)) {
        }
    }

private:
    struct state {
        std::atomic<std::uint64_t> reached{0};  ///< the file is this long, or somebody cut it off
        std::atomic<bool> named{false};         ///< its name is durable
        bool emptied = false;                   ///< it was there before, without content
    };

    [[noreturn]] void raise(int error) const {
        throw std::system_error(error, std::generic_category(), "varve: " + name());
    }
    [[nodiscard]] bool in_place() const noexcept {
        struct stat here {};
        struct stat there {};
        return ::fstat(fd_.get(), &here) == 0 && ::stat(path_.c_str(), &there) == 0 && here.st_dev == there.st_dev &&
               here.st_ino == there.st_ino;
    }
    /// A file that was created is found after a power cut if its folder is durable too.
    int sync_name() noexcept {
        try {
            const std::filesystem::path folder = path_.parent_path();
            const kernel::descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
            if (!directory.open() || ::fsync(directory.get()) != 0) {
                return errno;
            }
        } catch (const std::bad_alloc&) {
            return ENOMEM;
        }
        state_->named.store(true);
        return 0;
    }

    std::filesystem::path path_;
    kernel::descriptor fd_;
    std::unique_ptr<state> state_;
};
static_assert(medium<locked_file>);

namespace detail {

/// A number that nobody else draws; never 0.
[[nodiscard]] inline std::uint64_t random_number() {
    std::uint64_t n = 0;
    while (n == 0) {
        if (::getrandom(&n, sizeof n, 0) < 0 && errno != EINTR) {
            throw std::system_error(errno, std::generic_category(), "varve: getrandom");
        }
    }
    return n;
}

}  // namespace detail

inline std::uint64_t locked_file::identity() const noexcept {
    struct identifying {
        std::uint64_t device_major, device_minor, inode, born, born_nanoseconds, unused[3];
    } it{};
    struct statx status {};
    if (state_->emptied) {
        return 0;
    }
    // Numbers of inodes are used again: only the time of birth tells two files apart.
    if (::statx(fd_.get(), "", AT_EMPTY_PATH, STATX_INO | STATX_BTIME, &status) != 0 ||
        (status.stx_mask & STATX_BTIME) == 0) {
        return 0;
    }
    it.device_major = status.stx_dev_major;
    it.device_minor = status.stx_dev_minor;
    it.inode = status.stx_ino;
    it.born = static_cast<std::uint64_t>(status.stx_btime.tv_sec);
    it.born_nanoseconds = status.stx_btime.tv_nsec;
    // What was written and not synced does not outlive the machine's run.
    char boot[64]{};
    const kernel::descriptor id(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    if (!id.open() || ::read(id.get(), boot, sizeof boot) <= 0) {
        return 0;
    }
    return detail::sum_of(std::as_bytes(std::span(&it, 1))) ^ detail::sum_of(std::as_bytes(std::span(boot)));
}

}  // namespace varve::pager
