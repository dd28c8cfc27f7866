// Ordered sets as B-trees whose nodes lie where a placement policy wants them.
#pragma once

#include <functional>

#include "varve/containers/btree.hpp"
#include "varve/containers/ordered_api.hpp"

namespace varve {

/// As std::set; what differs stands at ordered_api. `Fanout` is the number of children that a node can have, from 3,
/// which makes a 2-3 tree, to 4096.
template <class Key, std::size_t Fanout = 16, class Compare = std::less<Key>, class Allocator = std::allocator<Key>,
          placement_policy Placement = placement::hint>
class btree_set : public ordered_api<detail::btree<set_slot<Key>, Fanout, Compare, Allocator, Placement>, false> {
    using base = ordered_api<detail::btree<set_slot<Key>, Fanout, Compare, Allocator, Placement>, false>;

public:
    using base::base;
    using base::operator=;  // from a list
    using placement_type = Placement;

    btree_set() = default;
    // Inherited, g++ would not deduce the types of a container from braces.
    btree_set(std::initializer_list<typename base::value_type> list, const Allocator& a = Allocator())
        : base(list, a) {}
    friend void swap(btree_set& a, btree_set& b) noexcept(noexcept(a.swap(b))) { a.swap(b); }
};

/// As std::multiset; what differs stands at ordered_api.
template <class Key, std::size_t Fanout = 16, class Compare = std::less<Key>, class Allocator = std::allocator<Key>,
          placement_policy Placement = placement::hint>
class btree_multiset : public ordered_api<detail::btree<set_slot<Key>, Fanout, Compare, Allocator, Placement>, true> {
    using base = ordered_api<detail::btree<set_slot<Key>, Fanout, Compare, Allocator, Placement>, true>;

public:
    using base::base;
    using base::operator=;  // from a list
    using placement_type = Placement;

    btree_multiset() = default;
    // Inherited, g++ would not deduce the types of a container from braces.
    btree_multiset(std::initializer_list<typename base::value_type> list, const Allocator& a = Allocator())
        : base(list, a) {}
    friend void swap(btree_multiset& a, btree_multiset& b) noexcept(noexcept(a.swap(b))) { a.swap(b); }
};

template <std::input_iterator I, detail::deducible_comparison Compare = std::less<std::iter_value_t<I>>,
          detail::deducible_allocator Allocator = std::allocator<std::iter_value_t<I>>>
btree_set(I, I, Compare = Compare(), Allocator = Allocator())
    -> btree_set<std::iter_value_t<I>, 16, Compare, Allocator>;
template <std::input_iterator I, detail::deducible_allocator Allocator>
btree_set(I, I, Allocator) -> btree_set<std::iter_value_t<I>, 16, std::less<std::iter_value_t<I>>, Allocator>;
template <class Key, detail::deducible_comparison Compare = std::less<Key>,
          detail::deducible_allocator Allocator = std::allocator<Key>>
btree_set(std::initializer_list<Key>, Compare = Compare(), Allocator = Allocator())
    -> btree_set<Key, 16, Compare, Allocator>;
template <class Key, detail::deducible_allocator Allocator>
btree_set(std::initializer_list<Key>, Allocator) -> btree_set<Key, 16, std::less<Key>, Allocator>;
template <class Key, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_set(const btree_set<Key, Fanout, Compare, Allocator, Placement>&, std::type_identity_t<Allocator>)
    -> btree_set<Key, Fanout, Compare, Allocator, Placement>;
template <class Key, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_set(btree_set<Key, Fanout, Compare, Allocator, Placement>&&, std::type_identity_t<Allocator>)
    -> btree_set<Key, Fanout, Compare, Allocator, Placement>;

template <std::input_iterator I, detail::deducible_comparison Compare = std::less<std::iter_value_t<I>>,
          detail::deducible_allocator Allocator = std::allocator<std::iter_value_t<I>>>
btree_multiset(I, I, Compare = Compare(), Allocator = Allocator())
    -> btree_multiset<std::iter_value_t<I>, 16, Compare, Allocator>;
template <std::input_iterator I, detail::deducible_allocator Allocator>
btree_multiset(I, I, Allocator) -> btree_multiset<std::iter_value_t<I>, 16, std::less<std::iter_value_t<I>>, Allocator>;
template <class Key, detail::deducible_comparison Compare = std::less<Key>,
          detail::deducible_allocator Allocator = std::allocator<Key>>
btree_multiset(std::initializer_list<Key>, Compare = Compare(), Allocator = Allocator())
    -> btree_multiset<Key, 16, Compare, Allocator>;
template <class Key, detail::deducible_allocator Allocator>
btree_multiset(std::initializer_list<Key>, Allocator) -> btree_multiset<Key, 16, std::less<Key>, Allocator>;
template <class Key, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_multiset(const btree_multiset<Key, Fanout, Compare, Allocator, Placement>&, std::type_identity_t<Allocator>)
    -> btree_multiset<Key, Fanout, Compare, Allocator, Placement>;
template <class Key, std::size_t Fanout, class Compare, class Allocator, class Placement>
btree_multiset(btree_multiset<Key, Fanout, Compare, Allocator, Placement>&&, std::type_identity_t<Allocator>)
    -> btree_multiset<Key, Fanout, Compare, Allocator, Placement>;

}  // namespace varve
