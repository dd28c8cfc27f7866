// Arithmetic on sizes and bit maps.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace varve::bits {

/// `n` rounded up to a multiple of `step`, which need not be a power of two.
[[nodiscard]] constexpr std::size_t round_up(std::size_t n, std::size_t step) noexcept {
    return (n + step - 1) / step * step;
}

/// How many pieces of `step` hold `n`.
[[nodiscard]] constexpr std::size_t pieces(std::size_t n, std::size_t step) noexcept {
    return (n + step - 1) / step;
}

[[nodiscard]] inline bool test(const std::uint64_t* words, std::size_t bit) noexcept {
    return (words[bit / 64] >> (bit % 64) & 1) != 0;
}

/// Sets or clears `count` bits from `first` on.
template <bool Value>
inline void assign(std::uint64_t* words, std::size_t first, std::size_t count) noexcept {
    while (count != 0) {
        const std::size_t offset = first % 64;
        const std::size_t here = count < 64 - offset ? count : 64 - offset;
        const std::uint64_t mask = (here == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << here) - 1) << offset;
        if constexpr (Value) {
            words[first / 64] |= mask;
        } else {
            words[first / 64] &= ~mask;
        }
        first += here;
        count -= here;
    }
}

/// First bit equal to `Value` at or after `from`, or `end`.
template <bool Value>
[[nodiscard]] inline std::size_t find_from(const std::uint64_t* words, std::size_t from, std::size_t end) noexcept {
    while (from < end) {
        const std::uint64_t word = (Value ? words[from / 64] : ~words[from / 64]) >> (from % 64);
        if (word != 0) {
            const std::size_t hit = from + static_cast<std::size_t>(std::countr_zero(word));
            return hit < end ? hit : end;
        }
        from = (from / 64 + 1) * 64;
    }
    return end;
}

/// Start of the first run of `count` clear bits in [from, end) whose start is a multiple of `step`; `end` if none.
[[nodiscard]] inline std::size_t find_clear_run(const std::uint64_t* words, std::size_t from, std::size_t end,
                                                std::size_t count, std::size_t step) noexcept {
    while (from < end) {
        const std::size_t gap = find_from<false>(words, from, end);
        const std::size_t start = round_up(gap, step);
        if (start + count > end) {
            return end;
        }
        const std::size_t stop = find_from<true>(words, gap, start + count);
        if (stop == start + count) {
            return start;
        }
        from = stop + 1;
    }
    return end;
}

}  // namespace varve::bits
