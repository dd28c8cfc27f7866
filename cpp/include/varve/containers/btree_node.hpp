// A node of the B-tree: a header, the children (inner nodes only), the elements. Its size follows its capacity, so that
// a node of a 2-3 tree with one element takes no room for two.
#pragma once

#include <cstdint>
#include <memory>

#include "varve/containers/slots.hpp"
#include "varve/core/bits.hpp"

namespace varve {

template <class Slot, class VoidPointer, std::size_t Fanout>
struct btree_layout {
    static_assert(Fanout >= 3, "varve: a B-tree node has three children or more");
    static_assert(Fanout <= 4096);

    struct node;
    using node_ptr = typename std::pointer_traits<VoidPointer>::template rebind<node>;
    using slot = Slot;

    struct node {
        node_ptr parent{};
        std::uint16_t count = 0;     ///< elements
        std::uint16_t capacity = 0;  ///< elements that there is room for
        std::uint8_t height = 0;     ///< levels below; 0 is a leaf
        bool linked = false;         ///< part of the tree, not just allocated
    };

    static constexpr std::size_t max_slots = Fanout - 1;
    static constexpr std::size_t min_slots = max_slots / 2;
    /// Small nodes grow by one element at a time; large ones are as good at their full size.
    static constexpr bool exact_capacity = max_slots <= 8;

    static constexpr std::size_t alignment = alignof(Slot) > alignof(node) ? alignof(Slot) : alignof(node);
    struct alignas(alignment) unit {
        std::byte bytes[alignment];
    };

    [[nodiscard]] static constexpr std::size_t slots_offset(std::uint8_t height, std::size_t capacity) noexcept {
        return bits::round_up(sizeof(node) + (height == 0 ? 0 : (capacity + 1) * sizeof(node_ptr)), alignof(Slot));
    }
    /// Units of storage that a node takes.
    [[nodiscard]] static constexpr std::size_t units(std::uint8_t height, std::size_t capacity) noexcept {
        return bits::pieces(slots_offset(height, capacity) + capacity * sizeof(Slot), sizeof(unit));
    }
    [[nodiscard]] static constexpr std::size_t grown(std::size_t capacity) noexcept {
        return exact_capacity ? capacity + 1 : max_slots;
    }
    /// The capacity that re-blocking leaves a node.
    [[nodiscard]] static constexpr std::size_t snug(std::size_t count) noexcept {
        const std::size_t wanted = exact_capacity ? count : count + count / 8 + 1;
        return wanted == 0 ? 1 : (wanted < max_slots ? wanted : max_slots);
    }

    [[nodiscard]] static node_ptr* children(node& n) noexcept {
        return reinterpret_cast<node_ptr*>(reinterpret_cast<std::byte*>(&n) + sizeof(node));
    }
    [[nodiscard]] static Slot* slots(node& n) noexcept {
        return reinterpret_cast<Slot*>(reinterpret_cast<std::byte*>(&n) + slots_offset(n.height, n.capacity));
    }
    /// As `slots(n) + i`, reporting the access where the pointer type wants to know: a node may be larger than a page.
    [[nodiscard]] static Slot& slot_at(node& n, std::size_t i) noexcept {
        Slot* s = slots(n) + i;
        if constexpr (requires { node_ptr::touch(s); }) {
            node_ptr::touch(s);
        }
        return *s;
    }

    /// Asks for the lines of a node that a search will read next, before its first one has arrived to say where they
    /// are: those of the other keys where elements are large, else the rest of what may be a small node.
    static void prefetch(const node& n) noexcept {
        constexpr std::size_t line = 64;
        const auto* start = reinterpret_cast<const std::byte*>(&n);
        if constexpr (sizeof(Slot) >= line && max_slots <= 4) {
            for (std::size_t k = 1; k < max_slots; ++k) {
                __builtin_prefetch(start + slots_offset(1, max_slots) + k * sizeof(Slot));
            }
        } else if constexpr (sizeof(Slot) < line) {
            for (std::size_t at = line; at < 6 * line && at < slots_offset(1, max_slots) + max_slots * sizeof(Slot);
                 at += line) {
                __builtin_prefetch(start + at);
            }
        }
    }

    /// Asks for the leaves that a walk meets next: `ahead` leaves behind child `i` of a node right above the leaves.
    static void prefetch_leaves(node& parent, std::size_t i, std::size_t from) noexcept {
        constexpr std::size_t line = 64;
        const std::size_t last = i + leaves_ahead < parent.count ? i + leaves_ahead : parent.count;
        for (std::size_t k = i + from; k <= last; ++k) {
            const auto* leaf = reinterpret_cast<const std::byte*>(std::to_address(children(parent)[k]));
            for (std::size_t at = 0; at < 4 * line && at < slots_offset(0, max_slots) + max_slots * sizeof(Slot);
                 at += line) {
                __builtin_prefetch(leaf + at);
            }
        }
    }
    static constexpr std::size_t leaves_ahead = 4;

    [[nodiscard]] static node_ptr pointer_to(node& n) noexcept { return std::pointer_traits<node_ptr>::pointer_to(n); }

    [[nodiscard]] static std::size_t index_in(node& parent, node_ptr child) noexcept {
        const node_ptr* c = children(parent);
        std::size_t i = 0;
        while (!(c[i] == child)) {
            ++i;
        }
        return i;
    }

    /// A place between or at elements. The end of the tree is (last leaf, its count), or (null, 0) if it is empty.
    struct position {
        node_ptr at{};
        std::size_t index = 0;

        friend bool operator==(const position& a, const position& b) noexcept {
            return a.at == b.at && a.index == b.index;
        }

        /// From the end of a leaf to the next element, if there is one.
        void settle() noexcept {
            const position end = *this;
            while (index == at->count) {
                const node_ptr parent = at->parent;
                if (parent == nullptr) {
                    *this = end;
                    return;
                }
                index = index_in(*parent, at);
                if (at->height == 0) {
                    prefetch_leaves(*parent, index, leaves_ahead);
                }
                at = parent;
            }
        }
        void advance() noexcept {
            ++index;
            node& n = *at;
            if (n.height == 0) [[likely]] {
                if (index != n.count) [[likely]] {
                    return;
                }
            } else {
                do {
                    if (at->height == 1 && index == 0) {
                        prefetch_leaves(*at, 0, 1);
                    }
                    at = children(*at)[index];
                    index = 0;
                } while (at->height != 0);
            }
            settle();
        }
        /// False, and unchanged, at the first element.
        bool retreat() noexcept {
            const position start = *this;
            while (at->height != 0) {
                at = children(*at)[index];
                index = at->count;
            }
            while (index == 0) {
                const node_ptr parent = at->parent;
                if (parent == nullptr) {
                    *this = start;
                    return false;
                }
                index = index_in(*parent, at);
                at = parent;
            }
            --index;
            return true;
        }
    };
};

}  // namespace varve
