// The only place of this library, the pager apart, that maps memory.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <utility>

#include "varve/core/errors.hpp"
#include "varve/core/quantities.hpp"

namespace varve {

/// Owns a range of private zero pages. Memory is committed when it is first written, so reserving costs addresses only.
class mapping {
public:
    mapping() noexcept = default;

    /// Reserves `size` bytes aligned to `alignment`, a power of two of at least 4096. Throws mapping_error.
    explicit mapping(byte_count size, byte_count alignment = {4096}) : length_(size.value) {
        if (length_ == 0) {
            return;
        }
        const std::size_t slack = alignment.value > 4096 ? alignment.value : 0;
        void* raw = ::mmap(nullptr, length_ + slack, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (raw == MAP_FAILED) {
            detail::raise(mapping_error(errno));
        }
        raw_ = static_cast<std::byte*>(raw);
        raw_length_ = length_ + slack;
        const auto address = reinterpret_cast<std::uintptr_t>(raw_);
        base_ = raw_ + (slack == 0 ? 0 : (alignment.value - address % alignment.value) % alignment.value);
    }

    mapping(mapping&& other) noexcept
        : raw_(std::exchange(other.raw_, nullptr)),
          raw_length_(std::exchange(other.raw_length_, 0)),
          base_(std::exchange(other.base_, nullptr)),
          length_(std::exchange(other.length_, 0)) {}

    mapping& operator=(mapping&& other) noexcept {
        std::swap(raw_, other.raw_);
        std::swap(raw_length_, other.raw_length_);
        std::swap(base_, other.base_);
        std::swap(length_, other.length_);
        return *this;
    }

    ~mapping() {
        if (raw_ != nullptr) {
            ::munmap(raw_, raw_length_);
        }
    }

    [[nodiscard]] std::byte* base() const noexcept { return base_; }
    [[nodiscard]] byte_count size() const noexcept { return {length_}; }

    /// Lets the kernel back the range with huge pages where it can: fewer misses in the translation buffer, but memory
    /// comes and goes in 2 MiB.
    void allow_huge_pages() const noexcept { ::madvise(base_, length_, MADV_HUGEPAGE); }

    /// Gives the memory of a sub-range back to the kernel; it reads as zero afterwards.
    void forget(std::byte* start, byte_count size) const noexcept { ::madvise(start, size.value, MADV_DONTNEED); }

private:
    std::byte* raw_ = nullptr;
    std::size_t raw_length_ = 0;
    std::byte* base_ = nullptr;
    std::size_t length_ = 0;
};

}  // namespace varve
