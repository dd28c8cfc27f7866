// What programs written for std::map ask of a map, asked of both maps and of std::map.
#include <gtest/gtest.h>

#include <map>
#include <memory_resource>
#include <string>
#include <string_view>

#include "varve/varve.hpp"

namespace {

using namespace varve::literals;

template <class Key, class T, class Compare = std::less<Key>>
struct maps {
    using element = std::pair<const Key, T>;
    using collective = varve::collective_allocator<element>;
    using polymorphic = std::pmr::polymorphic_allocator<element>;
    using tree = varve::btree_map<Key, T, 4, Compare, collective, varve::placement::local_dfs>;
    using list = varve::skip_list_map<Key, T, Compare, collective, varve::placement::local_page>;
    using pmr_tree = varve::btree_map<Key, T, 4, Compare, polymorphic>;
    using pmr_list = varve::skip_list_map<Key, T, Compare, polymorphic>;
};

/// Gives `body` a standard map and both of ours, each empty on memory of its own.
template <class Key, class T, class Compare = std::less<Key>, class Body>
void on_all(Body body) {
    using kinds = maps<Key, T, Compare>;
    const typename kinds::collective memory({64_KiB, 64_MiB});
    std::map<Key, T, Compare> standard;
    typename kinds::tree tree(memory);
    typename kinds::list list(memory);
    body(standard);
    body(tree);
    body(list);
}

TEST(MapInterface, HintsAreAccepted) {
    on_all<int, std::string>([](auto& m) {
        EXPECT_EQ(m.try_emplace(m.begin(), 3, "three")->second, "three");
        const int three = 3;
        EXPECT_EQ(m.try_emplace(m.end(), three, "again")->second, "three");
        EXPECT_EQ(m.insert_or_assign(m.begin(), three, "3")->second, "3");
        EXPECT_EQ(m.insert_or_assign(m.begin(), 4, "4")->second, "4");
        EXPECT_EQ(m.insert(m.end(), std::make_pair(short{5}, "5"))->second, "5");
        EXPECT_EQ(m.emplace_hint(m.end(), 6, "6")->second, "6");
        EXPECT_EQ(m.size(), 4u);
    });
}

TEST(MapInterface, ListsWithAComparison) {
    using kinds = maps<int, int, std::greater<int>>;
    const kinds::collective memory({64_KiB, 64_MiB});
    const kinds::tree tree({{1, 10}, {2, 20}}, std::greater<int>(), memory);
    const kinds::list list({{1, 10}, {2, 20}}, std::greater<int>(), memory);
    EXPECT_EQ(tree.begin()->first, 2);
    EXPECT_EQ(list.begin()->first, 2);
}

TEST(MapInterface, AssigningAListKeepsTheMemory) {
    on_all<int, int>([](auto& m) {
        const auto memory = m.get_allocator();
        m.emplace(7, 7);
        auto& same = (m = {{1, 10}, {2, 20}});
        EXPECT_EQ(&same, &m);
        EXPECT_EQ(m.size(), 2u);
        EXPECT_EQ(m.at(2), 20);
        EXPECT_TRUE(m.get_allocator() == memory);
        EXPECT_EQ(m.count(7), 0u);
    });
}

TEST(MapInterface, TransparentComparisonsSeeTheKeyAsItIs) {
    on_all<int, std::string, std::less<>>([](auto& m) {
        m.emplace(1, "one");
        m.emplace(2, "two");
        const long long wide = (1ll << 32) + 1;  // 1 as an int
        EXPECT_TRUE(m.find(wide) == m.end());
        EXPECT_FALSE(m.contains(wide));
        EXPECT_EQ(m.count(wide), 0u);
        EXPECT_TRUE(m.lower_bound(wide) == m.end());
        EXPECT_EQ(m.erase(1ll), 1u);
        EXPECT_EQ(m.find(2ll)->second, "two");
    });
}

TEST(MapInterface, TransparentLookUpGivesWhatCanBeWrittenTo) {
    on_all<std::string, int, std::less<>>([](auto& m) {
        m.emplace("a", 1);
        m.emplace("b", 2);
        const std::string_view a = "a";
        m.lower_bound(a)->second = 5;
        EXPECT_EQ(m.at("a"), 5);
        m.upper_bound(a)->second = 6;
        EXPECT_EQ(m.at("b"), 6);
        const auto [first, last] = m.equal_range(a);
        first->second = 7;
        EXPECT_EQ(last->second, 6);
        EXPECT_EQ(m.find("a")->second, 7);
        EXPECT_TRUE(m.contains("b"));
    });
}

/// Orders, and does nothing else.
struct only_less {
    int value;
    friend bool operator<(const only_less& a, const only_less& b) { return a.value < b.value; }
};

TEST(MapInterface, MapsOfWhatOnlyHasLessAreOrdered) {
    on_all<int, only_less>([](auto& m) {
        auto later = m;
        m.emplace(1, only_less{1});
        later.emplace(1, only_less{2});
        EXPECT_TRUE(m < later);
        EXPECT_FALSE(later < m);
        EXPECT_TRUE(later >= m);
    });
}

/// Allocators that stay where they are, and elements that are given the map's.
template <class Map>
void polymorphic_memory() {
    std::pmr::monotonic_buffer_resource here;
    std::pmr::monotonic_buffer_resource there;
    std::pmr::set_default_resource(std::pmr::null_memory_resource());
    const std::string text = "longer than what a string holds in itself";
    {
        Map a(&here);
        for (int i = 0; i < 200; ++i) {
            a.emplace(i, text);
            a.try_emplace(1000 + i, text.c_str());
            a[2000 + i] = text;
        }
        EXPECT_EQ(a.at(5).get_allocator().resource(), &here);
        EXPECT_EQ(a.at(2005).get_allocator().resource(), &here);
        Map b(std::move(a));
        EXPECT_EQ(b.size(), 600u);
        EXPECT_EQ(b.at(5).get_allocator().resource(), &here);
        Map c(b, &there);
        EXPECT_TRUE(b == c);
        EXPECT_EQ(c.at(1005).get_allocator().resource(), &there);
        Map d(std::move(b), &there);
        EXPECT_EQ(d.at(1005).get_allocator().resource(), &there);
        EXPECT_TRUE(c == d);
        Map e(&there);
        e.emplace(1, "x");
        swap(d, e);
        EXPECT_EQ(d.size(), 1u);
        EXPECT_TRUE(e == c);
        d = e;
        EXPECT_TRUE(d == c);
        d = std::move(e);
        EXPECT_TRUE(d == c);
        Map f(&here);
        f = std::move(d);
        EXPECT_EQ(f.get_allocator().resource(), &here);
        EXPECT_EQ(f.at(1005).get_allocator().resource(), &here);
        EXPECT_TRUE(f == c);
    }
    std::pmr::set_default_resource(nullptr);
}

TEST(MapInterface, PolymorphicAllocatorsDoNotPropagate) {
    using kinds = maps<int, std::pmr::string>;
    polymorphic_memory<std::pmr::map<int, std::pmr::string>>();
    polymorphic_memory<kinds::pmr_tree>();
    polymorphic_memory<kinds::pmr_list>();
}

}  // namespace
