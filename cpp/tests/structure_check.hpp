// Looks at a structure from outside: is it a valid tree or list, and is what is local a prefix of the order?
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "varve/containers/btree_map.hpp"
#include "varve/containers/skip_list_map.hpp"

namespace varve_test {

/// Levels of the nodes in key order per level, with their locality; highest level first.
struct level_order {
    std::vector<std::vector<bool>> local_at;  // [level][place in key order]

    void add(std::size_t level, bool local) {
        if (local_at.size() <= level) {
            local_at.resize(level + 1);
        }
        local_at[level].push_back(local);
    }

    /// Local nodes must form a prefix of: highest level first, within a level from the last key to the first.
    void expect_prefix() const {
        bool seen_swapped = false;
        for (std::size_t level = local_at.size(); level-- > 0;) {
            for (std::size_t i = local_at[level].size(); i-- > 0;) {
                if (!local_at[level][i]) {
                    seen_swapped = true;
                } else {
                    ASSERT_FALSE(seen_swapped)
                        << "a local node behind a swapped one: level " << level << " place " << i;
                }
            }
        }
    }
};

template <class Core>
std::size_t check_tree_node(const Core& core, typename Core::node_ptr p, bool strict, level_order& order) {
    using layout = typename Core::layout;
    auto& n = *p;
    EXPECT_LE(n.count, n.capacity);
    EXPECT_LE(n.capacity, layout::max_slots);
    EXPECT_TRUE(n.linked);
    std::size_t elements = n.count;
    const bool is_root = p == core.root();
    if (strict && !is_root) {
        EXPECT_GE(n.count, layout::max_slots > 8 ? 1u : layout::min_slots);
    }
    for (std::size_t i = 0; i < Core::child_count(p); ++i) {
        const auto c = Core::child(p, i);
        EXPECT_TRUE(c->parent == p);
        EXPECT_EQ(c->height + 1, n.height);
        elements += check_tree_node(core, c, strict, order);
    }
    order.add(n.height, core.is_local(p));
    return elements;
}

/// `strict`: no allocation failed so far, so that nodes are as full as they should be.
template <class Tree>
    requires requires(const Tree& t) {
        t.core().root();
    }
void check_structure(const Tree& map, bool strict) {
    const auto& core = map.core();
    if (core.root() == nullptr) {
        EXPECT_EQ(map.size(), 0u);
        return;
    }
    level_order order;
    EXPECT_TRUE(core.root()->parent == nullptr);
    EXPECT_EQ(check_tree_node(core, core.root(), strict, order), map.size());
    EXPECT_TRUE(core.first_leaf() == core.first_at_height(core.root(), 0));
    EXPECT_TRUE(core.last_leaf() == core.last_at_height(core.root(), 0));
    if (strict) {
        order.expect_prefix();
    }
}

template <class List>
    requires requires(const List& l) {
        l.core().last_node();
    }
void check_structure(const List& map, bool strict) {
    const auto& core = map.core();
    using layout = typename std::remove_cvref_t<decltype(core)>::layout;
    level_order order;
    std::size_t elements = 0;
    typename layout::node_ptr before{};
    std::vector<typename layout::node_ptr> expected(layout::levels);
    for (auto p = core.first().at; p != nullptr; p = layout::next(*p, 0)) {
        EXPECT_TRUE(p->linked);
        EXPECT_TRUE(p->previous == before);
        for (unsigned l = 0; l <= p->level; ++l) {
            if (expected[l] != nullptr) {
                EXPECT_TRUE(expected[l] == p) << "level " << l;
            }
            expected[l] = layout::next(*p, l);
        }
        order.add(p->level, core.is_local(p));
        before = p;
        ++elements;
    }
    for (const auto& end : expected) {
        EXPECT_TRUE(end == nullptr);
    }
    EXPECT_TRUE(core.last_node() == before);
    EXPECT_EQ(elements, map.size());
    if (strict) {
        order.expect_prefix();
    }
}

}  // namespace varve_test
