// Sets, and containers of equal keys, beside those of the standard: the same operations, the same sequences. Maps too,
// where the interface is that of all.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "structure_check.hpp"
#include "varve/varve.hpp"

namespace {

/// Equal keys can be told apart, so that their order shows.
struct item {
    int key = 0;
    unsigned serial = 0;
    friend bool operator==(const item&, const item&) = default;
};
struct by_key {
    bool operator()(const item& a, const item& b) const { return a.key < b.key; }
};

template <class Element>
using memory_of = varve::collective_allocator<Element>;
using pair = std::pair<const item, std::string>;
namespace policy = varve::placement;

template <class Standard, class Ours>
struct both {
    using standard = Standard;
    using ours = Ours;
};
template <std::size_t Fanout, class Policy>
using tree_map = both<std::map<item, std::string, by_key>,
                      varve::btree_map<item, std::string, Fanout, by_key, memory_of<pair>, Policy>>;
template <std::size_t Fanout, class Policy>
using tree_multimap = both<std::multimap<item, std::string, by_key>,
                           varve::btree_multimap<item, std::string, Fanout, by_key, memory_of<pair>, Policy>>;
template <std::size_t Fanout, class Policy>
using tree_set = both<std::set<item, by_key>, varve::btree_set<item, Fanout, by_key, memory_of<item>, Policy>>;
template <std::size_t Fanout, class Policy>
using tree_multiset =
    both<std::multiset<item, by_key>, varve::btree_multiset<item, Fanout, by_key, memory_of<item>, Policy>>;
template <class Policy>
using list_map =
    both<std::map<item, std::string, by_key>, varve::skip_list_map<item, std::string, by_key, memory_of<pair>, Policy>>;
template <class Policy>
using list_multimap = both<std::multimap<item, std::string, by_key>,
                           varve::skip_list_multimap<item, std::string, by_key, memory_of<pair>, Policy>>;
template <class Policy>
using list_set = both<std::set<item, by_key>, varve::skip_list_set<item, by_key, memory_of<item>, Policy>>;
template <class Policy>
using list_multiset =
    both<std::multiset<item, by_key>, varve::skip_list_multiset<item, by_key, memory_of<item>, Policy>>;

template <class Types>
class OrderedModel : public testing::Test {
protected:
    using standard = typename Types::standard;
    using ours = typename Types::ours;
    using value_type = typename ours::value_type;
    static constexpr bool is_map = requires { typename ours::mapped_type; };
    static constexpr bool is_multi = !requires(ours & m, const value_type& v) { m.insert(v).second; };

    void run(unsigned seed, unsigned keys, int steps) {
        random_.seed(seed);
        keys_ = keys;
        const std::size_t pages[] = {0, 1, 3, 10, 1000};
        const typename ours::allocator_type memory(
            {varve::byte_count{4096 * pages[seed % std::size(pages)]}, varve::byte_count{std::size_t{64} << 20}});
        {
            ours m(memory);
            standard r;
            for (int i = 0; i < steps && !this->HasFailure(); ++i) {
                step(m, r, i < steps / 2);
                if (i % 16 == 0) {
                    expect_equal(m, r);
                }
            }
            expect_equal(m, r);
        }
        EXPECT_EQ(memory.memory().local().pages_in_use().value, 0u);
        EXPECT_EQ(memory.memory().swappable().pages_in_use().value, 0u);
    }

private:
    [[nodiscard]] value_type any() {
        const item key{static_cast<int>(random_() % keys_), ++serial_};
        if constexpr (is_map) {
            return {key, "the value of number " + std::to_string(serial_)};
        } else {
            return key;
        }
    }
    static const item& key_of(const value_type& v) {
        if constexpr (is_map) {
            return v.first;
        } else {
            return v;
        }
    }
    template <class Container>
    static auto at(Container& c, std::size_t index) {
        return std::next(c.begin(), static_cast<std::ptrdiff_t>(index));
    }
    template <class Container, class Iterator>
    static std::ptrdiff_t place(Container& c, Iterator i) {
        return std::distance(c.begin(), i);
    }
    void expect_equal(const ours& m, const standard& r) {
        ASSERT_EQ(m.size(), r.size());
        ASSERT_TRUE(std::equal(m.begin(), m.end(), r.begin(), r.end()));
        ASSERT_TRUE(std::equal(m.rbegin(), m.rend(), r.rbegin(), r.rend()));
        varve_test::check_structure(m, true);
    }
    template <class Done>
    static auto where(const Done& done) {
        if constexpr (is_multi) {
            return done;
        } else {
            return done.first;
        }
    }

    void step(ours& m, standard& r, bool growing) {
        const value_type v = any();
        switch (random_() % (growing ? 16 : 12)) {
            case 0:
                look(m, r, key_of(v));
                break;
            case 1:
                ASSERT_EQ(m.erase(key_of(v)), r.erase(key_of(v)));
                break;
            case 2:
            case 3:
                if (!r.empty()) {
                    const std::size_t i = random_() % r.size();
                    ASSERT_EQ(place(m, m.erase(at(m, i))), place(r, r.erase(at(r, i))));
                }
                break;
            case 4: {
                const std::size_t first = random_() % (r.size() + 1);
                const std::size_t last = first + random_() % (std::min<std::size_t>(r.size() - first, 40) + 1);
                ASSERT_EQ(place(m, m.erase(at(m, first), at(m, last))), place(r, r.erase(at(r, first), at(r, last))));
                break;
            }
            case 5:
                handles(m, r, key_of(v));
                break;
            case 6:
                merging(m, r);
                break;
            case 7:
                whole(m, r);
                break;
            case 8:
            case 9: {
                const std::size_t i = random_() % 2 == 0 ? random_() % (r.size() + 1)
                                                         : static_cast<std::size_t>(place(r, r.lower_bound(key_of(v))));
                if (random_() % 2 == 0) {
                    ASSERT_EQ(place(m, m.insert(at(m, i), v)), place(r, r.insert(at(r, i), v)));
                } else {
                    ASSERT_EQ(place(m, m.emplace_hint(at(m, i), v)), place(r, r.emplace_hint(at(r, i), v)));
                }
                break;
            }
            case 10:
                if (random_() % 8 == 0) {
                    m.reblock();
                } else {
                    m.reblock_step(random_() % 20);
                }
                break;
            case 11:
                ASSERT_EQ(place(m, where(m.emplace(v))), place(r, where(r.emplace(v))));
                break;
            default:
                ASSERT_EQ(place(m, where(m.insert(v))), place(r, where(r.insert(v))));
        }
    }
    void look(ours& m, standard& r, const item& key) {
        ASSERT_EQ(m.count(key), r.count(key));
        ASSERT_EQ(m.contains(key), r.contains(key));
        ASSERT_EQ(m.find(key) == m.end(), r.find(key) == r.end());
        if (m.contains(key)) {
            ASSERT_EQ(key_of(*m.find(key)).key, key.key);
        }
        ASSERT_EQ(place(m, m.lower_bound(key)), place(r, r.lower_bound(key)));
        ASSERT_EQ(place(m, m.upper_bound(key)), place(r, r.upper_bound(key)));
        const auto range = std::as_const(m).equal_range(key);
        ASSERT_TRUE(range.first == std::as_const(m).lower_bound(key) && range.second == m.upper_bound(key));
    }
    /// Out, with another key, and back in.
    void handles(ours& m, standard& r, const item& key) {
        if (r.empty()) {
            ASSERT_TRUE(m.extract(key).empty());
            return;
        }
        auto out = [&] {
            const std::size_t i = random_() % r.size();
            auto node = m.extract(at(m, i));
            auto expected = r.extract(at(r, i));
            return std::pair(std::move(node), std::move(expected));
        }();
        auto& [node, expected] = out;
        ASSERT_EQ(m.size(), r.size());
        ASSERT_TRUE(node && node.get_allocator() == m.get_allocator());
        const auto key_in = [](auto& n) -> item& {
            if constexpr (is_map) {
                return n.key();
            } else {
                return n.value();
            }
        };
        ASSERT_EQ(key_in(node), key_in(expected));
        key_in(node) = key_in(expected) = key;
        if (random_() % 2 == 0) {
            const std::size_t i = random_() % (r.size() + 1);
            ASSERT_EQ(place(m, m.insert(at(m, i), std::move(node))), place(r, r.insert(at(r, i), std::move(expected))));
        } else if constexpr (is_multi) {
            ASSERT_EQ(place(m, m.insert(std::move(node))), place(r, r.insert(std::move(expected))));
        } else {
            const auto done = m.insert(std::move(node));
            const auto wanted = r.insert(std::move(expected));
            ASSERT_EQ(done.inserted, wanted.inserted);
            ASSERT_EQ(done.node.empty(), wanted.node.empty());
            ASSERT_EQ(place(m, done.position), place(r, wanted.position));
        }
        const auto by_name = m.extract(key);
        const auto wanted = r.extract(key);
        ASSERT_EQ(by_name.empty(), wanted.empty());
        if (is_multi && by_name) {  // which one is the implementation's choice: ours is the first
            ASSERT_EQ(m.count(key), r.count(key));
            m.clear();
            m.insert(r.begin(), r.end());
        }
    }
    void merging(ours& m, standard& r) {
        ours other(m.get_allocator());
        standard expected;
        for (auto n = random_() % 30; n > 0; --n) {
            const value_type v = any();
            other.insert(v);
            expected.insert(v);
        }
        m.merge(other);
        r.merge(expected);
        expect_equal(other, expected);
    }
    /// Everything at once.
    void whole(ours& m, standard& r) {
        switch (random_() % 6) {
            case 0: {
                ours copy(m);
                m = std::move(copy);
                break;
            }
            case 1: {
                ours other(m.get_allocator());
                other.insert(any());
                swap(other, m);
                m = other;
                break;
            }
            case 2: {
                std::vector<value_type> several;
                for (int i = 0; i < 10; ++i) {
                    several.push_back(any());
                }
                m.insert(several.begin(), several.end());
                r.insert(several.begin(), several.end());
                break;
            }
            case 3: {
                const auto odd = [](const value_type& v) { return key_of(v).serial % 4 == 1; };
                ASSERT_EQ(erase_if(m, odd), std::erase_if(r, odd));
                break;
            }
            case 4:
                if (random_() % 8 == 0) {
                    m.erase(m.begin(), m.end());
                    r.clear();
                }
                break;
            default:
                ASSERT_TRUE(ours(m, m.get_allocator()) == m);
        }
    }

    std::mt19937 random_;
    unsigned keys_ = 0;
    unsigned serial_ = 0;
};

using kinds =
    testing::Types<tree_map<3, policy::local_dfs>, tree_map<16, policy::hint>, tree_multimap<3, policy::local_dfs>,
                   tree_multimap<4, policy::local_veb>, tree_multimap<16, policy::automatic>,
                   tree_set<3, policy::local>, tree_set<4, policy::local_dfs>, tree_set<16, policy::hint>,
                   tree_multiset<3, policy::local_dfs>, tree_multiset<5, policy::local>,
                   tree_multiset<16, policy::automatic>, list_map<policy::local_page>,
                   list_multimap<policy::local_page>, list_multimap<policy::hint>, list_set<policy::local_page>,
                   list_set<policy::local>, list_multiset<policy::local_page>, list_multiset<policy::automatic>>;
TYPED_TEST_SUITE(OrderedModel, kinds);

TYPED_TEST(OrderedModel, DoesWhatTheStandardsDo) {
    for (unsigned seed = 0; seed < 10 && !this->HasFailure(); ++seed) {
        SCOPED_TRACE(seed);
        this->run(seed, seed % 2 == 0 ? 400 : 12, 1200);
    }
    if (this->is_multi) {
        for (unsigned seed = 0; seed < 20 && !this->HasFailure(); ++seed) {
            SCOPED_TRACE(seed);
            this->run(seed, 1 + seed % 2, 1000);
        }
    }
}

}  // namespace
