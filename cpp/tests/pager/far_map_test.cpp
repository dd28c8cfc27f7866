// A map of far_map.hpp beside one of the standard, with an eighth of the memory that it holds.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "support.hpp"
#include "varve/far_map.hpp"

namespace {

using namespace varve;
using mapped = std::array<std::uint64_t, 20>;

TEST(far_map, does_what_the_standards_does) {
    const test::temporary_folder folder;
    constexpr std::size_t local = std::size_t{256} << 10;
    const far_memory memory(folder.file("pages"), {std::size_t{16} << 20}, {local});
    far_map<std::uint64_t, mapped> map(memory);
    std::map<std::uint64_t, mapped> model;
    std::mt19937_64 random(3);
    for (std::size_t i = 0; i < 30000; ++i) {
        const std::uint64_t key = random() % 20000;
        const std::uint64_t what = random() % 8;
        if (what < 5) {
            map[key][7] = model[key][7] = i;
        } else if (what < 6) {
            EXPECT_EQ(map.erase(key), model.erase(key));
        } else {
            const auto found = map.find(key);
            ASSERT_EQ(found != map.end(), model.contains(key));
            EXPECT_TRUE(found == map.end() || found->second == model.at(key));
        }
    }
    EXPECT_TRUE(std::equal(map.begin(), map.end(), model.begin(), model.end()));
    const pager::statistics s = memory.space().read_statistics();
    EXPECT_GT(map.size() * sizeof(mapped), 6 * local);
    EXPECT_LE(s.peak_resident_pages * 4096, local);
    EXPECT_GT(s.page_reads, 0u);
    EXPECT_GT(std::filesystem::file_size(folder.file("pages")), 0u);
}

TEST(far_map, waits_for_one_page_at_most_where_the_top_fits) {
    const test::temporary_folder folder;
    const far_memory memory(folder.file("pages"), {std::size_t{64} << 20}, {std::size_t{4} << 20});
    far_map<std::uint64_t, mapped> map(memory);
    for (std::uint64_t key = 0; key < 60000; ++key) {
        map.emplace_hint(map.end(), key, mapped{key});
    }
    for (std::uint64_t i = 0; i < 50; ++i) {
        const std::uint64_t key = i * 7919 % 60000;
        memory.space().page_out();
        const std::uint64_t before = memory.space().read_statistics().page_reads;
        EXPECT_EQ(map.at(key)[0], key);
        EXPECT_LE(memory.space().read_statistics().page_reads - before, 1u);
    }
    // The control: a walk over many leaves does wait.
    memory.space().page_out();
    const std::uint64_t before = memory.space().read_statistics().page_reads;
    std::uint64_t sum = 0;
    for (const auto& [key, value] : map) {
        sum += value[0];
    }
    EXPECT_EQ(sum, 60000u * 59999u / 2);
    EXPECT_GT(memory.space().read_statistics().page_reads - before, 1000u);
}

}  // namespace
