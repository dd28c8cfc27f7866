// An element of an ordered map, as the containers store it.
#pragma once

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
        std::destroy_at(&a);
        std::construct_at(&a, std::move(b));
        std::destroy_at(&b);
        std::construct_at(&b, std::move(mine));
    }
}
}  // namespace detail

/// Users see `pair<const Key, T>`; moving an element from place to place needs the key to be movable.
template <class Key, class T>
union map_slot {
    static_assert(std::is_nothrow_move_constructible_v<Key> && std::is_nothrow_move_constructible_v<T>,
                  "varve: elements move between pages and tiers, so moving them must not throw");
    using value_type = std::pair<const Key, T>;
    using mutable_type = std::pair<Key, T>;

    value_type value;
    mutable_type movable;

    map_slot() noexcept {}
    ~map_slot() {}
    map_slot(const map_slot&) = delete;
    map_slot& operator=(const map_slot&) = delete;

    template <class Allocator, class... Args>
    void construct(Allocator& a, Args&&... args) {
        std::allocator_traits<Allocator>::construct(a, &value, std::forward<Args>(args)...);
    }
    void destroy() noexcept { std::destroy_at(&value); }
    [[nodiscard]] const Key& key() const noexcept { return value.first; }

    static constexpr bool trivially_moved = std::is_trivially_copyable_v<Key> && std::is_trivially_copyable_v<T>;

    /// Moves `count` elements to raw storage, which may overlap; the old places are raw afterwards.
    static void transfer(map_slot* to, map_slot* from, std::size_t count) noexcept {
        if constexpr (trivially_moved) {
            std::memmove(static_cast<void*>(to), static_cast<const void*>(from), count * sizeof(map_slot));
        } else if (to < from) {
            for (std::size_t i = 0; i < count; ++i) {
                transfer_one(to[i], from[i]);
            }
        } else if (to > from) {
            for (std::size_t i = count; i-- > 0;) {
                transfer_one(to[i], from[i]);
            }
        }
    }

private:
    static void transfer_one(map_slot& to, map_slot& from) noexcept {
        std::construct_at(&to.movable, std::move(from.movable));
        std::destroy_at(&from.movable);
    }
};

/// A slot on the stack that destroys its element unless it was transferred away.
template <class Slot>
class held_slot {
public:
    template <class Allocator, class... Args>
    explicit held_slot(Allocator& a, Args&&... args) {
        slot_.construct(a, std::forward<Args>(args)...);
        full_ = true;
    }
    held_slot() noexcept = default;
    held_slot(const held_slot&) = delete;
    held_slot& operator=(const held_slot&) = delete;
    ~held_slot() {
        if (full_) {
            slot_.destroy();
        }
    }
    [[nodiscard]] Slot& slot() noexcept { return slot_; }
    void give(Slot* to) noexcept {
        Slot::transfer(to, &slot_, 1);
        full_ = false;
    }
    void take_from(held_slot& other) noexcept {
        Slot::transfer(&slot_, &other.slot_, 1);
        other.full_ = false;
        full_ = true;
    }
    void take(Slot* from) noexcept {
        Slot::transfer(&slot_, from, 1);
        full_ = true;
    }

private:
    Slot slot_;
    bool full_ = false;
};

}  // namespace varve
