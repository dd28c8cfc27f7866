// A program with an ordered map that it did not expect to outgrow its memory: it fills the map in key order, and then
// looks elements up and changes some. Built as it is, it is a program of std::map; VARVE_FAR changes three lines, and
// VARVE_FAR_MAPPED has its std::map allocate from a mapped file. `far/compare.py` runs all of them under one limit.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>
#ifdef VARVE_FAR
#include <varve/far_map.hpp>
#else
#include <map>
#endif
#ifdef VARVE_FAR_MAPPED
#include "mapped_file.hpp"
#endif

using value = std::array<std::uint64_t, 20>;
#if defined(VARVE_FAR)
using map = varve::far_map<std::uint64_t, value>;
#elif defined(VARVE_FAR_MAPPED)
using map = std::map<std::uint64_t, value, std::less<>, bench::file_allocator<std::pair<const std::uint64_t, value> > >;
#else
using map = std::map<std::uint64_t, value>;
#endif

namespace {

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
}

/// Half of it cannot be compressed.
value value_of(std::uint64_t key) {
    value v{};
    for (std::size_t i = 0; i < v.size(); i += 2) {
        key = key * 6364136223846793005u + 1442695040888963407u;
        v[i] = key;
    }
    return v;
}

/// Which element the next operation is about: by Zipf's law (skew 0.99), the ranks spread over the keys; or any.
class choice {
public:
    choice(std::uint64_t elements, bool skewed) : elements_(elements), skewed_(skewed) {
        for (std::uint64_t i = 1; skewed && i <= elements; ++i) {
            sum_ += std::pow(static_cast<double>(i), -skew);
        }
    }
    std::uint64_t operator()(std::mt19937_64& random) const {
        if (!skewed_) {
            return random() % elements_;
        }
        // J. Gray and others: Quickly generating billion-record synthetic databases, 1994
        const double n = static_cast<double>(elements_);
        const double u = std::uniform_real_distribution<double>()(random);
        const double first = 1 + std::pow(0.5, skew);
        const double eta = (1 - std::pow(2 / n, 1 - skew)) / (1 - first / sum_);
        const double rank = u * sum_ < 1 ? 0 : u * sum_ < first ? 1 : n * std::pow(eta * u - eta + 1, 1 / (1 - skew));
        return static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15u % elements_;
    }

private:
    static constexpr double skew = 0.99;
    std::uint64_t elements_;
    bool skewed_;
    double sum_ = 0;
};

struct figures {
    double per_second = 0;
    double p50_us = 0;
    double p99_us = 0;
};

/// For so many seconds, after a quarter as many that are not counted. One operation in twenty changes its element.
figures operate(map& elements, bool skewed, double seconds) {
    const choice next(elements.size(), skewed);
    std::mt19937_64 random(7);
    std::vector<std::uint32_t> times;
    std::uint64_t sum = 0;
    std::uint64_t start = now_ns();
    const auto warm = start + static_cast<std::uint64_t>(seconds / 4 * 1e9);
    const auto end = warm + static_cast<std::uint64_t>(seconds * 1e9);
    bool counts = false;
    for (std::uint64_t before = start; before < end;) {
        if (!counts && before >= warm) {
            counts = true;
            start = before;
        }
        const std::uint64_t key = next(random) * 2;
        const bool change = random() % 20 == 0;
        before = now_ns();
        const auto found = elements.find(key);
        if (found == elements.end()) {
            std::fprintf(stderr, "error: an element is missing\n");
            std::exit(1);
        }
        sum += found->second[0];
        if (change) {
            found->second[1] += 1;
        }
        const std::uint64_t after = now_ns();
        if (counts) {
            times.push_back(static_cast<std::uint32_t>(std::min<std::uint64_t>(after - before, 0xffffffff)));
        }
        before = after;
    }
    const double taken = static_cast<double>(now_ns() - start) / 1e9;
    std::sort(times.begin(), times.end());
    if (sum == 0 || times.empty()) {
        std::exit(1);
    }
    return {static_cast<double>(times.size()) / taken, times[times.size() / 2] / 1e3,
            times[times.size() * 99 / 100] / 1e3};
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 5) {
        std::fprintf(stderr, "usage: %s ELEMENTS SECONDS FILE LOCAL_MEBIBYTES\n", arguments[0]);
        return 2;
    }
    const std::uint64_t n = std::strtoull(arguments[1], nullptr, 10);
    const double seconds = std::strtod(arguments[2], nullptr);
#if defined(VARVE_FAR)
    const std::size_t local = std::strtoull(arguments[4], nullptr, 10) << 20;
    map elements(varve::far_memory(arguments[3], {n * 512}, {local}));
#elif defined(VARVE_FAR_MAPPED)
    bench::mapped_file file(arguments[3], n * 256);
    map elements(bench::file_allocator<map::value_type>{&file});
#else
    map elements;
#endif
    const std::uint64_t start = now_ns();
    for (std::uint64_t i = 0; i < n; ++i) {
        elements.emplace_hint(elements.end(), i * 2, value_of(i));
    }
    const double building = static_cast<double>(now_ns() - start) / 1e9;
    const figures skewed = operate(elements, true, seconds);
    const figures uniform = operate(elements, false, seconds);
    std::printf(
        "{\"elements\":%llu,\"building_s\":%.1f,\"skewed_per_second\":%.0f,\"skewed_p50_us\":%.1f,"
        "\"skewed_p99_us\":%.1f,\"uniform_per_second\":%.0f,\"uniform_p50_us\":%.1f,\"uniform_p99_us\":%.1f}\n",
        static_cast<unsigned long long>(n), building, skewed.per_second, skewed.p50_us, skewed.p99_us,
        uniform.per_second, uniform.p50_us, uniform.p99_us);
    std::fflush(stdout);
    std::_Exit(0);  // what the map holds may be far away: nobody needs it brought back to be destroyed
}
