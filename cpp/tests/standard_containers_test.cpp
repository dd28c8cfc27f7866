// The containers of the standard library and of Boost live on every part.
#include <gtest/gtest.h>

#include <boost/container/flat_map.hpp>
#include <boost/container/list.hpp>
#include <boost/container/map.hpp>
#include <boost/container/vector.hpp>
#include <list>
#include <map>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "varve/alloc/collective_allocator.hpp"
#include "varve/alloc/memory_resource.hpp"
#include "varve/containers/btree_map.hpp"
#include "varve/space/simulated_space.hpp"

namespace {

using namespace varve;
using namespace varve::literals;

class Parts : public testing::TestWithParam<int> {
protected:
    template <class T>
    [[nodiscard]] sub_allocator<T> part() const {
        const collective_allocator<T> a(memory_);
        switch (GetParam()) {
            case 0:
                return a.sub(purely_local);
            case 1:
                return a.sub(swappable_plain);
            case 2:
                return a.sub(fresh_page);
            default:
                return a.sub(
                    owner_of{sub_allocator<char>(collective_allocator<char>(memory_).sub(fresh_page)).allocate(1)});
        }
    }
    void TearDown() override {
        if (GetParam() < 3) {
            EXPECT_EQ(memory_->local().pages_in_use().value, 0u);
            EXPECT_EQ(memory_->swappable().pages_in_use().value, 0u);
        }
    }

    std::shared_ptr<heap<plain_space>> memory_ = make_heap<plain_space>({1_MiB, 64_MiB});
};

template <class Sequence>
void fill_and_check(Sequence s) {
    for (int i = 0; i < 20; ++i) {  // three copies fit on one page
        s.push_back(i);
    }
    EXPECT_EQ(std::accumulate(s.begin(), s.end(), 0), 190);
    Sequence copy = s;
    Sequence moved = std::move(copy);
    copy = moved;
    swap(copy, moved);
    copy.clear();
    EXPECT_TRUE(s == moved);
    s.erase(s.begin(), std::next(s.begin(), 15));
    EXPECT_EQ(s.front(), 15);
}

template <class Map>
void fill_and_check_map(Map m) {
    for (int i = 0; i < 20; ++i) {
        m.emplace(i, i * i);
    }
    Map copy = m;
    Map moved = std::move(copy);
    EXPECT_TRUE(moved == m);
    m.erase(7);
    EXPECT_EQ(m.count(7), 0u);
    EXPECT_EQ(m.at(6), 36);
}

TEST_P(Parts, StandardContainers) {
    fill_and_check(std::vector<int, sub_allocator<int>>(part<int>()));
    fill_and_check(std::list<int, sub_allocator<int>>(part<int>()));
    using element = std::pair<const int, int>;
    fill_and_check_map(std::map<int, int, std::less<>, sub_allocator<element>>(part<element>()));
    fill_and_check_map(std::unordered_map<int, int, std::hash<int>, std::equal_to<>, sub_allocator<element>>(
        8, std::hash<int>(), std::equal_to<>(), part<element>()));
    std::basic_string<char, std::char_traits<char>, sub_allocator<char>> text(part<char>());
    text.assign(500, 'x');
    EXPECT_TRUE(part<char>().contains(text.data()) || GetParam() >= 2);
}

TEST_P(Parts, BoostContainers) {
    namespace bc = boost::container;
    fill_and_check(bc::vector<int, sub_allocator<int>>(part<int>()));
    fill_and_check(bc::list<int, sub_allocator<int>>(part<int>()));
    using element = std::pair<const int, int>;
    fill_and_check_map(bc::map<int, int, std::less<int>, sub_allocator<element>>(part<element>()));
    using movable = std::pair<int, int>;
    fill_and_check_map(bc::flat_map<int, int, std::less<int>, sub_allocator<movable>>(part<movable>()));
}

TEST_P(Parts, PolymorphicResources) {
    part_resource<> resource(part<std::byte>());
    part_resource<> same(part<std::byte>());
    EXPECT_TRUE(resource.is_equal(same));
    EXPECT_FALSE(resource.is_equal(*std::pmr::new_delete_resource()));
    fill_and_check(std::pmr::vector<int>(&resource));
    fill_and_check(std::pmr::list<int>(&resource));
    std::pmr::unordered_map<int, std::pmr::string> m(&resource);
    for (int i = 0; i < 10; ++i) {
        m.emplace(i, "a string that needs memory of its own");
    }
    EXPECT_EQ(m.at(3).size(), 37u);
    for (const std::size_t alignment : {1u, 16u, 32u, 64u, 256u}) {
        void* p = resource.allocate(100, alignment);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % alignment, 0u);
        resource.deallocate(p, 100, alignment);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Parts, testing::Values(0, 1, 2, 3));

TEST(FancyPointers, VectorOnASimulatedSpace) {
    const collective_allocator<int, simulated_space> a({{0}, 16_MiB});
    std::vector<int, sub_allocator<int, simulated_space>> v(a.sub(swappable_plain));
    v.resize(10'000);
    const simulated_space::counting_scope counting(a.memory().space(), {1000});
    for (std::size_t i = 0; i < v.size(); ++i) {
        v[i] = 1;
    }
    // 40,000 bytes from a page boundary on.
    EXPECT_EQ(counting.traffic().reads, 10u);
}

TEST(TrivialAllocator, MapsOnPlainMemory) {
    btree_map<int, std::string> m;
    for (int i = 0; i < 1000; ++i) {
        m.emplace(i * 7 % 1000, "value");
    }
    m.reblock();
    EXPECT_EQ(m.size(), 1000u);
    EXPECT_EQ(m.begin()->first, 0);
    std::pmr::monotonic_buffer_resource pool;
    btree_map<int, int, 8, std::less<int>, std::pmr::polymorphic_allocator<std::pair<const int, int>>> pooled(&pool);
    for (int i = 0; i < 1000; ++i) {
        pooled[i] = i;
    }
    EXPECT_EQ(std::prev(pooled.end())->first, 999);
}

}  // namespace
