// Ordered sets as skip lists whose nodes lie where a placement policy wants them.
#pragma once

#include <functional>

#include "varve/containers/ordered_api.hpp"
#include "varve/containers/skip_list_reblock.hpp"

namespace varve {

/// As std::set; what differs stands at ordered_api. Levels are drawn from a fixed sequence, so equal
/// insertions make equal lists.
template <class Key, class Compare = std::less<Key>, class Allocator = std::allocator<Key>,
          placement_policy Placement = placement::hint>
class skip_list_set : public ordered_api<skip_list_reblock<set_slot<Key>, Compare, Allocator, Placement>, false> {
    using base = ordered_api<skip_list_reblock<set_slot<Key>, Compare, Allocator, Placement>, false>;

public:
    using base::base;
    using base::operator=;  // from a list
    using placement_type = Placement;

    skip_list_set() = default;
    // Inherited, g++ would not deduce the types of a container from braces.
    skip_list_set(std::initializer_list<typename base::value_type> list, const Allocator& a = Allocator())
        : base(list, a) {}
    friend void swap(skip_list_set& a, skip_list_set& b) noexcept(noexcept(a.swap(b))) { a.swap(b); }
};

/// As std::multiset; what differs stands at ordered_api.
template <class Key, class Compare = std::less<Key>, class Allocator = std::allocator<Key>,
          placement_policy Placement = placement::hint>
class skip_list_multiset : public ordered_api<skip_list_reblock<set_slot<Key>, Compare, Allocator, Placement>, true> {
    using base = ordered_api<skip_list_reblock<set_slot<Key>, Compare, Allocator, Placement>, true>;

public:
    using base::base;
    using base::operator=;  // from a list
    using placement_type = Placement;

    skip_list_multiset() = default;
    // Inherited, g++ would not deduce the types of a container from braces.
    skip_list_multiset(std::initializer_list<typename base::value_type> list, const Allocator& a = Allocator())
        : base(list, a) {}
    friend void swap(skip_list_multiset& a, skip_list_multiset& b) noexcept(noexcept(a.swap(b))) { a.swap(b); }
};

template <std::input_iterator I, detail::deducible_comparison Compare = std::less<std::iter_value_t<I>>,
          detail::deducible_allocator Allocator = std::allocator<std::iter_value_t<I>>>
skip_list_set(I, I, Compare = Compare(), Allocator = Allocator())
    -> skip_list_set<std::iter_value_t<I>, Compare, Allocator>;
template <std::input_iterator I, detail::deducible_allocator Allocator>
skip_list_set(I, I, Allocator) -> skip_list_set<std::iter_value_t<I>, std::less<std::iter_value_t<I>>, Allocator>;
template <class Key, detail::deducible_comparison Compare = std::less<Key>,
          detail::deducible_allocator Allocator = std::allocator<Key>>
skip_list_set(std::initializer_list<Key>, Compare = Compare(), Allocator = Allocator())
    -> skip_list_set<Key, Compare, Allocator>;
template <class Key, detail::deducible_allocator Allocator>
skip_list_set(std::initializer_list<Key>, Allocator) -> skip_list_set<Key, std::less<Key>, Allocator>;
template <class Key, class Compare, class Allocator, class Placement>
skip_list_set(const skip_list_set<Key, Compare, Allocator, Placement>&, std::type_identity_t<Allocator>)
    -> skip_list_set<Key, Compare, Allocator, Placement>;
template <class Key, class Compare, class Allocator, class Placement>
skip_list_set(skip_list_set<Key, Compare, Allocator, Placement>&&, std::type_identity_t<Allocator>)
    -> skip_list_set<Key, Compare, Allocator, Placement>;

template <std::input_iterator I, detail::deducible_comparison Compare = std::less<std::iter_value_t<I>>,
          detail::deducible_allocator Allocator = std::allocator<std::iter_value_t<I>>>
skip_list_multiset(I, I, Compare = Compare(), Allocator = Allocator())
    -> skip_list_multiset<std::iter_value_t<I>, Compare, Allocator>;
template <std::input_iterator I, detail::deducible_allocator Allocator>
skip_list_multiset(I, I, Allocator)
    -> skip_list_multiset<std::iter_value_t<I>, std::less<std::iter_value_t<I>>, Allocator>;
template <class Key, detail::deducible_comparison Compare = std::less<Key>,
          detail::deducible_allocator Allocator = std::allocator<Key>>
skip_list_multiset(std::initializer_list<Key>, Compare = Compare(), Allocator = Allocator())
    -> skip_list_multiset<Key, Compare, Allocator>;
template <class Key, detail::deducible_allocator Allocator>
skip_list_multiset(std::initializer_list<Key>, Allocator) -> skip_list_multiset<Key, std::less<Key>, Allocator>;
template <class Key, class Compare, class Allocator, class Placement>
skip_list_multiset(const skip_list_multiset<Key, Compare, Allocator, Placement>&, std::type_identity_t<Allocator>)
    -> skip_list_multiset<Key, Compare, Allocator, Placement>;
template <class Key, class Compare, class Allocator, class Placement>
skip_list_multiset(skip_list_multiset<Key, Compare, Allocator, Placement>&&, std::type_identity_t<Allocator>)
    -> skip_list_multiset<Key, Compare, Allocator, Placement>;

}  // namespace varve
