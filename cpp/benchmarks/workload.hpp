// The workload of the collective-allocator study: what is inserted, and which operations follow. One generator drives
// all of it, so that every variant sees the same stream.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>

namespace bench {

using key_type = std::uint64_t;
using mapped_type = std::array<std::byte, 150>;

/// std::mt19937, word for word, in whole blocks that compilers vectorise: the values of 13 million elements are two
/// billion draws. M. Matsumoto and T. Nishimura, 1998.
class generator {
public:
    using result_type = std::mt19937::result_type;

    generator() {
        state_[0] = std::mt19937::default_seed;
        for (std::uint32_t i = 1; i < length; ++i) {
            state_[i] = 1812433253u * (state_[i - 1] ^ state_[i - 1] >> 30) + i;
        }
    }
    static constexpr result_type min() { return std::mt19937::min(); }
    static constexpr result_type max() { return std::mt19937::max(); }

    result_type operator()() {
        if (next_ == length) {
            refill();
        }
        return drawn_[next_++];
    }
    /// As so many draws, the upper eight bits of each.
    void fill(std::byte* to, std::size_t count) {
        while (count != 0) {
            if (next_ == length) {
                refill();
            }
            const std::size_t here = std::min(count, length - next_);
            for (std::size_t i = 0; i < here; ++i) {
                to[i] = static_cast<std::byte>(drawn_[next_ + i] >> 24);
            }
            to += here;
            next_ += here;
            count -= here;
        }
    }

private:
    static constexpr std::size_t length = 624;
    static constexpr std::size_t shift = 397;

    [[nodiscard]] static std::uint32_t twist(std::uint32_t upper, std::uint32_t lower) {
        const std::uint32_t both = (upper & 0x80000000u) | (lower & 0x7fffffffu);
        return both >> 1 ^ ((lower & 1u) * 0x9908b0dfu);
    }
    void refill() {
        for (std::size_t i = 0; i < length - shift; ++i) {
            state_[i] = state_[i + shift] ^ twist(state_[i], state_[i + 1]);
        }
        for (std::size_t i = length - shift; i < length - 1; ++i) {
            state_[i] = state_[i + shift - length] ^ twist(state_[i], state_[i + 1]);
        }
        state_[length - 1] = state_[shift - 1] ^ twist(state_[length - 1], state_[0]);
        for (std::size_t i = 0; i < length; ++i) {
            std::uint32_t y = state_[i];
            y ^= y >> 11;
            y ^= y << 7 & 0x9d2c5680u;
            y ^= y << 15 & 0xefc60000u;
            drawn_[i] = y ^ y >> 18;
        }
        next_ = 0;
    }

    std::array<std::uint32_t, length> state_;
    std::array<std::uint32_t, length> drawn_;
    std::size_t next_ = length;
};

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
    random.fill(value.data(), value.size());
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
