// Elements of ordered containers as the nodes store them, and on their way into a node.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>

namespace varve {

namespace detail {
template <class Compare>
inline constexpr bool exchange_is_nothrow =
    std::is_swappable_v<Compare> ? std::is_nothrow_swappable_v<Compare> : std::is_nothrow_move_constructible_v<Compare>;

/// Also for comparisons that can be copied but not assigned, as lambdas that capture.
template <class Compare>
void exchange_comparisons(Compare& a, Compare& b) noexcept(exchange_is_nothrow<Compare>) {
    if constexpr (std::is_swappable_v<Compare>) {
        using std::swap;
        swap(a, b);
    } else {
        static_assert(std::is_nothrow_move_constructible_v<Compare>,
                      "varve: a comparison that cannot be swapped must be movable without an exception");
        Compare mine(std::move(a));
        std::destroy_at(std::addressof(a));
        std::construct_at(std::addressof(a), std::move(b));
        std::destroy_at(std::addressof(b));
        std::construct_at(std::addressof(b), std::move(mine));
    }
}

/// A template of its own, so that the compiler's message names the type.
template <class Type>
struct can_be_moved_without_an_exception {
    static_assert(std::is_object_v<Type>, "varve: keys and values are objects, not references");
    static_assert(std::is_nothrow_move_constructible_v<Type> && std::is_nothrow_destructible_v<Type>,
                  "varve: elements move between pages and tiers, so moving and destroying this type must not throw");
    static constexpr bool value = true;
};

/// Moves `count` elements to raw storage, which may overlap; the old places are raw afterwards.
template <class Slot>
void transfer_slots(Slot* to, Slot* from, std::size_t count) noexcept {
    if constexpr (Slot::trivially_moved) {
        std::memmove(static_cast<void*>(to), static_cast<const void*>(from), count * sizeof(Slot));
    } else if (to < from) {
        for (std::size_t i = 0; i < count; ++i) {
            Slot::transfer_one(to[i], from[i]);
        }
    } else if (to > from) {
        for (std::size_t i = count; i-- > 0;) {
            Slot::transfer_one(to[i], from[i]);
        }
    }
}
}  // namespace detail

/// An element of a map. Users see `pair<const Key, T>`; moving it from place to place needs the key to be movable.
template <class Key, class T>
union map_slot {
    static_assert(detail::can_be_moved_without_an_exception<Key>::value &&
                  detail::can_be_moved_without_an_exception<T>::value);
    using key_type = Key;
    using mapped_type = T;
    using value_type = std::pair<const Key, T>;
    using mutable_type = std::pair<Key, T>;
    static constexpr bool is_map = true;
    static constexpr bool trivially_moved = std::is_trivially_copyable_v<Key> && std::is_trivially_copyable_v<T>;

    value_type value;
    mutable_type movable;

    map_slot() noexcept {}
    ~map_slot() {}
    map_slot(const map_slot&) = delete;
    map_slot& operator=(const map_slot&) = delete;

    template <class Allocator, class... Args>
    void construct(Allocator& a, Args&&... args) {
        std::allocator_traits<Allocator>::construct(a, std::addressof(value), std::forward<Args>(args)...);
    }
    void destroy() noexcept { std::destroy_at(std::addressof(value)); }
    [[nodiscard]] const Key& key() const noexcept { return value.first; }
    [[nodiscard]] static const Key& key_of(const value_type& v) noexcept { return v.first; }

    static void transfer(map_slot* to, map_slot* from, std::size_t count) noexcept {
        detail::transfer_slots(to, from, count);
    }
    static void transfer_one(map_slot& to, map_slot& from) noexcept {
        std::construct_at(std::addressof(to.movable), std::move(from.movable));
        std::destroy_at(std::addressof(from.movable));
    }
};

/// An element of a set.
template <class Key>
union set_slot {
    static_assert(detail::can_be_moved_without_an_exception<Key>::value);
    using key_type = Key;
    using value_type = Key;
    static constexpr bool is_map = false;
    static constexpr bool trivially_moved = std::is_trivially_copyable_v<Key>;

    Key value;

    set_slot() noexcept {}
    ~set_slot() {}
    set_slot(const set_slot&) = delete;
    set_slot& operator=(const set_slot&) = delete;

    template <class Allocator, class... Args>
    void construct(Allocator& a, Args&&... args) {
        std::allocator_traits<Allocator>::construct(a, std::addressof(value), std::forward<Args>(args)...);
    }
    void destroy() noexcept { std::destroy_at(std::addressof(value)); }
    [[nodiscard]] const Key& key() const noexcept { return value; }
    [[nodiscard]] static const Key& key_of(const value_type& v) noexcept { return v; }

    static void transfer(set_slot* to, set_slot* from, std::size_t count) noexcept {
        detail::transfer_slots(to, from, count);
    }
    static void transfer_one(set_slot& to, set_slot& from) noexcept {
        std::construct_at(std::addressof(to.value), std::move(from.value));
        std::destroy_at(std::addressof(from.value));
    }
};

/// An element on its way into a node. Where its storage is, only who made it knows: on the stack, in memory of the
/// allocator, in a node of another container. Nothing below ever puts an element onto the stack: it may be larger.
template <class Slot>
class loose_slot {
public:
    loose_slot(const loose_slot&) = delete;
    loose_slot& operator=(const loose_slot&) = delete;

    [[nodiscard]] Slot& slot() noexcept { return *at_; }
    [[nodiscard]] bool full() const noexcept { return full_; }
    /// Moves the element to raw storage; the slot is raw afterwards.
    void give(Slot* to) noexcept {
        Slot::transfer(to, at_, 1);
        full_ = false;
    }
    /// The opposite.
    void take(Slot* from) noexcept {
        Slot::transfer(at_, from, 1);
        full_ = true;
    }

protected:
    loose_slot() noexcept = default;
    ~loose_slot() = default;
    Slot* at_ = nullptr;
    bool full_ = false;
};

/// The element in a node of another container. Whoever gave it away leaves a hole there, which that container closes.
template <class Slot>
class borrowed_slot : public loose_slot<Slot> {
public:
    explicit borrowed_slot(Slot& there) noexcept {
        this->at_ = std::addressof(there);
        this->full_ = true;
    }
};

namespace detail {
/// Raw storage for one element: inside, or where that would be much for a stack, in memory of the allocator.
template <class Slot, class Allocator, bool Inside = (sizeof(Slot) <= 1024)>
class slot_storage {
public:
    static constexpr bool is_inside = true;
    explicit slot_storage(const Allocator&) noexcept {}
    slot_storage(const slot_storage&) = delete;
    slot_storage& operator=(const slot_storage&) = delete;
    [[nodiscard]] Slot* at() noexcept { return std::addressof(slot_); }

private:
    Slot slot_;
};

template <class Slot, class Allocator>
class slot_storage<Slot, Allocator, false> {
    struct alignas(Slot) box {
        std::byte bytes[sizeof(Slot)];
    };
    using box_allocator = typename std::allocator_traits<Allocator>::template rebind_alloc<box>;
    using traits = std::allocator_traits<box_allocator>;

public:
    static constexpr bool is_inside = false;
    explicit slot_storage(const Allocator& a) : allocator_(a), box_(traits::allocate(allocator_, 1)) {}
    slot_storage(slot_storage&& other) noexcept
        : allocator_(std::move(other.allocator_)), box_(std::exchange(other.box_, nullptr)) {}
    slot_storage& operator=(const slot_storage&) = delete;
    ~slot_storage() {
        if (box_ != nullptr) {
            traits::deallocate(allocator_, box_, 1);
        }
    }
    [[nodiscard]] Slot* at() noexcept { return reinterpret_cast<Slot*>(std::to_address(box_)); }

private:
    box_allocator allocator_;
    typename traits::pointer box_;
};
}  // namespace detail

/// An element of its own, which is destroyed unless it was given away.
template <class Slot, class Allocator>
class held_slot : public loose_slot<Slot> {
public:
    /// Throws what the element's constructor throws, and what the allocator does where the element is large.
    template <class... Args>
    explicit held_slot(Allocator& a, Args&&... args) : storage_(a) {
        this->at_ = storage_.at();
        this->at_->construct(a, std::forward<Args>(args)...);
        this->full_ = true;
    }
    ~held_slot() {
        if (this->full_) {
            this->at_->destroy();
        }
    }

private:
    detail::slot_storage<Slot, Allocator> storage_;
};

}  // namespace varve
