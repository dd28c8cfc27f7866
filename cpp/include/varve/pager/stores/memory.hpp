// Stores in the memory of this process.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "varve/pager/store.hpp"
#include "varve/pager/support.hpp"

namespace varve::pager {

namespace detail {

/// Copies past the caches where the machine can: what leaves will not be read soon, and its old content is not needed.
inline void copy_out(std::byte* to, const std::byte* from, std::size_t n) noexcept {
#if defined(__SSE2__) && !defined(VARVE_PAGER_TSAN)
    if (reinterpret_cast<std::uintptr_t>(to) % 64 == 0 && n % 64 == 0) {
        for (std::size_t i = 0; i < n; i += 64) {
            for (std::size_t k = 0; k < 64; k += 16) {
                _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + k),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i + k)));
            }
        }
        _mm_sfence();
        return;
    }
#endif
    std::memcpy(to, from, n);
}

}  // namespace detail

/// Plain memory of a fixed capacity, in bytes. Nothing outlives the process. Pages are mapped straight from it.
class memory_store {
public:
    /// Throws std::system_error. Memory is committed when it is first written, by 2 MiB where the kernel has huge pages
    /// to give: a page on its way in or out is rarely in the TLB.
    explicit memory_store(byte_count capacity) : memory_(capacity, {std::size_t{2} << 20}), capacity_(capacity) {
        memory_.prefer_huge_pages();
    }

    io_result read(store_offset at, std::span<std::byte> in) noexcept {
        const std::size_t n = within(at, in.size());
        std::memcpy(in.data(), memory_.start() + to_number(at), n);
        return {n, 0};
    }
    io_result write(store_offset at, std::span<const std::byte> out) noexcept {
        const std::size_t n = within(at, out.size());
        if (n == out.size()) {
            detail::copy_out(memory_.start() + to_number(at), out.data(), n);
        }
        return {n, n == out.size() ? 0 : ENOSPC};
    }
    std::span<const std::byte> view(store_offset at, byte_count n) noexcept {
        return {memory_.start() + to_number(at), within(at, n.value)};
    }
    int discard(store_offset at, byte_count n) noexcept {
        const kernel::extent gone{memory_.start() + to_number(at), within(at, n.value)};
        kernel::forget({&gone, 1});
        return 0;
    }
    int sync() noexcept { return 0; }

private:
    [[nodiscard]] std::size_t within(store_offset at, std::size_t n) const noexcept {
        return to_number(at) >= capacity_.value ? 0 : std::min<std::size_t>(n, capacity_.value - to_number(at));
    }
    kernel::memory memory_;
    byte_count capacity_;
};
static_assert(store<memory_store> && detail::viewable<memory_store> && detail::discarding<memory_store>);

/// Memory without a fixed capacity that comes in chunks, on first write: zero until then. Nothing outlives the process.
class sparse_store {
public:
    /// `limit` is the highest offset plus one that may be written.
    explicit sparse_store(byte_count limit)
        : count_((limit.value + chunk - 1) / chunk), chunks_(std::make_unique<std::atomic<std::byte*>[]>(count_)) {}
    sparse_store(sparse_store&& other) noexcept
        : count_(std::exchange(other.count_, 0)), chunks_(std::move(other.chunks_)) {}
    sparse_store& operator=(sparse_store&&) = delete;
    ~sparse_store() {
        for (std::size_t i = 0; i < count_; ++i) {
            if (std::byte* p = chunks_[i].load(); p != nullptr) {
                ::munmap(p, chunk);
            }
        }
    }

    io_result read(store_offset at, std::span<std::byte> in) noexcept {
        for (std::size_t done = 0; done < in.size();) {
            const piece p = find(at + done, in.size() - done);
            if (p.index >= count_) {
                return {done, 0};
            }
            if (const std::byte* from = chunks_[p.index].load(std::memory_order_acquire); from != nullptr) {
                std::memcpy(in.data() + done, from + p.offset, p.length);
            } else {
                std::memset(in.data() + done, 0, p.length);
            }
            done += p.length;
        }
        return {in.size(), 0};
    }

    io_result write(store_offset at, std::span<const std::byte> out) noexcept {
        for (std::size_t done = 0; done < out.size();) {
            const piece p = find(at + done, out.size() - done);
            std::byte* to = p.index >= count_ ? nullptr : chunk_at(p.index);
            if (to == nullptr) {
                return {done, p.index >= count_ ? ENOSPC : ENOMEM};
            }
            std::memcpy(to + p.offset, out.data() + done, p.length);
            done += p.length;
        }
        return {out.size(), 0};
    }

    int discard(store_offset at, byte_count n) noexcept {
        for (std::size_t done = 0; done < n.value;) {
            const piece p = find(at + done, n.value - done);
            if (p.index >= count_) {
                return 0;
            }
            if (std::byte* from = chunks_[p.index].load(); from != nullptr) {
                const kernel::extent gone{from + p.offset, p.length};
                kernel::forget({&gone, 1});
            }
            done += p.length;
        }
        return 0;
    }
    int sync() noexcept { return 0; }

    /// Bytes of chunks that exist.
    [[nodiscard]] byte_count committed() const noexcept {
        std::size_t n = 0;
        for (std::size_t i = 0; i < count_; ++i) {
            n += chunks_[i].load() != nullptr ? chunk : 0;
        }
        return {n};
    }

private:
    static constexpr std::size_t chunk = std::size_t{2} << 20;
    struct piece {
        std::size_t index, offset, length;
    };
    static piece find(store_offset at, std::size_t n) noexcept {
        const std::size_t offset = to_number(at) % chunk;
        return {to_number(at) / chunk, offset, std::min(n, chunk - offset)};
    }
    std::byte* chunk_at(std::size_t index) noexcept {
        std::byte* there = chunks_[index].load(std::memory_order_acquire);
        if (there != nullptr) {
            return there;
        }
        void* raw = ::mmap(nullptr, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (raw == MAP_FAILED) {
            return nullptr;
        }
        if (!chunks_[index].compare_exchange_strong(there, static_cast<std::byte*>(raw))) {
            ::munmap(raw, chunk);
            return there;
        }
        return static_cast<std::byte*>(raw);
    }
    std::size_t count_;
    std::unique_ptr<std::atomic<std::byte*>[]> chunks_;
};
static_assert(store<sparse_store> && detail::discarding<sparse_store>);

}  // namespace varve::pager
