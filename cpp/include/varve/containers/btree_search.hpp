// Searching in a B-tree: the comparison, the places where elements are and where they belong.
#pragma once

#include <type_traits>
#include <vector>

#include "varve/containers/btree_nodes.hpp"

namespace varve {

/// Invariant: in key order no element is before the one in front of it; where keys are unique, none is equal to it.
template <class Slot, std::size_t Fanout, class Compare, class Allocator, placement_policy Placement>
class btree_search : public btree_nodes<Slot, Allocator, Fanout, Placement> {
    using nodes = btree_nodes<Slot, Allocator, Fanout, Placement>;

public:
    using slot = Slot;
    using key_type = typename slot::key_type;
    using value_type = typename slot::value_type;
    using key_compare = Compare;
    using allocator_type = Allocator;
    using typename nodes::layout;
    using typename nodes::node;
    using typename nodes::node_ptr;
    using position = typename layout::position;

    btree_search(const Compare& compare, const Allocator& a) : nodes(a), compare_(compare) {}

    [[nodiscard]] const Compare& compare() const noexcept { return compare_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

    [[nodiscard]] static slot& slot_at(const position& p) noexcept { return layout::slot_at(*p.at, p.index); }
    [[nodiscard]] static value_type& value_at(const position& p) noexcept { return slot_at(p).value; }

    [[nodiscard]] position first() const noexcept {
        position p{nodes::first_leaf(), 0};
        if (p.at != nullptr) {
            p.settle();
        }
        return p;
    }
    [[nodiscard]] position last() const noexcept {
        const node_ptr leaf = nodes::last_leaf();
        return {leaf, leaf == nullptr ? 0u : leaf->count};
    }

    template <class K>
    [[nodiscard]] position lower_bound(const K& key) const {
        return bound(key, [this](const key_type& element, const K& wanted) { return compare_(element, wanted); });
    }
    template <class K>
    [[nodiscard]] position upper_bound(const K& key) const {
        return bound(key, [this](const key_type& element, const K& wanted) { return !compare_(wanted, element); });
    }
    template <class K>
    [[nodiscard]] position find(const K& key) const {
        if constexpr (!layout::exact_capacity) {
            const destination d = down_to_leaf(key);
            return d.there ? d.at : last();
        }
        for (node_ptr p = nodes::root(); p != nullptr;) {
            node& n = *p;
            layout::prefetch(n);
            const std::size_t i = lower_index(n, key);
            if (i < n.count && !compare_(key, layout::slot_at(n, i).key())) {
                return {p, i};
            }
            p = n.height == 0 ? node_ptr{} : layout::children(n)[i];
        }
        return last();
    }

    /// Where a key is, or where it belongs: nowhere yet in an empty tree.
    struct destination {
        position at{};
        bool there = false;
    };
    [[nodiscard]] destination seek(const key_type& key) const {
        if constexpr (!layout::exact_capacity) {
            return down_to_leaf(key);
        }
        for (node_ptr p = nodes::root(); p != nullptr;) {
            node& n = *p;
            layout::prefetch(n);
            const std::size_t i = lower_index(n, key);
            const bool there = i < n.count && !compare_(key, layout::slot_at(n, i).key());
            if (there || n.height == 0) {
                return {{p, i}, there};
            }
            p = layout::children(n)[i];
        }
        return {};
    }
    [[nodiscard]] destination seek_likely(const key_type& key) const { return seek(key); }
    /// Two comparisons if it belongs right before `hint`; else a search.
    [[nodiscard]] destination seek(position hint, const key_type& key) const {
        if (size_ != 0 && (hint == last() || compare_(key, slot_at(hint).key()))) {
            position before = hint;
            if (!before.retreat() || compare_(slot_at(before).key(), key)) {
                return {right_before(hint), false};
            }
        }
        return seek(key);
    }

    // Where another element with such a key belongs, whether there are some or not.

    /// Behind all elements of equal keys.
    [[nodiscard]] destination seek_behind(const key_type& key) const {
        return leaf_place(
            key, [this](const key_type& element, const key_type& wanted) { return !compare_(wanted, element); });
    }
    /// As close before `hint` as the order allows. Two comparisons if that is right before it.
    [[nodiscard]] destination seek_behind(position hint, const key_type& key) const {
        if (size_ == 0) {
            return {};
        }
        if (hint == last() || !compare_(slot_at(hint).key(), key)) {
            position before = hint;
            if (!before.retreat() || !compare_(key, slot_at(before).key())) {
                return {right_before(hint), false};
            }
            return seek_behind(key);
        }
        return leaf_place(
            key, [this](const key_type& element, const key_type& wanted) { return compare_(element, wanted); });
    }

    static constexpr bool fetches_ahead = nodes::store_type::fetches_ahead;

    /// Fetches the pages of the nodes that a walk over so many elements from `from` on meets, as far as their fill can
    /// be guessed: level by level, so that the pages of one level come together.
    void fetch_ahead(position from, std::size_t elements) const {
        auto wanted = static_cast<double>(elements);
        node_ptr top = from.at;
        std::size_t begin = from.index + 1;
        while (top != nullptr && wanted > 0) {
            std::vector<node_ptr> level{top};
            double covered = 0;
            for (unsigned h = top->height; h-- > 0;) {
                const double each = expected_elements(h) + 1;  // and the element behind it
                covered = 0;
                std::vector<node_ptr> below;
                std::vector<const void*> addresses;
                for (const node_ptr p : level) {
                    for (std::size_t i = p == top ? begin : 0; i <= p->count && covered < wanted; ++i) {
                        covered += each;
                        below.push_back(layout::children(*p)[i]);
                        addresses.push_back(std::to_address(below.back()));
                    }
                }
                nodes::store().fetch(addresses);
                level = std::move(below);
            }
            wanted -= covered;
            const node_ptr parent = top->parent;
            begin = parent == nullptr ? 0 : layout::index_in(*parent, top) + 1;
            top = parent;
        }
    }

    void swap_comparison(btree_search& other) noexcept(detail::exchange_is_nothrow<Compare>) {
        detail::exchange_comparisons(compare_, other.compare_);
    }

protected:
    static constexpr std::size_t max_slots = layout::max_slots;
    std::size_t size_ = 0;

private:
    /// In a subtree whose nodes are well filled: a page that is fetched for nothing costs more than one that is waited
    /// for.
    [[nodiscard]] static double expected_elements(unsigned height) noexcept {
        constexpr double in_node = 0.8 * static_cast<double>(max_slots);
        double n = in_node;
        for (; height > 0; --height) {
            n = in_node + (in_node + 1) * n;
        }
        return n;
    }

    /// The same place as one where an element can be put: in a leaf.
    [[nodiscard]] static position right_before(position p) noexcept {
        if (p.at->height == 0) {
            return p;
        }
        const node_ptr leaf = nodes::last_at_height(layout::children(*p.at)[p.index], 0);
        return {leaf, leaf->count};
    }

    /// A search that asks for equality once, below: few keys of large nodes are above the leaves.
    template <class K>
    [[nodiscard]] destination down_to_leaf(const K& key) const {
        position candidate{};  // the first element that is not before the key, as far as is known
        for (node_ptr p = nodes::root(); p != nullptr;) {
            node& n = *p;
            layout::prefetch(n);
            const std::size_t i = lower_index(n, key);
            if (i < n.count) {
                candidate = {p, i};
            }
            if (n.height == 0) {
                const bool there = candidate.at != nullptr && !compare_(key, slot_at(candidate).key());
                return {there ? candidate : position{p, i}, there};
            }
            p = layout::children(n)[i];
        }
        return {};
    }

    /// First element of the node that is not before `key`.
    template <class K>
    [[nodiscard]] std::size_t lower_index(node& n, const K& key) const {
        return index_where(n, key,
                           [this](const key_type& element, const K& wanted) { return compare_(element, wanted); });
    }

    template <class K, class Before>
    [[nodiscard]] static std::size_t index_where(node& n, const K& key, Before before) {
        if constexpr (max_slots <= 8 || (max_slots <= 32 && std::is_arithmetic_v<key_type>)) {
            // One branch that is not predicted, where halving has one a step or waits for every line in turn.
            std::size_t i = 0;
            while (i < n.count && before(layout::slot_at(n, i).key(), key)) {
                ++i;
            }
            return i;
        } else {
            // Halving without branches: which half a random key is in cannot be predicted.
            std::size_t from = 0;
            std::size_t length = n.count;
            while (length > 1) {
                const std::size_t half = length / 2;
                from += before(layout::slot_at(n, from + half - 1).key(), key) ? half : 0;
                length -= half;
            }
            if (length == 1 && before(layout::slot_at(n, from).key(), key)) {
                ++from;
            }
            return from;
        }
    }

    template <class K, class Before>
    [[nodiscard]] position bound(const K& key, Before before) const {
        for (node_ptr p = nodes::root(); p != nullptr;) {
            node& n = *p;
            layout::prefetch(n);
            const std::size_t i = index_where(n, key, before);
            if (n.height == 0) {
                position found{p, i};
                found.settle();
                return found;
            }
            p = layout::children(n)[i];
        }
        return last();
    }

    /// The place in a leaf behind all elements that are `before` the key.
    template <class Before>
    [[nodiscard]] destination leaf_place(const key_type& key, Before before) const {
        for (node_ptr p = nodes::root(); p != nullptr;) {
            node& n = *p;
            layout::prefetch(n);
            const std::size_t i = index_where(n, key, before);
            if (n.height == 0) {
                return {{p, i}, false};
            }
            p = layout::children(n)[i];
        }
        return {};
    }

    Compare compare_;
};

}  // namespace varve
