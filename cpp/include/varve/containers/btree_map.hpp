// Ordered maps as B-trees whose nodes lie where a placement policy wants them.
#pragma once

#include <functional>

#include "varve/containers/btree.hpp"
#include "varve/containers/map_api.hpp"

namespace varve {

/// As std::map; what differs stands at ordered_api. `Fanout` is the number of children that a node can have, from 3,
/// which makes a 2-3 tree, to 4096.
template <class Key, class T, std::size_t Fanout = 16, class Compare = std::less<Key>,
          class Allocator = std::allocator<std::pair<const Key, T>>, placement_policy Placement = placement::hint>
class btree_map : public map_api<detail::btree<map_slot<Key, T>, Fanout, Compare, Allocator, Placement>> {
    using base = map_api<detail::btree<map_slot<Key, T>, Fanout, Compare, Allocator, Placement>>;

public:
    using base::base;
    using base::operator=;  // from a list
    using placement_type = Placement;

    btree_map() = default;
    // Inherited, g++ would not deduce the types of a container from braces.
    btree_map(std::initializer_list<typename base::value_type> list, const Allocator& a = Allocator())
        : base(list, a) {}
    friend void swap(btree_map& a, btree_map& b) noexcept(noexcept(a.swap(b))) { a.swap(b); }
};

/// As std::multimap; what differs stands at ordered_api.
template <class Key, class T, std::size_t Fanout = 16, class Compare = std::less<Key>,
          class Allocator = std::allocator<std::pair<const Key, T>>, placement_policy Placement = placement::hint>
class btree_multimap
    : public ordered_api<detail::btree<map_slot<Key, T>, Fanout, Compare, Allocator, Placement>, true> {
    using base = ordered_api<detail::btree<map_slot<Key, T>, Fanout, Compare, Allocator, Placement>, true>;

public:
    using base::base;
    using base::operator=;  // from a list
    using mapped_type = T;
    using placement_type = Placement;

    btree_multimap() = default;
    // Inherited, g++ would not deduce the types of a container from braces.
    btree_multimap(std::initializer_list<typename base::value_type> list, const Allocator& a = Allocator())
        : base(list, a) {}
    friend void swap(btree_multimap& a, btree_multimap& b) noexcept(noexcept(a.swap(b))) { a.swap(b); }
};

template <
    std::input_iterator I, detail::deducible_comparison Compare = std::less<detail::key_from<I>>,
    detail::deducible_allocator Allocator = detail::default_map_allocator<detail::key_from<I>, detail::mapped_from<I>>>
btree_map(I, I, Compare = Compare(), Allocator = Allocator())
    -> btree_map<detail::key_from<I>, detail::mapped_from<I>, 16, Compare, Allocator>;
template <std::input_iterator I, detail::deducible_allocator Allocator>
btree_map(I, I, Allocator)
    -> btree_map<detail::key_from<I>, detail::mapped_from<I>, 16, std::less<detail::key_from<I>>, Allocator>;
template <class Key, class T, detail::deducible_comparison Compare = std::less<std::remove_const_t<Key>>,
          detail::deducible_allocator Allocator = detail::default_map_allocator<Key, T>>
btree_map(std::initializer_list<std::pair<Key, T>>, Compare = Compare(), Allocator = Allocator())
    -> btree_map<std::remove_const_t<Key>, T, 16, Compare, Allocator>;
template <class Key, class T, detail::deducible_allocator Allocator>
btree_map(std::initializer_list<std::pair<Key, T>>, Allocator)
    -> btree_map<std::remove_const_t<Key>, T, 16, std::less<std::remove_const_t<Key>>, Allocator>;
template <class Key, class T, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_map(const btree_map<Key, T, Fanout, Compare, Allocator, Placement>&, std::type_identity_t<Allocator>)
    -> btree_map<Key, T, Fanout, Compare, Allocator, Placement>;
template <class Key, class T, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_map(btree_map<Key, T, Fanout, Compare, Allocator, Placement>&&, std::type_identity_t<Allocator>)
    -> btree_map<Key, T, Fanout, Compare, Allocator, Placement>;

template <
    std::input_iterator I, detail::deducible_comparison Compare = std::less<detail::key_from<I>>,
    detail::deducible_allocator Allocator = detail::default_map_allocator<detail::key_from<I>, detail::mapped_from<I>>>
btree_multimap(I, I, Compare = Compare(), Allocator = Allocator())
    -> btree_multimap<detail::key_from<I>, detail::mapped_from<I>, 16, Compare, Allocator>;
template <std::input_iterator I, detail::deducible_allocator Allocator>
btree_multimap(I, I, Allocator)
    -> btree_multimap<detail::key_from<I>, detail::mapped_from<I>, 16, std::less<detail::key_from<I>>, Allocator>;
template <class Key, class T, detail::deducible_comparison Compare = std::less<std::remove_const_t<Key>>,
          detail::deducible_allocator Allocator = detail::default_map_allocator<Key, T>>
btree_multimap(std::initializer_list<std::pair<Key, T>>, Compare = Compare(), Allocator = Allocator())
    -> btree_multimap<std::remove_const_t<Key>, T, 16, Compare, Allocator>;
template <class Key, class T, detail::deducible_allocator Allocator>
btree_multimap(std::initializer_list<std::pair<Key, T>>, Allocator)
    -> btree_multimap<std::remove_const_t<Key>, T, 16, std::less<std::remove_const_t<Key>>, Allocator>;
template <class Key, class T, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_multimap(const btree_multimap<Key, T, Fanout, Compare, Allocator, Placement>&, std::type_identity_t<Allocator>)
    -> btree_multimap<Key, T, Fanout, Compare, Allocator, Placement>;
template <class Key, class T, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_multimap(btree_multimap<Key, T, Fanout, Compare, Allocator, Placement>&&, std::type_identity_t<Allocator>)
    -> btree_multimap<Key, T, Fanout, Compare, Allocator, Placement>;

}  // namespace varve
