// Stores that fail, stall or lie short: the access fails as documented, nothing else is lost, and nobody hangs.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <random>
#include <thread>

#include "support.hpp"

namespace {

using namespace varve;
using pager::fault_path;
using test::word;

constexpr std::size_t page = 4096;
constexpr std::size_t pages = 64;
constexpr std::size_t budget = 16;

struct fixture {
    explicit fixture(fault_path path, std::uint64_t without = 0) {
        test::fault_catcher::install();
        pager::options o;
        o.local = {budget * page};
        o.path = path;
        o.handlers = 2;
        o.without_features = without;
        space =
            std::make_unique<pager::paged_space>(byte_count{pages * page}, test::faulty_store({pages * page}, how), o);
        for (std::size_t p = 0; p < pages; ++p) {
            word(*space, p) = p + 1000;
        }
    }
    void evict_all() {
        // Reading everything twice leaves only the end of it, and nothing dirty.
        for (int round = 0; round < 2; ++round) {
            for (std::size_t p = 0; p < pages; ++p) {
                EXPECT_EQ(word(*space, p), p + 1000);
            }
        }
    }
    std::size_t absent_page() {
        evict_all();
        for (std::size_t p = 0; p < pages; ++p) {
            if (test::present_pages(space->base() + p * page, page) == 0) {
                return p;
            }
        }
        return pages;
    }
    std::shared_ptr<test::misbehaviour> how = std::make_shared<test::misbehaviour>();
    std::unique_ptr<pager::paged_space> space;
};

int read_of(fixture& f, std::size_t p, void** address = nullptr) {
    return test::fault_catcher::run([&] { (void)*static_cast<volatile std::uint64_t*>(&word(*f.space, p)); }, address);
}
int write_of(fixture& f, std::size_t p) {
    return test::fault_catcher::run([&] { *static_cast<volatile std::uint64_t*>(&word(*f.space, p)) = p + 1000; });
}

class failing_store : public testing::TestWithParam<fault_path> {};

TEST_P(failing_store, paging_out_says_what_was_refused_and_keeps_it) {
    fixture f(GetParam());
    for (std::size_t p = 0; p < 4; ++p) {
        word(*f.space, p) = p + 1000;
    }
    f.how->writes_fail = true;
    EXPECT_THROW(f.space->page_out(), std::system_error);
    EXPECT_GT(f.space->read_statistics().resident_pages, 0u);
    f.how->writes_fail = false;
    f.space->page_out();
    EXPECT_EQ(f.space->read_statistics().resident_pages, 0u);
    for (std::size_t p = 0; p < pages; ++p) {
        EXPECT_EQ(word(*f.space, p), p + 1000);
    }
}

TEST_P(failing_store, read_raises_sigbus_and_the_next_access_asks_again) {
    fixture f(GetParam());
    const std::size_t bad = f.absent_page();
    ASSERT_LT(bad, pages);
    f.how->only_offset = bad * page;
    for (std::atomic<bool>* fault : {&f.how->reads_fail, &f.how->reads_short}) {
        *fault = true;
        void* address = nullptr;
        for (int i = 0; i < 3; ++i) {
            EXPECT_EQ(read_of(f, bad, &address), SIGBUS);
            EXPECT_EQ(address, static_cast<void*>(f.space->base() + bad * page));
            EXPECT_EQ(write_of(f, bad), SIGBUS);
        }
        // All others go on.
        for (std::size_t p = 0; p < pages; ++p) {
            if (p != bad) {
                EXPECT_EQ(word(*f.space, p), p + 1000);
            }
        }
        *fault = false;
        if (GetParam() == fault_path::handlers) {
            f.space->retry(page_index{bad});
        }
        EXPECT_EQ(word(*f.space, bad), bad + 1000);
        f.absent_page();
        while (test::present_pages(f.space->base() + bad * page, page) != 0) {
            for (std::size_t p = 0; p < pages; ++p) {
                if (p != bad) {
                    EXPECT_EQ(word(*f.space, p), p + 1000);
                }
            }
        }
    }
    EXPECT_GE(f.space->read_statistics().read_failures, 12u);
    f.evict_all();
}

TEST_P(failing_store, writes_that_fail_lose_nothing) {
    fixture f(GetParam());
    f.evict_all();
    for (std::atomic<bool>* fault : {&f.how->writes_fail, &f.how->writes_short}) {
        *fault = true;
        // Dirty pages cannot leave: sooner or later a fetch finds no room and fails.
        std::size_t failed = 0;
        for (std::size_t p = 0; p < pages; ++p) {
            failed += write_of(f, p) == SIGBUS;
        }
        EXPECT_EQ(failed, pages - budget);
        EXPECT_THROW(f.space->flush(), std::system_error);
        EXPECT_LE(f.space->read_statistics().resident_pages, budget);
        EXPECT_GT(f.space->read_statistics().write_failures, 0u);
        *fault = false;
        for (std::size_t p = 0; p < pages; ++p) {
            f.space->retry(page_index{p});
        }
        f.evict_all();
        f.space->flush();
    }
}

TEST_P(failing_store, one_bad_page_does_not_stop_the_others) {
    fixture f(GetParam());
    f.evict_all();
    f.how->only_offset = 7 * page;
    f.how->writes_fail = true;
    for (int round = 0; round < 4; ++round) {
        for (std::size_t p = 0; p < pages; ++p) {
            word(*f.space, p) = p + 1000;
        }
    }
    f.evict_all();
    EXPECT_EQ(test::present_pages(f.space->base() + 7 * page, page), 1u);
    f.how->writes_fail = false;
    f.space->flush();
}

TEST_P(failing_store, a_page_that_cannot_be_prefetched_does_not_stop_the_others) {
    fixture f(GetParam());
    f.evict_all();
    f.space->page_out();
    const std::size_t bad = f.absent_page();
    ASSERT_LT(bad, pages);
    f.how->only_offset = bad * page;
    std::vector<page_index> wanted;
    for (std::size_t i = 0; i < 8; ++i) {
        wanted.push_back(page_index{(bad + i * 3) % pages});
    }
    for (auto* fault : {&f.how->reads_fail, &f.how->reads_short}) {
        *fault = true;
        EXPECT_FALSE(f.space->prefetch(wanted));
        *fault = false;
        EXPECT_EQ(test::present_pages(f.space->base() + bad * page, page), 0u);
        for (std::size_t i = 1; i < wanted.size(); ++i) {
            EXPECT_EQ(test::present_pages(f.space->base() + to_number(wanted[i]) * page, page), 1u);
        }
    }
    EXPECT_TRUE(f.space->prefetch(wanted));
    EXPECT_EQ(test::present_pages(f.space->base() + bad * page, page), 1u);
    EXPECT_EQ(f.space->read_statistics().read_failures, 2u);
}

TEST_P(failing_store, a_page_that_cannot_be_prefetched_does_not_stop_its_neighbours) {
    fixture f(GetParam());
    f.space->page_out();
    constexpr std::size_t first = 20;
    for (const std::size_t bad : {first, first + 3, first + 7}) {
        f.how->only_offset = bad * page;
        f.how->reads_fail = true;
        EXPECT_FALSE(f.space->prefetch(page_index{first}, {8}));
        for (std::size_t p = first; p < first + 8; ++p) {
            EXPECT_EQ(test::present_pages(f.space->base() + p * page, page), p == bad ? 0u : 1u) << p;
        }
        f.how->reads_fail = false;
        EXPECT_TRUE(f.space->prefetch(page_index{first}, {8}));
        EXPECT_EQ(word(*f.space, bad), bad + 1000);
        f.space->page_out();
    }
}

TEST_P(failing_store, a_stall_holds_up_only_those_who_want_the_page) {
    fixture f(GetParam());
    const std::size_t slow = f.absent_page();
    ASSERT_LT(slow, pages);
    f.how->stalled_offset = slow * page;
    std::atomic<bool> arrived{false};
    std::thread waiting([&] {
        EXPECT_EQ(word(*f.space, slow), slow + 1000);
        arrived = true;
    });
    while (f.how->stalled_now.load() == 0) {
        std::this_thread::yield();
    }
    for (int round = 0; round < 5; ++round) {
        for (std::size_t p = 0; p < pages; ++p) {
            if (p != slow) {
                word(*f.space, p) = p + 1000;
            }
        }
    }
    EXPECT_FALSE(arrived.load());
    EXPECT_EQ(f.how->stalled_now.load(), 1);
    f.how->stalled_offset = ~std::uint64_t{0};
    f.how->stalled_offset.notify_all();
    waiting.join();
    f.evict_all();
}

TEST_P(failing_store, random_failures_under_load_lose_nothing) {
    fixture f(GetParam());
    std::atomic<bool> stop{false};
    std::thread trouble([&] {
        std::mt19937 random(3);
        while (!stop) {
            f.how->reads_fail = random() % 2 == 0;
            f.how->writes_fail = random() % 2 == 0;
            std::this_thread::yield();
        }
        f.how->reads_fail = f.how->writes_fail = false;
    });
    constexpr unsigned threads = 2;
    std::vector<std::uint64_t> copy(pages * 512);
    for (std::size_t p = 0; p < pages; ++p) {
        copy[p * 512] = p + 1000;
    }
    std::atomic<std::uint64_t> wrong{0};
    std::vector<std::thread> running;
    for (unsigned t = 0; t < threads; ++t) {
        running.emplace_back([&, t] {
            std::mt19937 random(t);
            for (int i = 0; i < 3000; ++i) {
                const std::size_t at = random() % (copy.size() / threads) * threads + t;
                auto* const there = reinterpret_cast<volatile std::uint64_t*>(f.space->base()) + at;
                if (random() % 2 == 0) {
                    const std::uint64_t value = random();
                    // A write that failed did not happen.
                    if (test::fault_catcher::run([&] { *there = value; }) == 0) {
                        copy[at] = value;
                    }
                } else {
                    std::uint64_t value = 0;
                    if (test::fault_catcher::run([&] { value = *there; }) == 0) {
                        wrong += value != copy[at];
                    }
                }
            }
        });
    }
    for (std::thread& t : running) {
        t.join();
    }
    stop = true;
    trouble.join();
    EXPECT_EQ(wrong, 0u);
    for (std::size_t p = 0; p < pages; ++p) {
        f.space->retry(page_index{p});
    }
    for (std::size_t i = 0; i < copy.size(); ++i) {
        ASSERT_EQ(reinterpret_cast<std::uint64_t*>(f.space->base())[i], copy[i]) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(paths, failing_store, testing::Values(fault_path::in_thread, fault_path::handlers),
                         test::path_name<testing::TestParamInfo<fault_path>>);

TEST(failing_store_without_poison, read_raises_sigsegv_until_retry) {
    fixture f(fault_path::handlers, pager::kernel::feature_poison);
    const std::size_t bad = f.absent_page();
    ASSERT_LT(bad, pages);
    f.how->only_offset = bad * page;
    f.how->reads_fail = true;
    EXPECT_EQ(read_of(f, bad), SIGSEGV);
    f.how->reads_fail = false;
    EXPECT_EQ(read_of(f, bad), SIGSEGV);
    f.space->retry(page_index{bad});
    EXPECT_EQ(word(*f.space, bad), bad + 1000);
}

/// Its reads wait at a gate.
struct gated_store {
    struct gate {
        std::atomic<bool> closed{false};
        std::atomic<int> waiting{0};
    };
    pager::sparse_store inner;
    std::shared_ptr<gate> at_gate;

    pager::io_result read(pager::store_offset at, std::span<std::byte> in) noexcept {
        if (at_gate->closed) {
            ++at_gate->waiting;
            at_gate->closed.wait(true);
            --at_gate->waiting;
        }
        return inner.read(at, in);
    }
    pager::io_result write(pager::store_offset at, std::span<const std::byte> out) noexcept {
        return inner.write(at, out);
    }
    int sync() noexcept { return 0; }
};

// All of local memory is on its way in and arrives while one more thread looks for a page that may leave: in a space so
// large that it has passed them by then in one of ten rounds.
TEST(full_of_pages_on_their_way, one_more_waits_for_them) {
    constexpr std::size_t many = 4096 * pager::detail::block_pages;
    constexpr std::size_t last = many - pager::detail::block_pages;
    pager::options o;
    o.local = {pager::least_pages.value * page};
    o.batch = {1};
    auto gate = std::make_shared<gated_store::gate>();
    pager::paged_space space({many * page}, pager::any_store(gated_store{pager::sparse_store({many * page}), gate}), o);
    const auto touch = [&](std::size_t p) { (void)*static_cast<volatile std::uint64_t*>(&word(space, last + p)); };
    for (unsigned round = 0; round < 100; ++round) {
        space.page_out();
        EXPECT_EQ(space.read_statistics().resident_pages, 0u);
        gate->closed = true;
        std::vector<std::thread> threads;
        for (std::size_t p = 0; p < pager::least_pages.value; ++p) {
            threads.emplace_back(touch, p);
        }
        while (gate->waiting != static_cast<int>(pager::least_pages.value)) {
            std::this_thread::yield();
        }
        const std::uint64_t faults = space.read_statistics().faults;
        threads.emplace_back(touch, pager::least_pages.value);
        while (space.read_statistics().faults == faults) {
            std::this_thread::yield();
        }
        for (unsigned i = 0; i < round * 10; ++i) {
            std::this_thread::yield();
        }
        gate->closed = false;
        gate->closed.notify_all();
        for (std::thread& t : threads) {
            t.join();
        }
    }
}

TEST(failing_store_by_default, ends_the_process) {
    ::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        ::signal(SIGBUS, SIG_DFL);  // sanitizers have handlers of their own
        auto how = std::make_shared<test::misbehaviour>();
        how->reads_fail = true;
        pager::paged_space space({pages * page}, test::faulty_store({pages * page}, how));
        ::_exit(static_cast<int>(word(space, 3)));
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGBUS);
}

}  // namespace
