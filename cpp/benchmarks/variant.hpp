// One interface over all structures and placements, so that the drivers compile once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "varve/placement/policies.hpp"
#include "varve/space/simulated_space.hpp"
#include "workload.hpp"

namespace bench {

/// How much memory a variant gets.
struct budgets {
    varve::byte_count local;      ///< purely local part
    varve::byte_count swappable;  ///< address range of the rest
    varve::page_count buffer;     ///< local memory for the rest, where it is really paged
};

/// Who counts pages.
enum class pager_kind {
    simulated,  ///< a model of the page buffer that accesses are checked against
    real        ///< userfaultfd, with a store in memory
};

/// What the real pager says of the queries.
struct paging {
    std::uint64_t faults;       ///< accesses that the kernel stopped
    std::uint64_t write_traps;  ///< of those, first writes to pages that had been read in
    const void* start;          ///< where the paged memory begins
    const void* end;
};

/// What a variant holds.
struct footprint {
    varve::byte_count local;      ///< committed in the local part
    varve::byte_count swappable;  ///< committed in the swappable part
};

class variant {
public:
    virtual ~variant() = default;
    virtual void insert(key_type key, const mapped_type& value) = 0;
    /// Re-blocks completely, if the placement does that.
    virtual void reblock() = 0;
    [[nodiscard]] virtual varve::link_count links() const = 0;
    [[nodiscard]] virtual footprint memory() const = 0;

    /// From here on page traffic is counted, starting with every page paged out. The real pager has the buffer that it
    /// was made with, and its own policy.
    virtual void start_counting(varve::page_count buffer, varve::replacement policy) = 0;
    /// Nothing where the pager is simulated.
    [[nodiscard]] virtual std::optional<paging> real_paging() const = 0;
    [[nodiscard]] virtual varve::page_traffic traffic() = 0;
    virtual void update(key_type key, const mapped_type& value) = 0;
    /// Scans fetch their pages before they walk from now on.
    virtual void fetch_ahead() = 0;
    /// Reads up to `length` elements from the key on; gives the sum of their keys.
    [[nodiscard]] virtual std::uint64_t scan(key_type key, std::size_t length) const = 0;
};

struct variant_name {
    std::string_view structure;
    std::string_view placement;
    bool has_local_part;
};

/// All there are.
[[nodiscard]] std::vector<variant_name> variants();

/// Null if there is no such variant.
template <pager_kind>
[[nodiscard]] std::unique_ptr<variant> make_tree(std::string_view placement, const budgets& sizes);
template <pager_kind>
[[nodiscard]] std::unique_ptr<variant> make_list(std::string_view placement, const budgets& sizes);

}  // namespace bench
