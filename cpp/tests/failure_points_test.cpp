// What a program can make fail, fails at every point where it can: memory at each single allocation, comparisons,
// copies. The operation throws, and nothing has changed.
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <vector>

#include "structure_check.hpp"
#include "varve/alloc/memory_resource.hpp"

namespace {

/// Counts down to the one allocation that fails; 0 lets all of them through.
std::size_t fails_after = 0;
bool failed = false;

bool this_one_fails() {
    if (fails_after == 0 || --fails_after != 0) {
        return false;
    }
    failed = true;
    return true;
}

}  // namespace

// The allocation functions of this program.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // where one half of a pair was inlined
#endif
void* operator new(std::size_t size) {
    if (this_one_fails()) {
        throw std::bad_alloc();
    }
    if (void* p = std::malloc(size == 0 ? 1 : size); p != nullptr) {
        return p;
    }
    throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
    std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}

namespace {

using namespace varve;
using namespace varve::literals;
namespace policy = varve::placement;

/// Refuses pages and pins where the countdown says so.
class failing_space : public plain_space {
public:
    using plain_space::plain_space;
    bool acquire(page_index page, page_count count) noexcept {
        return !this_one_fails() && plain_space::acquire(page, count);
    }
    void pin(page_index) {
        if (this_one_fails()) {
            throw out_of_room();
        }
    }
};

/// Runs `operation` with the first allocation failing, then with the second, and so on until it gets through. After
/// every failure `check` is called.
template <class Operation, class Check>
void at_every_point(Operation operation, Check check) {
    for (std::size_t point = 1;; ++point) {
        failed = false;
        fails_after = point;
        bool threw = false;
        try {
            operation();
        } catch (const std::bad_alloc&) {
            threw = true;
        }
        fails_after = 0;
        if (!threw) {
            // Where a failure only costs a better place, the operation gets through; it is done then.
            return;
        }
        ASSERT_TRUE(failed);
        check();
        ASSERT_LT(point, 100'000u);
    }
}

template <class Map>
class FailurePoints : public testing::Test {};

using element = std::pair<const int, std::uint64_t>;
using heaps = collective_allocator<element, failing_space>;
template <std::size_t Fanout, class Placement>
using tree = btree_map<int, std::uint64_t, Fanout, std::less<int>, heaps, Placement>;
template <class Placement>
using list = skip_list_map<int, std::uint64_t, std::less<int>, heaps, Placement>;
using maps = testing::Types<tree<3, policy::hint>, tree<3, policy::local>, tree<3, policy::local_dfs>,
                            tree<4, policy::local_veb>, tree<16, policy::automatic>, list<policy::hint>,
                            list<policy::local>, list<policy::local_page>, list<policy::page>>;
TYPED_TEST_SUITE(FailurePoints, maps);

TYPED_TEST(FailurePoints, EveryOperationIsAllOrNothing) {
    std::size_t failures = 0;
    for (const std::size_t local_pages : {0u, 2u, 9u}) {
        const heaps memory(std::make_shared<heaps::heap_type>(byte_count{local_pages * 4096},
                                                              std::make_shared<failing_space>(byte_count{64 << 20})));
        TypeParam m(memory);
        std::map<int, std::uint64_t> model;
        const auto unchanged = [&] {
            ++failures;
            ASSERT_EQ(m.size(), model.size());
            ASSERT_TRUE(std::equal(m.begin(), m.end(), model.begin(), model.end()));
            varve_test::check_structure(m, false);
        };
        std::mt19937 random(static_cast<unsigned>(local_pages) + 1);
        for (int step = 0; step < 900; ++step) {
            const int key = static_cast<int>(random() % 2000);
            const std::uint64_t value = random();
            if (random() % 4 != 0) {
                at_every_point([&] { m.insert_or_assign(key, value); }, unchanged);
                model.insert_or_assign(key, value);
            } else {
                // Erasing never fails: whatever it would like to have, it does without.
                failed = false;
                fails_after = 1 + random() % 4;
                EXPECT_NO_THROW(m.erase(key));
                fails_after = 0;
                model.erase(key);
            }
            if (step % 150 == 149) {
                at_every_point([&] { m.reblock(); }, unchanged);
                at_every_point([&] { TypeParam copy(m); }, unchanged);
                unchanged();
            }
            if (this->HasFatalFailure()) {
                FAIL() << "step " << step;
            }
        }
        m.clear();
        EXPECT_EQ(memory.memory().local().pages_in_use().value, 0u);
        EXPECT_EQ(memory.memory().swappable().pages_in_use().value, 0u);
    }
    EXPECT_GT(failures, 100u);
}

TYPED_TEST(FailurePoints, MergesAndHandlesLoseNothing) {
    const heaps memory(std::make_shared<heaps::heap_type>(byte_count{3 * 4096},
                                                          std::make_shared<failing_space>(byte_count{64 << 20})));
    TypeParam m(memory);
    TypeParam other(memory);
    for (int i = 0; i < 300; ++i) {
        m.emplace(3 * i, 1);
        other.emplace(2 * i, 2);
    }
    std::size_t failures = 0;
    at_every_point([&] { m.merge(other); },
                   [&] {
                       ++failures;
                       ASSERT_EQ(m.size() + other.size(), 600u);
                       varve_test::check_structure(m, false);
                       varve_test::check_structure(other, false);
                   });
    EXPECT_EQ(other.size(), 100u);  // the multiples of six
    for (int i = 0; i < 600; ++i) {
        ASSERT_EQ(m.contains(i), i % 2 == 0 || i % 3 == 0);
        ASSERT_EQ(other.contains(i), i % 6 == 0);
    }
    for (int i = 0; i < 300; ++i) {
        typename TypeParam::node_type handle;
        at_every_point(
            [&] {
                if (handle.empty()) {
                    handle = m.extract(m.begin());
                    handle.key() += 10'000;
                }
                m.insert(std::move(handle));
            },
            [&] {
                ++failures;
                ASSERT_EQ(m.size() + (handle ? 1 : 0), 500u);
                varve_test::check_structure(m, false);
            });
    }
    EXPECT_EQ(m.size(), 500u);
    EXPECT_GT(failures, 10u);
}

TEST(FailurePointsOfLargeElements, EveryOperationIsAllOrNothing) {
    using large = std::array<std::uint64_t, 300>;  // not on the stack
    const auto use = [](auto m) {
        std::map<int, std::uint64_t> model;
        std::size_t failures = 0;
        const auto unchanged = [&] {
            ++failures;
            ASSERT_TRUE(std::equal(m.begin(), m.end(), model.begin(), model.end(), [](const auto& a, const auto& b) {
                return a.first == b.first && a.second[299] == b.second;
            }));
            varve_test::check_structure(m, false);
        };
        std::mt19937 random(3);
        for (int step = 0; step < 300; ++step) {
            const int key = static_cast<int>(random() % 60);
            if (random() % 4 == 0) {
                m.erase(key);
                model.erase(key);
            } else if (random() % 4 == 0 && !model.empty()) {
                typename decltype(m)::node_type handle;
                at_every_point([&] { handle = m.extract(m.begin()); }, unchanged);
                const auto gone = model.extract(model.begin());
                at_every_point([&] { m.insert(std::move(handle)); }, unchanged);
                model.emplace(gone.key(), gone.mapped());
            } else {
                at_every_point([&] { m[key][299] = key + 1u; }, unchanged);
                model[key] = static_cast<std::uint64_t>(key) + 1;
            }
            unchanged();
        }
        EXPECT_GT(failures, 500u);
    };
    use(btree_map<int, large, 3>());
    use(btree_map<int, large, 5>());
    use(skip_list_map<int, large>());
}

TEST(FailurePointsOfAnAllocator, SeveralObjectsAndRelocation) {
    const heaps memory(std::make_shared<heaps::heap_type>(byte_count{16 * 4096},
                                                          std::make_shared<failing_space>(byte_count{1 << 20})));
    const auto empty = [&] {
        EXPECT_EQ(memory.memory().local().pages_in_use().value, 0u);
        EXPECT_EQ(memory.memory().swappable().pages_in_use().value, 0u);
    };
    at_every_point(
        [&] {
            auto part = memory.sub(swappable_plain);
            auto all = part.try_allocate_all(request<element>{3}, request<char>{5000}, request<double>{1});
            if (!all) {
                throw std::bad_alloc();
            }
            memory.memory().deallocate(std::get<1>(*all), {5000}, 1);
            memory.memory().deallocate(std::get<0>(*all), {3 * sizeof(element)}, alignof(element));
            memory.memory().deallocate(std::get<2>(*all), {sizeof(double)}, alignof(double));
        },
        empty);
    empty();
}

// ---- comparisons and copies that throw ----

struct thrown {};
int comparisons_left = -1;

struct touchy_less {
    bool operator()(int a, int b) const {
        if (comparisons_left >= 0 && comparisons_left-- == 0) {
            throw thrown();
        }
        return a < b;
    }
};

template <class Map>
void comparisons_may_throw(const typename Map::allocator_type& memory) {
    Map m(memory);
    std::map<int, std::uint64_t> model;
    std::mt19937 random(5);
    const auto unchanged = [&] {
        comparisons_left = -1;
        ASSERT_EQ(m.size(), model.size());
        ASSERT_TRUE(std::equal(m.begin(), m.end(), model.begin(), model.end()));
        varve_test::check_structure(m, false);
    };
    std::size_t thrown_count = 0;
    for (int step = 0; step < 600; ++step) {
        const int key = static_cast<int>(random() % 900);
        const bool inserts = random() % 3 != 0;
        for (int after = static_cast<int>(random() % 3);; after += 1 + static_cast<int>(random() % 4)) {
            comparisons_left = after;
            try {
                if (inserts) {
                    m.emplace(key, random());
                    comparisons_left = -1;
                } else {
                    m.erase(key);
                    comparisons_left = -1;
                }
                break;
            } catch (const thrown&) {
                ++thrown_count;
                unchanged();
            }
        }
        if (inserts) {
            model.emplace(key, m.at(key));
        } else {
            model.erase(key);
        }
        unchanged();
    }
    EXPECT_GT(thrown_count, 300u);
}

TEST(ThrowingComparisons, LeaveMapsAsTheyWere) {
    using memory = collective_allocator<element>;
    const memory a({20_KiB, 64_MiB});
    comparisons_may_throw<btree_map<int, std::uint64_t, 3, touchy_less, memory, policy::local_dfs>>(a);
    comparisons_may_throw<btree_map<int, std::uint64_t, 32, touchy_less, memory, policy::hint>>(a);
    comparisons_may_throw<skip_list_map<int, std::uint64_t, touchy_less, memory, policy::local_page>>(a);
    comparisons_may_throw<skip_list_map<int, std::uint64_t, touchy_less, memory, policy::hint>>(a);
    EXPECT_EQ(a.memory().swappable().pages_in_use().value, 0u);
}

struct counted {
    explicit counted(int v) : value(v) { ++alive; }
    counted(const counted& other) : value(other.value) {
        if (copies_left >= 0 && copies_left-- == 0) {
            throw thrown();
        }
        ++alive;
    }
    counted(counted&& other) noexcept : value(other.value) { ++alive; }
    counted& operator=(const counted&) = default;
    ~counted() { --alive; }
    int value;
    static inline int alive = 0;
    static inline int copies_left = -1;
};

template <class Map>
void copies_may_throw(const typename Map::allocator_type& memory) {
    {
        Map m(memory);
        const counted original(7);
        for (int i = 0; i < 300; ++i) {
            m.emplace(i * 7 % 300, original);
        }
        for (const int after : {0, 1, 150, 299}) {
            counted::copies_left = after;
            EXPECT_THROW(Map copy(m), thrown);
            counted::copies_left = after;
            Map target(memory);
            target.emplace(-1, counted(1));
            EXPECT_THROW(target = m, thrown);
            EXPECT_EQ(target.size(), 1u);
            EXPECT_EQ(target.at(-1).value, 1);
        }
        counted::copies_left = 0;
        EXPECT_THROW(m.emplace(1000, original), thrown);
        counted::copies_left = -1;
        EXPECT_EQ(m.size(), 300u);
        EXPECT_EQ(counted::alive, 301);
    }
    EXPECT_EQ(counted::alive, 0);
}

TEST(ThrowingCopies, NeitherLeakNorChange) {
    using memory = collective_allocator<std::pair<const int, counted>>;
    const memory a({20_KiB, 64_MiB});
    copies_may_throw<btree_map<int, counted, 3, std::less<int>, memory, policy::local_dfs>>(a);
    copies_may_throw<btree_map<int, counted, 16, std::less<int>, memory, policy::hint>>(a);
    copies_may_throw<skip_list_map<int, counted, std::less<int>, memory, policy::local>>(a);
    EXPECT_EQ(a.memory().swappable().pages_in_use().value, 0u);
}

// ---- odd types and odd uses ----

template <std::size_t A>
struct alignas(A) wide {
    std::uint64_t value = 0;
};
struct nothing {};

template <template <class, class> class Map>
void odd_types() {
    const auto fill = [](auto& m, auto make) {
        for (int i = 0; i < 200; ++i) {
            m.emplace(i * 37 % 200, make(i));
        }
        m.reblock();
        int expected = 0;
        for (auto& [k, v] : m) {
            EXPECT_EQ(k, expected++);
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&v) % alignof(std::decay_t<decltype(v)>), 0u);
        }
        for (int i = 0; i < 200; i += 2) {
            EXPECT_EQ(m.erase(i), 1u);
        }
        EXPECT_EQ(m.size(), 100u);
    };
    {
        collective_allocator<std::pair<const int, wide<64>>> a({32_KiB, 64_MiB});
        Map<wide<64>, decltype(a)> m(a);
        fill(m, [](int i) { return wide<64>{static_cast<std::uint64_t>(i)}; });
    }
    {
        collective_allocator<std::pair<const int, wide<512>>> a({32_KiB, 64_MiB});
        Map<wide<512>, decltype(a)> m(a);
        fill(m, [](int i) { return wide<512>{static_cast<std::uint64_t>(i)}; });
    }
    {
        collective_allocator<std::pair<const int, nothing>> a({4_KiB, 64_MiB});
        Map<nothing, decltype(a)> m(a);
        fill(m, [](int) { return nothing(); });
    }
    {
        using owner = std::unique_ptr<int>;
        collective_allocator<std::pair<const int, owner>> a({4_KiB, 64_MiB});
        Map<owner, decltype(a)> m(a);
        fill(m, [](int i) { return std::make_unique<int>(i); });
        Map<owner, decltype(a)> elsewhere(collective_allocator<std::pair<const int, owner>>({0_B, 64_MiB}));
        elsewhere = std::move(m);
        EXPECT_EQ(elsewhere.size(), 100u);
        m.clear();
        m.emplace(1, nullptr);  // a map that was moved from goes on
        EXPECT_EQ(m.size(), 1u);
    }
}

template <class T, class A>
using odd_tree = btree_map<int, T, 4, std::less<int>, A, policy::local_dfs>;
template <class T, class A>
using odd_list = skip_list_map<int, T, std::less<int>, A, policy::local_page>;

TEST(OddTypes, Work) {
    odd_types<odd_tree>();
    odd_types<odd_list>();
}

TEST(OddTypes, KeysThatOnlyMove) {
    const int sign = 1;  // a comparison that cannot be assigned
    auto by_content = [sign](const std::unique_ptr<int>& a, const std::unique_ptr<int>& b) {
        return *a * sign < *b * sign;
    };
    using map = btree_map<std::unique_ptr<int>, int, 4, decltype(by_content)>;
    map m(by_content);
    for (int i = 0; i < 50; ++i) {
        m.emplace(std::make_unique<int>(i * 7 % 50), i);
    }
    map other(by_content);
    other = std::move(m);
    EXPECT_EQ(other.size(), 50u);
    EXPECT_EQ(*other.begin()->first, 0);
}

TEST(OddUses, VectorsOfMapsMoveThem) {
    using map = btree_map<int, int>;
    static_assert(std::is_nothrow_move_constructible_v<map> && std::is_nothrow_move_assignable_v<map>);
    using list_map = skip_list_map<int, int>;
    static_assert(std::is_nothrow_move_constructible_v<list_map> && std::is_nothrow_move_assignable_v<list_map>);
    std::vector<map> all;
    for (int i = 0; i < 20; ++i) {
        all.emplace_back();
        all.back().emplace(i, i);
    }
    for (int i = 0; i < 20; ++i) {
        EXPECT_EQ(all[static_cast<std::size_t>(i)].at(i), i);
    }
}

TEST(OddUses, SelfAssignmentAndSelfSwap) {
    skip_list_map<int, int> m{{1, 2}, {3, 4}};
    auto& same = m;
    m = same;
    m.swap(same);
    EXPECT_EQ(m.size(), 2u);
    m = std::move(same);
    EXPECT_EQ(m.at(3), 4);
    btree_map<int, int, 4> t{{1, 2}, {3, 4}};
    auto& same_tree = t;
    t = same_tree;
    t.swap(same_tree);
    t = std::move(same_tree);
    EXPECT_EQ(t.at(3), 4);
}

TEST(OddUses, MemoryOutlivesItsFirstHandle) {
    std::unique_ptr<odd_tree<int, collective_allocator<std::pair<const int, int>>>> m;
    {
        const collective_allocator<std::pair<const int, int>> gone({8_KiB, 1_MiB});
        m = std::make_unique<odd_tree<int, collective_allocator<std::pair<const int, int>>>>(gone);
    }
    for (int i = 0; i < 1000; ++i) {
        m->emplace(i, i);
    }
    m->reblock();
    EXPECT_EQ(m->at(999), 999);
}

TEST(OddUses, NothingToAllocateAndNothingToReblock) {
    collective_allocator<int> a({0_B, 1_MiB});
    int* p = a.allocate(0);
    a.deallocate(p, 0);
    EXPECT_EQ(a.sub(purely_local).try_allocate(1), nullptr);
    EXPECT_EQ(a.memory().swappable().pages_in_use().value, 0u);
    odd_list<int, collective_allocator<std::pair<const int, int>>> m(a);
    m.reblock();
    EXPECT_TRUE(m.reblock_step(10));
    m.erase(m.begin(), m.end());
    EXPECT_TRUE(m.empty());
}

}  // namespace
