// Inserting and erasing in a skip list. Memory is taken before anything changes, so that running out of it changes
// nothing.
#pragma once

#include "varve/containers/skip_list_nodes.hpp"

namespace varve {

template <class Slot, class Compare, class Allocator, placement_policy Placement>
class skip_list_core : public skip_list_nodes<Slot, Compare, Allocator, Placement> {
    using nodes = skip_list_nodes<Slot, Compare, Allocator, Placement>;

public:
    using typename nodes::key_type;
    using typename nodes::layout;
    using typename nodes::node;
    using typename nodes::node_ptr;
    using typename nodes::path;
    using typename nodes::position;
    using typename nodes::slot;

    using nodes::nodes;

    /// Where a key is, or the way to where it belongs.
    struct destination {
        position at{};
        bool there = false;
        bool complete = true;  ///< false: of `before`, only the bottom is known
        path before{};
    };
    [[nodiscard]] destination seek(const key_type& key) const {
        destination found;
        const node_ptr at = nodes::predecessors(key, found.before);
        found.there = at != nullptr && !compare_(key, nodes::key_of(at));
        found.at = {at, this};
        return found;
    }
    /// As `find`, if the key is there.
    [[nodiscard]] destination seek_likely(const key_type& key) const {
        destination found;
        found.at = nodes::descend(key, &found.before);
        found.there = found.at.at != nullptr;
        return found;
    }
    /// Two comparisons if it belongs right before `hint`; else a search.
    [[nodiscard]] destination seek(position hint, const key_type& key) const {
        if (size_ != 0 && (hint.at == nullptr || compare_(key, nodes::key_of(hint.at)))) {
            const node_ptr before = hint.at == nullptr ? nodes::last_node() : hint.at->previous;
            if (before == nullptr || compare_(nodes::key_of(before), key)) {
                return right_behind(before);
            }
        }
        return seek(key);
    }

    // Where another element with such a key belongs, whether there are some or not.

    /// Behind all elements of equal keys.
    [[nodiscard]] destination seek_behind(const key_type& key) const {
        destination found;
        nodes::search(
            key, [this](const key_type& a, const key_type& b) { return !compare_(b, a); }, &found.before);
        return found;
    }
    /// As close before `hint` as the order allows. Two comparisons if that is right before it.
    [[nodiscard]] destination seek_behind(position hint, const key_type& key) const {
        if (size_ != 0 && (hint.at == nullptr || !compare_(nodes::key_of(hint.at), key))) {
            const node_ptr before = hint.at == nullptr ? nodes::last_node() : hint.at->previous;
            if (before == nullptr || !compare_(key, nodes::key_of(before))) {
                return right_behind(before);
            }
            return seek_behind(key);
        }
        destination found;
        nodes::predecessors(key, found.before);
        return found;
    }

    /// At the place that a search for its key has just found. Throws when memory is out, and then nothing has changed.
    position insert(destination& found, loose_slot<slot>& element) {
        const key_type& key = element.slot().key();
        const unsigned level = nodes::random_level();
        if (!found.complete) {
            found.before = nodes::path_behind(found.before[0], level);
        }
        path& before = found.before;
        const typename nodes::finger_scope follow(this->finger_, before);
        const node_ptr fresh = nodes::make(level, key, before);
        element.give(std::addressof(layout::slot_of(*fresh)));
        for (unsigned l = 0; l <= level; ++l) {
            node_ptr& link = nodes::next_of(before[l], l);
            layout::next(*fresh, l) = link;
            link = fresh;
        }
        fresh->previous = before[0];
        nodes::previous_of(layout::next(*fresh, 0)) = fresh;
        fresh->linked = true;
        ++size_;
        return {fresh, this};
    }

    /// Takes an element out: calls `take(its slot)`, which moves it away or destroys it, and drops the node. Gives the
    /// place behind it, if `Next`. If `take` throws, nothing has changed.
    template <bool Next, class Take>
    position take_out(position p, Take take) {
        const path before = nodes::path_behind(p.at->previous, p.at->level);
        take(layout::slot_of(*p.at));
        if constexpr (Next) {
            path next{};
            next[0] = layout::next(*p.at, 0);
            unlink(p.at, before);
            const typename nodes::finger_scope follow(this->finger_, next);
            nodes::promote();
            return {next[0], this};
        } else {
            unlink(p.at, before);
            nodes::promote();
            return {};
        }
    }

    /// Takes out the element with that key; keys are unique. False if there is none.
    template <class Take>
    bool take_key(const key_type& key, Take take) {
        path before{};
        const position there = nodes::descend(key, &before);
        if (there.at == nullptr) {
            return false;
        }
        layout::prefetch(layout::next(*there.at, 0));
        const unsigned level = there.at->level;
        node_ptr p = before[level];
        for (unsigned l = level + 1; l-- > 0;) {
            while (!(nodes::next_of(p, l) == there.at)) {
                p = nodes::next_of(p, l);
            }
            before[l] = p;
        }
        take(layout::slot_of(*there.at));
        unlink(there.at, before);
        nodes::promote();
        return true;
    }

    /// Erases `count` elements, from `p` on, and gives the place behind them.
    position erase(position p, std::size_t count) noexcept {
        if (count == 0) {
            return p;
        }
        const path before = nodes::path_to(p.at);
        path next{};
        next[0] = p.at;
        for (std::size_t left = count; left > 0; --left) {
            const node_ptr gone = next[0];
            next[0] = layout::next(*gone, 0);
            layout::slot_of(*gone).destroy();
            unlink(gone, before);
        }
        const typename nodes::finger_scope follow(this->finger_, next);
        nodes::promote(4 * count);
        return {next[0], this};
    }

private:
    using nodes::compare_;
    using nodes::size_;

    [[nodiscard]] static destination right_behind(node_ptr before) noexcept {
        destination found;
        found.complete = false;
        found.before[0] = before;
        return found;
    }

    /// The node's element is gone. `before` is the way to it.
    void unlink(node_ptr p, const path& before) noexcept {
        node& gone = *p;
        if (p == this->frontier_) {
            this->frontier_ = nodes::next_at_level(p);
        }
        if (p == this->resume_at_) {
            this->resume_at_ = layout::next(gone, 0);
        }
        for (unsigned l = 0; l <= gone.level; ++l) {
            nodes::next_of(before[l], l) = layout::next(gone, l);
        }
        nodes::previous_of(layout::next(gone, 0)) = gone.previous;
        nodes::drop(p);
        if (--size_ == 0) {
            nodes::forget();
        }
    }
};

}  // namespace varve
