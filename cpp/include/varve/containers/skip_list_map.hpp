// Ordered maps as skip lists whose nodes lie where a placement policy wants them.
#pragma once

#include <functional>

#include "varve/containers/map_api.hpp"
#include "varve/containers/skip_list_reblock.hpp"

namespace varve {

/// As std::map; what differs stands at ordered_api. Levels are drawn from a fixed sequence, so equal
/// insertions make equal lists.
template <class Key, class T, class Compare = std::less<Key>, class Allocator = std::allocator<std::pair<const Key, T>>,
          placement_policy Placement = placement::hint>
class skip_list_map : public map_api<skip_list_reblock<map_slot<Key, T>, Compare, Allocator, Placement>> {
    using base = map_api<skip_list_reblock<map_slot<Key, T>, Compare, Allocator, Placement>>;

public:
    using base::base;
    using base::operator=;  // from a list
    using placement_type = Placement;

    skip_list_map() = default;
    // Inherited, g++ would not deduce the types of a container from braces.
    skip_list_map(std::initializer_list<typename base::value_type> list, const Allocator& a = Allocator())
        : base(list, a) {}
    friend void swap(skip_list_map& a, skip_list_map& b) noexcept(noexcept(a.swap(b))) { a.swap(b); }
};

/// As std::multimap; what differs stands at ordered_api.
template <class Key, class T, class Compare = std::less<Key>, class Allocator = std::allocator<std::pair<const Key, T>>,
          placement_policy Placement = placement::hint>
class skip_list_multimap
    : public ordered_api<skip_list_reblock<map_slot<Key, T>, Compare, Allocator, Placement>, true> {
    using base = ordered_api<skip_list_reblock<map_slot<Key, T>, Compare, Allocator, Placement>, true>;

public:
    using base::base;
    using base::operator=;  // from a list
    using mapped_type = T;
    using placement_type = Placement;

    skip_list_multimap() = default;
    // Inherited, g++ would not deduce the types of a container from braces.
    skip_list_multimap(std::initializer_list<typename base::value_type> list, const Allocator& a = Allocator())
        : base(list, a) {}
    friend void swap(skip_list_multimap& a, skip_list_multimap& b) noexcept(noexcept(a.swap(b))) { a.swap(b); }
};

template <
    std::input_iterator I, detail::deducible_comparison Compare = std::less<detail::key_from<I>>,
    detail::deducible_allocator Allocator = detail::default_map_allocator<detail::key_from<I>, detail::mapped_from<I>>>
skip_list_map(I, I, Compare = Compare(), Allocator = Allocator())
    -> skip_list_map<detail::key_from<I>, detail::mapped_from<I>, Compare, Allocator>;
template <std::input_iterator I, detail::deducible_allocator Allocator>
skip_list_map(I, I, Allocator)
    -> skip_list_map<detail::key_from<I>, detail::mapped_from<I>, std::less<detail::key_from<I>>, Allocator>;
template <class Key, class T, detail::deducible_comparison Compare = std::less<std::remove_const_t<Key>>,
          detail::deducible_allocator Allocator = detail::default_map_allocator<Key, T>>
skip_list_map(std::initializer_list<std::pair<Key, T>>, Compare = Compare(), Allocator = Allocator())
    -> skip_list_map<std::remove_const_t<Key>, T, Compare, Allocator>;
template <class Key, class T, detail::deducible_allocator Allocator>
skip_list_map(std::initializer_list<std::pair<Key, T>>, Allocator)
    -> skip_list_map<std::remove_const_t<Key>, T, std::less<std::remove_const_t<Key>>, Allocator>;
template <class Key, class T, class Compare, class Allocator, class Placement>
skip_list_map(const skip_list_map<Key, T, Compare, Allocator, Placement>&, std::type_identity_t<Allocator>)
    -> skip_list_map<Key, T, Compare, Allocator, Placement>;
template <class Key, class T, class Compare, class Allocator, class Placement>
skip_list_map(skip_list_map<Key, T, Compare, Allocator, Placement>&&, std::type_identity_t<Allocator>)
    -> skip_list_map<Key, T, Compare, Allocator, Placement>;

template <
    std::input_iterator I, detail::deducible_comparison Compare = std::less<detail::key_from<I>>,
    detail::deducible_allocator Allocator = detail::default_map_allocator<detail::key_from<I>, detail::mapped_from<I>>>
skip_list_multimap(I, I, Compare = Compare(), Allocator = Allocator())
    -> skip_list_multimap<detail::key_from<I>, detail::mapped_from<I>, Compare, Allocator>;
template <std::input_iterator I, detail::deducible_allocator Allocator>
skip_list_multimap(I, I, Allocator)
    -> skip_list_multimap<detail::key_from<I>, detail::mapped_from<I>, std::less<detail::key_from<I>>, Allocator>;
template <class Key, class T, detail::deducible_comparison Compare = std::less<std::remove_const_t<Key>>,
          detail::deducible_allocator Allocator = detail::default_map_allocator<Key, T>>
skip_list_multimap(std::initializer_list<std::pair<Key, T>>, Compare = Compare(), Allocator = Allocator())
    -> skip_list_multimap<std::remove_const_t<Key>, T, Compare, Allocator>;
template <class Key, class T, detail::deducible_allocator Allocator>
skip_list_multimap(std::initializer_list<std::pair<Key, T>>, Allocator)
    -> skip_list_multimap<std::remove_const_t<Key>, T, std::less<std::remove_const_t<Key>>, Allocator>;
template <class Key, class T, class Compare, class Allocator, class Placement>
skip_list_multimap(const skip_list_multimap<Key, T, Compare, Allocator, Placement>&, std::type_identity_t<Allocator>)
    -> skip_list_multimap<Key, T, Compare, Allocator, Placement>;
template <class Key, class T, class Compare, class Allocator, class Placement>
skip_list_multimap(skip_list_multimap<Key, T, Compare, Allocator, Placement>&&, std::type_identity_t<Allocator>)
    -> skip_list_multimap<Key, T, Compare, Allocator, Placement>;

}  // namespace varve
