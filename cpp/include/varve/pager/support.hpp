// Small parts of the engine: buffers for pages on their way in, the gate that holds writers during a snapshot, and what
// ThreadSanitizer must be told.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "varve/pager/kernel.hpp"

#if defined(__SANITIZE_THREAD__)
#define VARVE_PAGER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VARVE_PAGER_TSAN 1
#endif
#endif

#ifdef VARVE_PAGER_TSAN
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}
#endif

namespace varve::pager::detail {

/// Reads of paged memory inside it are ordered after the program's writes by write protection, which ThreadSanitizer
/// cannot see.
class ordered_by_protection {
public:
#ifdef VARVE_PAGER_TSAN
    ordered_by_protection() noexcept {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    }
    ~ordered_by_protection() {
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
#else
    ordered_by_protection() noexcept = default;
    ~ordered_by_protection() = default;
#endif
    ordered_by_protection(const ordered_by_protection&) = delete;
    ordered_by_protection& operator=(const ordered_by_protection&) = delete;
};

/// Lends buffers of one size. Taking one is safe in a signal handler: it calls mmap at most, never malloc.
class staging {
public:
    explicit staging(byte_count size) noexcept : size_(size) {}
    staging(const staging&) = delete;
    staging& operator=(const staging&) = delete;
    ~staging() {
        for (auto& slot : slots_) {
            if (std::byte* free = slot.load(); free != nullptr) {
                ::munmap(free, size_.value);
            }
        }
    }

    class loan {
    public:
        explicit loan(staging& owner) noexcept : owner_(owner), buffer_(owner.buffer()) {}
        loan(const loan&) = delete;
        loan& operator=(const loan&) = delete;
        ~loan() {
            if (buffer_ == nullptr) {
                return;
            }
            for (auto& slot : owner_.slots_) {
                std::byte* expected = nullptr;
                if (slot.compare_exchange_strong(expected, buffer_)) {
                    return;
                }
            }
            ::munmap(buffer_, owner_.size_.value);
        }
        /// Null when the kernel has no memory left.
        [[nodiscard]] std::byte* get() const noexcept { return buffer_; }

    private:
        staging& owner_;
        std::byte* buffer_;
    };

    [[nodiscard]] loan take() noexcept { return loan(*this); }

private:
    [[nodiscard]] std::byte* buffer() noexcept {
        for (auto& slot : slots_) {
            if (slot.load(std::memory_order_relaxed) != nullptr) {
                if (std::byte* free = slot.exchange(nullptr); free != nullptr) {
                    return free;
                }
            }
        }
        void* fresh = ::mmap(nullptr, size_.value, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return fresh == MAP_FAILED ? nullptr : static_cast<std::byte*>(fresh);
    }

    byte_count size_;
    std::array<std::atomic<std::byte*>, 16> slots_{};
};

/// Lets writers pass until it is closed; closing waits for those inside.
class gate {
public:
    void enter() noexcept {
        for (;;) {
            while (closed_.load() != 0) {
                closed_.wait(1);
            }
            inside_.fetch_add(1);
            if (closed_.load() == 0) {
                return;
            }
            leave();
        }
    }
    void leave() noexcept {
        if (inside_.fetch_sub(1) == 1 && closed_.load() != 0) {
            inside_.notify_all();
        }
    }
    void close() noexcept {
        closed_.store(1);
        for (std::uint32_t now = inside_.load(); now != 0; now = inside_.load()) {
            inside_.wait(now);
        }
    }
    void open() noexcept {
        closed_.store(0);
        closed_.notify_all();
    }

private:
    alignas(64) std::atomic<std::uint32_t> inside_{0};
    std::atomic<std::uint32_t> closed_{0};
};

/// Collects ranges of pages and merges those that touch.
class extents {
public:
    extents(std::byte* base, std::size_t page_bytes) noexcept : base_(base), page_bytes_(page_bytes) {}

    /// Adds pages [first, last); ranges come in any order, and merge with the one before only.
    void add(std::size_t first, std::size_t last, std::size_t bridge = 0) noexcept {
        if (count_ != 0 && first >= last_ && first - last_ <= bridge) {
            list_[count_ - 1].bytes += (last - last_) * page_bytes_;
        } else {
            list_[count_++] = {base_ + first * page_bytes_, (last - first) * page_bytes_};
        }
        last_ = last;
    }
    [[nodiscard]] std::span<const kernel::extent> list() const noexcept { return {list_.data(), count_}; }

private:
    std::byte* base_;
    std::size_t page_bytes_;
    std::size_t count_ = 0;
    std::size_t last_ = 0;
    std::array<kernel::extent, 192> list_;
};

/// Calls `visit(first, last)` for each run of set bits; with `needed`, for those that contain one of these.
template <class Visitor>
void for_runs(std::uint64_t mask, std::uint64_t needed, Visitor visit) noexcept {
    while (mask != 0) {
        const auto first = static_cast<unsigned>(std::countr_zero(mask));
        const auto length = static_cast<unsigned>(std::countr_one(mask >> first));
        const std::uint64_t run = (length == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << length) - 1) << first;
        if ((run & needed) != 0) {
            visit(std::size_t{first}, std::size_t{first} + length);
        }
        mask &= ~run;
    }
}

}  // namespace varve::pager::detail
