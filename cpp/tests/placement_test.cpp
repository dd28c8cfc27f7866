// What the placements promise: fill limits, bounded memory while re-blocking, room for later splits, the local budget.
#include <gtest/gtest.h>

#include <random>

#include "structure_check.hpp"
#include "varve/alloc/collective_allocator.hpp"

namespace {

using namespace varve;
using namespace varve::literals;
using varve_test::check_structure;
namespace policy = varve::placement;

struct payload {
    char bytes[100] = {};
};
using element = std::pair<const std::uint64_t, payload>;

/// Remembers the most pages that were in use at once.
class metered_space : public plain_space {
public:
    using plain_space::plain_space;
    bool acquire(page_index page, page_count count) {
        now += count.value;
        peak = std::max(peak, now);
        return plain_space::acquire(page, count);
    }
    void release(page_index page, page_count count) noexcept {
        now -= count.value;
        plain_space::release(page, count);
    }
    std::size_t now = 0;
    std::size_t peak = 0;
};

using allocator = collective_allocator<element, metered_space>;

template <class Placement>
using tree = btree_map<std::uint64_t, payload, 3, std::less<std::uint64_t>, allocator, Placement>;
template <class Placement>
using wide_tree = btree_map<std::uint64_t, payload, 12, std::less<std::uint64_t>, allocator, Placement>;
template <class Placement>
using list = skip_list_map<std::uint64_t, payload, std::less<std::uint64_t>, allocator, Placement>;

template <class Map>
void fill(Map& m, std::size_t n, unsigned seed = 1) {
    std::mt19937_64 random(seed);
    while (n-- > 0) {
        m.try_emplace(random());
    }
}

[[nodiscard]] allocator memory(byte_count local) {
    return allocator(heap_sizes{local, 1_GiB});
}

template <class Map>
class Reblocking : public testing::Test {};
using reblocked = testing::Types<tree<policy::dfs>, tree<policy::veb>, tree<policy::local_dfs>, tree<policy::automatic>,
                                 wide_tree<policy::local_veb>, list<policy::page>, list<policy::local_page>>;
TYPED_TEST_SUITE(Reblocking, reblocked);

TYPED_TEST(Reblocking, FillsPagesToTheLimitAndNeedsLittleMemory) {
    const allocator a = memory(100_KiB);
    TypeParam m(a);
    fill(m, 20'000);
    const auto links_before = m.count_links();
    auto& space = a.memory().space();
    const std::size_t before = space.now;
    space.peak = before;
    m.reblock();
    check_structure(m, true);
    EXPECT_LE(space.peak * 10, before * 12) << "more than 1.2 times the memory";
    const auto links = m.count_links();
    EXPECT_EQ(links.local + links.in_page + links.cross_page,
              links_before.local + links_before.in_page + links_before.cross_page);
    EXPECT_LT(links.cross_page, links_before.cross_page);

    const auto& area = a.memory().swappable();
    const percent limit = TypeParam::placement_type::fill;
    std::size_t underfull = 0;
    std::size_t pages = 0;
    for (std::size_t i = 0; i < to_number(area.end()); ++i) {
        if (area.kind_of(page_index{i}) == page_kind::unused) {
            continue;
        }
        ++pages;
        const occupancy o = area.how_full(page_index{i});
        // The node that reaches the limit may pass it, and one that does not fit ends the page early.
        const byte_count largest{2000};
        if (limit.value < 100) {
            EXPECT_TRUE(o.used.value <= limit.value * o.capacity.value / 100 + largest.value);
        }
        underfull += o.used.value + largest.value < limit.value * o.capacity.value / 100 ? 1 : 0;
    }
    EXPECT_EQ(pages, space.now);
    EXPECT_LE(underfull, 1u) << "only the last page may be unfilled";
}

TYPED_TEST(Reblocking, StepsGiveTheSameLayoutAsOnePass) {
    const allocator a = memory(100_KiB);
    const allocator b = memory(100_KiB);
    TypeParam whole(a);
    TypeParam stepped(b);
    fill(whole, 8000);
    fill(stepped, 8000);
    whole.reblock();
    int steps = 0;
    while (!stepped.reblock_step(100)) {
        ++steps;
    }
    EXPECT_GT(steps, 2);
    EXPECT_EQ(whole.count_links().cross_page, stepped.count_links().cross_page);
    EXPECT_EQ(a.memory().space().now, b.memory().space().now);
}

TYPED_TEST(Reblocking, LaterSplitsFindRoom) {
    if (TypeParam::placement_type::fill.value == 100) {
        GTEST_SKIP() << "this placement leaves no room";
    }
    if (std::is_same_v<TypeParam, wide_tree<policy::local_veb>>) {
        GTEST_SKIP() << "a full node is larger than the room that is left";
    }
    const allocator a = memory(0_KiB);
    TypeParam m(a);
    fill(m, 10'000);
    m.reblock();
    const auto before = m.count_links();
    const std::size_t pages = a.memory().space().now;
    fill(m, 1000, 2);
    const auto after = m.count_links();
    const std::size_t fresh = after.in_page + after.cross_page - before.in_page - before.cross_page;
    EXPECT_LE(after.cross_page, before.cross_page + fresh / 4);
    EXPECT_LE(a.memory().space().now, pages + pages / 20);
}

TYPED_TEST(Reblocking, AgainAfterManyErasures) {
    const allocator a = memory(20_KiB);
    TypeParam m(a);
    fill(m, 12'000);
    m.reblock();
    std::size_t n = 0;
    erase_if(m, [&n](const auto&) { return ++n % 4 != 0; });
    check_structure(m, true);
    const std::size_t sparse = a.memory().space().now;
    m.reblock();
    check_structure(m, true);
    EXPECT_LT(a.memory().space().now, sparse);
}

TEST(Local, TheTopStaysLocalAtAllTimes) {
    const allocator a = memory(200_KiB);
    tree<policy::local> t(a);
    std::mt19937_64 random(3);
    for (int i = 0; i < 6000; ++i) {
        t.try_emplace(random() % 100'000);
        if (i % 250 == 0) {
            check_structure(t, true);
            EXPECT_LE(a.memory().local().pages_in_use().value, 50u);
        }
    }
    EXPECT_GE(a.memory().local().pages_in_use().value, 45u) << "the budget is used";
    const auto full = t.count_links();
    EXPECT_GT(full.local, 300u);
    while (t.size() > 100) {
        t.erase(std::next(t.begin(), static_cast<std::ptrdiff_t>(random() % 50)));
        if (t.size() % 250 == 0) {
            check_structure(t, true);
        }
    }
    EXPECT_EQ(t.count_links().cross_page, 0u) << "what is left fits and has come back";
}

TEST(Local, HigherLevelsOfAListComeFirst) {
    const allocator a = memory(200_KiB);
    list<policy::local> l(a);
    fill(l, 6000);
    check_structure(l, true);
    EXPECT_GT(l.core().frontier_level(), 0);
    while (l.size() > 100) {
        l.erase(l.begin());
    }
    check_structure(l, true);
    EXPECT_EQ(l.count_links().cross_page, 0u);
}

TEST(Hint, NewNodesJoinTheirNeighbours) {
    const allocator a = memory({0});
    tree<policy::hint> t(a);
    fill(t, 20'000);
    const auto links = t.count_links();
    EXPECT_GT(links.in_page * 4, links.in_page + links.cross_page) << "a quarter of the links stays on its page";
    EXPECT_EQ(links.local, 0u);
}

}  // namespace
