// The simulator counts what the pager does.
#include <gtest/gtest.h>

#include <random>

#include "support.hpp"
#include "varve/pager/simulator.hpp"

namespace {

using namespace varve;
using pager::access;

constexpr std::size_t page = 4096;

template <class Space>
void program(Space& space, unsigned seed) {
    std::mt19937 random(seed);
    const std::size_t pages = space.pages().value;
    auto* const memory = reinterpret_cast<volatile std::uint64_t*>(space.base());
    const auto read = [&](std::size_t p) {
        space.touch(space.base() + p * page, {8}, access::read);
        (void)memory[p * 512];
    };
    const auto write = [&](std::size_t p) {
        space.touch(space.base() + p * page, {8}, access::write);
        memory[p * 512] = p;
    };
    for (int i = 0; i < 4000; ++i) {
        // Some pages are hot, some runs are sequential.
        const std::size_t p = random() % 4 == 0 ? random() % pages : random() % (pages / 8);
        switch (random() % 32) {
            case 0:
                for (std::size_t q = p; q < std::min(pages, p + 30); ++q) {
                    read(q);
                }
                break;
            case 1: {
                const pager::pinned pin(space, space.base() + p * page, byte_count{8});
                read(random() % pages);
                break;
            }
            case 2:
                space.prefetch(page_index{p}, {std::min<std::size_t>(5, pages - p)});
                break;
            case 3:
                switch (random() % 16) {
                    case 0:
                    case 1:
                        space.flush();
                        break;
                    case 2:
                        space.page_out();
                        break;
                    default:
                        break;
                }
                break;
            case 4:
                space.release(page_index{p}, {std::min<std::size_t>(3, pages - p)});
                break;
            case 5:
            case 6:
            case 7:
            case 8:
            case 9:
                write(p);
                break;
            default:
                read(p);
        }
    }
}

class counts : public testing::TestWithParam<unsigned> {};

TEST_P(counts, agree_with_the_pager) {
    std::mt19937 random(GetParam());
    pager::options o;
    o.local = {(16 + random() % 100) * page};
    o.policy = random() % 2 == 0 ? pager::replacement::sweep : pager::replacement::refault;
    o.batch = {1 + random() % 64};
    o.prefetch = {random() % 8};
    o.track_writes = random() % 2 == 0;
    const byte_count capacity{(200 + random() % 300) * page};
    pager::simulator simulated(capacity, o);
    program(simulated, GetParam());
    pager::simulator again(capacity, o);
    program(again, GetParam());
    EXPECT_EQ(simulated.read_statistics(), again.read_statistics()) << "not deterministic";

    pager::paged_space real(capacity, pager::memory_store(capacity), o);
    program(real, GetParam());
    const pager::statistics s = simulated.read_statistics();
    const pager::statistics r = real.read_statistics();
    EXPECT_EQ(s.page_reads, r.page_reads);
    EXPECT_EQ(s.page_writes, r.page_writes);
    EXPECT_EQ(s.prefetched, r.prefetched);
    EXPECT_EQ(s.refaults, r.refaults);
    EXPECT_EQ(s.evictions, r.evictions);
    EXPECT_EQ(s.eviction_batches, r.eviction_batches);
    EXPECT_EQ(s.resident_pages, r.resident_pages);
    EXPECT_EQ(s.peak_resident_pages, r.peak_resident_pages);
    EXPECT_EQ(s.faults, r.faults);
    EXPECT_EQ(s.write_traps, r.write_traps);
    EXPECT_GT(s.evictions, 0u);
}
INSTANTIATE_TEST_SUITE_P(seeds, counts, testing::Range(1u, 17u));

TEST(simulator, counts_pages_not_calls) {
    pager::options o;
    o.local = {64 * page};
    pager::simulator space({128 * page}, o);
    space.touch(space.base() + 10, {3 * page}, access::read);
    EXPECT_EQ(space.read_statistics().page_reads, 4u);
    space.touch(space.base() + 10, {3 * page}, access::write);
    EXPECT_EQ(space.read_statistics().page_reads, 4u);
    EXPECT_EQ(space.read_statistics().write_traps, 4u);
    space.touch(space.base() - 1, {1}, access::read);
    space.touch(space.base() + 128 * page, {1}, access::read);
    EXPECT_EQ(space.read_statistics().page_reads, 4u);
    space.flush();
    EXPECT_EQ(space.read_statistics().page_writes, 4u);
}

/// A page that comes back soon is kept: with a hot tenth and a scan of the rest, fewer pages are fetched.
TEST(simulator, refault_beats_sweep_on_skewed_accesses) {
    const auto reads = [](pager::replacement policy) {
        pager::options o;
        o.local = {200 * page};
        o.policy = policy;
        pager::simulator space({2000 * page}, o);
        std::mt19937 random(1);
        for (int i = 0; i < 100000; ++i) {
            const std::size_t p = random() % 2 == 0 ? random() % 100 * 20 : random() % 2000;
            space.touch(space.base() + p * page, {1}, access::read);
        }
        return space.read_statistics().page_reads;
    };
    EXPECT_LT(reads(pager::replacement::refault), reads(pager::replacement::sweep));
}

}  // namespace
