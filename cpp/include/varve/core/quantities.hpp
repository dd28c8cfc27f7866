// Strong types for the quantities that public signatures speak of.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

namespace varve {

/// Position of a page inside one reserved range, counted from the range's base.
enum class page_index : std::uint64_t {};

/// No page at all.
inline constexpr page_index no_page{~std::uint64_t{0}};

[[nodiscard]] constexpr std::uint64_t to_number(page_index page) noexcept {
    return static_cast<std::uint64_t>(page);
}

/// A number of pages.
struct page_count {
    std::size_t value = 0;
    constexpr auto operator<=>(const page_count&) const noexcept = default;
};

/// A number of bytes.
struct byte_count {
    std::size_t value = 0;
    constexpr auto operator<=>(const byte_count&) const noexcept = default;
};

[[nodiscard]] constexpr byte_count operator+(byte_count a, byte_count b) noexcept {
    return {a.value + b.value};
}

/// A share in percent, 0 to 100.
struct percent {
    unsigned value = 0;
    constexpr auto operator<=>(const percent&) const noexcept = default;
};

namespace literals {
[[nodiscard]] constexpr byte_count operator""_B(unsigned long long n) noexcept {
    return {static_cast<std::size_t>(n)};
}
[[nodiscard]] constexpr byte_count operator""_KiB(unsigned long long n) noexcept {
    return {static_cast<std::size_t>(n) << 10};
}
[[nodiscard]] constexpr byte_count operator""_MiB(unsigned long long n) noexcept {
    return {static_cast<std::size_t>(n) << 20};
}
[[nodiscard]] constexpr byte_count operator""_GiB(unsigned long long n) noexcept {
    return {static_cast<std::size_t>(n) << 30};
}
}  // namespace literals

}  // namespace varve
