// What programs written for std::map ask of a map, asked of both maps and of std::map.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory_resource>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "structure_check.hpp"
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

/// Counts.
struct counting_less {
    static inline int asked = 0;
    bool operator()(int a, int b) const {
        ++asked;
        return a < b;
    }
};
struct counted_value {
    static inline int made = 0;
    int value = 0;
    counted_value() { ++made; }
    counted_value(int v) : value(v) { ++made; }
};

TEST(MapInterface, HintsAreHonoured) {
    on_all<int, int, counting_less>([](auto& m) {
        constexpr int many = 2000;
        const auto asked = [](auto body) {
            counting_less::asked = 0;
            body();
            return counting_less::asked;
        };
        // Upwards, downwards, and right before each in turn. A search would ask eleven times and more.
        EXPECT_LT(asked([&] {
                      for (int i = 0; i < many; ++i) {
                          m.emplace_hint(m.end(), 4 * i, i);
                      }
                  }),
                  4 * many);
        EXPECT_LT(asked([&] {
                      for (int i = 1; i <= many; ++i) {
                          m.try_emplace(m.begin(), -4 * i, i);
                      }
                  }),
                  4 * many);
        EXPECT_LT(asked([&] {
                      auto next = m.end();
                      for (int i = many - 1; i >= 0; --i) {
                          next = std::prev(m.insert(next, {4 * i + 2, i}));
                      }
                  }),
                  4 * many);
        EXPECT_EQ(m.size(), 3u * many);
        EXPECT_TRUE(std::is_sorted(m.begin(), m.end()));
        // Wrong ones do no harm.
        std::map<int, int> expected(m.begin(), m.end());
        std::mt19937 random(1);
        for (int i = 0; i < many; ++i) {
            const int key = static_cast<int>(random() % 20000) - 8000;
            const auto hint = m.lower_bound(static_cast<int>(random() % 20000) - 8000);
            EXPECT_EQ(m.emplace_hint(hint, key, i)->second, expected.emplace(key, i).first->second);
        }
        EXPECT_TRUE(std::equal(m.begin(), m.end(), expected.begin(), expected.end()));
        if constexpr (requires { m.core(); }) {
            varve_test::check_structure(m, true);
        }
    });
}

TEST(MapInterface, OneSearchAndNothingMadeInVain) {
    on_all<int, counted_value, counting_less>([](auto& m) {
        for (int i = 0; i < 1000; ++i) {
            m.try_emplace(2 * i, i);
        }
        const auto cost = [&](auto body) {
            counting_less::asked = 0;
            body();
            return counting_less::asked;
        };
        const typename std::remove_reference_t<decltype(m)>::value_type there(500, 1);
        counted_value::made = 0;
        m[500];
        m.try_emplace(500, 7);
        m.insert(there);
        m.try_emplace(m.find(500), 500, 7);
        EXPECT_EQ(counted_value::made, 0);
        const int a_search = cost([&] { (void)m.find(501); });
        for (int key : {501, 503, 505}) {
            EXPECT_LE(cost([&] { m[key]; }), a_search + a_search / 2 + 4);
        }
        EXPECT_LE(cost([&] { m.insert_or_assign(507, 1); }), a_search + a_search / 2 + 4);
        EXPECT_EQ(counted_value::made, 4);
        EXPECT_EQ(m.size(), 1004u);
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
    varve::btree_set<only_less, 16, std::less<>> tree;
    varve::skip_list_multiset<only_less, std::less<>> list;
    const auto grows = [](auto& set) {
        auto later = set;
        set.emplace(only_less{1});
        EXPECT_TRUE(later < set);
        later.emplace(only_less{2});
        EXPECT_TRUE(set < later);
        EXPECT_TRUE((set <=> set) == 0);
        EXPECT_TRUE(later >= set);
    };
    grows(tree);
    grows(list);
    struct unordered {};
    static_assert(!std::three_way_comparable<varve::btree_map<int, unordered>>);
}

TEST(MapInterface, ReverseIterationOverWhatMayNotChange) {
    on_all<int, int>([](auto& m) {
        m = {{1, 10}, {2, 20}, {3, 30}};
        std::vector<int> seen;
        for (auto i = m.crbegin(); i != m.crend(); ++i) {
            static_assert(std::is_const_v<std::remove_reference_t<decltype(*i)>>);
            seen.push_back(i->first);
        }
        EXPECT_EQ(seen, (std::vector{3, 2, 1}));
    });
}

TEST(MapInterface, TypesAreDeduced) {
    using pair = std::pair<int, char>;
    using allocator = std::pmr::polymorphic_allocator<std::pair<const int, char>>;
    const std::map<int, char> from{{1, 'a'}};
    varve::btree_map a(from.begin(), from.end());
    static_assert(std::same_as<decltype(a), varve::btree_map<int, char>>);
    varve::btree_map b({pair(1, 'a'), pair(2, 'b')}, std::greater<int>());
    static_assert(std::same_as<decltype(b), varve::btree_map<int, char, 16, std::greater<int>>>);
    varve::btree_map c(from.begin(), from.end(), allocator());
    static_assert(std::same_as<decltype(c), varve::btree_map<int, char, 16, std::less<int>, allocator>>);
    varve::btree_map d(c, allocator());
    static_assert(std::same_as<decltype(d), decltype(c)>);
    varve::btree_map e(d);
    static_assert(std::same_as<decltype(e), decltype(c)>);
    varve::skip_list_map f(from.begin(), from.end(), std::greater<int>());
    static_assert(std::same_as<decltype(f), varve::skip_list_map<int, char, std::greater<int>>>);
    varve::skip_list_map g({pair(1, 'a')}, allocator());
    static_assert(std::same_as<decltype(g), varve::skip_list_map<int, char, std::less<int>, allocator>>);
    varve::skip_list_map h(std::move(g), allocator());
    EXPECT_EQ(a.size() + b.size() + c.size() + e.size() + f.size() + h.size(), 7u);
}

/// Knows how much it can give, and counts how it is handed about.
template <class T>
struct counting_allocator {
    using value_type = T;
    explicit counting_allocator(int* copied) noexcept : copies(copied) {}
    counting_allocator(const counting_allocator& other) noexcept : copies(other.copies) { ++*copies; }
    counting_allocator(counting_allocator&& other) noexcept : copies(other.copies) {}
    counting_allocator& operator=(const counting_allocator& other) noexcept {
        copies = other.copies;
        ++*copies;
        return *this;
    }
    counting_allocator& operator=(counting_allocator&& other) noexcept {
        copies = other.copies;
        return *this;
    }
    template <class U>
    counting_allocator(const counting_allocator<U>& other) noexcept : copies(other.copies) {}
    T* allocate(std::size_t n) { return std::allocator<T>().allocate(n); }
    void deallocate(T* p, std::size_t n) noexcept { std::allocator<T>().deallocate(p, n); }
    [[nodiscard]] std::size_t max_size() const noexcept { return 1000; }
    friend bool operator==(const counting_allocator&, const counting_allocator&) noexcept { return true; }
    int* copies;
};

template <class Map>
void moved_not_copied() {
    int copies = 0;
    Map from{typename Map::allocator_type(&copies)};
    from.emplace(1, 1);
    EXPECT_EQ(from.max_size(), 1000u);
    copies = 0;
    Map to(std::move(from));
    EXPECT_EQ(copies, 0);
    EXPECT_EQ(to.size(), 1u);
    EXPECT_TRUE(from.empty());
    from.emplace(2, 2);
    EXPECT_EQ(from.at(2), 2);
}
TEST(MapInterface, WhatWasMovedFromCanBeUsed) {
    on_all<int, int>([](auto& m) {
        m = {{1, 10}};
        auto other = std::move(m);
        m = {{2, 20}};
        EXPECT_EQ(m.at(2), 20);
        other = std::move(m);
        m.emplace(3, 30);
        EXPECT_EQ(m.size(), 1u);
        EXPECT_EQ(other.at(2), 20);
        using std::swap;
        swap(m, other);
        EXPECT_EQ(m.at(2) + other.at(3), 50);
    });
    // The allocators themselves.
    const maps<int, int>::collective memory({64_KiB, 64_MiB});
    auto a = memory;
    const auto b = std::move(a);
    EXPECT_TRUE(a == memory && b == memory);
    auto part = memory.sub(varve::swappable_plain);
    const auto same = std::move(part);
    EXPECT_TRUE(part == same);
}
TEST(MapInterface, AllocatorsAreMovedAndAsked) {
    using allocator = counting_allocator<std::pair<const int, int>>;
    moved_not_copied<varve::btree_map<int, int, 16, std::less<int>, allocator>>();
    moved_not_copied<varve::skip_list_map<int, int, std::less<int>, allocator>>();
}

/// Its copies and its swap throw on demand.
struct throwing_less {
    bool descending = false;
    static inline bool throws = false;
    throwing_less() = default;
    explicit throwing_less(bool d) : descending(d) {}
    throwing_less(const throwing_less& other) noexcept(false) : descending(other.descending) {
        if (throws) {
            throw 1;
        }
    }
    throwing_less& operator=(const throwing_less&) = default;
    friend void swap(throwing_less& a, throwing_less& b) noexcept(false) {
        if (throwing_less::throws) {
            throw 2;
        }
        std::swap(a.descending, b.descending);
    }
    bool operator()(int a, int b) const { return descending ? b < a : a < b; }
};

template <class Map>
void says_what_throws() {
    static_assert(!std::is_nothrow_swappable_v<Map> && !std::is_nothrow_move_assignable_v<Map> &&
                  !std::is_nothrow_move_constructible_v<Map>);
    Map a(throwing_less(false));
    Map b(throwing_less(true));
    for (int i = 0; i < 100; ++i) {
        a.emplace(i, i);
        b.emplace(i, -i);
    }
    const auto expect_as_before = [&] {
        EXPECT_EQ(a.size(), 100u);
        EXPECT_EQ(b.size(), 100u);
        EXPECT_EQ(a.begin()->first, 0);
        EXPECT_EQ(b.begin()->first, 99);
        EXPECT_EQ(a.at(50), 50);
        EXPECT_EQ(b.at(50), -50);
    };
    throwing_less::throws = true;
    EXPECT_THROW(swap(a, b), int);
    EXPECT_THROW(a = std::move(b), int);
    EXPECT_THROW(Map c(std::move(b)), int);
    throwing_less::throws = false;
    expect_as_before();
    swap(a, b);
    swap(a, b);
    expect_as_before();
}
TEST(MapInterface, ComparisonsThatThrowAreNoSurprise) {
    says_what_throws<varve::btree_map<int, int, 16, throwing_less>>();
    says_what_throws<varve::skip_list_map<int, int, throwing_less>>();
    static_assert(std::is_nothrow_swappable_v<varve::btree_map<int, int>>);
    static_assert(std::is_nothrow_move_assignable_v<varve::btree_map<int, int>>);
    static_assert(std::is_nothrow_move_constructible_v<varve::skip_list_map<int, int>>);
}

TEST(MapInterface, ValueComparisonsCanBeDerivedFrom) {
    on_all<int, int>([](auto& m) {
        using base = typename std::remove_reference_t<decltype(m)>::value_compare;
        struct derived : base {
            explicit derived(const base& b) : base(b) {}
            bool keys(int a, int b) const { return this->comp(a, b); }
        };
        EXPECT_TRUE(derived(m.value_comp()).keys(1, 2));
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
