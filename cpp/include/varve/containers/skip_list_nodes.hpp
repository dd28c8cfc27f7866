// The nodes of a skip list: searching, allocation, relocation, and the rule for what is in local memory.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <optional>

#include "varve/containers/skip_list_head.hpp"
#include "varve/core/errors.hpp"
#include "varve/placement/node_store.hpp"
#include "varve/placement/policies.hpp"

namespace varve {

/// Local memory holds a prefix of the nodes ordered by level, highest first, and at equal level from the last key to
/// the first. The frontier is the local node that would leave next.
/// Invariant: every list, level by level, is in the order of the bottom, and holds the nodes of that level and above.
template <class Slot, class Compare, class Allocator, placement_policy Placement>
class skip_list_nodes {
    using given_traits = collective_allocator_traits<Allocator>;

public:
    using slot = Slot;
    using key_type = typename slot::key_type;
    using value_type = typename slot::value_type;
    using key_compare = Compare;
    using allocator_type = Allocator;
    using layout = skip_list_layout<slot, typename given_traits::void_pointer>;
    using node = typename layout::node;
    using node_ptr = typename layout::node_ptr;
    using position = typename layout::template position<skip_list_nodes>;
    using unit = typename layout::unit;
    using unit_allocator = typename given_traits::template rebind_alloc<unit>;
    using store_type = node_store<unit_allocator>;
    static constexpr bool keeps_top_local = Placement::keeps_top_local && store_type::traits::is_collective;
    /// The last node before a place on every level; null for the head.
    using path = std::array<node_ptr, layout::levels>;

    skip_list_nodes(const Compare& compare, const Allocator& a) : store_(unit_allocator(a)), compare_(compare) {}
    skip_list_nodes(const skip_list_nodes&) = delete;
    skip_list_nodes& operator=(const skip_list_nodes&) = delete;
    ~skip_list_nodes() { clear(); }

    [[nodiscard]] const Compare& compare() const noexcept { return compare_; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] static slot& slot_at(const position& p) noexcept { return layout::slot_of(*p.at); }
    [[nodiscard]] static value_type& value_at(const position& p) noexcept { return slot_at(p).value; }
    [[nodiscard]] position first() const noexcept { return {head_.first(), this}; }
    [[nodiscard]] position last() const noexcept { return {node_ptr{}, this}; }
    [[nodiscard]] node_ptr last_node() const noexcept { return last_; }

    template <class K>
    [[nodiscard]] position lower_bound(const K& key) const {
        return {search(
                    key, [this](const key_type& a, const K& b) { return compare_(a, b); }, nullptr),
                this};
    }
    template <class K>
    [[nodiscard]] position upper_bound(const K& key) const {
        return {search(
                    key, [this](const key_type& a, const K& b) { return !compare_(b, a); }, nullptr),
                this};
    }
    /// Ends at the level where the key shows up: the way on down would touch the nodes before it.
    template <class K>
    [[nodiscard]] position find(const K& key) const {
        return descend(key, nullptr);
    }

    void clear() noexcept {
        for (node_ptr p = head_.first(); p != nullptr;) {
            const node_ptr next = layout::next(*p, 0);
            layout::slot_of(*p).destroy();
            drop(p);
            p = next;
        }
        forget();
        size_ = 0;
    }

    [[nodiscard]] link_count count_links() const {
        link_count links;
        for (node_ptr p = head_.first(); p != nullptr; p = layout::next(*p, 0)) {
            const bool here = is_local(p);
            for (unsigned l = 0; l <= p->level; ++l) {
                const node_ptr q = layout::next(*p, l);
                if (q == nullptr) {
                    continue;
                }
                if (here && is_local(q)) {
                    ++links.local;
                } else if (store_.same_page(std::to_address(p), std::to_address(q))) {
                    ++links.in_page;
                } else {
                    ++links.cross_page;
                }
            }
        }
        return links;
    }

    [[nodiscard]] bool is_local(node_ptr p) const noexcept { return store_.is_local(std::to_address(p)); }
    [[nodiscard]] const store_type& store() const noexcept { return store_; }
    /// Nodes above this level are local; on it, those from the frontier on.
    [[nodiscard]] int frontier_level() const noexcept { return frontier_level_; }
    [[nodiscard]] node_ptr frontier() const noexcept { return frontier_; }

    /// All but the comparison.
    void swap_content(skip_list_nodes& other) noexcept {
        using std::swap;
        store_.swap(other.store_);
        swap(head_, other.head_);
        std::swap(last_, other.last_);
        std::swap(top_, other.top_);
        std::swap(frontier_, other.frontier_);
        std::swap(frontier_level_, other.frontier_level_);
        std::swap(resume_at_, other.resume_at_);
        std::swap(random_, other.random_);
        std::swap(size_, other.size_);
    }
    void swap_comparison(skip_list_nodes& other) noexcept(detail::exchange_is_nothrow<Compare>) {
        detail::exchange_comparisons(compare_, other.compare_);
    }

protected:
    static constexpr int everything = -1;  ///< as the frontier level: all is local

    [[nodiscard]] store_type& store() noexcept { return store_; }

    template <class K>
    node_ptr predecessors(const K& key, path& before) const {
        return search(
            key, [this](const key_type& a, const K& b) { return compare_(a, b); }, &before);
    }
    [[nodiscard]] static const key_type& key_of(node_ptr p) noexcept { return layout::slot_of(*p).key(); }

    /// Moves a node to other storage; gives back where it is now. `before` is the path to it, which may hold the places
    /// of further nodes and is kept right.
    node_ptr move_to(void* where, node_ptr from, const path& before) noexcept {
        node& old = *from;
        node* fresh = std::construct_at(static_cast<node*>(where), old);
        const node_ptr to = layout::pointer_to(*fresh);
        slot::transfer(std::addressof(layout::slot_of(*fresh)), std::addressof(layout::slot_of(old)), 1);
        for (unsigned l = 0; l <= old.level; ++l) {
            std::construct_at(&layout::next(*fresh, l), layout::next(old, l));
            next_of(before[l], l) = to;
        }
        previous_of(layout::next(*fresh, 0)) = to;
        for (node_ptr* known : {&frontier_, &resume_at_}) {
            if (*known == from) {
                *known = to;
            }
        }
        if (finger_ != nullptr) {
            for (node_ptr& p : *finger_) {
                if (p == from) {
                    p = to;
                }
            }
        }
        drop(from);
        return to;
    }
    node_ptr move_to(void* where, node_ptr from) noexcept {
        return move_to(where, from, path_behind(from->previous, from->level));
    }

    static constexpr unsigned most_climbed = 6;

    /// The way to the place behind `previous` (null: the head) on the levels up to `level`. Going back along the
    /// bottom, where a node of a level is expected every 2^level nodes, is shorter than a search for all but the
    /// highest levels; for these it is what is left when comparing throws, and between elements of equal keys.
    [[nodiscard]] path path_behind(node_ptr previous, unsigned level) const noexcept {
        path low{};  // to the place before all elements with the key of `previous`, or the head
        if (level > most_climbed && previous != nullptr) {
            VARVE_TRY {
                predecessors(key_of(previous), low);
            }
            VARVE_CATCH(...) {  // of the program's own comparison
                low = path{};
            }
        }
        path before{};
        node_ptr p = previous;
        for (unsigned l = 0; l <= level; ++l) {
            while (!(p == low[0]) && p->level < l) {
                p = p->previous;
            }
            before[l] = p == low[0] ? low[l] : p;
        }
        return before;
    }
    /// The whole of it.
    [[nodiscard]] path path_to(node_ptr p) const noexcept { return path_behind(p->previous, top_ - 1); }

    /// Takes back into local memory what now fits, at most so many nodes. False when nothing more fits.
    bool promote(std::size_t at_most = 4) noexcept {
        if constexpr (keeps_top_local) {
            for (; at_most > 0; --at_most) {
                const node_ptr candidate = next_to_promote();
                if (candidate == nullptr) {
                    return false;
                }
                if (is_local(candidate)) {
                    frontier_ = candidate;
                    continue;
                }
                void* where = try_local(layout::units(candidate->level));
                if (where == nullptr) {
                    return false;
                }
                frontier_ = move_to(where, candidate);
            }
            return true;
        } else {
            return false;
        }
    }

    /// Has a path follow relocations.
    struct finger_scope {
        finger_scope(path*& finger, path& path_to) noexcept : finger_(finger), outer_(finger) { finger_ = &path_to; }
        finger_scope(const finger_scope&) = delete;
        finger_scope& operator=(const finger_scope&) = delete;
        ~finger_scope() { finger_ = outer_; }
        path*& finger_;
        path* outer_;
    };

    /// The element with that key, or the end; then `before`, if asked for, is the way to where it belongs. Where keys
    /// are unique, an element is found on its highest level: of the way to it, what is lower is not known then.
    template <class K>
    [[nodiscard]] position descend(const K& key, path* before) const {
        node_ptr p{};      // null stands for the head
        node_ptr bound{};  // known to be behind the key
        for (unsigned l = top_; l-- > 0;) {
            for (;;) {
                const node_ptr q = p == nullptr ? head_[l] : layout::next(*p, l);
                if (q == nullptr || q == bound) {
                    break;
                }
                if (l != 0) {
                    layout::prefetch(p == nullptr ? head_[l - 1] : layout::next(*p, l - 1));
                }
                if (!compare_(key_of(q), key)) {
                    if (!compare_(key, key_of(q))) {
                        if (before != nullptr) {
                            (*before)[l] = p;
                        }
                        return {q, this};
                    }
                    bound = q;
                    break;
                }
                p = q;
            }
            if (before != nullptr) {
                (*before)[l] = p;
            }
        }
        return last();
    }

    template <class K, class Before>
    node_ptr search(const K& key, Before is_before, path* before) const {
        node_ptr p{};      // null stands for the head
        node_ptr bound{};  // known not to be before the key
        for (unsigned l = top_; l-- > 0;) {
            for (;;) {
                const node_ptr q = p == nullptr ? head_[l] : layout::next(*p, l);
                if (q == nullptr || q == bound) {
                    break;
                }
                if (l != 0) {
                    layout::prefetch(p == nullptr ? head_[l - 1] : layout::next(*p, l - 1));
                }
                if (!is_before(key_of(q), key)) {
                    bound = q;
                    break;
                }
                p = q;
            }
            if (before != nullptr) {
                (*before)[l] = p;
            }
        }
        return p == nullptr ? head_.first() : layout::next(*p, 0);
    }

    [[nodiscard]] node_ptr& next_of(node_ptr p, unsigned level) noexcept {
        return p == nullptr ? head_[level] : layout::next(*p, level);
    }
    [[nodiscard]] node_ptr& previous_of(node_ptr p) noexcept { return p == nullptr ? last_ : p->previous; }

    /// Each level has half the nodes of the one below. The sequence is fixed: equal insertions make equal lists.
    [[nodiscard]] unsigned random_level() noexcept {
        random_ += 0x9e3779b97f4a7c15u;  // splitmix64: G. Steele, D. Lea, C. Flood, 2014
        std::uint64_t z = random_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        const auto level = static_cast<unsigned>(std::countl_zero(z | 1));
        const unsigned limit = std::clamp(top_, 1u, layout::levels - 1);  // one level at a time
        return level < limit ? level : limit;
    }

    /// `before` is the path to the place of the new node, and follows what is relocated meanwhile.
    [[nodiscard]] node_ptr make(unsigned level, const key_type& key, path& before) {
        head_.reserve(store_, level + 1);
        const std::size_t units = layout::units(level);
        void* where = nullptr;
        while (wants_local(level, key, before[0]) && (where = store_.try_local(units)) == nullptr && make_room()) {
        }
        if (where == nullptr) {
            where = store_.near({address(before[0]), address(next_of(before[0], 0))}, units);
        }
        node* made = std::construct_at(static_cast<node*>(where));
        made->level = static_cast<std::uint8_t>(level);
        for (unsigned l = 0; l <= level; ++l) {
            std::construct_at(&layout::next(*made, l));
        }
        top_ = level + 1 > top_ ? level + 1 : top_;
        return layout::pointer_to(*made);
    }

    void drop(node_ptr p) noexcept {
        const std::size_t units = layout::units(p->level);
        std::destroy_at(std::to_address(p));
        store_.free(std::to_address(p), units);
    }

    void forget() noexcept {
        head_.release(store_);
        last_ = frontier_ = resume_at_ = node_ptr{};
        frontier_level_ = everything;
        top_ = 0;
        store_.stop_filling();
    }

    [[nodiscard]] static const void* address(node_ptr p) noexcept {
        return p == nullptr ? nullptr : std::to_address(p);
    }

    [[nodiscard]] node_ptr next_at_level(node_ptr p) const noexcept {
        return exact(layout::next(*p, static_cast<unsigned>(frontier_level_)));
    }

    [[no_unique_address]] store_type store_;
    skip_list_head<layout, store_type> head_;
    node_ptr last_{};
    node_ptr frontier_{};
    node_ptr resume_at_{};    ///< where an interrupted re-blocking goes on
    path* finger_ = nullptr;  ///< a path that has to follow relocations
    std::size_t size_ = 0;
    std::uint64_t random_ = 0;
    int frontier_level_ = everything;
    unsigned top_ = 0;  ///< levels in use
    [[no_unique_address]] Compare compare_;

private:
    // ---- what is local ----

    [[nodiscard]] bool wants_local(unsigned level, const key_type& key, node_ptr before) const {
        if constexpr (!keeps_top_local) {
            return false;
        } else {
            const int l = static_cast<int>(level);
            return l > frontier_level_ ||
                   (l == frontier_level_ && frontier_ != nullptr && behind_frontier(key, before));
        }
    }
    /// Whether the place behind `before`, where the key belongs, is one behind the frontier. Among equal keys the order
    /// is that of the bottom.
    [[nodiscard]] bool behind_frontier(const key_type& key, node_ptr before) const {
        if (compare_(key, key_of(frontier_))) {
            return false;
        }
        if (compare_(key_of(frontier_), key)) {
            return true;
        }
        while (before != nullptr && !(before == frontier_) && !compare_(key_of(before), key)) {
            before = before->previous;
        }
        return before == frontier_;
    }

    /// Makes some room in local memory; false if there is no way to. Throws when swappable memory is out.
    bool make_room() {
        if (compact_local()) {
            return true;
        }
        while (frontier_ == nullptr) {
            if (frontier_level_ + 1 >= static_cast<int>(layout::levels)) {
                return false;
            }
            ++frontier_level_;
            frontier_ = exact(head_[static_cast<unsigned>(frontier_level_)]);
        }
        const node_ptr p = frontier_;
        const std::size_t units = layout::units(p->level);
        void* where = store_.near({address(p->previous), address(layout::next(*p, 0))}, units);
        frontier_ = next_at_level(p);
        move_to(where, p);
        return true;
    }

    /// The first local node from `p` on, along the frontier's level, that goes no higher.
    [[nodiscard]] node_ptr exact(node_ptr p) const noexcept {
        const auto l = static_cast<unsigned>(frontier_level_);
        while (p != nullptr && (p->level > l || !is_local(p))) {
            p = layout::next(*p, l);
        }
        return p;
    }
    [[nodiscard]] node_ptr next_to_promote() noexcept {
        while (frontier_level_ > everything) {
            const auto l = static_cast<unsigned>(frontier_level_);
            node_ptr p = frontier_ != nullptr ? path_behind(frontier_->previous, l)[l] : rightmost()[l];
            while (p != nullptr && p->level > l) {
                p = path_behind(p->previous, l)[l];
            }
            if (p != nullptr) {
                return p;
            }
            --frontier_level_;
            frontier_ = node_ptr{};
        }
        return node_ptr{};
    }

    [[nodiscard]] path rightmost() const noexcept {
        path before{};
        node_ptr p{};
        for (unsigned l = top_; l-- > 0;) {
            for (node_ptr q = p == nullptr ? head_[l] : layout::next(*p, l); q != nullptr; q = layout::next(*p, l)) {
                p = q;
            }
            before[l] = p;
        }
        return before;
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
                void* where = p->linked ? store_.try_local(layout::units(p->level)) : nullptr;
                if (where == nullptr) {
                    return emptied = false;
                }
                move_to(where, layout::pointer_to(*p));
                return true;
            });
            local.end_emptying(slab);
            return emptied;
        } else {
            return false;
        }
    }
};

}  // namespace varve
