// A node of the skip list: a header, as many forward links as the node has levels, and the element. The links come
// first so that a search, which reads one of them and the key, finds both on one cache line in most nodes.
#pragma once

#include <cstdint>
#include <memory>

#include "varve/containers/slots.hpp"
#include "varve/core/bits.hpp"

namespace varve {

template <class Slot, class VoidPointer>
struct skip_list_layout {
    struct node;
    using node_ptr = typename std::pointer_traits<VoidPointer>::template rebind<node>;

    struct node {
        node_ptr previous{};
        std::uint8_t level = 0;  ///< highest level that the node is linked on; 0 is the one that has all nodes
        bool linked = false;     ///< part of the list, not just allocated
    };

    /// Levels that a list can have: with a half of the nodes of each level on the next, room for 2^32 elements and
    /// more.
    static constexpr unsigned levels = 32;

    static constexpr std::size_t alignment = alignof(Slot) > alignof(node) ? alignof(Slot) : alignof(node);
    struct alignas(alignment) unit {
        std::byte bytes[alignment];
    };

    static_assert(sizeof(node) % alignof(node_ptr) == 0);
    [[nodiscard]] static constexpr std::size_t slot_offset(unsigned level) noexcept {
        return bits::round_up(sizeof(node) + (level + 1) * sizeof(node_ptr), alignof(Slot));
    }

    /// Units of storage that a node takes.
    [[nodiscard]] static constexpr std::size_t units(unsigned level) noexcept {
        return bits::pieces(slot_offset(level) + sizeof(Slot), sizeof(unit));
    }
    [[nodiscard]] static Slot& slot_of(node& n) noexcept {
        return *noted(reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(&n) + slot_offset(n.level)));
    }
    [[nodiscard]] static node_ptr& next(node& n, unsigned level) noexcept {
        return *noted(reinterpret_cast<node_ptr*>(reinterpret_cast<std::byte*>(&n) + sizeof(node)) + level);
    }
    /// Asks for a node that a search may read after the next comparison: a small one lies on two lines at most.
    static void prefetch(node_ptr p) noexcept {
        const auto* start = reinterpret_cast<const std::byte*>(std::to_address(p));
        __builtin_prefetch(start);
        __builtin_prefetch(start + slot_offset(1));
    }
    [[nodiscard]] static node_ptr pointer_to(node& n) noexcept { return std::pointer_traits<node_ptr>::pointer_to(n); }

    /// An element of a list, or its end: null then.
    template <class List>
    struct position {
        node_ptr at{};
        const List* list = nullptr;

        friend bool operator==(const position& a, const position& b) noexcept { return a.at == b.at; }
        void advance() noexcept { at = next(*at, 0); }
        /// From the end to the last element too.
        void retreat() noexcept { at = at == nullptr ? list->last_node() : at->previous; }
    };

private:
    /// Reports the access where the pointer type wants to know: a node may be larger than a page.
    template <class U>
    [[nodiscard]] static U* noted(U* part) noexcept {
        if constexpr (requires { node_ptr::touch(part); }) {
            node_ptr::touch(part);
        }
        return part;
    }
};

}  // namespace varve
