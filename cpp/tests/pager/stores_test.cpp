// Each store by itself: sizes, zeros, batches.
#include <gtest/gtest.h>

#include <random>

#include "support.hpp"
#include "varve/pager/stores/compressed.hpp"
#include "varve/pager/stores/file.hpp"
#include "varve/pager/stores/peer.hpp"
#include "varve/pager/stores/snapshot.hpp"
#include "varve/pager/stores/tcp.hpp"

namespace {

using namespace varve;
using pager::store_offset;

constexpr std::size_t page = 4096;
using content = std::vector<std::byte>;

content filled(int value, std::size_t n = page) {
    return content(n, static_cast<std::byte>(value));
}
content noise(unsigned seed) {
    std::mt19937 random(seed);
    content c(page);
    for (std::byte& b : c) {
        b = static_cast<std::byte>(random());
    }
    return c;
}
template <class S>
content read(S& s, std::uint64_t at, std::size_t n = page) {
    content c(n, std::byte{0xee});
    EXPECT_TRUE(s.read(store_offset{at}, c).complete(n));
    return c;
}

template <class S>
void basics(S& s, std::size_t capacity) {
    EXPECT_EQ(read(s, 3 * page), filled(0));
    EXPECT_TRUE(s.write(store_offset{3 * page}, noise(1)).complete(page));
    EXPECT_TRUE(s.write(store_offset{4 * page}, filled(9)).complete(page));
    EXPECT_EQ(read(s, 3 * page), noise(1));
    content both = noise(1);
    const content nine = filled(9);
    both.insert(both.end(), nine.begin(), nine.end());
    EXPECT_EQ(read(s, 3 * page, 2 * page), both);
    EXPECT_TRUE(s.write(store_offset{3 * page}, filled(2)).complete(page));
    EXPECT_EQ(read(s, 3 * page), filled(2));
    pager::any_store any(std::move(s));
    EXPECT_EQ(any.discard(store_offset{3 * page}, {page}), 0);
    EXPECT_EQ(read(any, 3 * page), filled(0));
    EXPECT_EQ(read(any, 4 * page), filled(9));
    std::vector<content> data;
    std::vector<pager::write_request> requests;
    for (unsigned i = 0; i < 100; ++i) {
        data.push_back(noise(i));
    }
    for (std::size_t i = 0; i < 100; ++i) {
        requests.push_back({store_offset{(i * 37 % 100) * page}, data[i], {}});
    }
    any.write_batch(requests);
    for (std::size_t i = 0; i < 100; ++i) {
        EXPECT_TRUE(requests[i].result.complete(page));
        EXPECT_EQ(read(any, (i * 37 % 100) * page), data[i]);
    }
    std::vector<content> back(100, content(page));
    std::vector<pager::read_request> reads;
    for (std::size_t i = 0; i < 100; ++i) {
        reads.push_back({store_offset{(i * 37 % 100) * page}, back[i], {}});
    }
    any.read_batch(reads);
    for (std::size_t i = 0; i < 100; ++i) {
        EXPECT_TRUE(reads[i].result.complete(page));
        EXPECT_EQ(back[i], data[i]);
    }
    EXPECT_EQ(any.sync(), 0);
    content beyond(page);
    EXPECT_FALSE(any.write(store_offset{capacity}, beyond).complete(page) &&
                 any.read(store_offset{capacity + page * 100000}, beyond).complete(page));
}

TEST(stores, memory) {
    pager::memory_store s({128 * page});
    basics(s, 128 * page);
}
TEST(stores, sparse) {
    pager::sparse_store s({128 * page});
    basics(s, 2 << 20);
}
TEST(stores, sparse_takes_what_is_written) {
    pager::sparse_store s({std::size_t{1} << 40});
    EXPECT_EQ(read(s, std::uint64_t{1} << 39), filled(0));
    EXPECT_EQ(s.committed().value, 0u);
    EXPECT_TRUE(s.write(store_offset{std::uint64_t{1} << 39}, filled(1)).complete(page));
    EXPECT_EQ(read(s, std::uint64_t{1} << 39), filled(1));
    EXPECT_EQ(s.committed().value, std::size_t{2} << 20);
}
TEST(stores, compressed) {
    pager::compressed_store s({128 * page}, {page});
    basics(s, 128 * page);
}
TEST(stores, compressed_pages_shrink) {
    pager::compressed_store s({64 * page}, {page});
    EXPECT_TRUE(s.write(store_offset{0}, filled(0)).complete(page));
    EXPECT_EQ(s.stored().value, 0u);
    EXPECT_TRUE(s.write(store_offset{0}, filled(7)).complete(page));
    EXPECT_GT(s.stored().value, 0u);
    EXPECT_LT(s.stored().value, page / 16);
    EXPECT_TRUE(s.write(store_offset{page}, noise(4)).complete(page));
    EXPECT_GE(s.stored().value, page);
    EXPECT_EQ(s.discard(store_offset{0}, {2 * page}), 0);
    EXPECT_EQ(s.stored().value, 0u);
}
TEST(stores, file) {
    const test::temporary_folder folder;
    pager::file_store s(folder.file("f"), {128 * page});
    basics(s, 128 * page);
    EXPECT_THROW(pager::file_store("/nonexistent/f", {page}), std::system_error);
}
TEST(stores, snapshot) {
    const test::temporary_folder folder;
    pager::snapshot_store s(folder.file("f"), {128 * page}, {page});
    basics(s, 128 * page);
}
TEST(stores, uring) {
    const test::temporary_folder folder;
    pager::uring_store s(folder.file("f"), {128 * page});
    basics(s, 128 * page);
}
TEST(stores, uring_refuses_what_is_not_what_it_wrote) {
    const test::temporary_folder folder;
    pager::uring_store s(folder.file("f"), {128 * page});
    for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_TRUE(s.write(store_offset{i * page}, noise(static_cast<unsigned>(i))).complete(page));
    }
    const pager::kernel::descriptor other(::open(folder.file("f").c_str(), O_WRONLY | O_CLOEXEC));
    ASSERT_EQ(::pwrite(other.get(), "x", 1, 5 * page + 100), 1);
    std::vector<content> back(16, content(page));
    std::vector<pager::read_request> reads;
    for (std::size_t i = 0; i < 16; ++i) {
        reads.push_back({store_offset{i * page}, back[i], {}});
    }
    s.read_batch(reads);
    for (std::size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(reads[i].result.complete(page), i != 5) << i;
    }
    EXPECT_EQ(reads[5].result.error, EIO);
}
TEST(stores, tcp) {
    pager::paging_peer peer(pager::any_store(pager::sparse_store({128 * page})), {128 * page}, 0, true);
    pager::tcp_store s("127.0.0.1", peer.port(), {128 * page}, test::patient());
    basics(s, 128 * page);
}

}  // namespace
