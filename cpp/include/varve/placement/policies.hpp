// Where a container puts its nodes. A policy is a type; the containers take it as a template parameter.
#pragma once

#include <concepts>

#include "varve/core/quantities.hpp"

namespace varve::placement {

/// The order in which re-blocking lays nodes out on pages.
enum class order {
    none,           ///< nodes stay where insertion put them
    depth_first,    ///< children before their parent, in key order
    van_emde_boas,  ///< the upper half of the levels, then each subtree below, each by the same rule
    key             ///< as a walk over the elements meets them; for a list
};

/// New nodes go to the page of their neighbour while it has room; nothing else is done.
struct hint {
    static constexpr bool keeps_top_local = false;
    static constexpr order reblocking = order::none;
    static constexpr percent fill{100};
};

/// The top of the structure stays in local memory.
struct local : hint {
    static constexpr bool keeps_top_local = true;
};

/// Pages are filled to this when re-blocking, so that later splits find room; those of a list further, if it would grow
/// too much.
inline constexpr percent room_for_splits{70};

struct dfs {
    static constexpr bool keeps_top_local = false;
    static constexpr order reblocking = order::depth_first;
    static constexpr percent fill = room_for_splits;
};

struct local_dfs : dfs {
    static constexpr bool keeps_top_local = true;
};

struct veb {
    static constexpr bool keeps_top_local = false;
    static constexpr order reblocking = order::van_emde_boas;
    static constexpr percent fill = room_for_splits;
};

struct local_veb : veb {
    static constexpr bool keeps_top_local = true;
};

struct page {
    static constexpr bool keeps_top_local = false;
    static constexpr order reblocking = order::key;
    static constexpr percent fill = room_for_splits;
};

struct local_page : page {
    static constexpr bool keeps_top_local = true;
};

/// The best we know: the top local, the rest in depth-first (tree) or key order (list), and pages filled to the brim. A
/// later split finds no room on a full page and opens another, which the next re-blocking mends.
struct automatic {
    static constexpr bool keeps_top_local = true;
    static constexpr order reblocking = order::depth_first;
    static constexpr percent fill{100};
};

}  // namespace varve::placement

namespace varve {

// clang-format off
template <class P>
concept placement_policy = requires {
    { P::keeps_top_local } -> std::convertible_to<bool>;
    { P::reblocking } -> std::convertible_to<placement::order>;
    { P::fill } -> std::convertible_to<percent>;
};
// clang-format on

static_assert(placement_policy<placement::hint> && placement_policy<placement::automatic>);

/// Links between the nodes of a structure, by where their two ends are.
struct link_count {
    std::size_t local = 0;       ///< both ends in local memory
    std::size_t in_page = 0;     ///< both ends on the same page
    std::size_t cross_page = 0;  ///< all others: following one may need another page
};

}  // namespace varve
