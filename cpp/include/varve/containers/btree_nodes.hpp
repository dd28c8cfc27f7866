// The nodes of a B-tree as a graph: allocation, relocation, and the rule for what is in local memory. Knows nothing of
// keys.
#pragma once

#include <utility>

#include "varve/containers/btree_node.hpp"
#include "varve/placement/node_store.hpp"
#include "varve/placement/policies.hpp"

namespace varve {

/// Local memory holds a prefix of the nodes ordered by height, highest first, and at equal height from the last key to
/// the first. So only the lowest local node of the smallest key, the frontier, ever has to leave or has neighbours that
/// come in, and at the height of the frontier the swapped nodes are a range of keys, not a sprinkle.
template <class Slot, class Allocator, std::size_t Fanout, placement_policy Placement>
class btree_nodes {
    using given_traits = collective_allocator_traits<Allocator>;

public:
    using layout = btree_layout<Slot, typename given_traits::void_pointer, Fanout>;
    using node = typename layout::node;
    using node_ptr = typename layout::node_ptr;
    using unit = typename layout::unit;
    using unit_allocator = typename given_traits::template rebind_alloc<unit>;
    using store_type = node_store<unit_allocator>;
    using sub_type = typename store_type::sub_type;
    static constexpr bool keeps_top_local = Placement::keeps_top_local && store_type::traits::is_collective;

    /// A pointer that follows its node when the node is relocated, while the object lives. Strictly nested.
    class tracked {
    public:
        tracked(btree_nodes& tree, node_ptr p) noexcept : at(p), tree_(tree), outer_(tree.trackers_) {
#pragma GCC diagnostic push
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#pragma GCC diagnostic ignored "-Wdangling-pointer"  // the destructor takes the pointer out again
#endif
            tree.trackers_ = this;
#pragma GCC diagnostic pop
        }
        tracked(const tracked&) = delete;
        tracked& operator=(const tracked&) = delete;
        ~tracked() {
            tree_.trackers_ = outer_;
        }
        node_ptr at;

    private:
        friend class btree_nodes;
        btree_nodes& tree_;
        tracked* outer_;
    };

    explicit btree_nodes(const Allocator& a) : store_(unit_allocator(a)) {}
    btree_nodes(const btree_nodes&) = delete;
    btree_nodes& operator=(const btree_nodes&) = delete;
    ~btree_nodes() {
        free_all();
    }

    [[nodiscard]] node_ptr root() const noexcept {
        return root_;
    }
    [[nodiscard]] node_ptr first_leaf() const noexcept {
        return first_leaf_;
    }
    [[nodiscard]] node_ptr last_leaf() const noexcept {
        return last_leaf_;
    }
    [[nodiscard]] store_type& store() noexcept {
        return store_;
    }
    [[nodiscard]] const store_type& store() const noexcept {
        return store_;
    }
    [[nodiscard]] bool is_local(node_ptr p) const noexcept {
        return store_.is_local(std::to_address(p));
    }

    // ---- the graph ----

    [[nodiscard]] static unsigned height(node_ptr p) noexcept {
        return p->height;
    }
    [[nodiscard]] static std::size_t child_count(node_ptr p) noexcept {
        return p->height == 0 ? 0 : p->count + 1u;
    }
    [[nodiscard]] static node_ptr child(node_ptr p, std::size_t i) noexcept {
        return layout::children(*p)[i];
    }

    [[nodiscard]] static node_ptr first_at_height(node_ptr p, unsigned h) noexcept {
        while (p->height > h) {
            p = child(p, 0);
        }
        return p;
    }
    [[nodiscard]] static node_ptr last_at_height(node_ptr p, unsigned h) noexcept {
        while (p->height > h) {
            p = child(p, p->count);
        }
        return p;
    }
    /// The neighbour of equal height in key order, or null.
    template <bool Forward>
    [[nodiscard]] static node_ptr neighbour(node_ptr p) noexcept {
        const unsigned h = p->height;
        for (node_ptr parent = p->parent; parent != nullptr; p = parent, parent = p->parent) {
            const std::size_t i = layout::index_in(*parent, p);
            if (Forward ? i < parent->count : i > 0) {
                return Forward ? first_at_height(child(parent, i + 1), h) : last_at_height(child(parent, i - 1), h);
            }
        }
        return nullptr;
    }

    // ---- making and freeing ----

    /// A node that is not linked yet. `sibling` is the node that it will be the right neighbour of; null for a root.
    /// Throws when memory is out; nodes may have been relocated then too, but the tree is as it was.
    [[nodiscard]] node_ptr make(unsigned h, std::size_t capacity, const tracked* sibling) {
        const auto tall = static_cast<std::uint8_t>(h);
        const std::size_t units = layout::units(tall, capacity);
        void* where = nullptr;
        while (wants_local(h, sibling) && (where = store_.try_local(units)) == nullptr && make_room()) {
        }
        if (where == nullptr) {
            where = sibling == nullptr ? store_.near({}, units) : near(sibling->at, units);
        }
        node* made = std::construct_at(static_cast<node*>(where));
        made->capacity = static_cast<std::uint16_t>(capacity);
        made->height = tall;
        if (tall != 0) {
            std::uninitialized_value_construct_n(layout::children(*made), capacity + 1);
        }
        return layout::pointer_to(*made);
    }

    /// Frees a node without elements. If it is linked, it must be out of its parent by now, and `heir` stands for it
    /// where the tree remembers a leaf.
    void drop(node_ptr p) noexcept {
        const std::size_t units = layout::units(p->height, p->capacity);
        std::destroy_at(std::to_address(p));
        store_.free(std::to_address(p), units);
    }

    /// Tells that `p` is about to leave the tree. Must be called while its neighbours can still be reached.
    void leaving(node_ptr p) noexcept {
        if (p == frontier_) {
            advance_frontier();
        }
        if (p == resume_at_) {
            resume_at_ = neighbour<true>(p);
        }
        if (p->height == 0) {
            if (p == first_leaf_) {
                first_leaf_ = neighbour<true>(p);
            }
            if (p == last_leaf_) {
                last_leaf_ = neighbour<false>(p);
            }
        }
    }

    /// Moves a node to storage of the given capacity and gives back where it is now.
    node_ptr move_to(void* where, node_ptr from, std::size_t capacity) noexcept {
        node& old = *from;
        node* fresh = std::construct_at(static_cast<node*>(where), old);
        fresh->capacity = static_cast<std::uint16_t>(capacity);
        const node_ptr to = layout::pointer_to(*fresh);
        if (old.height != 0) {
            node_ptr* c = layout::children(*fresh);
            std::uninitialized_copy_n(layout::children(old), old.count + 1u, c);
            std::uninitialized_value_construct_n(c + old.count + 1, capacity - old.count);
            for (std::size_t i = 0; i <= old.count; ++i) {
                c[i]->parent = to;
            }
        }
        Slot::transfer(layout::slots(*fresh), layout::slots(old), old.count);
        if (old.parent == nullptr) {
            root_ = to;
        } else {
            layout::children(*old.parent)[layout::index_in(*old.parent, from)] = to;
        }
        for (node_ptr* known : {&first_leaf_, &last_leaf_, &frontier_, &resume_at_}) {
            if (*known == from) {
                *known = to;
            }
        }
        for (tracked* t = trackers_; t != nullptr; t = t->outer_) {
            if (t->at == from) {
                t->at = to;
            }
        }
        drop(from);
        return to;
    }

    /// Gives a node room for more elements. Throws when memory is out.
    void grow(tracked& p, std::size_t capacity) {
        void* where = nullptr;
        if constexpr (keeps_top_local) {
            const std::size_t units = layout::units(p.at->height, capacity);
            while (is_local(p.at) && (where = store_.try_local(units)) == nullptr && make_room()) {
            }
        }
        if (where == nullptr) {
            where = near(p.at, layout::units(p.at->height, capacity));
        }
        move_to(where, p.at, capacity);
    }

    void set_root(node_ptr p) noexcept {
        root_ = p;
        if (p == nullptr) {
            first_leaf_ = last_leaf_ = frontier_ = resume_at_ = nullptr;
            store_.stop_filling();
            return;
        }
        p->parent = nullptr;
        p->linked = true;
        if (p->height == 0) {
            first_leaf_ = last_leaf_ = p;
        }
        if constexpr (keeps_top_local) {
            if (frontier_ == nullptr && is_local(p)) {
                frontier_ = p;
            }
        }
    }

    /// Tells that `fresh` has been linked to the right of `left`.
    void linked(node_ptr fresh, node_ptr left) noexcept {
        fresh->linked = true;
        if (left == last_leaf_) {
            last_leaf_ = fresh;
        }
        if constexpr (keeps_top_local) {
            // The neighbour was sent out while the new node was being made: it follows.
            if (is_local(fresh) && !is_local(left) && (frontier_ == nullptr || fresh->height <= frontier_->height)) {
                VARVE_TRY {
                    void* where = near(fresh, layout::units(fresh->height, fresh->capacity));
                    move_to(where, fresh, fresh->capacity);
                }
                VARVE_CATCH(...) {  // it stays a local node among swapped ones; nothing depends on it
                }
            }
        }
    }

    /// Takes back into local memory what now fits, at most so many nodes. False when nothing more fits.
    bool promote(std::size_t at_most = 4) noexcept {
        if constexpr (keeps_top_local) {
            for (; at_most > 0 && root_ != nullptr; --at_most) {
                const node_ptr candidate = next_to_promote();
                if (candidate == nullptr) {
                    return false;
                }
                if (is_local(candidate)) {
                    frontier_ = candidate;
                    continue;
                }
                const std::size_t capacity = layout::snug(candidate->count);
                void* where = try_local(layout::units(candidate->height, capacity));
                if (where == nullptr) {
                    return false;
                }
                frontier_ = move_to(where, candidate, capacity);
            }
            return root_ != nullptr;
        } else {
            return false;
        }
    }

    /// Takes the slack out of the local nodes and fills what that frees. Throws when swappable memory is out.
    void tidy_local() {
        if constexpr (keeps_top_local) {
            if (root_ == nullptr) {
                return;
            }
            for (unsigned h = root_->height + 1u; h-- > 0;) {
                tracked p(*this, first_at_height(root_, h));
                for (; p.at != nullptr; p.at = neighbour<true>(p.at)) {
                    const std::size_t capacity = layout::snug(p.at->count);
                    void* where = nullptr;
                    while (is_local(p.at) && capacity < p.at->capacity &&
                           (where = store_.try_local(layout::units(p.at->height, capacity))) == nullptr &&
                           make_room()) {
                    }
                    if (where != nullptr) {
                        move_to(where, p.at, capacity);
                    }
                }
                if (frontier_ == nullptr || h == frontier_->height) {
                    break;
                }
            }
            while (promote(64)) {
            }
        }
    }

    /// Frees the nodes and their elements.
    void free_all() noexcept {
        if (root_ != nullptr) {
            free_subtree(root_);
        }
        set_root(nullptr);
    }

    [[nodiscard]] link_count count_links() const {
        link_count links;
        if (root_ != nullptr) {
            count_links(root_, links);
        }
        return links;
    }

    /// The lowest local node of the smallest key; null if no node is local.
    [[nodiscard]] node_ptr frontier() const noexcept {
        return frontier_;
    }

    void swap(btree_nodes& other) noexcept {
        store_.swap(other.store_);
        std::swap(root_, other.root_);
        std::swap(first_leaf_, other.first_leaf_);
        std::swap(last_leaf_, other.last_leaf_);
        std::swap(frontier_, other.frontier_);
        std::swap(resume_at_, other.resume_at_);
    }

protected:
    /// Where an interrupted re-blocking goes on: the next subtree of its unit height.
    node_ptr resume_at_{};

private:
    [[nodiscard]] bool wants_local(unsigned h, const tracked* sibling) const noexcept {
        if constexpr (!keeps_top_local) {
            return false;
        } else if (sibling == nullptr) {
            return true;
        } else {
            return frontier_ != nullptr && (h > frontier_->height || (h == frontier_->height && is_local(sibling->at)));
        }
    }

    /// Swappable room for a node that takes the place of `p` or one next to it: with the parent, a child, or `p`
    /// itself.
    [[nodiscard]] void* near(node_ptr p, std::size_t units) {
        const void* parent = p->parent == nullptr ? nullptr : std::to_address(p->parent);
        if (p->height == 0) {
            return store_.near({parent, std::to_address(p)}, units);
        }
        // A split or grown inner node has more links to its children than to its parent.
        return store_.near({std::to_address(child(p, p->count)), std::to_address(p), parent}, units);
    }

    /// Makes some room in local memory; false if there is no way to. Throws when swappable memory is out.
    bool make_room() {
        if (compact_local()) {
            return true;
        }
        if (frontier_ == nullptr) {
            return false;
        }
        demote();
        return true;
    }

    /// Sends the frontier out, next to its children or its neighbour. Throws when swappable memory is out.
    void demote() {
        const node_ptr p = frontier_;
        const node_ptr by = p->height != 0 ? child(p, 0) : neighbour<false>(p);
        const std::size_t capacity = layout::snug(p->count);
        void* where = store_.near({by == nullptr ? nullptr : std::to_address(by)}, layout::units(p->height, capacity));
        advance_frontier();
        move_to(where, p, capacity);
    }

    [[nodiscard]] void* try_local(std::size_t units) noexcept {
        VARVE_TRY {
            do {
                if (void* p = store_.try_local(units); p != nullptr) {
                    return p;
                }
            } while (compact_local());
        }
        VARVE_CATCH(...) {  // an allocator may throw what it likes: no room
        }
        return nullptr;
    }

    void advance_frontier() noexcept {
        const unsigned h = frontier_->height;
        node_ptr next = neighbour<true>(frontier_);
        if (next == nullptr && h < root_->height) {
            next = first_at_height(root_, h + 1);
        }
        frontier_ = next == nullptr || is_local(next) ? next : first_local_after(next);
    }

    /// Only where a node could not follow its neighbour out are there swapped nodes behind the frontier.
    [[nodiscard]] node_ptr first_local_after(node_ptr p) const noexcept {
        for (;;) {
            node_ptr next = neighbour<true>(p);
            if (next == nullptr) {
                if (p->height == root_->height) {
                    return nullptr;
                }
                next = first_at_height(root_, p->height + 1u);
            }
            if (is_local(next)) {
                return next;
            }
            p = next;
        }
    }

    [[nodiscard]] node_ptr next_to_promote() const noexcept {
        if (frontier_ == nullptr) {
            return root_;
        }
        const node_ptr before = neighbour<false>(frontier_);
        if (before != nullptr || frontier_->height == 0) {
            return before;
        }
        return last_at_height(root_, frontier_->height - 1u);
    }

    /// Empties a local slab into the holes of others, so that its page can serve nodes of another size.
    bool compact_local() noexcept {
        if constexpr (requires(const unit_allocator& a) { a.memory(); }) {
            auto& local = store_.allocator().memory().local();
            const page_index slab = local.slab_to_empty(store_.allocator().tag());
            if (slab == no_page) {
                return false;
            }
            bool emptied = true;
            local.for_each_object(slab, [&](void* object) {
                node* p = static_cast<node*>(object);
                void* where = p->linked ? store_.try_local(layout::units(p->height, p->capacity)) : nullptr;
                if (where == nullptr) {
                    emptied = false;
                    return false;
                }
                move_to(where, layout::pointer_to(*p), p->capacity);
                return true;
            });
            local.end_emptying(slab);
            return emptied;
        } else {
            return false;
        }
    }

    void free_subtree(node_ptr p) noexcept {
        node& n = *p;
        if (n.height != 0) {
            for (std::size_t i = 0; i <= n.count; ++i) {
                free_subtree(layout::children(n)[i]);
            }
        }
        std::destroy_n(reinterpret_cast<typename Slot::value_type*>(layout::slots(n)), n.count);
        drop(p);
    }

    void count_links(node_ptr p, link_count& links) const {
        const bool here = is_local(p);
        for (std::size_t i = 0; i < child_count(p); ++i) {
            const node_ptr c = child(p, i);
            if (here && is_local(c)) {
                ++links.local;
            } else if (store_.same_page(std::to_address(p), std::to_address(c))) {
                ++links.in_page;
            } else {
                ++links.cross_page;
            }
            if (c->height != 0) {
                count_links(c, links);
            }
        }
    }

    store_type store_;
    node_ptr root_{};
    node_ptr first_leaf_{};
    node_ptr last_leaf_{};
    node_ptr frontier_{};
    tracked* trackers_ = nullptr;
};

}  // namespace varve
