// The simulated pager against a slow model of the same rules, and the bit arithmetic against single bits.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <list>
#include <random>
#include <set>
#include <vector>

#include "varve/core/bits.hpp"
#include "varve/space/simulated_space.hpp"

namespace {

using namespace varve;
using namespace varve::literals;

TEST(Bits, RunsAgreeWithSingleBits) {
    std::mt19937 random(1);
    for (int round = 0; round < 3000; ++round) {
        std::vector<std::uint64_t> words(5);
        std::vector<bool> slow(320);
        for (int k = 0; k < 12; ++k) {
            const std::size_t first = random() % 320;
            const std::size_t count = random() % (321 - first);
            const bool set = random() % 3 != 0;
            set ? bits::assign<true>(words.data(), first, count) : bits::assign<false>(words.data(), first, count);
            for (std::size_t i = first; i < first + count; ++i) {
                slow[i] = set;
            }
        }
        for (std::size_t i = 0; i < 320; ++i) {
            ASSERT_EQ(bits::test(words.data(), i), slow[i]);
        }
        const std::size_t from = random() % 320;
        const std::size_t count = 1 + random() % 30;
        const std::size_t step = std::size_t{1} << random() % 4;
        std::size_t expected = 320;
        for (std::size_t start = from; start + count <= 320 && expected == 320; ++start) {
            bool clear = start % step == 0;
            for (std::size_t i = start; clear && i < start + count; ++i) {
                clear = !slow[i];
            }
            expected = clear ? start : expected;
        }
        ASSERT_EQ(bits::find_clear_run(words.data(), from, 320, count, step), expected);
    }
}

/// Second chance, written down as a list of pages and their bits.
class slow_clock {
public:
    explicit slow_clock(std::size_t buffer) : buffer_(buffer) {}
    void touch(std::size_t page, bool write) {
        for (auto& e : ring_) {
            if (e.page == page) {
                e.referenced = true;
                e.dirty |= write;
                return;
            }
        }
        ++reads;
        if (ring_.size() == buffer_) {
            while (ring_.front().referenced) {
                ring_.front().referenced = false;
                ring_.splice(ring_.end(), ring_, ring_.begin());
            }
            writes += ring_.front().dirty ? 1 : 0;
            ring_.pop_front();
        }
        ring_.push_back({page, true, write});
    }
    std::uint64_t reads = 0, writes = 0;

private:
    struct entry {
        std::size_t page;
        bool referenced, dirty;
    };
    std::size_t buffer_;
    std::list<entry> ring_;
};

TEST(SimulatedSpace, ClockAgreesWithTheModel) {
    const simulated_space space(1_MiB);
    for (const std::size_t buffer : {1u, 2u, 7u, 100u, 1000u}) {
        std::mt19937 random(static_cast<unsigned>(buffer));
        slow_clock model(buffer);
        simulated_space::counting_scope counting(space, {buffer});
        for (int i = 0; i < 20'000; ++i) {
            const std::size_t page = random() % (1 + random() % 256);
            std::byte* address = space.base() + page * 4096 + random() % 4096;
            if (random() % 4 == 0) {
                counting.wrote(address, {1});
                model.touch(page, true);
            } else {
                static_cast<void>(*simulated_ptr<std::byte>(address));
                model.touch(page, false);
            }
        }
        EXPECT_EQ(counting.traffic().reads, model.reads);
        EXPECT_EQ(counting.traffic().writes, model.writes);
    }
}

TEST(SimulatedSpace, FifoKeepsUMapsWatermarks) {
    const simulated_space space(1_MiB);
    simulated_space::counting_scope counting(space, {100}, replacement::fifo);
    std::deque<std::size_t> resident;
    std::set<std::size_t> dirty;
    std::uint64_t reads = 0;
    std::uint64_t writes = 0;
    std::mt19937 random(5);
    for (int i = 0; i < 20'000; ++i) {
        const std::size_t page = random() % 256;
        const bool write = random() % 4 == 0;
        if (std::find(resident.begin(), resident.end(), page) == resident.end()) {
            ++reads;
            resident.push_back(page);
            if (resident.size() >= 90) {
                while (resident.size() > 70) {
                    writes += dirty.erase(resident.front());
                    resident.pop_front();
                }
            }
        }
        if (write) {
            dirty.insert(page);
        }
        std::byte* address = space.base() + page * 4096;
        write ? counting.wrote(address, {1}) : static_cast<void>(*simulated_ptr<std::byte>(address));
    }
    EXPECT_EQ(counting.traffic().reads, reads);
    EXPECT_EQ(counting.traffic().writes, writes);
}

TEST(SimulatedSpace, AWriteOverTwoPagesTouchesBoth) {
    const simulated_space space(1_MiB);
    simulated_space::counting_scope counting(space, {10});
    counting.wrote(space.base() + 4000, {200});
    EXPECT_EQ(counting.traffic().reads, 2u);
    std::byte elsewhere{};
    counting.wrote(&elsewhere, {1});
    EXPECT_EQ(counting.traffic().reads, 2u);
}

TEST(PlainSpace, ReleasedPagesReadAsZero) {
    plain_space space(1_MiB, 8_KiB);
    EXPECT_EQ(space.pages(), page_count{128});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(space.base()) % 8192, 0u);
    space.base()[8192] = std::byte{7};
    space.release(page_index{1}, {1});
    EXPECT_EQ(space.base()[8192], std::byte{0});
    // Also where the page only waits to be given back, because others are in use.
    ASSERT_TRUE(space.acquire(page_index{4}, {3}));
    space.base()[5 * 8192] = std::byte{7};
    space.release(page_index{5}, {1});
    ASSERT_TRUE(space.acquire(page_index{5}, {1}));
    EXPECT_EQ(space.base()[5 * 8192], std::byte{0});
    EXPECT_THROW(plain_space(1_MiB, {5000}), std::invalid_argument);
    EXPECT_THROW(plain_space(1_MiB, 4_MiB), std::invalid_argument);
}

/// Few pages wait for the next request, and none when nothing is in use.
TEST(PlainSpace, GivesMemoryBack) {
    plain_space space(8_MiB);
    const auto resident = [&] {
        std::vector<unsigned char> pages(space.pages().value);
        EXPECT_EQ(::mincore(space.base(), pages.size() * 4096, pages.data()), 0);
        return std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1) != 0; });
    };
    ASSERT_TRUE(space.acquire(page_index{0}, {1600}));
    std::memset(space.base(), 1, 1600 * 4096);
    EXPECT_EQ(resident(), 1600);
    for (std::uint64_t page = 0; page < 1600; page += 2) {
        space.release(page_index{page}, {1});
    }
    EXPECT_LE(resident(), 800 + 1600 / 64 + 16);
    for (std::uint64_t page = 1; page < 1600; page += 2) {
        space.release(page_index{page}, {1});
    }
    EXPECT_EQ(resident(), 0);
}

}  // namespace
