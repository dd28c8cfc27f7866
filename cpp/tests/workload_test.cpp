// The benchmarks draw what they say, count the same every time, and tell placements apart.
#include "workload.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "options.hpp"
#include "variant.hpp"

namespace {

using namespace bench;

TEST(Workload, KeysAreFnv1a) {
    // Published check values of FNV-1a, 64 bit, for single bytes do not cover eight zero bytes: worked out by hand.
    std::uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < 8; ++i) {
        hash = (hash ^ 0) * 1099511628211u;
    }
    EXPECT_EQ(key_of(0), hash);
    EXPECT_NE(key_of(1), key_of(256));
}

TEST(Workload, BytesAreWhatTheStandardDistributionDraws) {
    generator ours;
    std::mt19937 theirs;
    std::uniform_int_distribution<unsigned short> byte(0, 255);
    for (int i = 0; i < 20; ++i) {
        for (const std::byte b : random_value(ours)) {
            ASSERT_EQ(static_cast<unsigned short>(b), byte(theirs));
        }
    }
    for (int i = 0; i < 5000; ++i) {
        ASSERT_EQ(ours(), theirs());
    }
}

TEST(Workload, RanksFollowTheLawOfTheStudy) {
    for (const double exponent : {0.8, 1.0, 1.3}) {
        constexpr std::uint64_t n = 1000;
        constexpr int draws = 200'000;
        rank_distribution rank(n, exponent);
        generator random;
        std::vector<int> seen(n);
        for (int i = 0; i < draws; ++i) {
            ++seen.at(rank(random));
        }
        // The integral in closed form, apart from how the distribution works it out.
        const auto area = [exponent](double x) {
            return exponent == 1.0 ? std::log(x) : (std::pow(x, 1 - exponent) - 1) / (1 - exponent);
        };
        const double total = area(n + 0.5) - area(1.5) + 1;
        double chi_square = 0;
        for (std::uint64_t k = 1; k <= n; ++k) {
            const auto x = static_cast<double>(k);
            const double mass = k == 1 ? area(2) - area(1.5) + 1 : area(k == n ? x + 0.5 : x + 1) - area(x);
            const double expected = draws * mass / total;
            const double off = seen[k - 1] - expected;
            chi_square += off * off / expected;
        }
        // 999 degrees of freedom: beyond 1200 with a probability of 1e-5, and the seed is fixed.
        EXPECT_LT(chi_square, 1200) << exponent;
    }
}

struct outcome {
    std::uint64_t reads, writes, left, checksum;
};

outcome run(const variant_name& name, double local_percent) {
    options o;
    o.structure = name.structure;
    o.placement = name.placement;
    o.elements = 20'000;
    o.local_percent = local_percent;
    const auto store = make(o);
    generator random;
    construct(*store, o, random);
    store->reblock();
    rank_distribution rank(o.elements, o.zipf);
    std::bernoulli_distribution is_update(0.3);
    std::uniform_int_distribution<std::size_t> length(1, 100);
    std::uint64_t checksum = 0;
    store->start_counting(o.buffer(), o.replacement);
    for (int i = 0; i < 2000; ++i) {
        const key_type key = key_of(rank(random));
        if (is_update(random)) {
            store->update(key, random_value(random));
        } else {
            checksum += store->scan(key, length(random));
        }
    }
    return {store->traffic().reads, store->traffic().writes, store->traffic().dirty, checksum};
}

TEST(Benchmark, WhatIsNotWrittenBackIsLeft) {
    // 600 updates or so: with room for everything none of their pages leaves, with little most of them do.
    for (const variant_name& name : variants()) {
        const outcome roomy = run(name, 200);
        EXPECT_EQ(roomy.writes, 0u) << name.structure << ' ' << name.placement;
        EXPECT_GT(roomy.left, 30u);
        EXPECT_LE(roomy.left, 2u * 700u);
        const outcome narrow = run(name, 5);
        EXPECT_GE(narrow.writes + narrow.left, roomy.left) << "a page that was written twice counts twice";
        EXPECT_GT(narrow.writes, 0u);
    }
}

TEST(Benchmark, VariantsAnswerAlikeAndCountTheSameEveryTime) {
    std::uint64_t checksum = 0;
    std::uint64_t hint = 0;
    for (const variant_name& name : variants()) {
        const outcome first = run(name, 10);
        const outcome second = run(name, 10);
        EXPECT_EQ(first.reads, second.reads) << name.structure << ' ' << name.placement;
        EXPECT_EQ(first.writes, second.writes);
        checksum = checksum == 0 ? first.checksum : checksum;
        EXPECT_EQ(first.checksum, checksum) << name.structure << ' ' << name.placement;
        if (name.placement == "hint") {
            hint = first.reads;
        } else {
            EXPECT_LT(first.reads, hint) << name.structure << ' ' << name.placement;
        }
        EXPECT_GE(first.reads, run(name, 100).reads);
    }
}

TEST(Benchmark, LocalMemoryIsSplitAsInTheStudy) {
    options o;
    o.placement = "local+dfs";
    o.local_percent = 5;
    EXPECT_EQ(o.buffer().value, 13'107u);
    EXPECT_EQ(o.purely_local().value, 53'687'912u);
    o.local_percent = 200;
    EXPECT_EQ(o.buffer().value, 524'288u);
    EXPECT_EQ(o.purely_local().value, 2'147'483'712u);
    o.placement = "dfs";
    EXPECT_EQ(o.buffer().value, 1'048'576u);
    EXPECT_EQ(o.purely_local().value, 0u);
}

}  // namespace
