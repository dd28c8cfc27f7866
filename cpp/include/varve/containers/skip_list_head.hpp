// Where the lists of a skip list begin, level by level.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "varve/containers/skip_list_node.hpp"

namespace varve {

/// Where an allocator places nodes, the links are in the object itself: every search begins with them, so they must not
/// be paged out.
template <class Layout, class Store, bool Inside = Store::traits::is_collective>
class skip_list_head {
    using node_ptr = typename Layout::node_ptr;

public:
    [[nodiscard]] node_ptr first() const noexcept { return links_[0]; }
    [[nodiscard]] const node_ptr& operator[](unsigned level) const noexcept { return links_[level]; }
    [[nodiscard]] node_ptr& operator[](unsigned level) noexcept { return links_[level]; }
    void reserve(Store&, unsigned) noexcept {}
    void release(Store&) noexcept { links_.fill(node_ptr{}); }

private:
    std::array<node_ptr, Layout::levels> links_{};
};

/// Else they are in memory of the allocator, which has room for the levels in use: most lists are short.
/// Invariant: only levels that were reserved are asked for, except by `first`.
template <class Layout, class Store>
class skip_list_head<Layout, Store, false> {
    using node_ptr = typename Layout::node_ptr;
    using link_ptr = typename std::pointer_traits<node_ptr>::template rebind<node_ptr>;

public:
    skip_list_head() noexcept = default;
    skip_list_head(const skip_list_head&) = delete;
    skip_list_head& operator=(const skip_list_head&) = delete;
    friend void swap(skip_list_head& a, skip_list_head& b) noexcept {
        std::swap(a.links_, b.links_);
        std::swap(a.room_, b.room_);
    }

    [[nodiscard]] node_ptr first() const noexcept { return room_ == 0 ? node_ptr{} : links_[0]; }
    [[nodiscard]] const node_ptr& operator[](unsigned level) const noexcept { return links_[level]; }
    [[nodiscard]] node_ptr& operator[](unsigned level) noexcept { return links_[level]; }

    /// Throws when memory is out, and then nothing has changed.
    void reserve(Store& store, unsigned levels) {
        if (levels <= room_) {
            return;
        }
        const unsigned room = room_ == 0 ? smallest : room_ * 2u;
        auto* links = static_cast<node_ptr*>(store.near({}, units(room)));
        std::uninitialized_value_construct_n(links, room);
        for (unsigned l = 0; l < room_; ++l) {
            links[l] = links_[l];
        }
        release(store);
        links_ = std::pointer_traits<link_ptr>::pointer_to(*links);
        room_ = static_cast<std::uint8_t>(room);
    }
    void release(Store& store) noexcept {
        if (room_ != 0) {
            node_ptr* links = std::to_address(links_);
            std::destroy_n(links, room_);
            store.free(links, units(room_));
            links_ = link_ptr{};
            room_ = 0;
        }
    }

private:
    static constexpr unsigned smallest = 4;
    static_assert(alignof(node_ptr) <= alignof(typename Layout::unit));
    [[nodiscard]] static constexpr std::size_t units(unsigned levels) noexcept {
        return bits::pieces(levels * sizeof(node_ptr), sizeof(typename Layout::unit));
    }

    link_ptr links_{};
    std::uint8_t room_ = 0;
};

}  // namespace varve
