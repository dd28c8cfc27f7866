// Re-blocking of a B-tree in steps that can be interleaved with any other operation.
#pragma once

#include "varve/containers/btree_nodes.hpp"
#include "varve/placement/reblock.hpp"

namespace varve {

/// Adds re-blocking to a class derived from btree_nodes. The unit of a step is a subtree of about a thousand nodes.
template <class Base, class Slot, class Allocator, std::size_t Fanout, placement_policy Placement>
class btree_reblock : public Base {
    using nodes = btree_nodes<Slot, Allocator, Fanout, Placement>;

public:
    using Base::Base;
    using typename Base::layout;
    using typename Base::node;
    using typename Base::node_ptr;
    using typename Base::tracked;

    static constexpr bool reblocks =
        Placement::reblocking != placement::order::none && nodes::store_type::traits::is_collective;

    /// Re-blocks at least `nodes_wanted` nodes, whole units at a time. True when the pass over the tree is complete;
    /// the next call then begins a new one. Throws when memory is out; the tree is intact then, and a call goes on.
    bool step(std::size_t nodes_wanted) {
        if constexpr (!reblocks) {
            return true;
        } else {
            if (nodes::root() == nullptr) {
                filler_.reset();
                return true;
            }
            std::size_t placed = 0;
            const auto place = [&](tracked& p) {
                ++placed;
                this->place(p);
            };
            tree_walk<nodes, decltype(place)> walk(*this, place);
            if (!filler_) {
                begin(walk);
            }
            while (this->resume_at_ != nullptr && placed < nodes_wanted) {
                unit(walk, place);
            }
            const bool complete = this->resume_at_ == nullptr;
            if (complete) {
                filler_.reset();
            }
            return complete;
        }
    }

    void swap_content(btree_reblock& other) noexcept {
        Base::swap_content(other);
        filler_.reset();
        other.filler_.reset();
    }

private:
    static constexpr bool veb = Placement::reblocking == placement::order::van_emde_boas;

    /// Levels of a subtree of about a thousand nodes.
    [[nodiscard]] static constexpr unsigned unit_levels() noexcept {
        constexpr double children = 0.77 * Fanout;  // what random insertion leaves a node
        unsigned levels = 1;
        for (double width = children; width <= 1024; width *= children) {
            ++levels;
        }
        return levels;
    }

    template <class Walk>
    void begin(Walk& walk) {
        this->tidy_local();
        filler_.emplace(this->store(), Placement::fill);
        const unsigned levels = nodes::root()->height + 1u;
        // Everything above the frontier is local: the order is that of the subtrees below it.
        const unsigned swapped = nodes::frontier() == nullptr ? levels : nodes::frontier()->height + 1u;
        unsigned unit = std::min(swapped, unit_levels());
        if (veb && swapped > unit) {
            unit = levels - (levels + 1) / 2;
            walk.van_emde_boas(nodes::root(), levels - unit);
        }
        this->resume_at_ = nodes::first_at_height(nodes::root(), unit - 1);
    }

    template <class Walk, class Place>
    void unit(Walk& walk, Place& place) {
        if constexpr (veb) {
            const unsigned levels = this->resume_at_->height + 1u;
            if (levels > 1 && this->is_local(this->resume_at_)) {
                tracked top(*this, this->resume_at_);
                for (std::size_t i = 0; i < nodes::child_count(top.at); ++i) {
                    walk.van_emde_boas(nodes::child(top.at, i), levels - 1);
                }
            } else {
                walk.van_emde_boas(this->resume_at_, levels);
            }
        } else {
            walk.depth_first(this->resume_at_);
            // A node above comes after the last of its subtrees.
            tracked up(*this, this->resume_at_);
            while (up.at->parent != nullptr && layout::index_in(*up.at->parent, up.at) == up.at->parent->count) {
                up.at = up.at->parent;
                place(up);
            }
        }
        this->resume_at_ = nodes::template neighbour<true>(this->resume_at_);
    }

    void place(tracked& p) {
        if (this->is_local(p.at)) {
            return;
        }
        const std::size_t capacity = layout::snug(p.at->count);
        void* where =
            filler_->take(this->store(), layout::units(p.at->height, capacity), [this](void* object, auto find) {
                node* q = static_cast<node*>(object);
                void* home = q->linked ? find(layout::units(q->height, q->capacity)) : nullptr;
                if (home == nullptr) {
                    return false;
                }
                this->move_to(home, layout::pointer_to(*q), q->capacity);
                return true;
            });
        if (where != nullptr) {
            this->move_to(where, p.at, capacity);
        }
    }

    std::optional<page_filler<typename nodes::store_type>> filler_;
};

}  // namespace varve
