// Page reads of the replacement policies on made-up access traces, beside two that need what user space cannot see:
// least recently used, and a clock with the processor's accessed bits. Deterministic: counts, not times.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <list>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "varve/pager/simulator.hpp"

namespace bench {

using trace = std::vector<std::uint32_t>;

/// Zipf-distributed pages, the hot ones scattered over the range.
inline trace zipf(std::size_t pages, std::size_t length, double exponent, unsigned seed) {
    std::vector<double> sums(pages);
    double sum = 0;
    for (std::size_t i = 0; i < pages; ++i) {
        sums[i] = sum += 1.0 / std::pow(static_cast<double>(i + 1), exponent);
    }
    std::mt19937_64 random(seed);
    std::vector<std::uint32_t> where(pages);
    std::iota(where.begin(), where.end(), 0u);
    std::shuffle(where.begin(), where.end(), random);
    std::uniform_real_distribution<double> uniform(0, sum);
    trace t(length);
    for (std::uint32_t& page : t) {
        const auto rank = std::lower_bound(sums.begin(), sums.end(), uniform(random)) - sums.begin();
        page = where[std::min(static_cast<std::size_t>(rank), pages - 1)];
    }
    return t;
}

/// Every fourth access is Zipf 1.0, the others walk through all pages again and again.
inline trace scan_and_hot(std::size_t pages, std::size_t length, unsigned seed) {
    trace t = zipf(pages, length, 1.0, seed);
    for (std::size_t i = 0; i < length; ++i) {
        if (i % 4 != 0) {
            t[i] = static_cast<std::uint32_t>(i % pages);
        }
    }
    return t;
}

inline std::uint64_t simulated(const trace& t, std::size_t pages, std::size_t local, varve::pager::replacement policy) {
    varve::pager::options o;
    o.local = {local * 4096};
    o.policy = policy;
    varve::pager::simulator space({pages * 4096}, o);
    for (const std::uint32_t page : t) {
        space.touch(space.base() + std::size_t{page} * 4096, {1}, varve::pager::access::read);
    }
    return space.read_statistics().page_reads;
}

inline std::uint64_t least_recently_used(const trace& t, std::size_t pages, std::size_t local) {
    std::list<std::uint32_t> order;
    std::vector<std::list<std::uint32_t>::iterator> at(pages, order.end());
    std::uint64_t reads = 0;
    for (const std::uint32_t page : t) {
        if (at[page] != order.end()) {
            order.splice(order.begin(), order, at[page]);
            continue;
        }
        ++reads;
        if (order.size() == local) {
            at[order.back()] = order.end();
            order.pop_back();
        }
        order.push_front(page);
        at[page] = order.begin();
    }
    return reads;
}

inline std::uint64_t clock_with_bits(const trace& t, std::size_t pages, std::size_t local) {
    std::vector<std::uint32_t> ring;
    std::vector<std::uint8_t> state(pages);  // 1: present, 2: accessed
    std::size_t hand = 0;
    std::uint64_t reads = 0;
    for (const std::uint32_t page : t) {
        if (state[page] == 0) {
            ++reads;
            if (ring.size() < local) {
                ring.push_back(page);
            } else {
                while ((state[ring[hand]] & 2) != 0) {
                    state[ring[hand]] = 1;
                    hand = (hand + 1) % local;
                }
                state[ring[hand]] = 0;
                ring[hand] = page;
                hand = (hand + 1) % local;
            }
        }
        state[page] = 3;
    }
    return reads;
}

struct policy_row {
    std::string trace_name;
    unsigned local_percent = 0;
    std::uint64_t sweep = 0, refault = 0, lru = 0, clock = 0;
};

inline std::vector<policy_row> compare_policies(std::size_t pages, std::size_t length) {
    const std::vector<std::pair<std::string, trace>> traces = {{"uniform", zipf(pages, length, 0, 1)},
                                                               {"zipf_0.8", zipf(pages, length, 0.8, 2)},
                                                               {"zipf_1.3", zipf(pages, length, 1.3, 3)},
                                                               {"scan_and_hot", scan_and_hot(pages, length, 4)}};
    std::vector<policy_row> rows;
    for (const auto& [name, t] : traces) {
        for (const unsigned percent : {5u, 20u, 50u}) {
            const std::size_t local = pages * percent / 100;
            rows.push_back({name, percent, simulated(t, pages, local, varve::pager::replacement::sweep),
                            simulated(t, pages, local, varve::pager::replacement::refault),
                            least_recently_used(t, pages, local), clock_with_bits(t, pages, local)});
        }
    }
    return rows;
}

}  // namespace bench
