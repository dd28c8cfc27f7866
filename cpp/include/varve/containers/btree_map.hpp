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

template <
    std::input_iterator I, detail::deducible_comparison Compare = std::less<detail::key_from<I>>,
    detail::deducible_allocator Allocator = detail::default_map_allocator<detail::key_from<I>, detail::mapped_from<I>>>
btree_map(I, I, Compare = Compare(), Allocator = Allocator())
    -> btree_map<detail::key_from<I>, detail::mapped_from<I>, 16, Compare, Allocator>;
template <std::input_iterator I, detail::deducible_allocator Allocator>
btree_map(I, I, Allocator)
    -> btree_map<detail::key_from<I>, detail::mapped_from<I>, 16, std::less<detail::key_from<I>>, Allocator>;
template <class Key, class T, detail::deducible_comparison Compare = std::less<Key>,
          detail::deducible_allocator Allocator = detail::default_map_allocator<Key, T>>
btree_map(std::initializer_list<std::pair<Key, T>>, Compare = Compare(), Allocator = Allocator())
    -> btree_map<std::remove_const_t<Key>, T, 16, Compare, Allocator>;
template <class Key, class T, detail::deducible_allocator Allocator>
btree_map(std::initializer_list<std::pair<Key, T>>, Allocator)
    -> btree_map<std::remove_const_t<Key>, T, 16, std::less<Key>, Allocator>;
template <class Key, class T, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_map(const btree_map<Key, T, Fanout, Compare, Allocator, Placement>&, std::type_identity_t<Allocator>)
    -> btree_map<Key, T, Fanout, Compare, Allocator, Placement>;
template <class Key, class T, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_map(btree_map<Key, T, Fanout, Compare, Allocator, Placement>&&, std::type_identity_t<Allocator>)
    -> btree_map<Key, T, Fanout, Compare, Allocator, Placement>;

}  // namespace varve
