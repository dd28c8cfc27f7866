// Readers beside a writer: histories are checked for linearisability. All that is read of a map at once is compared
// with what it was after each write, so a read is a version; versions must fit the times of reads and writes.
#include <gtest/gtest.h>

#include <map>
#include <memory_resource>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "varve/containers/btree_map.hpp"
#include "varve/containers/left_right.hpp"
#include "varve/containers/skip_list_map.hpp"

namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t writes = 600;
#else
constexpr std::uint64_t writes = 5000;
#endif
constexpr std::uint64_t keys = 64;

/// Moments of one clock that all threads share.
struct interval {
    std::uint64_t begin, end;
};
struct write_done {
    interval when;
    std::uint64_t version;
};
struct read_done {
    interval when;
    std::uint64_t version;
};

/// Whether writes 1, 2, ... of one writer and the versions that were read can be put in one order that agrees with
/// their times: a read is not of a write that began after it, nor older than a write or a read that ended before it.
bool linearisable(const std::vector<write_done>& written, std::vector<read_done> read) {
    std::sort(read.begin(), read.end(),
              [](const read_done& a, const read_done& b) { return a.when.begin < b.when.begin; });
    std::vector<read_done> by_end = read;
    std::sort(by_end.begin(), by_end.end(),
              [](const read_done& a, const read_done& b) { return a.when.end < b.when.end; });
    std::size_t ended_reads = 0;
    std::size_t ended_writes = 0;
    std::uint64_t oldest = 0;
    for (const read_done& r : read) {
        for (; ended_writes < written.size() && written[ended_writes].when.end < r.when.begin; ++ended_writes) {
            oldest = std::max(oldest, written[ended_writes].version);
        }
        for (; ended_reads < by_end.size() && by_end[ended_reads].when.end < r.when.begin; ++ended_reads) {
            oldest = std::max(oldest, by_end[ended_reads].version);
        }
        const bool begun =
            r.version == 0 || (r.version <= written.size() && written[r.version - 1].when.begin < r.when.end);
        if (r.version < oldest || !begun) {
            return false;
        }
    }
    return true;
}

TEST(linearisability, checker_knows_good_histories_from_bad_ones) {
    const std::vector<write_done> w{{{10, 20}, 1}, {{30, 40}, 2}};
    EXPECT_TRUE(linearisable(w, {{{0, 5}, 0}, {{12, 15}, 0}, {{16, 25}, 1}, {{35, 36}, 1}, {{41, 42}, 2}}));
    EXPECT_TRUE(linearisable(w, {{{11, 50}, 0}, {{11, 50}, 2}}));
    EXPECT_FALSE(linearisable(w, {{{21, 25}, 0}}));                 // older than a write that had ended
    EXPECT_FALSE(linearisable(w, {{{21, 25}, 2}}));                 // of a write that had not begun
    EXPECT_FALSE(linearisable(w, {{{31, 33}, 2}, {{34, 36}, 1}}));  // older than what was read before
    EXPECT_FALSE(linearisable(w, {{{50, 51}, 3}}));                 // of a write that never was
}

/// The `n`-th change. Each makes a content that no other makes: key 0 counts them.
template <class Map>
void change(Map& m, std::uint64_t n) {
    m.insert_or_assign(0, n);
    const std::uint64_t key = 1 + n * 2654435761u % (keys - 1);
    if (n % 3 == 0) {
        m.erase(key);
    } else {
        m.insert_or_assign(key, n);
    }
}

template <class Map>
std::uint64_t fingerprint(const Map& m) {
    std::uint64_t sum = m.size();
    for (const auto& [k, v] : m) {
        sum = (sum ^ k) * 0x9e3779b97f4a7c15u + v;
    }
    return sum;
}

template <class Map>
class concurrency : public testing::Test {};
using maps =
    testing::Types<varve::btree_map<std::uint64_t, std::uint64_t, 3>, varve::btree_map<std::uint64_t, std::uint64_t>,
                   varve::skip_list_map<std::uint64_t, std::uint64_t>>;
TYPED_TEST_SUITE(concurrency, maps);

TYPED_TEST(concurrency, reads_beside_a_writer_are_linearisable) {
    std::vector<std::uint64_t> after{0};  // fingerprints by version
    {
        TypeParam alone;
        alone.emplace(0, 0);
        after[0] = fingerprint(alone);
        for (std::uint64_t n = 1; n <= writes; ++n) {
            change(alone, n);
            after.push_back(fingerprint(alone));
        }
    }
    const std::pair<const std::uint64_t, std::uint64_t> first[]{{0, 0}};
    varve::left_right<TypeParam> shared(TypeParam(std::begin(first), std::end(first)),
                                        TypeParam(std::begin(first), std::end(first)));
    std::atomic<std::uint64_t> clock{1};
    std::atomic<bool> done{false};
    std::atomic<int> torn{0};
    std::vector<write_done> written;
    std::vector<std::vector<read_done>> read(3);
    std::vector<std::thread> readers;
    for (auto& mine : read) {
        readers.emplace_back([&] {
            do {
                const std::uint64_t begin = clock.fetch_add(1);
                const auto [version, content] =
                    shared.read([](const TypeParam& m) { return std::pair(m.find(0)->second, fingerprint(m)); });
                const std::uint64_t end = clock.fetch_add(1);
                torn += version > writes || content != after[version] ? 1 : 0;
                mine.push_back({{begin, end}, version});
            } while (!done.load());
        });
    }
    for (std::uint64_t n = 1; n <= writes; ++n) {
        const std::uint64_t begin = clock.fetch_add(1);
        shared.write([n](TypeParam& m) { change(m, n); });
        written.push_back({{begin, clock.fetch_add(1)}, n});
    }
    done.store(true);
    std::vector<read_done> all;
    for (std::size_t i = 0; i < readers.size(); ++i) {
        readers[i].join();
        all.insert(all.end(), read[i].begin(), read[i].end());
    }
    EXPECT_EQ(torn.load(), 0);
    EXPECT_TRUE(linearisable(written, all));
    EXPECT_EQ(shared.read([](const TypeParam& m) { return fingerprint(m); }), after[writes]);
}

TEST(left_right, gives_what_is_asked_for) {
    varve::left_right<varve::btree_map<int, int>> shared;
    EXPECT_TRUE(shared.write([](auto& m) { return m.emplace(1, 2).second; }));
    EXPECT_FALSE(shared.write([](auto& m) { return m.emplace(1, 3).second; }));
    EXPECT_EQ(shared.read([](const auto& m) { return m.at(1); }), 2);
    shared.write([](auto& m) { m.clear(); });
    EXPECT_EQ(shared.read([](const auto& m) { return m.size(); }), 0u);
}

TEST(left_right, writers_exclude_each_other) {
    varve::left_right<varve::btree_map<int, int>> shared;
    std::vector<std::thread> writers;
    for (int t = 0; t < 4; ++t) {
        writers.emplace_back([&] {
            for (int i = 0; i < 100; ++i) {
                shared.write([](auto& m) { ++m[0]; });
            }
        });
    }
    for (std::thread& t : writers) {
        t.join();
    }
    for (int copy = 0; copy < 2; ++copy) {
        EXPECT_EQ(shared.read([](const auto& m) { return m.at(0); }), 400 + copy);
        shared.write([](auto& m) { ++m[0]; });
    }
}

TEST(left_right, a_change_that_throws_is_seen_by_nobody) {
    varve::left_right<varve::btree_map<int, int>> shared;
    shared.write([](auto& m) { m[1] = 1; });
    int calls = 0;
    const auto fails_in_call = [&](int which) {
        calls = 0;
        shared.write([&calls, which](auto& m) {
            ++m[1];
            if (++calls == which) {
                throw std::bad_alloc();
            }
            m[2] = 2;
        });
    };
    EXPECT_THROW(fails_in_call(1), std::bad_alloc);
    EXPECT_EQ(shared.read([](const auto& m) { return m.at(1); }), 1);
    EXPECT_EQ(shared.read([](const auto& m) { return m.count(2); }), 0u);
    // In the second copy it has happened already: that copy is made anew before the next write.
    EXPECT_NO_THROW(fails_in_call(2));
    for (int copy = 0; copy < 3; ++copy) {
        EXPECT_EQ(shared.read([](const auto& m) { return m.at(1); }), 2 + copy);
        EXPECT_EQ(shared.read([](const auto& m) { return m.at(2); }), 2);
        shared.write([](auto& m) { ++m[1]; });
    }
}

}  // namespace
