// Inserting and erasing in a B-tree. Memory is taken before anything changes, so that running out of it changes
// nothing.
#pragma once

#include <algorithm>
#include <array>

#include "varve/containers/btree_search.hpp"
#include "varve/core/errors.hpp"

namespace varve {

/// Invariant: all leaves have height 0; a node of height h has one child more than elements, all of height h - 1.
/// Invariant: each node but the root has min_slots elements or more; fewer behind a split at the end of the tree, which
/// leaves the left node full, and where a merge found no memory.
template <class Slot, std::size_t Fanout, class Compare, class Allocator, placement_policy Placement>
class btree_core : public btree_search<Slot, Fanout, Compare, Allocator, Placement> {
    using search = btree_search<Slot, Fanout, Compare, Allocator, Placement>;
    using nodes = btree_nodes<Slot, Allocator, Fanout, Placement>;

public:
    using typename nodes::tracked;
    using typename search::destination;
    using typename search::key_type;
    using typename search::layout;
    using typename search::node;
    using typename search::node_ptr;
    using typename search::position;
    using typename search::slot;

    using search::search;

    /// At the place that a search for its key has just found. Throws when memory is out, and then nothing has changed.
    position insert(const destination& found, loose_slot<slot>& element) {
        if (found.at.at == nullptr) {
            nodes::set_root(nodes::make(0, first_capacity(), nullptr));
            return put(nodes::root(), 0, element);
        }
        return insert_at(found.at.at, found.at.index, element);
    }

    /// Takes an element out: calls `take(its slot)`, which moves it away or destroys it, and closes the hole. Gives the
    /// place behind it, if `Next`. If `take` throws, nothing has changed.
    /// Where a merge of nodes would need memory that is not there, a node stays smaller than it should be.
    template <bool Next, class Take>
    position take_out(position p, Take take) {
        take(layout::slots(*p.at)[p.index]);
        return close<Next>(p);
    }

    /// Takes out the element with that key; keys are unique. False if there is none.
    template <class Take>
    bool take_key(const key_type& key, Take take) {
        const position there = search::find(key);
        if (there == search::last()) {
            return false;
        }
        take_out<false>(there, take);
        return true;
    }

    /// Erases `count` elements, from `p` on, and gives the place behind them.
    position erase(position p, std::size_t count) noexcept {
        for (; count > 0; --count) {
            layout::slots(*p.at)[p.index].destroy();
            p = close<true>(p);
        }
        return p;
    }

    void clear() noexcept {
        nodes::free_all();
        size_ = 0;
    }

    /// All but the comparison.
    void swap_content(btree_core& other) noexcept {
        nodes::swap(other);
        std::swap(size_, other.size_);
    }

private:
    using search::max_slots;
    using search::size_;

    [[nodiscard]] static constexpr std::size_t first_capacity() noexcept {
        return layout::exact_capacity ? 1 : max_slots;
    }

    /// Puts the element into a leaf that has room.
    position put(node_ptr p, std::size_t i, loose_slot<slot>& element) noexcept {
        node& leaf = *p;
        slot* s = layout::slots(leaf);
        slot::transfer(s + i + 1, s + i, leaf.count - i);
        element.give(s + i);
        ++leaf.count;
        ++size_;
        return {p, i};
    }

    position insert_at(node_ptr p, std::size_t i, loose_slot<slot>& element) {
        if (p->count < p->capacity) {
            return put(p, i, element);
        }
        tracked leaf(*this, p);
        if (p->count < max_slots) {
            nodes::grow(leaf, layout::grown(p->capacity));
            return put(leaf.at, i, element);
        }
        if constexpr (!layout::exact_capacity) {
            if (const position place = make_way(p, i); place.at != nullptr) {
                return put(place.at, place.index, element);
            }
        }
        return split(leaf, i, element);
    }

    /// Hands elements of a full leaf to a neighbour that has room, so that nodes are fuller than splits leave them.
    /// Gives where an element goes that belonged at `i`, or nothing. What lies before the place of insertion goes
    /// left, what lies behind it right: keys that come in order then meet few full leaves.
    position make_way(node_ptr p, std::size_t i) noexcept {
        const node_ptr parent = p->parent;
        if (parent == nullptr || (i == max_slots && p == nodes::last_leaf())) {
            return {};
        }
        const std::size_t at = layout::index_in(*parent, p);
        const auto share_of = [](std::size_t room, bool at_the_edge) {
            return std::max<std::size_t>(at_the_edge ? room : room / 2, 1);
        };
        if (at > 0) {
            const node_ptr left = layout::children(*parent)[at - 1];
            const std::size_t had = left->count;
            const std::size_t room = left->capacity - had;
            const std::size_t n = share_of(room, i == max_slots);
            if (room != 0 && (i >= n || n < room)) {
                shift(*left, *p, at - 1, n, false);
                return i >= n ? position{p, i - n} : position{left, had + 1 + i};
            }
        }
        if (at < parent->count) {
            const node_ptr right = layout::children(*parent)[at + 1];
            const std::size_t room = right->capacity - right->count;
            const std::size_t n = share_of(room, i == 0);
            const std::size_t left = max_slots - n;  // elements that stay
            if (room != 0 && (i <= left || n < room)) {
                shift(*p, *right, at, n, true);
                return i <= left ? position{p, i} : position{right, i - left - 1};
            }
        }
        return {};
    }

    // ---- splitting ----

    /// The new nodes of one split by height, and the new root if there is one. Frees what was not linked.
    struct spare_nodes {
        explicit spare_nodes(btree_core& t) noexcept : tree(t) {}
        spare_nodes(const spare_nodes&) = delete;
        spare_nodes& operator=(const spare_nodes&) = delete;
        ~spare_nodes() {
            for (; !used && levels > 0; --levels) {
                if (at[levels - 1] != nullptr) {
                    tree.drop(at[levels - 1]);
                }
            }
            if (!used && root != nullptr) {
                tree.drop(root);
            }
        }
        btree_core& tree;
        std::array<node_ptr, 64> at{};
        node_ptr root{};
        unsigned levels = 0;
        bool used = false;
    };

    /// Elements of an overfull node (one more than fits) that stay left; one goes up, the rest goes right.
    [[nodiscard]] static constexpr std::size_t left_share(bool ascending) noexcept {
        return ascending && max_slots > 8 ? max_slots - 1 : (max_slots + 1) / 2;
    }
    [[nodiscard]] static constexpr std::size_t right_capacity() noexcept {
        return layout::exact_capacity ? max_slots - (max_slots + 1) / 2 : max_slots;
    }

    /// Makes what a split of `leaf` and of the full nodes above it needs.
    void prepare_split(tracked& leaf, spare_nodes& spare) {
        node_ptr taker = leaf.at;
        for (; taker != nullptr && taker->count == max_slots; taker = taker->parent) {
            ++spare.levels;
        }
        if (taker == nullptr) {
            spare.root = nodes::make(spare.levels, first_capacity(), nullptr);
        } else if (taker->count == taker->capacity) {
            tracked grows(*this, taker);
            nodes::grow(grows, layout::grown(taker->capacity));
        }
        // Highest first: a node that must be local makes room by sending out nodes below it.
        for (unsigned h = spare.levels; h-- > 0;) {
            tracked left(*this, leaf.at);
            while (left.at->height < h) {
                left.at = left.at->parent;
            }
            spare.at[h] = nodes::make(h, right_capacity(), &left);
        }
    }

    position split(tracked& leaf, std::size_t i, loose_slot<slot>& element) {
        spare_nodes spare(*this);
        prepare_split(leaf, spare);
        // From here on nothing fails.
        spare.used = true;
        ++size_;
        tracked found(*this, node_ptr{});
        std::size_t found_index = 0;
        const auto found_at = [&](node_ptr p, std::size_t index) {
            if (found.at == nullptr) {
                found.at = p;
                found_index = index;
            }
        };
        const bool ascending = leaf.at == nodes::last_leaf() && i == max_slots;
        const std::size_t keep = left_share(ascending);
        node_ptr left = leaf.at;
        node_ptr child{};
        for (unsigned h = 0; h < spare.levels; ++h) {
            const node_ptr right = spare.at[h];
            if (i != keep) {
                found_at(i < keep ? left : right, i < keep ? i : i - keep - 1);
            }
            divide_children(*left, *right, i, keep, child);
            divide_elements(*left, *right, i, keep, element);
            right->parent = left->parent;
            child = right;
            if (left->parent == nullptr) {
                break;
            }
            i = layout::index_in(*left->parent, left);
            left = left->parent;
        }
        if (spare.root != nullptr) {
            node& root = *spare.root;
            element.give(layout::slots(root));
            root.count = 1;
            layout::children(root)[0] = left;
            layout::children(root)[1] = child;
            left->parent = child->parent = spare.root;
            nodes::set_root(spare.root);
            found_at(spare.root, 0);
        } else {
            insert_child(*left, i, element, child);
            found_at(left, i);
        }
        for (unsigned h = spare.levels; h-- > 0;) {
            const node_ptr right = spare.at[h];
            nodes::linked(right, nodes::template neighbour<false>(right));
        }
        return {found.at, found_index};
    }

    /// Hands the right children of `left`, which `child` joins behind place `i`, over to `right`.
    static void divide_children(node& left, node& right, std::size_t i, std::size_t keep, node_ptr child) noexcept {
        if (left.height == 0) {
            return;
        }
        node_ptr* from = layout::children(left);
        node_ptr* to = layout::children(right);
        for (std::size_t k = keep + 1; k <= max_slots + 1; ++k) {
            const node_ptr c = k <= i ? from[k] : (k == i + 1 ? child : from[k - 1]);
            to[k - keep - 1] = c;
            c->parent = layout::pointer_to(right);
        }
        if (i < keep) {
            for (std::size_t k = keep; k > i + 1; --k) {
                from[k] = from[k - 1];
            }
            from[i + 1] = child;
            child->parent = layout::pointer_to(left);
        }
    }

    /// The same for the elements, which `element` joins at place `i`; the middle one comes out in `element`.
    /// Invariant: `element` gives its content away before it takes another, so its storage is the only one needed.
    static void divide_elements(node& left, node& right, std::size_t i, std::size_t keep,
                                loose_slot<slot>& element) noexcept {
        slot* from = layout::slots(left);
        slot* to = layout::slots(right);
        if (i > keep) {
            slot::transfer(to, from + keep + 1, i - keep - 1);
            element.give(to + (i - keep - 1));
            slot::transfer(to + (i - keep), from + i, max_slots - i);
            element.take(from + keep);
        } else {
            slot::transfer(to, from + keep, max_slots - keep);
            if (i < keep) {
                slot::transfer(from + i + 1, from + i, keep - i);
                element.give(from + i);
                element.take(from + keep);
            }
        }
        left.count = static_cast<std::uint16_t>(keep);
        right.count = static_cast<std::uint16_t>(max_slots - keep);
    }

    static void insert_child(node& n, std::size_t i, loose_slot<slot>& element, node_ptr child) noexcept {
        slot* s = layout::slots(n);
        node_ptr* c = layout::children(n);
        slot::transfer(s + i + 1, s + i, n.count - i);
        element.give(s + i);
        for (std::size_t k = n.count + 1u; k > i + 1; --k) {
            c[k] = c[k - 1];
        }
        c[i + 1] = child;
        child->parent = layout::pointer_to(n);
        ++n.count;
    }

    // ---- closing holes ----

    /// The place behind an element that was taken out, through all that closing the hole does. Always one in a leaf.
    struct place_behind {
        place_behind(btree_core& tree, const position& hole) noexcept
            : leaf(tree, hole.at->height == 0 ? hole.at
                                              : nodes::first_at_height(layout::children(*hole.at)[hole.index + 1], 0)),
              index(hole.at->height == 0 ? hole.index : 0) {}
        tracked leaf;
        std::size_t index;

        /// `n` elements went from one of two neighbours to the other, by way of the separator.
        /// Invariant: of the two, the place is in the one that lost the element, or in the right one; never in a left
        /// one that gives.
        void shared(node_ptr left, std::size_t left_had, node_ptr right, std::size_t n, bool to_right) noexcept {
            if (!(leaf.at == right)) {
                return;
            }
            if (to_right) {
                index += n;
            } else if (index >= n) {
                index -= n;
            } else {
                leaf.at = left;
                index += left_had + 1;
            }
        }
        void merged(node_ptr left, std::size_t left_had, node_ptr right, node_ptr heir) noexcept {
            if (leaf.at == right) {
                index += left_had + 1;
            }
            if (leaf.at == left || leaf.at == right) {
                leaf.at = heir;
            }
        }
    };

    /// The element at `p` is gone.
    template <bool Next>
    position close(const position& p) noexcept {
        if (--size_ == 0) {
            drop_elements();
        } else if constexpr (Next) {
            place_behind next(*this, p);
            close_hole(p, &next);
            nodes::promote();
            position found{next.leaf.at, next.index};
            found.settle();
            return found;
        } else {
            close_hole(p, nullptr);
            nodes::promote();
        }
        return {};  // of an empty tree, the end
    }

    /// The last element was taken out: frees the nodes, none of which holds anything now.
    void drop_elements() noexcept {
        drop_all(nodes::root());
        nodes::set_root(nullptr);
    }

    /// The last element of a subtree; index counts from 1, so 0 says that there is none.
    [[nodiscard]] static position last_in(node_ptr subtree) noexcept {
        position q{nodes::last_at_height(subtree, 0), 0};
        q.index = q.at->count;
        while (q.index == 0 && !(q.at == subtree)) {
            q.index = layout::index_in(*q.at->parent, q.at);
            q.at = q.at->parent;
        }
        return q;
    }

    /// The element at `p` was taken away: fills its place from below, or closes it.
    void close_hole(position p, place_behind* next) noexcept {
        while (p.at->height != 0) {
            const node_ptr below = layout::children(*p.at)[p.index];
            const position source = last_in(below);
            if (source.index == 0) {
                leave_all(below);
                remove_entry(*p.at, p.index, p.index);
                drop_all(below);
                rebalance(p.at, next);
                return;
            }
            slot::transfer(layout::slots(*p.at) + p.index, layout::slots(*source.at) + source.index - 1, 1);
            p = {source.at, source.index - 1};
        }
        slot* s = layout::slots(*p.at) + p.index;
        slot::transfer(s, s + 1, p.at->count - p.index - 1);
        --p.at->count;
        rebalance(p.at, next);
    }

    void leave_all(node_ptr p) noexcept {
        for (std::size_t i = 0; i < nodes::child_count(p); ++i) {
            leave_all(nodes::child(p, i));
        }
        nodes::leaving(p);
    }
    void drop_all(node_ptr p) noexcept {
        for (std::size_t i = 0; i < nodes::child_count(p); ++i) {
            drop_all(nodes::child(p, i));
        }
        nodes::drop(p);
    }

    /// Closes the gap of an element that was taken out, and of a child.
    static void remove_entry(node& n, std::size_t element, std::size_t child) noexcept {
        slot* s = layout::slots(n);
        slot::transfer(s + element, s + element + 1, n.count - element - 1);
        node_ptr* c = layout::children(n);
        for (std::size_t k = child; k < n.count; ++k) {
            c[k] = c[k + 1];
        }
        --n.count;
    }

    void rebalance(node_ptr start, place_behind* next) noexcept {
        tracked p(*this, start);
        while (p.at->parent != nullptr && p.at->count < layout::min_slots) {
            if (!refill(p, next)) {
                break;
            }
        }
        while (nodes::root()->height != 0 && nodes::root()->count == 0) {
            const node_ptr old = nodes::root();
            const node_ptr child = layout::children(*old)[0];
            nodes::leaving(old);
            nodes::set_root(child);
            nodes::drop(old);
        }
    }

    /// Fills a small node from a neighbour or merges it. True if its parent, now in `p`, has to be looked at.
    bool refill(tracked& p, place_behind* next) noexcept {
        const node_ptr parent = p.at->parent;
        const std::size_t i = layout::index_in(*parent, p.at);
        if (parent->count == 0) {
            p.at = parent;
            return true;
        }
        const bool from_left = i > 0;
        const std::size_t separator = from_left ? i - 1 : i;
        tracked left(*this, from_left ? layout::children(*parent)[i - 1] : p.at);
        tracked right(*this, layout::children(*parent)[separator + 1]);
        const std::size_t total = left.at->count + right.at->count + 1u;
        VARVE_TRY {
            if (total > max_slots) {
                if (p.at->count == p.at->capacity) {
                    nodes::grow(p, layout::grown(p.at->capacity));
                }
                share(*left.at, *right.at, separator, from_left, next);
                return false;
            }
            if (left.at->capacity < total && right.at->capacity < total) {
                nodes::grow(left, total);
            }
        }
        VARVE_CATCH(...) {
            return false;
        }
        p.at = left.at->parent;
        merge(left.at, right.at, separator, left.at->capacity >= total, next);
        return true;
    }

    /// Moves elements over the separator until both neighbours have about as many.
    static void share(node& left, node& right, std::size_t separator, bool to_right, place_behind* next) noexcept {
        const node& from = to_right ? left : right;
        const node& to = to_right ? right : left;
        std::size_t n = (from.count - to.count) / 2u;
        n = n == 0 ? 1 : n;
        n = n < to.capacity - to.count + 0u ? n : to.capacity - to.count + 0u;
        if (next != nullptr) {
            next->shared(layout::pointer_to(left), left.count, layout::pointer_to(right), n, to_right);
        }
        shift(left, right, separator, n, to_right);
    }

    /// Moves `n` elements over the separator to a neighbour that has room for them.
    static void shift(node& left, node& right, std::size_t separator, std::size_t n, bool to_right) noexcept {
        slot* const middle = layout::slots(*left.parent) + separator;
        node& from = to_right ? left : right;
        node& to = to_right ? right : left;
        slot* l = layout::slots(left);
        slot* r = layout::slots(right);
        node_ptr* lc = layout::children(left);
        node_ptr* rc = layout::children(right);
        const auto hand_over = [&](node_ptr* target, node_ptr child) {
            *target = child;
            child->parent = layout::pointer_to(to);
        };
        if (to_right) {
            slot::transfer(r + n, r, right.count);
            slot::transfer(r + n - 1, middle, 1);
            slot::transfer(r, l + left.count - n + 1, n - 1);
            slot::transfer(middle, l + left.count - n, 1);
            if (left.height != 0) {
                for (std::size_t k = right.count + 1u; k-- > 0;) {
                    rc[k + n] = rc[k];
                }
                for (std::size_t k = 0; k < n; ++k) {
                    hand_over(rc + k, lc[left.count - n + 1 + k]);
                }
            }
        } else {
            slot::transfer(l + left.count, middle, 1);
            slot::transfer(l + left.count + 1, r, n - 1);
            slot::transfer(middle, r + n - 1, 1);
            slot::transfer(r, r + n, right.count - n);
            if (left.height != 0) {
                for (std::size_t k = 0; k < n; ++k) {
                    hand_over(lc + left.count + 1 + k, rc[k]);
                }
                for (std::size_t k = 0; k + n <= right.count; ++k) {
                    rc[k] = rc[k + n];
                }
            }
        }
        from.count = static_cast<std::uint16_t>(from.count - n);
        to.count = static_cast<std::uint16_t>(to.count + n);
    }

    /// Joins two neighbours and their separator in the storage of one of them, and frees the other.
    void merge(node_ptr left, node_ptr right, std::size_t separator, bool into_left, place_behind* next) noexcept {
        const node_ptr parent = left->parent;
        const node_ptr heir = into_left ? left : right;
        const node_ptr gone = into_left ? right : left;
        nodes::leaving(gone);
        if (next != nullptr) {
            next->merged(left, left->count, right, heir);
        }
        slot* l = layout::slots(*left);
        slot* r = layout::slots(*right);
        node_ptr* lc = layout::children(*left);
        node_ptr* rc = layout::children(*right);
        const std::size_t nl = left->count;
        const std::size_t nr = right->count;
        slot* middle = layout::slots(*parent) + separator;
        if (into_left) {
            slot::transfer(l + nl, middle, 1);
            slot::transfer(l + nl + 1, r, nr);
        } else {
            slot::transfer(r + nl + 1, r, nr);
            slot::transfer(r + nl, middle, 1);
            slot::transfer(r, l, nl);
        }
        if (left->height != 0) {
            if (into_left) {
                std::copy_n(rc, nr + 1, lc + nl + 1);
            } else {
                std::copy_backward(rc, rc + nr + 1, rc + nl + nr + 2);
                std::copy_n(lc, nl + 1, rc);
            }
            for (std::size_t k = 0; k < nl + nr + 2; ++k) {
                (into_left ? lc : rc)[k]->parent = heir;
            }
        }
        heir->count = static_cast<std::uint16_t>(nl + nr + 1);
        remove_entry(*parent, separator, into_left ? separator + 1 : separator);
        nodes::drop(gone);
    }
};

}  // namespace varve
