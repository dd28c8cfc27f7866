// What a user would do instead of a pager: an allocator that hands out pieces of a mapped file.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>
#include <system_error>

namespace bench {

/// A file, mapped, from whose beginning on memory is handed out; nothing comes back.
class mapped_file {
public:
    mapped_file(const char* path, std::size_t bytes) : bytes_(bytes) {
        const int fd = ::open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
            throw std::system_error(errno, std::generic_category(), path);
        }
        base_ = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
        if (base_ == MAP_FAILED) {
            throw std::system_error(errno, std::generic_category(), path);
        }
        ::madvise(base_, bytes, MADV_RANDOM);
        ::close(fd);
    }
    mapped_file(const mapped_file&) = delete;
    mapped_file& operator=(const mapped_file&) = delete;
    ~mapped_file() { ::munmap(base_, bytes_); }

    void* take(std::size_t bytes) {
        const std::size_t at = (used_ + alignof(std::max_align_t) - 1) & ~(alignof(std::max_align_t) - 1);
        if (at + bytes > bytes_) {
            throw std::bad_alloc();
        }
        used_ = at + bytes;
        return base_ + at;
    }

private:
    std::byte* base_ = nullptr;
    std::size_t bytes_;
    std::size_t used_ = 0;
};

template <class T>
struct file_allocator {
    using value_type = T;
    mapped_file* file;

    explicit file_allocator(mapped_file* f) : file(f) {}
    template <class U>
    file_allocator(const file_allocator<U>& other) : file(other.file) {}
    T* allocate(std::size_t n) { return static_cast<T*>(file->take(n * sizeof(T))); }
    void deallocate(T*, std::size_t) {}
    friend bool operator==(const file_allocator& a, const file_allocator& b) { return a.file == b.file; }
};

}  // namespace bench
