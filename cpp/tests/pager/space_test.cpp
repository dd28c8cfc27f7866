// What a paged space promises apart from its content: options, pins, system calls, fork, release, prefetch, dirtiness.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <thread>

#include "support.hpp"
#include "varve/pager/simulator.hpp"
#include "varve/space/swap_space.hpp"

namespace {

using namespace varve;
using pager::fault_path;
using test::word;

static_assert(swap_space<pager::paged_space>);
static_assert(swap_space<pager::simulator>);

constexpr std::size_t page = 4096;

pager::paged_space make(std::size_t pages, std::size_t local, fault_path path = fault_path::in_thread,
                        pager::options o = {}) {
    o.local = {local * page};
    o.path = path;
    return {byte_count{pages * page}, pager::memory_store({pages * page}), o};
}

TEST(space, refuses_options_that_make_no_sense) {
    const auto with = [](auto change) {
        pager::options o;
        change(o);
        return pager::paged_space({1 << 20}, pager::memory_store({1 << 20}), o);
    };
    EXPECT_THROW(with([](auto& o) { o.page = {2048}; }), std::invalid_argument);
    EXPECT_THROW(with([](auto& o) { o.page = {4096 * 3}; }), std::invalid_argument);
    EXPECT_THROW(with([](auto& o) { o.page = {4 << 20}; }), std::invalid_argument);
    EXPECT_THROW(with([](auto& o) { o.local = {7 * 4096}; }), std::invalid_argument);
    EXPECT_THROW(with([](auto& o) { o.batch = {0}; }), std::invalid_argument);
    EXPECT_THROW(with([](auto& o) { o.batch = {129}; }), std::invalid_argument);
    EXPECT_THROW(with([](auto& o) { o.prefetch = {64}; }), std::invalid_argument);
    EXPECT_THROW(with([](auto& o) { o.low = {99}; }), std::invalid_argument);
    EXPECT_THROW(with([](auto& o) { o.handlers = 0; }), std::invalid_argument);
    EXPECT_THROW(with([](auto& o) { o.without_features = UFFD_FEATURE_SIGBUS; }), std::system_error);
}

TEST(space, pages_that_were_only_read_are_not_written_back) {
    pager::paged_space space = make(256, 32);
    for (int round = 0; round < 3; ++round) {
        for (std::size_t p = 0; p < 256; ++p) {
            EXPECT_EQ(word(space, p), 0u);
        }
    }
    pager::statistics s = space.read_statistics();
    EXPECT_EQ(s.page_writes, 0u);
    EXPECT_GT(s.evictions, 256u);
    for (std::size_t p = 0; p < 256; ++p) {
        word(space, p) = p;
    }
    space.flush();
    s = space.read_statistics();
    EXPECT_EQ(s.page_writes, 256u);
    space.flush();
    EXPECT_EQ(space.read_statistics().page_writes, 256u) << "nothing was dirty any more";
    word(space, 255) = 1;
    space.flush();
    EXPECT_EQ(space.read_statistics().page_writes, 257u);
}

TEST(space, without_tracking_every_page_that_leaves_is_written) {
    pager::options o;
    o.track_writes = false;
    pager::paged_space space = make(256, 32, fault_path::in_thread, o);
    for (std::size_t p = 0; p < 256; ++p) {
        EXPECT_EQ(word(space, p), 0u);
        word(space, p) = p;
    }
    const pager::statistics s = space.read_statistics();
    EXPECT_EQ(s.write_traps, 0u);
    EXPECT_EQ(s.page_writes, s.evictions);
}

TEST(space, sequential_faults_fetch_ahead) {
    pager::options o;
    o.prefetch = {15};
    pager::paged_space space = make(512, 512, fault_path::in_thread, o);
    for (std::size_t p = 0; p < 512; ++p) {
        EXPECT_EQ(word(space, p), 0u);
    }
    const pager::statistics s = space.read_statistics();
    EXPECT_EQ(s.page_reads, 512u);
    EXPECT_EQ(s.faults + s.prefetched, 512u);
    EXPECT_LT(s.faults, 128u);
}

TEST(space, prefetched_pages_do_not_fault) {
    pager::paged_space space = make(512, 128);
    EXPECT_TRUE(space.prefetch(page_index{100}, {100}));
    for (std::size_t p = 100; p < 200; ++p) {
        EXPECT_EQ(word(space, p), 0u);
    }
    EXPECT_EQ(space.read_statistics().faults, 0u);
    EXPECT_EQ(space.read_statistics().prefetched, 100u);
}

std::vector<page_index> scattered(std::size_t count, std::size_t among) {
    std::vector<page_index> pages;
    for (std::size_t i = 0; i < count; ++i) {
        pages.push_back(page_index{i * 7919 % among});
    }
    return pages;
}

TEST(space, pages_that_are_prefetched_from_anywhere_do_not_fault) {
    pager::paged_space space = make(512, 512);
    for (std::size_t p = 0; p < 512; ++p) {
        word(space, p) = p + 1;
    }
    space.page_out();
    const pager::statistics before = space.read_statistics();
    std::vector<page_index> pages = scattered(200, 512);
    pages.push_back(pages.front());  // a page that is named twice is fetched once
    EXPECT_TRUE(space.prefetch(pages));
    EXPECT_EQ(test::present_pages(space.base(), 512 * 4096), 200u);
    for (const page_index p : pages) {
        EXPECT_EQ(word(space, to_number(p)), to_number(p) + 1);
    }
    const pager::statistics after = space.read_statistics();
    EXPECT_EQ(after.faults, before.faults);
    EXPECT_EQ(after.page_reads - before.page_reads, 200u);
    EXPECT_EQ(after.prefetched - before.prefetched, 200u);
    // The control: the others do.
    EXPECT_EQ(word(space, 511), 512u);
    EXPECT_EQ(space.read_statistics().faults, before.faults + (test::present_pages(space.base(), 512 * 4096) - 200));
    // What is written to them is noticed.
    word(space, to_number(pages.front())) = 77;
    space.page_out();
    EXPECT_EQ(word(space, to_number(pages.front())), 77u);
}

TEST(space, prefetching_more_than_fits_keeps_the_budget) {
    pager::paged_space space = make(2048, 64);
    for (std::size_t p = 0; p < 2048; ++p) {
        word(space, p) = p + 1;
    }
    EXPECT_TRUE(space.prefetch(scattered(2000, 2048)));
    EXPECT_LE(test::present_pages(space.base(), 2048 * 4096), 64u);
    EXPECT_LE(space.read_statistics().peak_resident_pages, 64u);
    for (std::size_t p = 0; p < 2048; ++p) {
        EXPECT_EQ(word(space, p), p + 1);
    }
}

TEST(space, threads_that_prefetch_where_most_is_pinned_end) {
    pager::paged_space space = make(512, 32);
    for (std::size_t p = 0; p < 24; ++p) {
        space.pin(page_index{p});
    }
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (std::size_t round = 0; round < 50; ++round) {
                std::vector<page_index> pages;
                for (std::size_t i = 0; i < 16; ++i) {
                    pages.push_back(page_index{24 + (t * 131 + round * 17 + i * 29) % 488});
                }
                space.prefetch(pages);
                space.prefetch(page_index{24 + (t * 97 + round * 31) % 400}, {16});
            }
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    EXPECT_LE(space.read_statistics().peak_resident_pages, 32u);
    for (std::size_t p = 0; p < 24; ++p) {
        space.unpin(page_index{p});
    }
}

TEST(space, what_was_paged_out_comes_back_as_it_was) {
    pager::paged_space space = make(256, 128);
    for (std::size_t p = 0; p < 100; ++p) {
        word(space, p) = p + 1;
    }
    space.pin(page_index{7});
    space.page_out();
    const pager::statistics out = space.read_statistics();
    EXPECT_EQ(out.resident_pages, 1u);
    EXPECT_EQ(out.page_writes, 99u);
    for (std::size_t p = 0; p < 100; ++p) {
        EXPECT_EQ(word(space, p), p + 1);
    }
    EXPECT_EQ(space.read_statistics().page_reads - out.page_reads, 99u);
    space.unpin(page_index{7});
    space.page_out();
    EXPECT_EQ(space.read_statistics().resident_pages, 0u);
    EXPECT_EQ(word(space, 7), 8u);
}

TEST(space, pinned_pages_stay_and_pins_nest) {
    pager::paged_space space = make(256, 32);
    word(space, 5) = 55;
    space.pin(page_index{5});
    space.pin(page_index{5});
    space.unpin(page_index{5});
    const auto sweep = [&] {
        for (int round = 0; round < 3; ++round) {
            for (std::size_t p = 10; p < 256; ++p) {
                word(space, p) = p;
            }
        }
    };
    sweep();
    EXPECT_EQ(test::present_pages(space.base() + 5 * page, page), 1u);
    space.unpin(page_index{5});
    sweep();
    EXPECT_EQ(test::present_pages(space.base() + 5 * page, page), 0u);
    EXPECT_EQ(word(space, 5), 55u);
}

TEST(space, pins_leave_room_for_others) {
    pager::paged_space space = make(256, 32);
    for (std::size_t p = 0; p < 25; ++p) {
        space.pin(page_index{p});
    }
    EXPECT_THROW(space.pin(page_index{25}), out_of_room);
    for (std::size_t p = 0; p < 256; ++p) {
        word(space, p) = p;
    }
    for (std::size_t p = 0; p < 25; ++p) {
        space.unpin(page_index{p});
    }
}

class system_calls : public testing::TestWithParam<fault_path> {};

TEST_P(system_calls, work_on_pinned_memory_also_while_others_evict_and_flush) {
    pager::paged_space space = make(256, 32, GetParam());
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    std::atomic<bool> stop{false};
    std::thread other([&] {
        for (std::uint64_t i = 0; !stop; ++i) {
            for (std::size_t p = 64; p < 256; ++p) {
                word(space, p) = i;
            }
            space.flush();
        }
    });
    for (std::uint64_t i = 0; i < 300; ++i) {
        const test::pager::pinned pin(space, &word(space, i % 40), byte_count{8});
        EXPECT_EQ(::write(ends[1], &i, 8), 8);
        EXPECT_EQ(::read(ends[0], &word(space, i % 40), 8), 8) << std::strerror(errno);
        EXPECT_EQ(word(space, i % 40), i);
        EXPECT_EQ(::write(ends[1], &word(space, i % 40), 8), 8);
        std::uint64_t back = 0;
        EXPECT_EQ(::read(ends[0], &back, 8), 8);
        EXPECT_EQ(back, i);
    }
    stop = true;
    other.join();
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST_P(system_calls, on_absent_memory_do_as_documented) {
    pager::paged_space space = make(256, 32, GetParam());
    const bool reaches = GetParam() == fault_path::handlers && space.abilities().system_calls;
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const std::uint64_t sent = 77;
    ASSERT_EQ(::write(ends[1], &sent, 8), 8);
    errno = 0;
    const ssize_t n = ::read(ends[0], space.base() + 9 * page, 8);
    if (reaches) {
        EXPECT_EQ(n, 8);
        EXPECT_EQ(word(space, 9), 77u);
    } else {
        EXPECT_EQ(n, -1);
        EXPECT_EQ(errno, EFAULT);
    }
    ::close(ends[0]);
    ::close(ends[1]);
}
INSTANTIATE_TEST_SUITE_P(paths, system_calls, testing::Values(fault_path::in_thread, fault_path::handlers),
                         test::path_name<testing::TestParamInfo<fault_path>>);

TEST(space, a_forked_child_has_no_range_and_the_parent_goes_on) {
#ifdef VARVE_PAGER_TSAN
    GTEST_SKIP() << "ThreadSanitizer maps memory of its own in the child, where the range was";
#endif
    pager::paged_space space = make(256, 32);
    for (std::size_t p = 0; p < 256; ++p) {
        word(space, p) = p;
    }
    ::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        ::signal(SIGSEGV, SIG_DFL);
        ::_exit(static_cast<int>(word(space, 200)));
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGSEGV);
    for (std::size_t p = 0; p < 256; ++p) {
        EXPECT_EQ(word(space, p), p);
    }
}

TEST(space, released_pages_read_as_zero_and_give_room_back) {
    pager::paged_space space = make(256, 64);
    for (std::size_t p = 0; p < 256; ++p) {
        word(space, p) = p + 1;
    }
    space.release(page_index{10}, {200});
    EXPECT_EQ(space.release_failures(), 0u);
    EXPECT_EQ(space.read_statistics().resident_pages, test::present_pages(space.base(), 256 * page));
    for (std::size_t p = 0; p < 256; ++p) {
        EXPECT_EQ(word(space, p), p < 10 || p >= 210 ? p + 1 : 0) << p;
    }
}

TEST(space, many_exist_side_by_side) {
    std::vector<std::unique_ptr<pager::paged_space>> spaces;
    for (std::size_t i = 0; i < 50; ++i) {
        pager::options o;
        o.local = {16 * page};
        o.path = i % 2 == 0 ? fault_path::in_thread : fault_path::handlers;
        spaces.push_back(
            std::make_unique<pager::paged_space>(byte_count{64 * page}, pager::memory_store({64 * page}), o));
    }
    for (std::size_t p = 0; p < 64; ++p) {
        for (std::size_t i = 0; i < spaces.size(); ++i) {
            word(*spaces[i], p) = i * 1000 + p;
        }
    }
    for (std::size_t i = 0; i < spaces.size(); i += 3) {
        spaces[i].reset();
    }
    for (std::size_t p = 0; p < 64; ++p) {
        for (std::size_t i = 0; i < spaces.size(); ++i) {
            if (spaces[i] != nullptr) {
                ASSERT_EQ(word(*spaces[i], p), i * 1000 + p);
            }
        }
    }
}

TEST(space, a_write_to_each_of_two_pages_at_once_gets_through_at_the_smallest_budget) {
    pager::paged_space space = make(64, pager::least_pages.value);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
        threads.emplace_back([&, t] {
            for (std::size_t i = 0; i < 500; ++i) {
                // Eight bytes across a page border.
                std::byte* at = space.base() + ((i * 7 % 15 + t * 16) + 1) * page - 4;
                const std::uint64_t value = i;
                __builtin_memcpy(at, &value, 8);
            }
        });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    EXPECT_LE(space.read_statistics().peak_resident_pages, pager::least_pages.value);
}

}  // namespace
