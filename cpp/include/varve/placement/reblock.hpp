// Re-blocking: laying the swapped nodes of a structure out on pages in a chosen order. Written once for all structures.
#pragma once

#include <algorithm>
#include <optional>

#include "varve/placement/node_store.hpp"
#include "varve/placement/policies.hpp"

namespace varve {

/// Hands out room on fresh pages, each filled to a limit, and keeps the memory of the structure from growing by more
/// than an eighth meanwhile: when that is used up, the emptiest pages not laid out yet are emptied into the holes of
/// others.
template <class Store>
class page_filler {
public:
    page_filler(Store& store, percent fill) : fill_(fill) {
        auto& area = store.allocator().memory().swappable();
        area.unsettle_pages(store.allocator().tag());
        const std::size_t now = area.pages_in_use().value;
        limit_ = now + std::max<std::size_t>(now / 8, 4);
        store.stop_filling();
    }

    /// Room for a node, or null if it does not fit on a page. `move(object, where)` relocates an object of the
    /// structure to `where(units)`. Throws when memory is out; nodes moved by then stay moved.
    template <class Evict>
    [[nodiscard]] void* take(Store& store, std::size_t units, Evict evict) {
        if (page_ && page_->how_full().under(fill_)) {
            if (void* p = store.try_on(*page_, units); p != nullptr) {
                return p;
            }
        }
        auto& area = store.allocator().memory().swappable();
        if (units * sizeof(typename Store::unit) > area.largest_in_page().value) {
            return nullptr;
        }
        page_.reset();
        if (area.pages_in_use().value >= limit_) {
            relieve(store, evict);
        }
        page_.emplace(store.new_page());
        area.settle_page(page_->page());
        return store.try_on(*page_, units);
    }

private:
    template <class Evict>
    void relieve(Store& store, Evict evict) {
        auto& area = store.allocator().memory().swappable();
        const auto pages = area.unsettled_pages(store.allocator().tag());
        std::size_t wanted = std::max<std::size_t>(limit_ / 16, 2);
        std::size_t fullest = pages.size();
        std::optional<typename Store::sub_type> home;
        const auto find_home = [&](std::size_t emptied, std::size_t units) -> void* {
            for (;;) {
                if (home) {
                    if (void* p = store.try_on(*home, units); p != nullptr) {
                        return p;
                    }
                }
                if (fullest <= emptied + 1) {
                    return nullptr;
                }
                home.reset();
                home.emplace(store.allocator().sub(pages[--fullest]));
            }
        };
        for (std::size_t i = 0; i < fullest && wanted > 0; ++i, --wanted) {
            const auto keep = store.allocator().sub(pages[i]);
            bool emptied = true;
            area.for_each_object(pages[i], [&](void* object) {
                return emptied = evict(object, [&](std::size_t units) { return find_home(i, units); });
            });
            if (!emptied) {
                break;
            }
        }
        if (wanted > 0) {  // the holes are used up: what the order needs more, it gets
            limit_ = std::max(limit_, area.pages_in_use().value + limit_ / 16 + 1);
        }
    }

    std::optional<typename Store::sub_type> page_;
    percent fill_;
    std::size_t limit_ = 0;
};

/// Visits the nodes of a tree in an order and hands each to `place(tracked&)`, which may relocate it and others. `Tree`
/// offers `tracked`, a pointer that follows its node, `child_count` and `child`.
template <class Tree, class Place>
class tree_walk {
public:
    using node_ptr = typename Tree::node_ptr;
    using tracked = typename Tree::tracked;

    tree_walk(Tree& tree, Place place) : tree_(tree), place_(place) {}

    void depth_first(node_ptr subtree) {
        tracked p(tree_, subtree);
        for (std::size_t i = 0; i < Tree::child_count(p.at); ++i) {
            depth_first(Tree::child(p.at, i));
        }
        place_(p);
    }

    /// The top `levels` levels of a subtree: the upper half of them, then from each node below it the lower half.
    void van_emde_boas(node_ptr subtree, unsigned levels) {
        tracked p(tree_, subtree);
        if (levels <= 1) {
            place_(p);
            return;
        }
        const unsigned upper = (levels + 1) / 2;
        van_emde_boas(p.at, upper);
        below(p.at, upper, [&](node_ptr q) { van_emde_boas(q, levels - upper); });
    }

private:
    template <class Visit>
    void below(node_ptr subtree, unsigned depth, Visit visit) {
        tracked p(tree_, subtree);
        for (std::size_t i = 0; i < Tree::child_count(p.at); ++i) {
            if (depth == 1) {
                visit(Tree::child(p.at, i));
            } else {
                below(Tree::child(p.at, i), depth - 1, visit);
            }
        }
    }

    Tree& tree_;
    Place place_;
};

}  // namespace varve
