// The allocator that a container is given, and from which it takes a sub-allocator for each of its objects.
#pragma once

#include <concepts>
#include <tuple>
#include <utility>

#include "varve/alloc/sub_allocator.hpp"
#include "varve/core/errors.hpp"

namespace varve {

/// A standard allocator (plain swappable memory) that also hands out sub-allocators. Copies share one heap.
template <class T, swap_space Space = plain_space>
class collective_allocator {
public:
    using value_type = T;
    using space_type = Space;
    using heap_type = heap<Space>;
    using sub_allocator_type = sub_allocator<T, Space>;
    using pointer = typename sub_allocator_type::pointer;
    using const_pointer = typename sub_allocator_type::const_pointer;
    using void_pointer = typename sub_allocator_type::void_pointer;
    using const_void_pointer = typename sub_allocator_type::const_void_pointer;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using propagate_on_container_copy_assignment = std::true_type;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap = std::true_type;
    using is_always_equal = std::false_type;
    template <class U>
    struct rebind {
        using other = collective_allocator<U, Space>;
    };

    /// On a heap made for it.
    explicit collective_allocator(heap_sizes sizes) : heap_(make_heap<Space>(sizes)) {}
    /// On a heap that others use too. A template, so that braces always mean sizes.
    template <std::same_as<heap_type> Heap>
    explicit collective_allocator(std::shared_ptr<Heap> h) noexcept : heap_(std::move(h)) {}
    // No moves: an allocator that was moved from must still be the one that it was.
    collective_allocator(const collective_allocator&) noexcept = default;
    collective_allocator& operator=(const collective_allocator&) noexcept = default;
    ~collective_allocator() = default;
    template <class U>
    collective_allocator(const collective_allocator<U, Space>& other) noexcept : heap_(other.heap_), tag_(other.tag_) {}

    /// The same memory, in the name of an owner that can list its objects. For containers.
    [[nodiscard]] collective_allocator tagged() const {
        collective_allocator copy(*this);
        copy.tag_ = heap_->new_tag();
        return copy;
    }
    [[nodiscard]] owner_tag tag() const noexcept { return tag_; }

    /// Plain swappable memory. Throws out_of_room.
    [[nodiscard]] pointer allocate(std::size_t n) { return sub(swappable_plain).allocate(n); }
    void deallocate(pointer p, std::size_t n) noexcept {
        heap_->deallocate(std::to_address(p), {n * sizeof(T)}, alignof(T));
    }

    [[nodiscard]] sub_allocator_type sub(purely_local_t) const noexcept {
        return {heap_, sub_part::local, no_page, tag_};
    }
    [[nodiscard]] sub_allocator_type sub(swappable_plain_t) const noexcept {
        return {heap_, sub_part::plain, no_page, tag_};
    }
    /// Throws out_of_room if no page can be had.
    [[nodiscard]] sub_allocator_type sub(fresh_page_t) const {
        const page_index page = heap_->swappable().open_page(tag_);
        if (page == no_page) {
            detail::raise(out_of_room());
        }
        return {heap_, sub_part::page, page, tag_};
    }
    /// The page of an object allocated on a page of its own choice; else the part that the object is in. The address
    /// must be inside a live object of this heap.
    [[nodiscard]] sub_allocator_type sub(owner_of object) const {
        if (heap_->is_local(object.address)) {
            return sub(purely_local);
        }
        auto& swappable = heap_->swappable();
        const page_index page = swappable.page_of(object.address);
        if (swappable.kind_of(page) != page_kind::block) {
            return sub(swappable_plain);
        }
        swappable.pin(page);
        return {heap_, sub_part::page, page, tag_};
    }

    /// A page that holds an object or is pinned, by its number.
    [[nodiscard]] sub_allocator_type sub(page_index page) const {
        heap_->swappable().pin(page);
        return {heap_, sub_part::page, page, tag_};
    }

    [[nodiscard]] bool contains(const void* address) const noexcept { return heap_->contains(address); }
    [[nodiscard]] bool contains(purely_local_t, const void* address) const noexcept { return heap_->is_local(address); }
    /// Free bytes on the page of an object allocated on a page of its own choice, perhaps not in one piece; 0 for all
    /// other addresses. Neither pins nor touches the page.
    [[nodiscard]] byte_count room_beside(const void* address) const noexcept {
        const auto& swappable = heap_->swappable();
        if (!swappable.contains(address)) {
            return {0};
        }
        const page_index page = swappable.page_of(address);
        if (swappable.kind_of(page) != page_kind::block) {
            return {0};
        }
        const occupancy o = swappable.how_full(page);
        return {o.capacity.value - o.used.value};
    }
    [[nodiscard]] bool same_page(const void* a, const void* b) const noexcept {
        const auto& swappable = heap_->swappable();
        return swappable.contains(a) && swappable.contains(b) && swappable.page_of(a) == swappable.page_of(b);
    }

    /// Moves objects to another part: allocates for all of them there, calls `mover(from, to)` with two tuples of raw
    /// pointers, and frees the old storage. False, and nothing changed, if there is no room. If the mover throws, the
    /// new storage is freed and the exception goes on: the mover must then have left the old objects as they were.
    template <class Mover, class... R>
    bool relocate(sub_allocator_type target, Mover&& mover,
                  std::tuple<space_pointer_t<Space, typename R::type>&...> objects, R... sizes) const {
        auto storage = target.try_allocate_all(sizes...);
        if (!storage) {
            return false;
        }
        const auto raw = [](auto&... p) { return std::tuple(std::to_address(p)...); };
        const auto from = std::apply(raw, objects);
        const auto to = std::apply(raw, *storage);
        const auto free_all = [&](const auto& pointers) {
            std::apply(
                [&](auto*... p) { (heap_->deallocate(p, {sizes.count * sizeof(*p)}, alignof(decltype(*p))), ...); },
                pointers);
        };
        VARVE_TRY {
            std::forward<Mover>(mover)(from, to);
        }
        VARVE_CATCH(...) {
            free_all(to);
            VARVE_RETHROW;
        }
        free_all(from);
        objects = *storage;
        return true;
    }

    [[nodiscard]] heap_type& memory() const noexcept { return *heap_; }
    [[nodiscard]] const std::shared_ptr<heap_type>& shared_memory() const noexcept { return heap_; }

    template <class U>
    friend bool operator==(const collective_allocator& a, const collective_allocator<U, Space>& b) noexcept {
        return a.shared_memory() == b.shared_memory();
    }

private:
    template <class, swap_space>
    friend class collective_allocator;
    using sub_part = typename sub_allocator_type::part;

    std::shared_ptr<heap_type> heap_;
    owner_tag tag_ = 0;
};

}  // namespace varve
