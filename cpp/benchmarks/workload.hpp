// The workload of the collective-allocator study: what is inserted, and which operations follow. One generator drives all
// of it, so that every variant sees the same stream.
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

/// Ranks 0 to n-1 with probability proportional to (rank + 1)^-exponent, by rejection inversion: W. Hoermann,
/// G. Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", 1996.
class zipf_distribution {
public:
    zipf_distribution(std::uint64_t n, double exponent)
        : n_(n),
          exponent_(exponent),
          area_first_(area(1.5) - 1.0),
          area_last_(area(static_cast<double>(n) + 0.5)),
          surely_(2.0 - inverse_area(area(2.5) - height(2.0))),
          uniform_(-area_last_, -area_first_) {}

    [[nodiscard]] std::uint64_t operator()(generator& random) {
        for (;;) {
            const double u = -uniform_(random);
            const double x = inverse_area(u);
            auto k = static_cast<std::uint64_t>(x);
            k = k < 1 ? 1 : (k > n_ ? n_ : k);
            const auto rank = static_cast<double>(k);
            if (rank - x <= surely_ || u >= area(rank + 0.5) - height(rank)) {
                return k - 1;
            }
        }
    }

private:
    [[nodiscard]] double height(double x) const { return std::exp(-exponent_ * std::log(x)); }
    /// Integral of the height, and its inverse; both stay exact where the exponent is near one.
    [[nodiscard]] double area(double x) const {
        const double log_x = std::log(x);
        return expm1_over((1.0 - exponent_) * log_x) * log_x;
    }
    [[nodiscard]] double inverse_area(double a) const {
        double t = a * (1.0 - exponent_);
        t = t < -1.0 ? -1.0 : t;
        return std::exp(log1p_over(t) * a);
    }
    [[nodiscard]] static double log1p_over(double x) {
        return std::abs(x) > 1e-8 ? std::log1p(x) / x : 1.0 - x * (0.5 - x * (1.0 / 3 - 0.25 * x));
    }
    [[nodiscard]] static double expm1_over(double x) {
        return std::abs(x) > 1e-8 ? std::expm1(x) / x : 1.0 + x * 0.5 * (1.0 + x * (1.0 / 3) * (1.0 + 0.25 * x));
    }

    std::uint64_t n_;
    double exponent_;
    double area_first_, area_last_, surely_;
    std::uniform_real_distribution<double> uniform_;
};

}  // namespace bench
