// Walks over containers on paged memory: what the container asks for in time is there when the walk comes to it.
#include <gtest/gtest.h>

#include "support.hpp"
#include "varve/alloc/collective_allocator.hpp"
#include "varve/containers/btree_map.hpp"
#include "varve/containers/skip_list_map.hpp"

namespace {

using namespace varve;
using pager::paged_space;
using element = std::pair<const std::uint64_t, std::array<std::uint64_t, 19>>;
using allocator = collective_allocator<element, paged_space>;
using less = std::less<std::uint64_t>;
using mapped = element::second_type;

constexpr std::size_t elements = 20000;
constexpr byte_count capacity{std::size_t{64} << 20};

template <class Map>
class world {
public:
    explicit world(byte_count local) {
        pager::options o;
        o.local = local;
        space_ = std::make_shared<paged_space>(capacity, pager::sparse_store(capacity), o);
        map_.emplace(allocator(std::make_shared<allocator::heap_type>(byte_count{std::size_t{1} << 20}, space_)));
        for (std::uint64_t i = 0; i < elements; ++i) {
            const std::uint64_t key = i * 7919 % elements;
            map_->emplace(key, mapped{key});
        }
        map_->reblock();
    }

    struct cost {
        std::uint64_t faults;  ///< accesses that had to wait for their page
        std::uint64_t reads;
        std::uint64_t sum;
    };
    /// Of a walk that begins with everything paged out.
    cost walk(std::uint64_t from, std::size_t length, bool ahead) {
        space_->page_out();
        auto at = map_->find(from);
        const pager::statistics before = space_->read_statistics();
        if (ahead) {
            map_->prefetch(at, length);
        }
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < length && at != map_->end(); ++i, ++at) {
            sum += at->first + at->second[0];
        }
        const pager::statistics after = space_->read_statistics();
        return {after.faults - before.faults, after.page_reads - before.page_reads, sum};
    }

private:
    std::shared_ptr<paged_space> space_;
    std::optional<Map> map_;
};

template <std::size_t Fanout>
using tree = btree_map<std::uint64_t, mapped, Fanout, less, allocator, placement::local_dfs>;

template <class Map>
void expect_fewer_waits(std::uint64_t times) {
    world<Map> w({std::size_t{8} << 20});
    for (const std::uint64_t from : {0u, 777u, 9000u}) {
        const auto plain = w.walk(from, 1500, false);
        const auto ahead = w.walk(from, 1500, true);
        const std::uint64_t keys = 1500 * from + 1500 * 1499 / 2;
        EXPECT_EQ(plain.sum, 2 * keys);
        EXPECT_EQ(ahead.sum, 2 * keys);
        EXPECT_GT(plain.faults, 40u);
        EXPECT_LE(ahead.faults * times, plain.faults) << "from " << from;
        EXPECT_LE(ahead.reads, plain.reads * 4 / 3) << "from " << from;
    }
}

TEST(scans, of_a_small_fanout_wait_for_few_pages) {
    expect_fewer_waits<tree<3>>(2);
}
TEST(scans, of_a_large_fanout_wait_for_few_pages) {
    expect_fewer_waits<tree<16>>(10);
}

TEST(scans, may_ask_for_more_than_there_is) {
    world<tree<16>> w({std::size_t{8} << 20});
    EXPECT_EQ(w.walk(elements - 10, 1'000'000, true).sum, w.walk(elements - 10, 10, false).sum);
    EXPECT_EQ(w.walk(elements, 10, true).sum, 0u);
    EXPECT_EQ(w.walk(0, 0, true).faults, 0u);
}

TEST(scans, may_ask_for_more_than_fits) {
    world<tree<16>> w({std::size_t{64} << 10});
    EXPECT_EQ(w.walk(0, elements, true).sum, elements * (elements - 1));
}

TEST(scans, of_a_list_may_ask_too) {
    world<skip_list_map<std::uint64_t, mapped, less, allocator, placement::local_page>> w({std::size_t{8} << 20});
    EXPECT_EQ(w.walk(5, 100, true).sum, 2 * (5 * 100 + 100 * 99 / 2));
}

}  // namespace
