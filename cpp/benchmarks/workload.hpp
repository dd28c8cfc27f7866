// The workload of the collective-allocator study: what is inserted, and which operations follow. One generator drives
// all of it, so that every variant sees the same stream.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>

namespace bench {

using key_type = std::uint64_t;
using mapped_type = std::array<std::byte, 150>;
using generator = std::mt19937;

/// Bytes of an element with its key.
inline constexpr std::size_t element_bytes = 160;
static_assert(sizeof(std::pair<const key_type, mapped_type>) == element_bytes);

/// FNV-1a of the eight bytes of `i`, least significant first.
[[nodiscard]] constexpr key_type key_of(std::uint64_t i) noexcept {
    std::uint64_t hash = 14695981039346656037u;
    for (int byte = 0; byte < 8; ++byte) {
        hash ^= i >> (8 * byte) & 0xff;
        hash *= 1099511628211u;
    }
    return hash;
}

/// One draw per byte: its upper eight bits, which is what a uniform distribution over a power of two takes.
[[nodiscard]] inline mapped_type random_value(generator& random) {
    mapped_type value;
    for (std::byte& byte : value) {
        byte = static_cast<std::byte>(random() >> 24);
    }
    return value;
}

/// Ranks 0 to n-1, skewed as in the study, one uniform number each. The study starts from the rejection inversion of W.
/// Hoermann and G. Derflinger (1996) for Zipf's law but takes the whole part of the inverse where they round it.
/// Nothing is ever rejected then, and rank 0 comes up more often than Zipf's law says: the probability of rank k is the
/// integral of x^-exponent from k+1 to k+2, with the mass of Zipf's first rank below 1.5 added to rank 0. Counts can
/// only be compared under the same law, so it is kept.
class rank_distribution {
public:
    rank_distribution(std::uint64_t n, double exponent)
        : n_(n), exponent_(exponent), uniform_(-area(static_cast<double>(n) + 0.5), -(area(1.5) - 1.0)) {}

    [[nodiscard]] std::uint64_t operator()(generator& random) {
        const auto k = static_cast<std::uint64_t>(inverse_area(-uniform_(random)));
        return (k < 1 ? 1 : (k > n_ ? n_ : k)) - 1;
    }

    /// Integral of x^-exponent from 1 to x.
    [[nodiscard]] double area(double x) const {
        const double log_x = std::log(x);
        return expm1_over((1.0 - exponent_) * log_x) * log_x;
    }

private:
    [[nodiscard]] double inverse_area(double a) const {
        const double t = a * (1.0 - exponent_);
        return std::exp(log1p_over(t < -1.0 ? -1.0 : t) * a);
    }
    /// Exact near zero, which is where an exponent near one leads.
    [[nodiscard]] static double log1p_over(double x) {
        return std::abs(x) > 1e-8 ? std::log1p(x) / x : 1.0 - x * (0.5 - x * (1.0 / 3 - 0.25 * x));
    }
    [[nodiscard]] static double expm1_over(double x) {
        return std::abs(x) > 1e-8 ? std::expm1(x) / x : 1.0 + x * 0.5 * (1.0 + x * (1.0 / 3) * (1.0 + 0.25 * x));
    }

    std::uint64_t n_;
    double exponent_;
    std::uniform_real_distribution<double> uniform_;
};

}  // namespace bench
