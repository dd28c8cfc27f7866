// What is found again: after closing, after kill -9 at any moment, after damage to the file.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <random>
#include <thread>

#include "support.hpp"
#include "varve/pager/stores/file.hpp"
#include "varve/pager/stores/snapshot.hpp"

namespace {

using namespace varve;
using pager::fault_path;
using test::word;

constexpr std::size_t page = 4096;

TEST(file, is_attached_again_after_flush) {
    const test::temporary_folder folder;
    const byte_count capacity{200 * page};
    pager::options o;
    o.local = {32 * page};
    {
        pager::paged_space space(capacity, pager::file_store(folder.file("f"), capacity), o);
        for (std::size_t p = 0; p < 200; ++p) {
            word(space, p, p % 512) = p + 1;
        }
        space.flush();
    }
    pager::paged_space space(capacity, pager::file_store(folder.file("f"), capacity), o);
    for (std::size_t p = 0; p < 200; ++p) {
        ASSERT_EQ(word(space, p, p % 512), p + 1);
    }
}

TEST(file, that_is_cut_off_fails_as_documented) {
    test::fault_catcher::install();
    const test::temporary_folder folder;
    const byte_count capacity{200 * page};
    pager::options o;
    o.local = {32 * page};
    pager::paged_space space(capacity, pager::file_store(folder.file("f"), capacity), o);
    std::filesystem::resize_file(folder.file("f"), 100 * page + 100);
    EXPECT_EQ(word(space, 99), 0u);
    EXPECT_EQ(test::fault_catcher::run([&] { (void)*static_cast<volatile std::uint64_t*>(&word(space, 100)); }),
              SIGBUS);
    EXPECT_EQ(test::fault_catcher::run([&] { (void)*static_cast<volatile std::uint64_t*>(&word(space, 150)); }),
              SIGBUS);
    EXPECT_EQ(word(space, 98), 0u);
}

constexpr std::size_t snapshot_pages = 120;
pager::paged_space attach(const std::filesystem::path& path, fault_path how = fault_path::in_thread) {
    pager::options o;
    o.local = {24 * page};
    o.path = how;
    const byte_count capacity{snapshot_pages * page};
    return {capacity, pager::snapshot_store(path, capacity, o.page), o};
}

TEST(snapshot, later_writes_are_not_found) {
    const test::temporary_folder folder;
    {
        pager::paged_space space = attach(folder.file("s"));
        for (std::size_t p = 0; p < snapshot_pages; ++p) {
            word(space, p) = p + 1;
        }
        space.snapshot();
        for (int round = 0; round < 3; ++round) {
            for (std::size_t p = 0; p < snapshot_pages; ++p) {
                word(space, p) = 9999;
            }
        }
        space.release(page_index{0}, {10});
        space.flush();
    }
    pager::paged_space space = attach(folder.file("s"));
    for (std::size_t p = 0; p < snapshot_pages; ++p) {
        ASSERT_EQ(word(space, p), p + 1);
    }
}

TEST(snapshot, slots_are_used_again) {
    const test::temporary_folder folder;
    pager::paged_space space = attach(folder.file("s"));
    for (std::uint64_t round = 0; round < 50; ++round) {
        for (std::size_t p = 0; p < snapshot_pages; ++p) {
            word(space, p) = round;
        }
        space.snapshot();
    }
    // Two copies of everything, two tables, two headers.
    EXPECT_LE(std::filesystem::file_size(folder.file("s")), (2 * snapshot_pages + 8) * page);
}

class killed : public testing::TestWithParam<unsigned> {};

/// The child fills all pages with a number, commits, says so, and goes on with the next number until it is killed.
TEST_P(killed, leaves_one_whole_snapshot_no_older_than_the_last_acknowledged) {
    const test::temporary_folder folder;
    std::mt19937 random(GetParam());
    std::uint64_t known = 0;
    for (int attempt = 0; attempt < 6; ++attempt) {
        int ends[2];
        ASSERT_EQ(::pipe(ends), 0);
        ::fflush(nullptr);
        const pid_t child = ::fork();
        if (child == 0) {
            pager::paged_space space =
                attach(folder.file("s"), GetParam() % 2 == 0 ? fault_path::in_thread : fault_path::handlers);
            for (std::uint64_t n = word(space, 0) + 1;; ++n) {
                for (std::size_t p = 0; p < snapshot_pages; ++p) {
                    word(space, p) = word(space, p, 511) = n;
                }
                space.snapshot();
                if (::write(ends[1], &n, sizeof n) != sizeof n) {
                    ::_exit(1);
                }
            }
        }
        ::close(ends[1]);
        // Killed a random while after it has got somewhere.
        std::uint64_t acknowledged = known;
        for (unsigned i = 0; i < 1 + random() % 4; ++i) {
            ASSERT_EQ(::read(ends[0], &acknowledged, sizeof acknowledged), static_cast<ssize_t>(sizeof acknowledged));
        }
        ::usleep(static_cast<useconds_t>(random() % 3000));
        ::kill(child, SIGKILL);
        ::waitpid(child, nullptr, 0);
        while (::read(ends[0], &acknowledged, sizeof acknowledged) == static_cast<ssize_t>(sizeof acknowledged)) {
        }
        ::close(ends[0]);
        pager::paged_space space = attach(folder.file("s"));
        known = word(space, 0);
        EXPECT_GE(known, acknowledged);
        EXPECT_LE(known, acknowledged + 1);
        for (std::size_t p = 0; p < snapshot_pages; ++p) {
            ASSERT_EQ(word(space, p), known) << "page " << p;
            ASSERT_EQ(word(space, p, 511), known) << "page " << p;
        }
    }
}
INSTANTIATE_TEST_SUITE_P(seeds, killed, testing::Range(1u, 5u));

/// A thread counts in two pages, one after the other; at no moment do they differ by more than one.
TEST(snapshot, is_of_one_moment) {
    const test::temporary_folder folder;
    for (const fault_path path : {fault_path::in_thread, fault_path::handlers}) {
        std::filesystem::remove(folder.file("s"));
        pager::paged_space space = attach(folder.file("s"), path);
        std::atomic<bool> stop{false};
        std::vector<std::thread> threads;
        for (std::size_t t = 0; t < 2; ++t) {
            threads.emplace_back([&, t] {
                // One counts upwards in the address space, one downwards.
                const std::size_t first = t == 0 ? 3 : 111;
                const std::size_t second = t == 0 ? 110 : 4;
                auto* const a = static_cast<volatile std::uint64_t*>(&word(space, first));
                auto* const b = static_cast<volatile std::uint64_t*>(&word(space, second));
                for (std::uint64_t i = 1; !stop; ++i) {
                    *a = i;
                    std::atomic_signal_fence(std::memory_order_seq_cst);
                    *b = i;
                }
            });
        }
        for (int i = 0; i < 15; ++i) {
            space.snapshot();
            std::filesystem::copy_file(folder.file("s"), folder.file("copy"),
                                       std::filesystem::copy_options::overwrite_existing);
            pager::paged_space found = attach(folder.file("copy"));
            for (const auto& [first, second] : {std::pair{3, 110}, std::pair{111, 4}}) {
                const std::uint64_t a = word(found, static_cast<std::size_t>(first));
                const std::uint64_t b = word(found, static_cast<std::size_t>(second));
                EXPECT_TRUE(a == b || a == b + 1) << a << " " << b;
            }
        }
        stop = true;
        for (std::thread& t : threads) {
            t.join();
        }
    }
}

void flip(const std::filesystem::path& path, std::uint64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int old = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(old ^ 0x40));
}

TEST(snapshot, a_torn_commit_leaves_the_one_before) {
    const test::temporary_folder folder;
    // Generation 1 is the empty one; 2 has its header at 0, 3 at 4096.
    {
        pager::paged_space space = attach(folder.file("s"));
        for (std::uint64_t n = 1; n <= 2; ++n) {
            for (std::size_t p = 0; p < snapshot_pages; ++p) {
                word(space, p) = n;
            }
            space.snapshot();
        }
    }
    const auto damaged = [&](std::uint64_t at) {
        std::filesystem::copy_file(folder.file("s"), folder.file("d"),
                                   std::filesystem::copy_options::overwrite_existing);
        flip(folder.file("d"), at);
        pager::paged_space space = attach(folder.file("d"));
        for (std::size_t p = 1; p < snapshot_pages; ++p) {
            EXPECT_EQ(word(space, p), word(space, 0));
        }
        return word(space, 0);
    };
    EXPECT_EQ(damaged(4096 + 20), 1u) << "the newest header";
    EXPECT_EQ(damaged(8192 + 4096 + 40), 1u) << "the newest table";
    EXPECT_EQ(damaged(20), 2u) << "the older header";
    EXPECT_EQ(damaged(8192 + 40), 2u) << "the older table";
}

TEST(snapshot, refuses_files_that_it_cannot_trust) {
    const test::temporary_folder folder;
    const byte_count capacity{snapshot_pages * page};
    const auto open = [&](byte_count size, byte_count unit) {
        pager::snapshot_store store(folder.file("s"), size, unit);
    };
    open(capacity, {page});
    EXPECT_THROW(open({capacity.value * 2}, {page}), std::runtime_error);
    EXPECT_THROW(open(capacity, {2 * page}), std::runtime_error);
    flip(folder.file("s"), 4096 + 30);
    EXPECT_THROW(open(capacity, {page}), std::runtime_error) << "its only header is damaged";
    std::ofstream(folder.file("s"), std::ios::binary) << std::string(100000, 'x');
    EXPECT_THROW(open(capacity, {page}), std::runtime_error);
    // Whoever created this one was killed before the first header.
    std::ofstream(folder.file("s"), std::ios::binary) << std::string(20000, '\0');
    EXPECT_NO_THROW(open(capacity, {page}));
    EXPECT_THROW(pager::snapshot_store("/nonexistent/file", capacity, {page}), std::system_error);
}

TEST(snapshot, random_damage_is_found_or_harmless) {
    const test::temporary_folder folder;
    {
        pager::paged_space space = attach(folder.file("s"));
        for (std::size_t p = 0; p < snapshot_pages; ++p) {
            word(space, p) = 5;
        }
        space.snapshot();
    }
    std::mt19937 random(1);
    for (int i = 0; i < 200; ++i) {
        std::filesystem::copy_file(folder.file("s"), folder.file("d"),
                                   std::filesystem::copy_options::overwrite_existing);
        for (int k = 0; k < 3; ++k) {
            flip(folder.file("d"), random() % (4 * page));
        }
        try {
            pager::snapshot_store store(folder.file("d"), {snapshot_pages * page}, {page});
            std::vector<std::byte> content(page);
            for (std::size_t p = 0; p < snapshot_pages; ++p) {
                const pager::io_result r = store.read(pager::store_offset{p * page}, content);
                EXPECT_TRUE(r.complete(page));
                std::uint64_t value = 0;
                std::memcpy(&value, content.data(), 8);
                EXPECT_TRUE(value == 5 || value == 0);
            }
        } catch (const std::runtime_error&) {
        }
    }
}

}  // namespace
