// What the collective allocator promises: parts, budgets, page handles, all or nothing, ownership, threads.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "varve/alloc/collective_allocator.hpp"
#include "varve/alloc/memory_resource.hpp"
#include "varve/alloc/traits.hpp"
#include "varve/space/simulated_space.hpp"

namespace {

using namespace varve;
using namespace varve::literals;
using bytes_allocator = collective_allocator<std::byte>;

static_assert(collective_allocator_like<bytes_allocator>);
static_assert(collective_allocator_like<collective_allocator<int, simulated_space>>);
static_assert(!collective_allocator_like<std::allocator<int>>);
static_assert(standard_allocator<std::allocator<int>>);
static_assert(sub_allocator_like<trivial_sub_allocator<std::allocator<int>>>);
static_assert(collective_allocator_traits<bytes_allocator>::is_collective);
static_assert(!collective_allocator_traits<std::allocator<int>>::is_collective);

/// A space that grants only so many pages, and notes pins.
class scarce_space : public plain_space {
public:
    using plain_space::plain_space;
    bool acquire(page_index page, page_count count) {
        if (granted + count.value > grant) {
            return false;
        }
        granted += count.value;
        return plain_space::acquire(page, count);
    }
    void release(page_index page, page_count count) noexcept {
        granted -= count.value;
        plain_space::release(page, count);
    }
    void pin(page_index) { ++pins; }
    void unpin(page_index) noexcept { --pins; }

    std::size_t grant = ~std::size_t{0};
    std::size_t granted = 0;
    std::ptrdiff_t pins = 0;
};

TEST(Allocator, PartsAreWhereTheySay) {
    bytes_allocator a({64_KiB, 64_MiB});
    auto local = a.sub(purely_local);
    auto plain = a.sub(swappable_plain);
    auto page = a.sub(fresh_page);
    std::byte* in_local = local.allocate(100);
    std::byte* in_plain = plain.allocate(100);
    std::byte* in_page = page.allocate(100);
    std::byte outside{};
    EXPECT_TRUE(a.contains(purely_local, in_local));
    EXPECT_TRUE(local.contains(in_local));
    EXPECT_FALSE(plain.contains(in_local));
    EXPECT_TRUE(plain.contains(in_plain));
    EXPECT_FALSE(a.contains(purely_local, in_plain));
    EXPECT_TRUE(page.contains(in_page));
    EXPECT_FALSE(page.contains(in_plain));
    EXPECT_TRUE(a.contains(in_page));
    EXPECT_FALSE(a.contains(&outside));
    auto owner = a.sub(owner_of{in_page});
    EXPECT_EQ(owner.page(), page.page());
    std::byte* beside = owner.allocate(200);
    EXPECT_TRUE(a.same_page(in_page, beside));
    EXPECT_FALSE(a.same_page(in_page, in_plain));
    EXPECT_TRUE(a.sub(owner_of{in_local}).contains(in_local));
    owner.deallocate(beside, 200);
    // Any handle of the heap can free what another allocated.
    EXPECT_TRUE(local == page);
    local.deallocate(in_page, 100);
    page.deallocate(in_local, 100);
    a.deallocate(in_plain, 100);
    EXPECT_FALSE(a == bytes_allocator({64_KiB, 64_MiB}));
}

TEST(Allocator, TheLocalBudgetIsNeverExceeded) {
    for (const std::size_t pages : {0u, 1u, 3u, 10u}) {
        bytes_allocator a({{pages * 4096 + 100}, 1_MiB});
        auto local = a.sub(purely_local);
        std::vector<std::byte*> got;
        while (std::byte* p = local.try_allocate(500)) {
            got.push_back(p);
        }
        EXPECT_EQ(a.memory().local().pages_in_use().value, pages);
        EXPECT_EQ(got.size(), pages * (4032 / 512));
        EXPECT_THROW((void)local.allocate(500), out_of_room);
        EXPECT_THROW((void)local.allocate(500), std::bad_alloc);
        for (std::byte* p : got) {
            local.deallocate(p, 500);
        }
        EXPECT_EQ(a.memory().local().pages_in_use().value, 0u);
    }
}

TEST(Allocator, PageHandlesKeepTheirPage) {
    auto space = std::make_shared<scarce_space>(1_MiB);
    const auto memory = std::make_shared<heap<scarce_space>>(byte_count{0}, space);
    const collective_allocator<int, scarce_space> a(memory);
    EXPECT_EQ(space->granted, 0u);
    {
        auto page = a.sub(fresh_page);
        EXPECT_EQ(space->granted, 1u);
        EXPECT_EQ(space->pins, 1);
        auto copy = page;
        EXPECT_EQ(space->pins, 2);
        auto moved = std::move(copy);
        copy = moved;
        sub_allocator<double, scarce_space> rebound(moved);
        EXPECT_EQ(space->pins, 4);
        int* x = page.allocate(1);
        page = a.sub(swappable_plain);
        page.deallocate(x, 1);
        EXPECT_EQ(space->granted, 1u) << "handles still hold the page";
    }
    EXPECT_EQ(space->pins, 0);
    EXPECT_EQ(space->granted, 0u);
    int* x = a.sub(fresh_page).allocate(1);
    EXPECT_EQ(space->pins, 0);
    EXPECT_EQ(space->granted, 1u) << "an object keeps its page";
    a.sub(owner_of{x}).deallocate(x, 1);
    EXPECT_EQ(space->granted, 0u);
}

TEST(Allocator, AHandleOutlivesTheAllocator) {
    auto space = std::make_shared<scarce_space>(1_MiB);
    {
        std::optional<collective_allocator<int, scarce_space>> a(
            std::make_shared<heap<scarce_space>>(byte_count{8192}, space));
        auto page = a->sub(fresh_page);
        auto local = a->sub(purely_local);
        a.reset();
        *page.allocate(1) = 1;
        *local.allocate(1) = 2;
        EXPECT_EQ(space->granted, 1u);
    }
    EXPECT_EQ(space->granted, 0u) << "all memory is returned, live objects or not";
}

TEST(Allocator, HowFullAPageIs) {
    const bytes_allocator a({{0}, 1_MiB});
    auto page = a.sub(fresh_page);
    EXPECT_EQ(page.how_full().capacity, byte_count{4096});
    EXPECT_EQ(page.how_full().used, byte_count{64});
    std::byte* p = page.allocate(1000);
    EXPECT_EQ(page.how_full().used, byte_count{64 + 1008});
    EXPECT_EQ(a.room_beside(p), byte_count{4096 - 64 - 1008});
    EXPECT_EQ(a.room_beside(&page), byte_count{0});
    EXPECT_TRUE(page.how_full().under({27}));
    EXPECT_FALSE(page.how_full().under({26}));
    EXPECT_EQ(page.try_allocate(3100), nullptr);
    std::byte* rest = page.try_allocate(4096 - 64 - 1008);
    EXPECT_NE(rest, nullptr);
    EXPECT_FALSE(page.how_full().under({100}));
    page.deallocate(p, 1000);
    page.deallocate(rest, 4096 - 64 - 1008);
    EXPECT_EQ(page.how_full().used, byte_count{64});
}

TEST(Allocator, SeveralObjectsAllOrNothing) {
    const bytes_allocator a({4_KiB, 1_MiB});
    auto local = a.sub(purely_local);
    const auto before = a.memory().local().pages_in_use();
    EXPECT_FALSE(local.try_allocate_all(request<std::uint64_t>{100}, request<char>{9000}).has_value());
    EXPECT_EQ(a.memory().local().pages_in_use(), before);
    auto page = a.sub(fresh_page);
    for (std::size_t big = 3000; big < 4200; big += 100) {
        const auto used = page.how_full().used;
        const auto got = page.try_allocate_all(request<int>{10}, request<char>{big}, request<double>{50});
        if (got) {
            auto [i, c, d] = *got;
            EXPECT_TRUE(page.contains(i) && page.contains(c) && page.contains(d));
            i[9] = 1;
            c[big - 1] = 2;
            d[49] = 3;
            sub_allocator<int>(page).deallocate(i, 10);
            sub_allocator<char>(page).deallocate(c, big);
            sub_allocator<double>(page).deallocate(d, 50);
        } else {
            EXPECT_GT(big, 3400u);
        }
        EXPECT_EQ(page.how_full().used, used);
    }
}

struct tracked_object {
    explicit tracked_object(int v) : value(v) { ++alive; }
    tracked_object(const tracked_object& o) : value(o.value) {
        if (throws) {
            throw std::runtime_error("copy");
        }
        ++alive;
    }
    ~tracked_object() { --alive; }
    int value;
    static inline int alive = 0;
    static inline bool throws = false;
};

TEST(Allocator, RelocationIsExceptionSafe) {
    const collective_allocator<tracked_object> a({8_KiB, 1_MiB});
    auto local = a.sub(purely_local);
    auto page = a.sub(fresh_page);
    tracked_object* object = std::construct_at(local.allocate(1), 42);
    const auto mover = [](auto from, auto to) {
        std::construct_at(std::get<0>(to), *std::get<0>(from));
        std::destroy_at(std::get<0>(from));
    };
    const auto used = page.how_full().used;
    tracked_object::throws = true;
    EXPECT_THROW(a.relocate(page, mover, std::tie(object), request<tracked_object>{1}), std::runtime_error);
    EXPECT_TRUE(local.contains(object));
    EXPECT_EQ(object->value, 42);
    EXPECT_EQ(page.how_full().used, used);
    tracked_object::throws = false;
    EXPECT_TRUE(a.relocate(page, mover, std::tie(object), request<tracked_object>{1}));
    EXPECT_TRUE(page.contains(object));
    EXPECT_EQ(object->value, 42);
    EXPECT_EQ(a.memory().local().pages_in_use().value, 0u);
    // No room: false, and the object is where it was.
    const collective_allocator<tracked_object> none({{0}, 1_MiB});
    EXPECT_FALSE(none.relocate(none.sub(purely_local), mover, std::tie(object), request<tracked_object>{1}));
    EXPECT_TRUE(page.contains(object));
    std::destroy_at(object);
    page.deallocate(object, 1);
    EXPECT_EQ(tracked_object::alive, 0);
}

TEST(Allocator, AStandardAllocatorActsAsATrivialOne) {
    using traits = collective_allocator_traits<std::allocator<int>>;
    const std::allocator<int> a;
    auto sub = traits::sub(a, fresh_page);
    int* p = sub.allocate(3);
    EXPECT_TRUE(traits::contains(a, p));
    EXPECT_FALSE(traits::contains(a, purely_local, p));
    EXPECT_FALSE(traits::relocate(
        a, sub, [](auto, auto) {}, std::tie(p), request<int>{3}));
    sub.deallocate(p, 3);
    auto both = sub.try_allocate_all(request<int>{2}, request<double>{1});
    ASSERT_TRUE(both.has_value());
    sub.deallocate(std::get<0>(*both), 2);
    std::allocator<double>().deallocate(std::get<1>(*both), 1);
}

/// As little as the standard asks of an allocator, and final.
template <class T>
struct smallest_allocator final {
    using value_type = T;
    explicit smallest_allocator(int mark) : id(mark) {}
    template <class U>
    smallest_allocator(const smallest_allocator<U>& other) : id(other.id) {}
    T* allocate(std::size_t n) {
        if (n > 1000) {
            throw std::length_error("too many");  // not bad_alloc
        }
        held += n * sizeof(T);
        return std::allocator<T>().allocate(n);
    }
    void deallocate(T* p, std::size_t n) {
        held -= n * sizeof(T);
        std::allocator<T>().deallocate(p, n);
    }
    template <class U>
    friend bool operator==(const smallest_allocator& a, const smallest_allocator<U>& b) {
        return a.id == b.id;
    }
    int id;
    static inline std::size_t held = 0;
};

TEST(Allocator, AnyStandardAllocatorActsAsATrivialOne) {
    using traits = collective_allocator_traits<smallest_allocator<int>>;
    static_assert(sub_allocator_like<traits::sub_allocator_type>);
    const smallest_allocator<int> a(5);
    auto sub = traits::sub(a, purely_local);
    int* p = sub.allocate(3);
    EXPECT_EQ(smallest_allocator<int>::held, 3 * sizeof(int));
    sub.deallocate(p, 3);
    EXPECT_THROW((void)sub.try_allocate_all(request<int>{2}, request<int>{5000}), std::length_error);
    EXPECT_EQ(smallest_allocator<int>::held, 0u) << "all or nothing, whatever is thrown";
    EXPECT_TRUE(sub == traits::sub(a, fresh_page));
    EXPECT_FALSE(sub == traits::sub(smallest_allocator<int>(6), fresh_page));
    const trivial_sub_allocator<smallest_allocator<double>> other(sub);
    EXPECT_TRUE(sub == other && other == sub);
    {
        std::vector<int, traits::sub_allocator_type> v(sub);
        v.assign(100, 1);
        auto copy = v;
        copy = std::move(v);
        EXPECT_EQ(copy.get_allocator().inner().id, 5);
    }
    EXPECT_EQ(smallest_allocator<int>::held, 0u);
}

TEST(Allocator, HandlesOfDifferentTypesCompare) {
    const collective_allocator<int> a({64_KiB, 1_MiB});
    const auto ints = a.sub(fresh_page);
    const sub_allocator<double> doubles(ints);
    EXPECT_TRUE(ints == doubles && doubles == ints);
    EXPECT_FALSE(doubles == collective_allocator<int>({0_B, 1_MiB}).sub(swappable_plain));
    EXPECT_TRUE(ints != collective_allocator<int>({0_B, 1_MiB}).sub(swappable_plain));
}

/// Refuses with an exception of its own.
class throwing_space : public plain_space {
public:
    using plain_space::plain_space;
    bool acquire(page_index page, page_count count) {
        if (refuses) {
            throw std::runtime_error("no");
        }
        return plain_space::acquire(page, count);
    }
    bool refuses = false;
};

TEST(Allocator, ARefusalThatThrowsLosesNoPage) {
    auto space = std::make_shared<throwing_space>(byte_count{3 * 4096});
    const collective_allocator<std::byte, throwing_space> a(
        std::make_shared<heap<throwing_space>>(byte_count{0}, space));
    space->refuses = true;
    for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(a.sub(swappable_plain).try_allocate(100), nullptr);
        EXPECT_THROW((void)a.sub(fresh_page), out_of_room);
    }
    space->refuses = false;
    std::byte* p = a.sub(swappable_plain).try_allocate(3 * 4096);
    EXPECT_NE(p, nullptr) << "all pages are there";
    a.sub(swappable_plain).deallocate(p, 3 * 4096);
}

/// Random allocations in all parts against a shadow: nothing overlaps, nothing is lost, everything comes back.
void churn(const bytes_allocator& a, unsigned seed, int steps, bool exact) {
    struct block {
        std::byte* at;
        std::size_t size;
        std::byte fill;
    };
    std::mt19937 random(seed);
    std::vector<block> live;
    std::map<std::byte*, std::byte*> ranges;
    for (int step = 0; step < steps; ++step) {
        if (live.size() > 300 || (!live.empty() && random() % 3 == 0)) {
            const std::size_t i = random() % live.size();
            const block b = live[i];
            for (std::size_t k = 0; k < b.size; ++k) {
                ASSERT_EQ(b.at[k], b.fill);
            }
            ranges.erase(b.at);
            live[i] = live.back();
            live.pop_back();
            bytes_allocator(a).deallocate(b.at, b.size);
            continue;
        }
        const std::size_t size = random() % 16 == 0 ? 1 + random() % 30'000 : 1 + random() % 700;
        std::byte* p = nullptr;
        switch (random() % 4) {
            case 0:
                p = a.sub(purely_local).try_allocate(size);
                break;
            case 1:
                p = a.sub(swappable_plain).try_allocate(size);
                break;
            case 2:
                p = a.sub(fresh_page).try_allocate(size);
                break;
            default:
                if (!live.empty()) {
                    p = a.sub(owner_of{live[random() % live.size()].at}).try_allocate(size);
                }
        }
        if (p == nullptr) {
            continue;
        }
        const auto after = ranges.upper_bound(p);
        ASSERT_TRUE(after == ranges.end() || p + size <= after->first);
        ASSERT_TRUE(after == ranges.begin() || std::prev(after)->second <= p);
        ranges[p] = p + size;
        const auto fill = static_cast<std::byte>(random() % 256);
        std::memset(p, static_cast<int>(fill), size);
        live.push_back({p, size, fill});
    }
    for (const block& b : live) {
        bytes_allocator(a).deallocate(b.at, b.size);
    }
    if (exact) {
        EXPECT_EQ(a.memory().local().pages_in_use().value, 0u);
        EXPECT_EQ(a.memory().swappable().pages_in_use().value, 0u);
    }
}

TEST(Allocator, NothingOverlapsAndEverythingComesBack) {
    for (unsigned seed = 0; seed < 8; ++seed) {
        churn(bytes_allocator({64_KiB, 64_MiB}), seed, 8000, true);
    }
    // Large pages too.
    churn(bytes_allocator(make_heap<plain_space>({1_MiB, 256_MiB}, 64_KiB)), 9, 4000, true);
    churn(bytes_allocator(make_heap<plain_space>({1_MiB, {std::size_t{1} << 31}}, 2_MiB)), 10, 1000, true);
}

TEST(Allocator, Alignment) {
    auto check = []<std::size_t A>(std::integral_constant<std::size_t, A>) {
        struct alignas(A) wide {
            char c[A];
        };
        const collective_allocator<wide> a({1_MiB, 64_MiB});
        for (auto part : {a.sub(purely_local), a.sub(swappable_plain)}) {
            for (std::size_t n = 1; n < 6; ++n) {
                wide* p = part.allocate(n);
                EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % A, 0u);
                part.deallocate(p, n);
            }
        }
    };
    check(std::integral_constant<std::size_t, 32>());
    check(std::integral_constant<std::size_t, 64>());
    check(std::integral_constant<std::size_t, 256>());
    check(std::integral_constant<std::size_t, 4096>());
}

TEST(Allocator, SeveralThreads) {
    const bytes_allocator a({256_KiB, 256_MiB});
    std::vector<std::thread> threads;
    for (unsigned seed = 0; seed < 4; ++seed) {
        threads.emplace_back([&a, seed] { churn(a, seed, 3000, false); });
    }
    for (std::thread& t : threads) {
        t.join();
    }
    EXPECT_EQ(a.memory().local().pages_in_use().value, 0u);
    EXPECT_EQ(a.memory().swappable().pages_in_use().value, 0u);
}

TEST(Allocator, RefusalsOfTheSpaceArePassedOn) {
    auto space = std::make_shared<scarce_space>(16_MiB);
    space->grant = 3;
    const collective_allocator<std::byte, scarce_space> a(std::make_shared<heap<scarce_space>>(byte_count{0}, space));
    auto one = a.sub(fresh_page);
    auto two = a.sub(fresh_page);
    EXPECT_EQ(a.sub(swappable_plain).try_allocate(5000), nullptr);
    auto three = a.sub(fresh_page);
    EXPECT_THROW((void)a.sub(fresh_page), out_of_room);
    EXPECT_THROW((void)a.sub(swappable_plain).allocate(1), out_of_room);
}

}  // namespace
