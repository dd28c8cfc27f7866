// Random operations on a map and on std::map side by side.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "structure_check.hpp"
#include "varve/alloc/collective_allocator.hpp"

namespace varve_test {

class generator {
public:
    explicit generator(unsigned seed) : engine_(seed) {}
    [[nodiscard]] unsigned any() { return static_cast<unsigned>(engine_()); }

private:
    std::mt19937 engine_;
};

template <class Key>
Key make_key(unsigned i) {
    if constexpr (std::is_same_v<Key, std::string>) {
        return "key number " + std::to_string(i);  // longer than what a string holds in itself
    } else {
        return static_cast<Key>(i);
    }
}

/// `Types` names key_type, mapped_type, map<Allocator> and space.
template <class Types>
class MapModel : public testing::Test {
public:
    using key_type = typename Types::key_type;
    using mapped_type = typename Types::mapped_type;
    using value_type = std::pair<const key_type, mapped_type>;
    using allocator_type = varve::collective_allocator<value_type, typename Types::space>;
    using map_type = typename Types::template map<allocator_type>;
    using model_type = std::map<key_type, mapped_type>;

    /// A budget from nothing to enough for everything, most often in between.
    static varve::heap_sizes random_sizes(generator& random) {
        const std::size_t pages[] = {0, 1, 2, 5, 12, 40, 1000};
        return {{4096 * pages[random.any() % std::size(pages)]}, {std::size_t{256} << 20}};
    }

    static void expect_equal(const map_type& m, const model_type& r) {
        ASSERT_EQ(m.size(), r.size());
        ASSERT_TRUE(std::equal(m.begin(), m.end(), r.begin(), r.end()));
        ASSERT_TRUE(std::equal(m.rbegin(), m.rend(), r.rbegin(), r.rend()));
        check_structure(m, true);
    }

    static void one_step(map_type& m, model_type& r, generator& random, unsigned keys, bool growing) {
        const key_type k = make_key<key_type>(random.any() % keys);
        const auto v = make_key<mapped_type>(random.any());
        const auto there = r.find(k);
        switch (random.any() % 12) {
            case 0: {
                const auto [at, fresh] = m.insert_or_assign(k, v);
                ASSERT_EQ(fresh, there == r.end());
                ASSERT_EQ(at->second, v);
                r.insert_or_assign(k, v);
                break;
            }
            case 1:
                ASSERT_EQ(m.try_emplace(k, v).second, there == r.end());
                r.try_emplace(k, v);
                break;
            case 2:
                ASSERT_EQ(m[k], r[k]);
                break;
            case 3: {
                const auto low = m.lower_bound(k);
                const auto high = m.upper_bound(k);
                ASSERT_EQ(low == m.end(), r.lower_bound(k) == r.end());
                ASSERT_EQ(high == m.end(), r.upper_bound(k) == r.end());
                ASSERT_TRUE(low == m.end() || low->first == r.lower_bound(k)->first);
                ASSERT_TRUE(high == m.end() || high->first == r.upper_bound(k)->first);
                break;
            }
            case 4:
                if (there != r.end()) {
                    const auto next = m.erase(m.find(k));
                    const auto wanted = r.erase(there);
                    ASSERT_EQ(next == m.end(), wanted == r.end());
                    ASSERT_TRUE(next == m.end() || *next == *wanted);
                }
                break;
            case 5:
                ASSERT_EQ(m.contains(k), there != r.end());
                if (there != r.end()) {
                    ASSERT_EQ(m.at(k), there->second);
                }
                break;
            default:
                if (growing) {
                    ASSERT_EQ(m.insert({k, v}).second, r.insert({k, v}).second);
                } else {
                    ASSERT_EQ(m.erase(k), r.erase(k));
                }
        }
    }
};

TYPED_TEST_SUITE_P(MapModel);

TYPED_TEST_P(MapModel, BehavesAsStdMap) {
    using fixture = TestFixture;
    for (unsigned seed = 1; seed <= 6; ++seed) {
        generator random(seed);
        const unsigned keys = seed % 2 == 0 ? 40 : 1500;
        typename fixture::allocator_type memory(fixture::random_sizes(random));
        typename fixture::map_type m(memory);
        typename fixture::model_type r;
        for (int step = 0; step < 6000; ++step) {
            fixture::one_step(m, r, random, keys, step / 1500 % 2 == 0);
            if (this->HasFatalFailure()) {
                FAIL() << "seed " << seed << " step " << step;
            }
            if (random.any() % 512 == 0) {
                random.any() % 2 == 0 ? m.reblock() : static_cast<void>(m.reblock_step(20));
                fixture::expect_equal(m, r);
            }
        }
        fixture::expect_equal(m, r);
        m.reblock();
        fixture::expect_equal(m, r);
        const auto sizes = m.count_links();
        if (TypeParam::has_node_links(m.size())) {
            EXPECT_GT(sizes.local + sizes.in_page + sizes.cross_page, 0u);
        }
        while (!m.empty()) {
            m.erase(random.any() % 2 == 0 ? m.begin() : std::prev(m.end()));
        }
        check_structure(m, true);
        EXPECT_EQ(memory.memory().local().pages_in_use().value, 0u);
        EXPECT_EQ(memory.memory().swappable().pages_in_use().value, 0u);
    }
}

TYPED_TEST_P(MapModel, CopiesMovesAndSwaps) {
    using fixture = TestFixture;
    using tested = typename fixture::map_type;
    generator random(7);
    typename fixture::allocator_type one({{5 * 4096}, {std::size_t{64} << 20}});
    typename fixture::allocator_type other({{0}, {std::size_t{64} << 20}});
    tested a(one);
    typename fixture::model_type r;
    for (int step = 0; step < 2000; ++step) {
        fixture::one_step(a, r, random, 700, true);
    }
    tested copy(a, other);
    fixture::expect_equal(copy, r);
    tested moved(std::move(copy));
    fixture::expect_equal(moved, r);
    tested elsewhere(std::move(moved), one);
    fixture::expect_equal(elsewhere, r);
    tested b(other);
    b.insert({make_key<typename fixture::key_type>(1), make_key<typename fixture::mapped_type>(2)});
    swap(a, b);
    fixture::expect_equal(b, r);
    EXPECT_EQ(a.size(), 1u);
    EXPECT_TRUE(b.get_allocator() == one);
    a = b;
    fixture::expect_equal(a, r);
    EXPECT_TRUE(a == b);
    a = std::move(b);
    fixture::expect_equal(a, r);
    EXPECT_EQ(
        erase_if(a, [](const auto& element) { return element.first < make_key<typename fixture::key_type>(500); }),
        std::erase_if(r,
                      [](const auto& element) { return element.first < make_key<typename fixture::key_type>(500); }));
    fixture::expect_equal(a, r);
    a.erase(a.begin(), a.end());
    EXPECT_TRUE(a.empty());
}

/// Wherever memory runs out, the operation throws and nothing has changed.
TYPED_TEST_P(MapModel, RunningOutOfMemoryChangesNothing) {
    using fixture = TestFixture;
    std::size_t refused = 0;
    for (std::size_t pages = 1; pages <= 24; ++pages) {
        for (std::size_t local : {std::size_t{0}, std::size_t{1}, std::size_t{4}}) {
            generator random(static_cast<unsigned>(pages));
            typename fixture::allocator_type memory({{local * 4096}, {pages * 4096}});
            typename fixture::map_type m(memory);
            typename fixture::model_type r;
            for (int step = 0; step < 700; ++step) {
                const auto k = make_key<typename fixture::key_type>(random.any() % 4000);
                const auto v = make_key<typename fixture::mapped_type>(random.any());
                try {
                    if (random.any() % 8 == 0) {
                        m.erase(k);
                        r.erase(k);
                    } else if (random.any() % 64 == 0) {
                        m.reblock();
                    } else {
                        m.insert({k, v});
                        r.insert({k, v});
                    }
                } catch (const std::bad_alloc&) {
                    ++refused;
                }
            }
            ASSERT_EQ(m.size(), r.size());
            ASSERT_TRUE(std::equal(m.begin(), m.end(), r.begin(), r.end()));
            check_structure(m, false);
            while (!m.empty()) {
                const auto k = std::next(m.begin(), static_cast<std::ptrdiff_t>(random.any() % m.size()))->first;
                ASSERT_EQ(m.erase(k), 1u);
                r.erase(k);
                ASSERT_TRUE(m.size() % 16 != 0 || std::equal(m.begin(), m.end(), r.begin(), r.end()));
            }
            EXPECT_EQ(memory.memory().swappable().pages_in_use().value, 0u);
        }
    }
    EXPECT_GT(refused, 0u);
}

REGISTER_TYPED_TEST_SUITE_P(MapModel, BehavesAsStdMap, CopiesMovesAndSwaps, RunningOutOfMemoryChangesNothing);

template <std::size_t Fanout, class Placement, class Key = int, class Space = varve::plain_space>
struct tree {
    using key_type = Key;
    using mapped_type = Key;
    using space = Space;
    template <class A>
    using map = varve::btree_map<Key, Key, Fanout, std::less<Key>, A, Placement>;
    static bool has_node_links(std::size_t size) { return size >= Fanout; }
};

template <class Placement, class Key = int, class Space = varve::plain_space>
struct list {
    using key_type = Key;
    using mapped_type = Key;
    using space = Space;
    template <class A>
    using map = varve::skip_list_map<Key, Key, std::less<Key>, A, Placement>;
    static bool has_node_links(std::size_t size) { return size >= 2; }
};

}  // namespace varve_test
