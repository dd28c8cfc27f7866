// Power cuts at any moment, and a disk that fails at every operation in turn.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>

#include "disk.hpp"
#include "support.hpp"
#include "varve/pager/stores/file.hpp"
#include "varve/pager/stores/snapshot.hpp"

namespace {

using namespace varve;
using test::after_failure;
using test::disk;
using test::word;

constexpr std::size_t page = 4096;
constexpr std::size_t pages = 24;
constexpr byte_count capacity{pages * page};

constexpr std::array<std::size_t, 4> looked_at{0, 100, 300, 511};  // words of each page, so that torn ones show
using content = std::vector<std::uint64_t>;  // of each page, its number in all words that are looked at
using snapshots = pager::basic_snapshot_store<test::simulated_file>;
using plain = pager::basic_file_store<test::simulated_file>;

snapshots open_snapshots(const std::shared_ptr<disk>& d) {
    return snapshots(test::simulated_file(d), capacity, {page}, pager::opening::attach_or_create);
}
std::unique_ptr<pager::paged_space> space_on(const std::shared_ptr<disk>& d) {
    pager::options o;
    o.local = {10 * page};
    return std::make_unique<pager::paged_space>(capacity, open_snapshots(d), o);
}
void set(pager::paged_space& space, std::size_t p, std::uint64_t value) {
    for (const std::size_t index : looked_at) {
        word(space, p, index) = value;
    }
}

/// What is on the disk, or nothing if that is no whole content.
template <class Store>
std::optional<content> content_of(Store store) {
    content found;
    std::array<std::uint64_t, page / 8> words{};
    for (std::size_t p = 0; p < pages; ++p) {
        if (!store.read(pager::store_offset{p * page}, std::as_writable_bytes(std::span(words))).complete(page)) {
            return {};
        }
        for (const std::size_t index : looked_at) {
            if (words[index] != words[0]) {
                return {};
            }
        }
        found.push_back(words[0]);
    }
    return found;
}
std::optional<content> found_on(const std::shared_ptr<disk>& d) {
    try {
        return content_of(open_snapshots(d));
    } catch (const std::exception&) {
        return {};
    }
}

/// A program that writes, releases, flushes, snapshots, and is started again, on a disk of which images are taken at
/// random operations: after a power cut, or after a kill, a start, more writes and then a power cut.
class cuts {
public:
    cuts(unsigned seed, bool syncs) : random_(seed), disk_(std::make_shared<disk>(seed + 1)) {
        disk_->syncs = syncs;
        (void)open_snapshots(disk_);  // what follows starts from an attached file
        disk_->sync();
        disk_->before_operation = [this] {
            if (random_() % 8 == 0) {
                look();
            }
        };
    }

    void run(int rounds) {
        std::unique_ptr<pager::paged_space> space = space_on(disk_);
        for (int round = 0; round < rounds; ++round) {
            for (auto i = random_() % 40; i > 0; --i) {
                const std::size_t p = random_() % pages;
                model_[p] = ++number_;
                set(*space, p, model_[p]);
            }
            switch (random_() % 8) {
                case 0:
                    space->flush();
                    break;
                case 1:
                    space->page_out();
                    break;
                case 2: {
                    const std::size_t p = random_() % pages;
                    space->release(page_index{p}, {1});
                    model_[p] = 0;
                    break;
                }
                case 3:
                    space.reset();
                    model_ = committed_;
                    space = space_on(disk_);
                    break;
                default:
                    coming_ = model_;
                    space->snapshot();
                    committed_ = model_;
            }
        }
    }

    int looked = 0;
    int wrong = 0;

private:
    void look() {
        ++looked;
        auto image = disk_->cut();
        if (random_() % 3 == 0) {
            image = disk_->after_kill();
            try {
                snapshots next = open_snapshots(image);
                const std::vector<std::byte> junk(page, std::byte{0x5a});
                for (std::size_t p = 0; p < pages; ++p) {
                    (void)next.write(pager::store_offset{p * page}, junk);
                }
            } catch (const std::exception&) {
                ++wrong;
                return;
            }
            image = image->cut();
        }
        const std::optional<content> found = found_on(image);
        wrong += found != committed_ && found != coming_;
    }

    std::mt19937 random_;
    std::shared_ptr<disk> disk_;
    content model_ = content(pages), committed_ = content(pages), coming_ = content(pages);
    std::uint64_t number_ = 0;
};

TEST(power_cut, leaves_the_old_or_the_new_snapshot_whole) {
    int looked = 0;
    for (unsigned seed = 1; looked < 1000; ++seed) {
        cuts c(seed, true);
        c.run(40);
        EXPECT_EQ(c.wrong, 0) << "seed " << seed;
        looked += c.looked;
    }
    RecordProperty("cuts", looked);
}

TEST(power_cut, without_syncs_is_noticed) {
    cuts c(1, false);
    c.run(100);
    EXPECT_GT(c.looked, 50);
    EXPECT_GT(c.wrong, c.looked / 4) << "of " << c.looked;
}

/// A program on a disk one of whose operations fails. No access ever sees a wrong value; what succeeds is durable.
template <class Store>
class sweep {
public:
    using opener = Store (*)(const std::shared_ptr<disk>&);
    using keeper = void (*)(pager::paged_space&);
    sweep(opener open, keeper keep, after_failure then) : open_(open), keep_(keep), then_(then) {}

    /// False when the program was over before the operation that should fail.
    bool run(std::uint64_t failing) {
        disk_ = std::make_shared<disk>(static_cast<unsigned>(failing));
        Store store = open_(disk_);
        disk_->operations = 0;
        disk_->failing = failing;
        disk_->then = then_;
        pager::options o;
        o.local = {10 * page};
        space_ = std::make_unique<pager::paged_space>(capacity, std::move(store), o);
        model_ = content(pages);
        possible_ = {model_};
        if constexpr (std::same_as<Store, snapshots>) {
            disk_->before_operation = [this] { expect_whole_after_a_cut(); };
        }
        for (int round = 1; round <= 6; ++round) {
            write_some(30);
            // As often as it takes, as a program would; what the disk lost is given up.
            int tries = 0;
            for (; !kept(); ++tries) {
                if (tries == 3) {
                    ADD_FAILURE() << "no success after operation " << failing << " failed";
                    return true;
                }
                for (std::size_t p = 0; p < pages; ++p) {
                    there(p);
                }
                write_some(10);
            }
            possible_ = {model_};
            EXPECT_EQ(found(), model_) << "round " << round << ", operation " << failing << " failed";
            EXPECT_LE(tries, disk_->failed ? 2 : 0);
        }
        for (std::size_t p = 0; p < pages; ++p) {
            there(p);
        }
        disk_->before_operation = nullptr;
        space_.reset();
        return disk_->failed;
    }
    int lost = 0;

private:
    std::optional<content> found() { return content_of(open_(disk_->cut())); }

    /// The last snapshot, or one of those since that failed.
    void expect_whole_after_a_cut() {
        if (random_() % 8 != 0) {
            return;
        }
        std::optional<content> now;
        try {
            now = found();
        } catch (const std::exception& error) {
            ADD_FAILURE() << error.what();
            return;
        }
        EXPECT_TRUE(now.has_value() && std::find(possible_.begin(), possible_.end(), *now) != possible_.end())
            << "operation " << disk_->operations << " after operation " << disk_->failing << " failed";
    }
    void write_some(int count) {
        for (int i = 0; i < count; ++i) {
            const std::size_t p = random_() % pages;
            const std::uint64_t value = ++number_;
            if (there(p) && test::fault_catcher::run([&] { set(*space_, p, value); }) == 0) {
                model_[p] = value;
            }
        }
    }
    bool kept() {
        possible_.push_back(model_);
        try {
            keep_(*space_);
            return true;
        } catch (const std::system_error&) {
            return false;
        }
    }
    /// Whether the page is what it was. Of one that was lost nothing is left but to give it up.
    bool there(std::size_t p) {
        std::uint64_t value = 0;
        const auto look = [&] { value = *static_cast<volatile std::uint64_t*>(&word(*space_, p)); };
        // Asked twice: a write that failed may have kept room from being made.
        if (test::fault_catcher::run(look) == 0 || test::fault_catcher::run(look) == 0) {
            EXPECT_EQ(value, model_[p]) << "page " << p;
            return true;
        }
        ++lost;
        space_->release(page_index{p}, {1});
        model_[p] = 0;
        return false;
    }

    opener open_;
    keeper keep_;
    after_failure then_;
    std::shared_ptr<disk> disk_;
    std::unique_ptr<pager::paged_space> space_;
    content model_;
    std::vector<content> possible_;
    std::uint64_t number_ = 0;
    std::mt19937 random_{7};
};

template <class Store>
void every_operation(typename sweep<Store>::opener open, typename sweep<Store>::keeper keep) {
    test::fault_catcher::install();
    for (const after_failure then : {after_failure::keeps, after_failure::drops}) {
        sweep<Store> s(open, keep, then);
        std::uint64_t failing = 1;
        while (s.run(failing) && !testing::Test::HasFailure()) {
            ++failing;
        }
        EXPECT_GT(failing, 100u);
        if (then == after_failure::keeps) {
            EXPECT_EQ(s.lost, 0);
        } else {
            EXPECT_GT(s.lost, 0) << "a disk that drops writes must cost some pages, or this shows nothing";
        }
    }
}

TEST(failing_disk, snapshots_that_succeed_are_whole) {
    every_operation<snapshots>(open_snapshots, [](pager::paged_space& s) { s.snapshot(); });
}

plain open_plain(const std::shared_ptr<disk>& d) {
    return plain(test::simulated_file(d), capacity);
}
TEST(failing_disk, flushes_that_succeed_are_complete) {
    every_operation<plain>(open_plain, [](pager::paged_space& s) { s.flush(); });
}

/// As files behave that are synced by fdatasync and nothing else.
struct forgetful_store {
    pager::io_result read(pager::store_offset at, std::span<std::byte> in) noexcept { return inner->read(at, in); }
    pager::io_result write(pager::store_offset at, std::span<const std::byte> out) noexcept {
        return inner->write(at, out);
    }
    int sync() noexcept { return fails->exchange(false) ? ENOSPC : 0; }
    std::shared_ptr<pager::sparse_store> inner = std::make_shared<pager::sparse_store>(capacity);
    std::shared_ptr<std::atomic<bool>> fails = std::make_shared<std::atomic<bool>>(false);
};

TEST(failing_sync, of_a_store_that_cannot_recover_is_final) {
    for (const bool snapshot : {true, false}) {
        forgetful_store store;
        const auto fails = store.fails;
        pager::paged_space space(capacity, store);
        const auto keep = [&] { snapshot ? space.snapshot() : space.flush(); };
        word(space, 3) = 1;
        keep();
        *fails = true;
        word(space, 3) = 2;
        EXPECT_THROW(keep(), std::system_error);
        for (int i = 0; i < 2; ++i) {
            try {
                keep();
                ADD_FAILURE() << "success for pages of which nothing is known";
            } catch (const std::system_error& error) {
                EXPECT_EQ(error.code().value(), ENOSPC);
            }
        }
        EXPECT_EQ(word(space, 3), 2u);
    }
}

TEST(failing_sync, makes_what_is_in_memory_dirty_again) {
    auto d = std::make_shared<disk>(1);
    const std::unique_ptr<pager::paged_space> space = space_on(d);
    for (std::size_t p = 0; p < 5; ++p) {
        set(*space, p, p + 1);
    }
    d->then = after_failure::drops;
    d->failing = d->operations + 6;  // five pages, then the sync
    EXPECT_THROW(space->snapshot(), std::system_error);
    ASSERT_TRUE(d->failed);
    space->snapshot();
    content expected(pages);
    for (std::size_t p = 0; p < 5; ++p) {
        expected[p] = p + 1;
    }
    EXPECT_EQ(found_on(d->cut()), expected);
}

}  // namespace
