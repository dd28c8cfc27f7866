// What the standard promises of ordered containers beyond what they hold: how often they compare, what they construct,
// node handles, types. And elements larger than the stack.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory_resource>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "structure_check.hpp"
#include "varve/varve.hpp"

namespace {

struct counting_less {
    static inline std::size_t asked = 0;
    bool operator()(int a, int b) const {
        ++asked;
        return a < b;
    }
};
template <class Body>
std::size_t comparisons(Body body) {
    counting_less::asked = 0;
    body();
    return counting_less::asked;
}

template <class T>
using local_memory = varve::collective_allocator<T>;
using int_pair = std::pair<const int, int>;

/// On memory of its own, where there must be some.
template <class Container, class... Args>
Container make(const Args&... args) {
    if constexpr (std::default_initializable<typename Container::allocator_type>) {
        return Container(args...);
    } else {
        return Container(args...,
                         typename Container::allocator_type({varve::byte_count{20'000}, varve::byte_count{64 << 20}}));
    }
}

template <class Container>
class Linear : public testing::Test {};
using counted_kinds =
    testing::Types<std::map<int, int, counting_less>, std::multiset<int, counting_less>,
                   varve::btree_map<int, int, 16, counting_less>, varve::btree_multimap<int, int, 3, counting_less>,
                   varve::btree_set<int, 64, counting_less>,
                   varve::btree_multiset<int, 4, counting_less, local_memory<int>, varve::placement::local_dfs>,
                   varve::skip_list_map<int, int, counting_less, local_memory<int_pair>, varve::placement::local_page>,
                   varve::skip_list_multimap<int, int, counting_less>, varve::skip_list_set<int, counting_less>,
                   varve::skip_list_multiset<int, counting_less>>;
TYPED_TEST_SUITE(Linear, counted_kinds);

constexpr int many = 20'000;

template <class Container>
std::vector<typename Container::value_type> ascending() {
    std::vector<typename Container::value_type> all;
    for (int i = 0; i < many; ++i) {
        if constexpr (requires { typename Container::mapped_type; }) {
            all.emplace_back(i, -i);
        } else {
            all.push_back(i);
        }
    }
    return all;
}
template <class Container>
int key_of(const typename Container::value_type& v) {
    if constexpr (requires { typename Container::mapped_type; }) {
        return v.first;
    } else {
        return v;
    }
}

TYPED_TEST(Linear, SortedConstructionInsertionAndCopies) {
    const auto all = ascending<TypeParam>();
    counting_less::asked = 0;
    const auto m = make<TypeParam>(all.begin(), all.end());
    EXPECT_LT(counting_less::asked, 3u * many);
    ASSERT_TRUE(std::equal(m.begin(), m.end(), all.begin(), all.end()));
    counting_less::asked = 0;
    const TypeParam copy(m);
    EXPECT_LT(counting_less::asked, 3u * many);
    EXPECT_TRUE(copy == m);
    auto appended = make<TypeParam>();
    EXPECT_LT(comparisons([&] { appended.insert(all.begin(), all.end()); }), 3u * many);
    EXPECT_TRUE(appended == m);
    if constexpr (requires { m.core(); }) {
        varve_test::check_structure(m, true);
        varve_test::check_structure(copy, true);
    }
}

TYPED_TEST(Linear, ErasureByPlaceAndByRange) {
    const auto all = ascending<TypeParam>();
    auto m = make<TypeParam>(all.begin(), all.end());
    const auto nth = [&](int i) { return std::next(m.begin(), i); };
    auto first = nth(1000);
    auto last = nth(many - 1000);
    // None for the erasure itself; some for what comes into local memory in its place.
    EXPECT_LT(comparisons([&] { first = m.erase(first, last); }), 1000u);
    EXPECT_EQ(key_of<TypeParam>(*first), many - 1000);
    ASSERT_EQ(m.size(), 2000u);
    if constexpr (requires { m.core(); }) {
        varve_test::check_structure(m, true);
    }
    // One by one, forwards and backwards. A search for each would ask ten times and more.
    EXPECT_LT(comparisons([&] {
                  for (auto i = nth(500); key_of<TypeParam>(*i) < many - 500;) {
                      i = m.erase(i);
                  }
              }),
              1000u);
    EXPECT_LT(comparisons([&] {
                  while (m.size() > 500) {
                      m.erase(std::prev(m.end()));
                  }
              }),
              500u);
    EXPECT_EQ(key_of<TypeParam>(*std::prev(m.end())), 499);
    EXPECT_LT(comparisons([&] { erase_if(m, [](const auto& v) { return key_of<TypeParam>(v) % 2 == 0; }); }), 250u);
    EXPECT_EQ(m.size(), 250u);
    EXPECT_LT(comparisons([&] { m.erase(m.begin(), m.end()); }), 10u);
    EXPECT_TRUE(m.empty());
}

// ---- node handles ----

template <class Map>
class Handles : public testing::Test {};
using handle_kinds =
    testing::Types<std::map<int, std::string>, varve::btree_map<int, std::string>,
                   varve::btree_map<int, std::string, 3, std::less<int>,
                                    local_memory<std::pair<const int, std::string>>, varve::placement::local_dfs>,
                   varve::skip_list_map<int, std::string>>;
TYPED_TEST_SUITE(Handles, handle_kinds);

TYPED_TEST(Handles, OwnTheirElement) {
    using handle = typename TypeParam::node_type;
    static_assert(std::is_nothrow_move_constructible_v<handle> && std::is_nothrow_move_assignable_v<handle>);
    static_assert(!std::is_copy_constructible_v<handle>);
    static_assert(std::same_as<decltype(std::declval<const handle&>().key()), int&>);
    static_assert(std::same_as<decltype(std::declval<const handle&>().mapped()), std::string&>);
    const std::string text = "longer than what a string holds in itself";
    auto m = make<TypeParam>();
    for (int i = 0; i < 100; ++i) {
        m.emplace(i, text + std::to_string(i));
    }
    handle none;
    EXPECT_TRUE(none.empty());
    EXPECT_FALSE(m.insert(std::move(none)).inserted);
    EXPECT_TRUE(m.extract(1000).empty());

    handle five = m.extract(5);
    handle six = m.extract(m.find(6));
    EXPECT_EQ(m.size(), 98u);
    EXPECT_TRUE(five.get_allocator() == m.get_allocator());
    swap(five, six);
    EXPECT_EQ(five.mapped(), text + "6");
    five = std::move(six);
    EXPECT_TRUE(six.empty() && !five.empty());
    EXPECT_EQ(five.key(), 5);
    five.key() = 7;
    auto refused = m.insert(std::move(five));
    EXPECT_FALSE(refused.inserted);
    EXPECT_EQ(refused.position->second, text + "7");
    EXPECT_EQ(refused.node.mapped(), text + "5");
    refused.node.key() = 500;
    const auto at = m.insert(m.end(), std::move(refused.node));
    EXPECT_EQ(at->first, 500);
    EXPECT_EQ(m.at(500), text + "5");
    EXPECT_TRUE(refused.node.empty());
    EXPECT_EQ(m.size(), 99u);
    five = m.extract(500);  // is destroyed full
}

TEST(Merge, TakesFromContainersOfOtherKinds) {
    varve::btree_map<int, std::string> tree{{1, "one"}, {2, "two"}};
    varve::skip_list_multimap<int, std::string, std::greater<>> list{{2, "zwei"}, {3, "drei"}, {3, "trois"}};
    tree.merge(list);
    EXPECT_EQ(tree.size(), 3u);
    EXPECT_EQ(tree.at(2), "two");
    EXPECT_EQ(tree.at(3), "drei");
    EXPECT_EQ(list.size(), 2u);
    varve::btree_multimap<int, std::string, 3> all;
    all.merge(tree);
    all.merge(std::move(list));
    EXPECT_TRUE(tree.empty() && list.empty());
    EXPECT_EQ(all.size(), 5u);
    EXPECT_EQ(all.count(3), 2u);
    all.merge(all);
    EXPECT_EQ(all.size(), 5u);
    static_assert(
        std::same_as<varve::btree_map<int, char>::node_type, varve::skip_list_multimap<int, char>::node_type>);
    varve::skip_list_map<int, std::string> other;
    other.insert(all.extract(1));
    EXPECT_EQ(other.at(1), "one");
}

// ---- types ----

TEST(Types, OfSetsAreThoseOfTheStandard) {
    using set = varve::btree_set<int>;
    static_assert(std::same_as<set::value_type, int> && std::same_as<set::key_type, int>);
    static_assert(std::same_as<set::value_compare, std::less<int>>);
    static_assert(std::same_as<decltype(*std::declval<set::iterator>()), const int&>);
    static_assert(std::same_as<decltype(std::declval<set&>().insert(1)), std::pair<set::iterator, bool>>);
    using multi = varve::skip_list_multiset<int>;
    static_assert(std::same_as<decltype(std::declval<multi&>().insert(1)), multi::iterator>);
    using multimap = varve::btree_multimap<int, char>;
    static_assert(std::same_as<multimap::mapped_type, char>);
    static_assert(std::same_as<decltype(*std::declval<multimap::iterator>()), std::pair<const int, char>&>);
    static_assert(std::bidirectional_iterator<set::iterator> && std::bidirectional_iterator<multimap::const_iterator>);
    static_assert(std::is_nothrow_swappable_v<set> && std::is_nothrow_move_assignable_v<multi>);
    static_assert(std::is_nothrow_move_constructible_v<multimap>);
    multimap m{{1, 'a'}, {1, 'b'}, {0, 'c'}};
    EXPECT_TRUE(m.value_comp()(*m.begin(), *m.rbegin()));
    multimap other{{5, 'x'}};
    using std::swap;
    swap(m, other);
    EXPECT_EQ(m.size() * 10 + other.size(), 13u);
    EXPECT_TRUE(other < m);
}

TEST(Types, AreDeduced) {
    const std::vector<int> from{3, 1, 3};
    using allocator = std::pmr::polymorphic_allocator<int>;
    varve::btree_set a(from.begin(), from.end());
    static_assert(std::same_as<decltype(a), varve::btree_set<int>>);
    varve::btree_multiset b({3, 1, 3}, std::greater<int>());
    static_assert(std::same_as<decltype(b), varve::btree_multiset<int, 16, std::greater<int>>>);
    varve::skip_list_set c(from.begin(), from.end(), allocator());
    static_assert(std::same_as<decltype(c), varve::skip_list_set<int, std::less<int>, allocator>>);
    varve::skip_list_multiset d({3, 1, 3}, allocator());
    static_assert(std::same_as<decltype(d), varve::skip_list_multiset<int, std::less<int>, allocator>>);
    varve::btree_multimap e({std::pair(1, 'a'), std::pair(1, 'b')});
    static_assert(std::same_as<decltype(e), varve::btree_multimap<int, char>>);
    varve::skip_list_multimap f(e.begin(), e.end(), std::greater<int>());
    static_assert(std::same_as<decltype(f), varve::skip_list_multimap<int, char, std::greater<int>>>);
    varve::btree_multiset g(b, std::allocator<int>());
    static_assert(std::same_as<decltype(g), decltype(b)>);
    varve::btree_multiset h{3, 1, 3};
    static_assert(std::same_as<decltype(h), varve::btree_multiset<int>>);
    varve::skip_list_map i{std::pair(1, 'a'), std::pair(2, 'b')};
    static_assert(std::same_as<decltype(i), varve::skip_list_map<int, char>>);
    EXPECT_EQ(a.size() + b.size() + c.size() + d.size() + e.size() + f.size() + g.size(), 17u);
    varve::btree_map j{std::pair<const int, char>(1, 'a')};
    static_assert(std::same_as<decltype(j), varve::btree_map<int, char>>);
    varve::skip_list_multimap k({std::pair<const int, char>(1, 'a')}, std::allocator<std::pair<const int, char>>());
    static_assert(std::same_as<decltype(k), varve::skip_list_multimap<int, char>>);
    EXPECT_EQ(h.size() + i.size() + j.size() + k.size(), 7u);
}

/// Takes operators away from all who forget that others may have them.
namespace hijacked {
struct key {
    int value = 0;
    friend bool operator<(const key& a, const key& b) { return a.value < b.value; }
};
template <class T>
void operator&(T&&) = delete;
template <class T, class U>
void operator,(T&&, U&&) = delete;
}  // namespace hijacked

template <class Map>
void use_hijacked() {
    Map m;
    for (int i = 0; i < 100; ++i) {
        m.emplace(hijacked::key{i}, hijacked::key{-i});
    }
    Map copy(m);
    copy = m;
    m = std::move(copy);
    m.erase(m.begin(), std::next(m.begin(), 50));
    m.erase(m.begin());
    m.insert(m.extract(hijacked::key{60}));
    copy.merge(m);
    int sum = 0;
    for (auto i = copy.begin(); i != copy.end(); ++i) {
        sum += i->second.value;
    }
    EXPECT_EQ(sum, -(51 + 99) * 49 / 2);
    using std::swap;
    swap(m, copy);
    m.reblock();
    EXPECT_EQ(m.size(), 49u);
}
TEST(Types, MayHaveOperatorsOfTheirOwn) {
    use_hijacked<varve::btree_map<hijacked::key, hijacked::key, 4>>();
    use_hijacked<varve::skip_list_map<hijacked::key, hijacked::key>>();
}

/// Shows whether it was moved from.
template <class T>
struct once_moved {
    using value_type = T;
    explicit once_moved(int i) noexcept : id(i) {}
    once_moved(const once_moved&) noexcept = default;
    once_moved(once_moved&& other) noexcept : id(std::exchange(other.id, -1)) {}
    once_moved& operator=(const once_moved&) noexcept = default;
    template <class U>
    once_moved(const once_moved<U>& other) noexcept : id(other.id) {}
    T* allocate(std::size_t n) { return std::allocator<T>().allocate(n); }
    void deallocate(T* p, std::size_t n) noexcept { std::allocator<T>().deallocate(p, n); }
    friend bool operator==(const once_moved& a, const once_moved& b) noexcept { return a.id == b.id; }
    int id;
};
TEST(Types, AllocatorsAreMovedOnce) {
    const auto move = []<class Container>(std::type_identity<Container>) {
        Container from{once_moved<int>(7)};
        from.insert(1);
        const Container to(std::move(from));
        EXPECT_EQ(to.get_allocator().id, 7);
        EXPECT_EQ(to.size(), 1u);
    };
    move(std::type_identity<varve::btree_set<int, 16, std::less<int>, once_moved<int>>>());
    move(std::type_identity<varve::skip_list_multiset<int, std::less<int>, once_moved<int>>>());
}

TEST(Types, TransparentComparisonsOfContainersOfEqualKeys) {
    struct tens {
        using is_transparent = void;
        bool operator()(int a, int b) const { return a < b; }
        bool operator()(int a, char ten) const { return a / 10 < ten - '0'; }
        bool operator()(char ten, int b) const { return ten - '0' < b / 10; }
    };
    varve::btree_multiset<int, 3, tens> m{10, 11, 11, 19, 20, 9};
    EXPECT_EQ(m.count('1'), 4u);
    EXPECT_EQ(*m.lower_bound('1'), 10);
    EXPECT_EQ(*m.upper_bound('1'), 20);
    EXPECT_EQ(m.erase('1'), 4u);
    EXPECT_EQ(m.size(), 2u);
}

// ---- elements larger than the stack ----

struct huge {
    huge() noexcept { content.front() = content.back() = 1; }
    explicit huge(int v) noexcept { content.front() = content.back() = static_cast<char>(v); }
    [[nodiscard]] bool is(int v) const { return content.front() == v && content.back() == v; }
    std::array<char, std::size_t{24} << 20> content;  // the rest is not written to
};

template <class Map>
void hold_what_no_stack_holds() {
    Map m;
    for (const int i : {4, 2, 6, 1, 5, 3}) {
        EXPECT_TRUE(m.try_emplace(i, i).second);
    }
    EXPECT_FALSE(m.try_emplace(4, 9).second);
    EXPECT_TRUE(m[7].is(1));
    EXPECT_FALSE(m.emplace(std::piecewise_construct, std::tuple(2), std::tuple(9)).second);
    m.erase(1);
    m.erase(m.find(4));
    auto handle = m.extract(6);
    EXPECT_TRUE(handle.mapped().is(6));
    typename Map::node_type moved(std::move(handle));
    moved.key() = 8;
    m.insert(std::move(moved));
    Map other;
    other.merge(m);
    EXPECT_TRUE(m.empty());
    Map copy(other);
    EXPECT_EQ(copy.size(), 5u);
    for (auto& [key, value] : copy) {
        EXPECT_TRUE(value.is(key == 7 ? 1 : key == 8 ? 6 : key)) << key;
    }
    copy.erase(copy.begin(), std::next(copy.begin(), 3));
    EXPECT_EQ(copy.begin()->first, 7);
}
TEST(HugeElements, NeverComeOntoTheStack) {
    hold_what_no_stack_holds<varve::btree_map<int, huge, 3>>();
    hold_what_no_stack_holds<varve::btree_map<int, huge, 4>>();
    hold_what_no_stack_holds<varve::skip_list_map<int, huge>>();
}
TEST(HugeElements, OnCollectiveMemory) {
    using element = std::pair<const int, std::array<char, 100'000>>;
    using memory = local_memory<element>;
    const memory a({varve::byte_count{1 << 20}, varve::byte_count{std::size_t{256} << 20}});
    {
        varve::btree_map<int, std::array<char, 100'000>, 4, std::less<int>, memory, varve::placement::local_dfs> m(a);
        for (int i = 0; i < 300; ++i) {
            m[i * 7 % 300][99'999] = static_cast<char>(i);
        }
        m.reblock();
        for (int i = 0; i < 300; ++i) {
            EXPECT_EQ(m.at(i * 7 % 300)[99'999], static_cast<char>(i));
        }
        auto handle = m.extract(0);
        m.erase(m.begin(), std::next(m.begin(), 200));
        m.insert(std::move(handle));
        EXPECT_EQ(m.size(), 100u);
        varve_test::check_structure(m, false);
    }
    EXPECT_EQ(a.memory().local().pages_in_use().value, 0u);
    EXPECT_EQ(a.memory().swappable().pages_in_use().value, 0u);
}

template <class T>
struct adding_up {
    using value_type = T;
    static inline std::size_t bytes = 0;
    adding_up() = default;
    template <class U>
    adding_up(const adding_up<U>&) noexcept {}
    T* allocate(std::size_t n) {
        adding_up<int_pair>::bytes += n * sizeof(T);
        return std::allocator<T>().allocate(n);
    }
    void deallocate(T* p, std::size_t n) noexcept {
        adding_up<int_pair>::bytes -= n * sizeof(T);
        std::allocator<T>().deallocate(p, n);
    }
    friend bool operator==(adding_up, adding_up) { return true; }
};

TEST(Space, containers_on_standard_allocators_are_small_objects) {
    static_assert(sizeof(varve::skip_list_map<int, int>) <= 128);
    static_assert(sizeof(varve::skip_list_multiset<std::string>) <= 128);
    static_assert(sizeof(varve::btree_map<int, int>) <= 128);
}

TEST(Space, an_empty_list_holds_no_memory) {
    adding_up<int_pair>::bytes = 0;
    varve::skip_list_map<int, int, std::less<int>, adding_up<int_pair>> list;
    EXPECT_EQ(adding_up<int_pair>::bytes, 0u);
    for (int i = 0; i < 1000; ++i) {
        list[i] = i;
    }
    EXPECT_GT(adding_up<int_pair>::bytes, 0u);
    for (int i = 0; i < 1000; ++i) {
        EXPECT_EQ(list.erase(i), 1u);
    }
    EXPECT_EQ(list.erase(0), 0u);
    EXPECT_EQ(adding_up<int_pair>::bytes, 0u);
}

/// Splits alone leave nodes seven tenths full, which takes 12 bytes an element and more.
TEST(Space, random_insertion_leaves_large_nodes_full) {
    adding_up<int_pair>::bytes = 0;
    varve::btree_map<int, int, 31, std::less<int>, adding_up<int_pair>> tree;
    constexpr int n = 20'011;
    for (int i = 1; i < n; ++i) {
        tree.emplace(static_cast<int>(static_cast<long>(i) * i % n * 7 % n), i);
    }
    const double each = static_cast<double>(adding_up<int_pair>::bytes) / static_cast<double>(tree.size());
    EXPECT_LT(each, 11.0);
    varve_test::check_structure(tree, true);
}

}  // namespace
