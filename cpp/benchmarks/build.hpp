// Building a store, and what that took.
#pragma once

#include "options.hpp"
#include "report.hpp"

namespace bench {

struct built_store {
    std::unique_ptr<variant> store;
    generator random;  ///< its state after the construction
    varve::link_count links;
    std::uint64_t construct_ns = 0;
    std::uint64_t construct_processor_ns = 0;  ///< what other programs take meanwhile is not in it
    std::uint64_t reblock_ns = 0;
    std::uint64_t reblock_processor_ns = 0;
    varve::byte_count peak_built;  ///< most memory of the process until it was built; 0 where the kernel does not say
    varve::byte_count held_built;  ///< memory of the process then
    varve::byte_count peak_reblocked;  ///< most memory while it was re-blocked
    varve::byte_count held_reblocked;
};

/// Inserts all elements and re-blocks, if the placement does that.
[[nodiscard]] built_store build(const options& chosen);

/// Adds what a construction took, where its links lead and what it holds.
void add_construction(report& out, const built_store& built);

}  // namespace bench
