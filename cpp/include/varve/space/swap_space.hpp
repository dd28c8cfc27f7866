// What an address range must offer so that an allocator can live on it.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>

#include "varve/core/quantities.hpp"

namespace varve {

/// One reserved range of addresses, cut into pages of equal size, a power of two of at least 4 KiB.
///
/// `acquire` makes pages usable and reads as zero; false means that no memory can be had. `release` forgets their
/// content and gives the memory back. A pinned page is not paged out; pins nest. Whoever allocates from the space
/// sees to it that acquired ranges do not overlap. All operations may be called by several threads at once.
// clang-format off
template <class S>
concept swap_space = requires(S& space, const S& constant, page_index page, page_count pages) {
    { constant.base() } noexcept -> std::same_as<std::byte*>;
    { constant.page_bytes() } noexcept -> std::same_as<byte_count>;
    { constant.pages() } noexcept -> std::same_as<page_count>;
    { space.acquire(page, pages) } -> std::same_as<bool>;
    { space.release(page, pages) } noexcept;
    { space.pin(page) };
    { space.unpin(page) } noexcept;
};
// clang-format on

namespace detail {
template <class S, class T>
struct space_pointer {
    using type = T*;
};
template <class S, class T>
    requires requires {
        typename S::template pointer<T>;
    }
struct space_pointer<S, T> {
    using type = typename S::template pointer<T>;
};
}  // namespace detail

/// The pointer type of a space: plain, unless the space names a template `pointer` of its own.
template <class S, class T>
using space_pointer_t = typename detail::space_pointer<S, T>::type;

}  // namespace varve
