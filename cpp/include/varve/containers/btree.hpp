// The B-tree under the maps and sets: it can search, insert, erase and re-block.
#pragma once

#include "varve/containers/btree_core.hpp"
#include "varve/containers/btree_reblock.hpp"

namespace varve {

namespace detail {
template <class Slot, std::size_t Fanout, class Compare, class Allocator, placement_policy Placement>
using btree =
    btree_reblock<btree_core<Slot, Fanout, Compare, Allocator, Placement>, Slot, Allocator, Fanout, Placement>;
}  // namespace detail

}  // namespace varve
