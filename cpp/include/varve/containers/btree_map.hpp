// An ordered map as a B-tree whose nodes lie where a placement policy wants them.
#pragma once

#include <functional>

#include "varve/containers/btree_core.hpp"
#include "varve/containers/btree_reblock.hpp"
#include "varve/containers/map_api.hpp"

namespace varve {

namespace detail {
template <class Key, class T, std::size_t Fanout, class Compare, class Allocator, placement_policy Placement>
using btree_map_core = btree_reblock<btree_core<Key, T, Fanout, Compare, Allocator, Placement>, map_slot<Key, T>,
                                     Allocator, Fanout, Placement>;
}

/// `Fanout` is the number of children that a node can have; 3 makes a 2-3 tree.
template <class Key, class T, std::size_t Fanout = 16, class Compare = std::less<Key>,
          class Allocator = std::allocator<std::pair<const Key, T>>, placement_policy Placement = placement::hint>
class btree_map : public map_api<detail::btree_map_core<Key, T, Fanout, Compare, Allocator, Placement>, Key, T, Compare,
                                 Allocator> {
    using map_type =
        map_api<detail::btree_map_core<Key, T, Fanout, Compare, Allocator, Placement>, Key, T, Compare, Allocator>;

public:
    using map_type::map_type;
    using map_type::operator=;  // from a list
    using placement_type = Placement;
};

}  // namespace varve
