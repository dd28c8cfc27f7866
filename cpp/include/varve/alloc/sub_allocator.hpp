// A standard allocator that stands for one part of a heap, or for one page of it.
#pragma once

#include <optional>
#include <tuple>
#include <utility>

#include "varve/alloc/heap.hpp"
#include "varve/core/errors.hpp"

namespace varve {

template <class T, swap_space Space>
class collective_allocator;

/// A handle. One that stands for a page pins the page while it lives and keeps the heap alive, so it can neither leak
/// nor dangle. Two handles of one heap are equal: each can deallocate what the other allocated.
template <class T, swap_space Space = plain_space>
class sub_allocator {
public:
    using value_type = T;
    using pointer = space_pointer_t<Space, T>;
    using const_pointer = space_pointer_t<Space, const T>;
    using void_pointer = space_pointer_t<Space, void>;
    using const_void_pointer = space_pointer_t<Space, const void>;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;
    template <class U>
    struct rebind {
        using other = sub_allocator<U, Space>;
    };

    template <class U>
    sub_allocator(const sub_allocator<U, Space>& other)
        : sub_allocator(other.heap_, other.part_, other.page_, other.tag_) {
        keep();
    }
    sub_allocator(const sub_allocator& other) : sub_allocator(other.heap_, other.part_, other.page_, other.tag_) {
        keep();
    }
    /// A moved-from handle stands for the same part: standard containers go on using the allocator they moved from.
    sub_allocator& operator=(const sub_allocator& other) {
        sub_allocator copy(other);
        swap(copy);
        return *this;
    }
    ~sub_allocator() {
        if (part_ == part::page) {
            heap_->swappable().unpin(page_);
        }
    }

    /// Throws out_of_room.
    [[nodiscard]] pointer allocate(std::size_t n) {
        if (pointer p = try_allocate(n); p != nullptr) {
            return p;
        }
        detail::raise(out_of_room());
    }

    /// Null if there is no room in this part.
    [[nodiscard]] pointer try_allocate(std::size_t n) {
        return static_cast<pointer>(to_pointer<T>(raw_allocate<T>(n)));
    }

    void deallocate(pointer p, std::size_t n) noexcept {
        heap_->deallocate(std::to_address(p), {n * sizeof(T)}, alignof(T));
    }

    /// Storage for several objects of several types in this part, all or nothing.
    template <class... R>
        requires(detail::is_request<R>&&...)
    [[nodiscard]] std::optional<std::tuple<space_pointer_t<Space, typename R::type>...>> try_allocate_all(R... wanted) {
        std::tuple<typename R::type*...> raw{};
        const bool complete = [&]<std::size_t... I>(std::index_sequence<I...>) {
            return ((std::get<I>(raw) = raw_allocate<typename R::type>(wanted.count)) && ...);
        }
        (std::index_sequence_for<R...>());
        if (complete) {
            return std::apply(
                [](auto*... p) { return std::tuple(to_pointer<std::remove_pointer_t<decltype(p)>>(p)...); }, raw);
        }
        [&]<std::size_t... I>(std::index_sequence<I...>) {
            (free_if(std::get<I>(raw), wanted.count), ...);
        }
        (std::index_sequence_for<R...>());
        return std::nullopt;
    }

    /// Is the address in this part (or on this page)? Touches no paged memory.
    [[nodiscard]] bool contains(const void* address) const noexcept {
        switch (part_) {
            case part::local:
                return heap_->is_local(address);
            case part::plain:
                return heap_->is_swappable(address);
            case part::page:
                return heap_->is_swappable(address) && heap_->swappable().page_of(address) == page_;
        }
        return false;
    }

    /// How full the page is; of a part without a page: pages in use of pages there are.
    [[nodiscard]] occupancy how_full() const noexcept {
        switch (part_) {
            case part::local:
                return of_area(heap_->local());
            case part::plain:
                return of_area(heap_->swappable());
            case part::page:
                break;
        }
        return heap_->swappable().how_full(page_);
    }

    /// The page that this handle pins, or no_page.
    [[nodiscard]] page_index page() const noexcept { return part_ == part::page ? page_ : no_page; }

    template <class U>
    friend bool operator==(const sub_allocator& a, const sub_allocator<U, Space>& b) noexcept {
        return a.same_heap(b);
    }

private:
    template <class, swap_space>
    friend class sub_allocator;
    template <class, swap_space>
    friend class collective_allocator;

    enum class part : std::uint8_t { local, plain, page };

    /// Takes over one pin where `p` is a page.
    sub_allocator(std::shared_ptr<heap<Space>> h, part p, page_index page, owner_tag tag) noexcept
        : heap_(std::move(h)), page_(page), tag_(tag), part_(p) {}
    template <class OtherPart>
    sub_allocator(std::shared_ptr<heap<Space>> h, OtherPart p, page_index page, owner_tag tag) noexcept
        : sub_allocator(std::move(h), static_cast<part>(p), page, tag) {}

    void keep() {
        if (part_ == part::page) {
            VARVE_TRY {
                heap_->swappable().pin(page_);
            }
            VARVE_CATCH(...) {
                part_ = part::plain;  // the destructor of a delegating constructor runs: nothing to unpin
                VARVE_RETHROW;
            }
        }
    }

    template <class U>
    [[nodiscard]] bool same_heap(const sub_allocator<U, Space>& other) const noexcept {
        return heap_ == other.heap_;
    }

    void swap(sub_allocator& other) noexcept {
        heap_.swap(other.heap_);
        std::swap(page_, other.page_);
        std::swap(tag_, other.tag_);
        std::swap(part_, other.part_);
    }

    template <class U>
    [[nodiscard]] U* raw_allocate(std::size_t n) {
        if (n > static_cast<std::size_t>(-1) / 2 / sizeof(U)) {
            return nullptr;
        }
        const byte_count size{n * sizeof(U)};
        switch (part_) {
            case part::local:
                return static_cast<U*>(heap_->local().allocate(size, alignof(U), tag_));
            case part::plain:
                return static_cast<U*>(heap_->swappable().allocate(size, alignof(U), tag_));
            case part::page:
                return static_cast<U*>(heap_->swappable().allocate_on(page_, size, alignof(U), tag_));
        }
        return nullptr;
    }

    template <class U>
    [[nodiscard]] static space_pointer_t<Space, U> to_pointer(U* raw) noexcept {
        return static_cast<space_pointer_t<Space, U>>(raw);
    }

    template <class U>
    void free_if(U* p, std::size_t n) noexcept {
        if (p != nullptr) {
            heap_->deallocate(p, {n * sizeof(U)}, alignof(U));
        }
    }

    template <class Area>
    [[nodiscard]] occupancy of_area(Area& a) const noexcept {
        return {{a.pages_in_use().value * a.page_bytes().value}, {a.pages().value * a.page_bytes().value}};
    }

    std::shared_ptr<heap<Space>> heap_;
    page_index page_ = no_page;
    owner_tag tag_ = 0;
    part part_ = part::plain;
};

}  // namespace varve
