// The parts of a memory that a sub-allocator can stand for.
#pragma once

#include <cstddef>
#include <type_traits>

namespace varve {

/// Local memory, never paged out, within a byte budget.
struct purely_local_t {};
inline constexpr purely_local_t purely_local{};

/// Swappable memory, the allocator choosing the page.
struct swappable_plain_t {};
inline constexpr swappable_plain_t swappable_plain{};

/// A page of swappable memory that holds nothing yet.
struct fresh_page_t {};
inline constexpr fresh_page_t fresh_page{};

/// Wherever the object at this address is: the same page, or the same part where pages mean nothing.
struct owner_of {
    const void* address;
};

/// Objects asked for: `count` of type T in a row.
template <class T>
struct request {
    using type = T;
    std::size_t count = 1;
};

namespace detail {
template <class R>
inline constexpr bool is_request = false;
template <class T>
inline constexpr bool is_request<request<T>> = true;
}  // namespace detail

}  // namespace varve
