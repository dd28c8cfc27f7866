// A pager on paper: the memory stays where it is, and every access through the space's pointer type is checked against
// a model of a bounded page buffer. Counts depend on nothing but the sequence of accesses, and no privilege is needed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <type_traits>
#include <vector>

#include "varve/space/plain_space.hpp"

namespace varve {

/// Which page leaves when the buffer is full.
enum class replacement {
    clock,  ///< second chance: the hand spares pages touched since it last passed
    fifo    ///< as UMap does: at 90 % full the oldest pages leave until it is 70 % full
};

/// Page traffic since counting began.
struct page_traffic {
    std::uint64_t reads = 0;   ///< pages fetched into the buffer
    std::uint64_t writes = 0;  ///< dirty pages written back to make room
    std::uint64_t dirty = 0;   ///< pages in the buffer that are still to be written
};

/// The model of the buffer. One is active per thread of execution that counts; others cost one compare per access.
class page_simulation {
public:
    page_simulation(const std::byte* base, byte_count page, page_count pages, page_count buffer, replacement policy)
        : base_(reinterpret_cast<std::uintptr_t>(base)),
          shift_(static_cast<unsigned>(std::countr_zero(page.value))),
          length_(pages.value << shift_),
          buffer_(buffer.value == 0 ? 1 : buffer.value),
          policy_(policy),
          state_(pages.value) {
        ring_.reserve(2 * std::min(buffer_, pages.value) + 2);  // so that counting does not allocate
    }

    void touch(const void* address) noexcept {
        const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(address) - base_;
        if (offset >= length_) {
            return;
        }
        std::uint8_t& state = state_[offset >> shift_];
        if ((state & present) == 0) {
            ++traffic_.reads;
            insert(offset >> shift_);
        }
        state |= present | referenced;
    }

    /// Marks the pages of [address, address + size) as written; they count as touched too.
    void wrote(const void* address, byte_count size) noexcept {
        const auto* first = static_cast<const std::byte*>(address);
        for (std::size_t done = 0; done < size.value;) {
            touch(first + done);
            const std::uintptr_t offset = reinterpret_cast<std::uintptr_t>(first + done) - base_;
            if (offset >= length_) {
                return;
            }
            std::uint8_t& state = state_[offset >> shift_];
            traffic_.dirty += (state & dirty) == 0 ? 1 : 0;
            state |= dirty;
            done += (std::size_t{1} << shift_) - (offset & ((std::size_t{1} << shift_) - 1));
        }
    }

    [[nodiscard]] page_traffic traffic() const noexcept { return traffic_; }

    /// The model that accesses of this thread are checked against, or null.
    static page_simulation*& active() noexcept {
        thread_local page_simulation* current = nullptr;
        return current;
    }

private:
    static constexpr std::uint8_t present = 1, referenced = 2, dirty = 4;

    void insert(std::size_t page) {
        if (policy_ == replacement::fifo) {
            ring_.push_back(page);
            if ((ring_.size() - head_) * 10 >= buffer_ * 9) {
                while ((ring_.size() - head_) * 10 > buffer_ * 7 && ring_.size() - head_ > 1) {
                    evict(ring_[head_++]);
                }
            }
            if (head_ > buffer_) {
                ring_.erase(ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(head_));
                head_ = 0;
            }
            return;
        }
        if (ring_.size() < buffer_) {
            ring_.push_back(page);
            return;
        }
        while ((state_[ring_[head_]] & referenced) != 0) {
            state_[ring_[head_]] &= static_cast<std::uint8_t>(~referenced);
            head_ = (head_ + 1) % ring_.size();
        }
        evict(ring_[head_]);
        ring_[head_] = page;
        head_ = (head_ + 1) % ring_.size();
    }

    void evict(std::size_t page) noexcept {
        if ((state_[page] & dirty) != 0) {
            ++traffic_.writes;
            --traffic_.dirty;
        }
        state_[page] = 0;
    }

    std::uintptr_t base_;
    unsigned shift_;
    std::size_t length_;
    std::size_t buffer_;
    replacement policy_;
    std::vector<std::uint8_t> state_;
    std::vector<std::size_t> ring_;
    std::size_t head_ = 0;
    page_traffic traffic_;
};

/// The pointer type of simulated_space: a plain pointer that reports the page of every object it is followed to.
template <class T>
class simulated_ptr {
public:
    using element_type = T;
    using value_type = std::remove_cv_t<T>;
    using difference_type = std::ptrdiff_t;
    using pointer = simulated_ptr;
    using reference = std::add_lvalue_reference_t<T>;
    using iterator_category = std::random_access_iterator_tag;
    template <class U>
    using rebind = simulated_ptr<U>;

    simulated_ptr() noexcept = default;
    simulated_ptr(std::nullptr_t) noexcept {}
    explicit simulated_ptr(T* raw) noexcept : raw_(raw) {}
    template <class U>
        requires std::is_convertible_v<U*, T*> simulated_ptr(simulated_ptr<U> other)
    noexcept : raw_(other.untouched()) {}
    template <class U>
        requires(!std::is_convertible_v<U*, T*> && requires(U * u) { static_cast<T*>(u); })
    explicit simulated_ptr(simulated_ptr<U> other) noexcept : raw_(static_cast<T*>(other.untouched())) {}

    template <class U = T>
        requires(!std::is_void_v<U>)
    static simulated_ptr pointer_to(U& object) noexcept { return simulated_ptr(std::addressof(object)); }

    /// Reports an access at `address`, for objects larger than a page.
    static void touch(const void* address) noexcept {
        if (page_simulation* model = page_simulation::active(); model != nullptr) [[unlikely]] {
            model->touch(address);
        }
    }

    [[nodiscard]] T* untouched() const noexcept { return raw_; }
    [[nodiscard]] T* operator->() const noexcept { return touch(raw_), raw_; }
    [[nodiscard]] reference operator*() const noexcept requires(!std::is_void_v<T>) { return touch(raw_), *raw_; }
    [[nodiscard]] reference operator[](difference_type i) const noexcept requires(!std::is_void_v<T>) {
        return *(*this + i);
    }
    explicit operator bool() const noexcept { return raw_ != nullptr; }

    simulated_ptr& operator+=(difference_type n) noexcept { return raw_ += n, *this; }
    simulated_ptr& operator-=(difference_type n) noexcept { return raw_ -= n, *this; }
    simulated_ptr& operator++() noexcept { return ++raw_, *this; }
    simulated_ptr& operator--() noexcept { return --raw_, *this; }
    simulated_ptr operator++(int) noexcept { return simulated_ptr(raw_++); }
    simulated_ptr operator--(int) noexcept { return simulated_ptr(raw_--); }
    friend simulated_ptr operator+(simulated_ptr p, difference_type n) noexcept { return p += n; }
    friend simulated_ptr operator+(difference_type n, simulated_ptr p) noexcept { return p += n; }
    friend simulated_ptr operator-(simulated_ptr p, difference_type n) noexcept { return p -= n; }
    friend difference_type operator-(simulated_ptr a, simulated_ptr b) noexcept { return a.raw_ - b.raw_; }
    friend bool operator==(simulated_ptr a, simulated_ptr b) noexcept { return a.raw_ == b.raw_; }
    friend bool operator==(simulated_ptr a, std::nullptr_t) noexcept { return a.raw_ == nullptr; }
    friend auto operator<=>(simulated_ptr a, simulated_ptr b) noexcept { return a.raw_ <=> b.raw_; }

private:
    T* raw_ = nullptr;
};

/// Plain memory whose accesses are counted while a counting_scope lives.
class simulated_space : public plain_space {
public:
    using plain_space::plain_space;
    template <class T>
    using pointer = simulated_ptr<T>;

    /// Counts what this thread touches in the space while it lives, from a cold start: every page is paged out first.
    class counting_scope {
    public:
        counting_scope(const simulated_space& space, page_count buffer, replacement policy = replacement::clock)
            : model_(space.base(), space.page_bytes(), space.pages(), buffer, policy) {
            page_simulation::active() = &model_;
        }
        counting_scope(const counting_scope&) = delete;
        counting_scope& operator=(const counting_scope&) = delete;
        ~counting_scope() { page_simulation::active() = nullptr; }

        [[nodiscard]] page_traffic traffic() const noexcept { return model_.traffic(); }
        void wrote(const void* address, byte_count size) noexcept { model_.wrote(address, size); }

    private:
        page_simulation model_;
    };
};

static_assert(swap_space<simulated_space>);

}  // namespace varve

/// Conversion to a plain pointer is not an access.
template <class T>
struct std::pointer_traits<varve::simulated_ptr<T>> {
    using pointer = varve::simulated_ptr<T>;
    using element_type = T;
    using difference_type = std::ptrdiff_t;
    template <class U>
    using rebind = varve::simulated_ptr<U>;
    static T* to_address(pointer p) noexcept { return p.untouched(); }
    template <class U = T>
        requires(!std::is_void_v<U>)
    static pointer pointer_to(U& object) noexcept { return pointer(std::addressof(object)); }
};
