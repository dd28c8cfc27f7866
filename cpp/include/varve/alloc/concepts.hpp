// The contracts of allocators that place objects, as concepts.
#pragma once

#include <concepts>
#include <memory>

#include "varve/alloc/area.hpp"
#include "varve/alloc/parts.hpp"

namespace varve {

/// What the standard asks of an allocator.
// clang-format off
template <class A>
concept standard_allocator = std::copy_constructible<A> && std::equality_comparable<A> &&
                             requires(A& a, std::size_t n, typename std::allocator_traits<A>::pointer p) {
                                 typename A::value_type;
                                 { std::allocator_traits<A>::allocate(a, n) } -> std::same_as<decltype(p)>;
                                 std::allocator_traits<A>::deallocate(a, p, n);
                             };
// clang-format on

/// A standard allocator for one part of a memory, which can be asked about it and does not have to throw.
// clang-format off
template <class S>
concept sub_allocator_like = standard_allocator<S> && requires(S& s, const S& c, const void* p, std::size_t n) {
    { s.try_allocate(n) } -> std::same_as<typename std::allocator_traits<S>::pointer>;
    { s.try_allocate_all(request<typename S::value_type>{n}, request<char>{n}) };
    { c.contains(p) } noexcept -> std::same_as<bool>;
    { c.how_full() } -> std::same_as<occupancy>;
    { c.page() } noexcept -> std::same_as<page_index>;
};
// clang-format on

/// A standard allocator that hands out sub-allocators for the parts of its memory.
// clang-format off
template <class A>
concept collective_allocator_like =
    standard_allocator<A> && sub_allocator_like<typename A::sub_allocator_type> &&
    requires(const A& a, const void* p, typename A::sub_allocator_type target,
             typename std::allocator_traits<A>::pointer& object) {
        { a.sub(purely_local) } -> std::same_as<typename A::sub_allocator_type>;
        { a.sub(swappable_plain) } -> std::same_as<typename A::sub_allocator_type>;
        { a.sub(fresh_page) } -> std::same_as<typename A::sub_allocator_type>;
        { a.sub(owner_of{p}) } -> std::same_as<typename A::sub_allocator_type>;
        { a.contains(p) } noexcept -> std::same_as<bool>;
        { a.contains(purely_local, p) } noexcept -> std::same_as<bool>;
        { a.same_page(p, p) } noexcept -> std::same_as<bool>;
        { a.room_beside(p) } noexcept -> std::same_as<byte_count>;
        {
            a.relocate(target, [](auto, auto) {}, std::tie(object), request<typename A::value_type>{1})
        } -> std::same_as<bool>;
    };
// clang-format on

}  // namespace varve
