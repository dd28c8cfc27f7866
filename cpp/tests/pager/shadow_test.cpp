// Random reads and writes of several threads against a shadow copy, over every store, page size and fault path.
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "support.hpp"
#include "varve/pager/stores/compressed.hpp"
#include "varve/pager/stores/file.hpp"
#include "varve/pager/stores/peer.hpp"
#include "varve/pager/stores/snapshot.hpp"
#include "varve/pager/stores/tcp.hpp"

namespace {

using namespace varve;
using pager::fault_path;

#if defined(VARVE_PAGER_TSAN) || defined(__SANITIZE_ADDRESS__)
constexpr int operations = 3000;
#else
constexpr int operations = 20000;
#endif

struct world {
    test::temporary_folder folder;
    std::unique_ptr<pager::paging_peer> peer;

    pager::any_store make(const std::string& kind, byte_count capacity, byte_count page) {
        if (kind == "memory") return pager::any_store(pager::memory_store(capacity));
        if (kind == "sparse") return pager::any_store(pager::sparse_store(capacity));
        if (kind == "compressed") return pager::any_store(pager::compressed_store(capacity, page));
        if (kind == "file") return pager::any_store(pager::file_store(folder.file("pages"), capacity));
        if (kind == "direct") {
            return pager::any_store(pager::file_store(folder.file("pages"), capacity, pager::opening::attach_or_create,
                                                      pager::kernel_cache::none));
        }
        if (kind == "direct_uring") {
            return pager::any_store(pager::uring_store(folder.file("pages"), capacity, pager::opening::attach_or_create,
                                                       pager::kernel_cache::none));
        }
        if (kind == "uring") return pager::any_store(pager::uring_store(folder.file("pages"), capacity));
        if (kind == "snapshot") return pager::any_store(pager::snapshot_store(folder.file("pages"), capacity, page));
        peer = std::make_unique<pager::paging_peer>(pager::any_store(pager::sparse_store(capacity)), capacity, 0, true);
        return pager::any_store(pager::tcp_store("127.0.0.1", peer->port(), capacity, test::patient()));
    }
};

struct parameters {
    const char* store;
    fault_path path;
    std::size_t page;
    unsigned seed;
};
void PrintTo(const parameters& p, std::ostream* out) {
    *out << p.store << (p.path == fault_path::handlers ? "_handlers_" : "_in_thread_") << p.page << "_" << p.seed;
}

class shadow : public testing::TestWithParam<parameters> {};

TEST_P(shadow, agrees) {
    const parameters& p = GetParam();
    std::mt19937 random(p.seed);
    const std::size_t pages = p.page > 65536 ? 30 : 300 + random() % 200;
    pager::options o;
    o.page = {p.page};
    o.local = {(12 + random() % (p.page > 65536 ? 8 : 64)) * p.page};
    o.path = p.path;
    o.handlers = 1 + random() % 2;
    o.evictor = random() % 2 == 0;
    o.batch = {1 + random() % 128};
    o.prefetch = {random() % 3 * 3};
    o.policy = random() % 2 == 0 ? pager::replacement::sweep : pager::replacement::refault;
    o.track_writes = random() % 3 != 0;
    world w;
    const byte_count capacity{pages * p.page};
    pager::paged_space space(capacity, w.make(p.store, capacity, o.page), o);

    // Words belong to threads in turn, so that all threads work on the same pages and none on the same word.
    constexpr unsigned threads = 3;
    const std::size_t words = capacity.value / 8;
    auto* const memory = reinterpret_cast<std::uint64_t*>(space.base());
    std::vector<std::uint64_t> copy(words);
    std::atomic<std::uint64_t> wrong{0};
    std::vector<std::thread> running;
    const int each = p.page > 65536 ? operations / 80 : p.page > 4096 ? operations / 3 : operations;
    for (unsigned t = 0; t < threads; ++t) {
        running.emplace_back([&, t] {
            std::mt19937_64 mine(p.seed * 100 + t);
            for (int i = 0; i < each; ++i) {
                const std::size_t at = mine() % (words / threads) * threads + t;
                switch (mine() % 16) {
                    case 0: {
                        const test::pager::pinned pin(space, memory + at, byte_count{8});
                        memory[at] = copy[at] = mine();
                        break;
                    }
                    case 1:
                        space.prefetch(page_index{at * 8 / p.page}, {1});
                        break;
                    case 2:
                    case 3:
                    case 4:
                    case 5:
                    case 6:
                    case 7:
                        memory[at] = copy[at] = mine();
                        break;
                    default:
                        wrong += memory[at] != copy[at];
                }
                if (t == 0 && i == each / 2) {
                    space.flush();
                }
                if (t == 1 && i == each / 2) {
                    space.snapshot();
                }
            }
        });
    }
    for (std::thread& t : running) {
        t.join();
    }
    EXPECT_EQ(wrong, 0u);
    for (std::size_t i = 0; i < words; ++i) {
        ASSERT_EQ(memory[i], copy[i]) << "word " << i;
    }
    const pager::statistics s = space.read_statistics();
    const std::size_t budget = o.local.value / p.page;
    EXPECT_LE(s.peak_resident_pages, budget);
    EXPECT_LE(test::present_pages(space.base(), capacity.value), budget * (p.page / 4096));
    EXPECT_GT(s.evictions, 0u);
    if (!o.evictor) {
        EXPECT_EQ(s.page_reads - s.evictions, s.resident_pages);
    }
    EXPECT_EQ(s.read_failures + s.write_failures, 0u);
}

std::vector<parameters> all() {
    std::vector<parameters> list;
    unsigned seed = 1;
    for (const char* store :
         {"memory", "sparse", "compressed", "file", "direct", "uring", "direct_uring", "snapshot", "tcp"}) {
        for (const fault_path path : {fault_path::in_thread, fault_path::handlers}) {
            for (const std::size_t page : {std::size_t{4096}, std::size_t{16384}, std::size_t{2} << 20}) {
                list.push_back({store, path, page, seed++});
            }
        }
    }
    for (int i = 0; i < 6; ++i) {
        list.push_back({"memory", i % 2 == 0 ? fault_path::in_thread : fault_path::handlers, 4096, seed++});
    }
    return list;
}
INSTANTIATE_TEST_SUITE_P(stores, shadow, testing::ValuesIn(all()), testing::PrintToStringParamName());

}  // namespace
