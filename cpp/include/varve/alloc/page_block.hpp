// The layout of a page that objects are allocated in: a map of the used 16-byte granules, a map of the granules where
// an object starts, then the granules. Both maps lie in the page itself, so they are paged with the objects they speak
// of.
#pragma once

#include <cstring>

#include "varve/core/bits.hpp"
#include "varve/core/quantities.hpp"

namespace varve {

/// A view of one page as granules. Owns nothing; the caller sees to mutual exclusion.
class page_block {
public:
    static constexpr std::size_t granule = 16;

    page_block(std::byte* page, byte_count page_bytes) noexcept
        : page_(page), granules_(page_bytes.value / granule), words_(granules_ / 64) {}

    /// Granules that the two maps take.
    [[nodiscard]] static constexpr std::size_t header_granules(byte_count page_bytes) noexcept {
        return page_bytes.value / granule / 4 / granule;
    }

    /// Granules that objects can take.
    [[nodiscard]] static constexpr std::size_t usable_granules(byte_count page_bytes) noexcept {
        return page_bytes.value / granule - header_granules(page_bytes);
    }

    void format() noexcept {
        std::memset(page_, 0, header_granules({granules_ * granule}) * granule);
        bits::assign<true>(used(), 0, header_granules({granules_ * granule}));
    }

    /// Takes `count` granules in a row, aligned to `alignment` bytes. Null if there are none.
    /// `rover` is the first word that may have a free granule; the call moves it on.
    [[nodiscard]] std::byte* take(std::size_t count, std::size_t alignment, std::uint32_t& rover) noexcept {
        const std::size_t step = alignment > granule ? alignment / granule : 1;
        while (rover < words_ && used()[rover] == ~std::uint64_t{0}) {
            ++rover;
        }
        const std::size_t first = bits::find_clear_run(used(), std::size_t{rover} * 64, granules_, count, step);
        if (first >= granules_) {
            return nullptr;
        }
        bits::assign<true>(used(), first, count);
        bits::assign<true>(starts(), first, 1);
        return page_ + first * granule;
    }

    void give_back(const std::byte* object, std::size_t count, std::uint32_t& rover) noexcept {
        const std::size_t first = static_cast<std::size_t>(object - page_) / granule;
        bits::assign<false>(used(), first, count);
        bits::assign<false>(starts(), first, 1);
        if (first / 64 < rover) {
            rover = static_cast<std::uint32_t>(first / 64);
        }
    }

    [[nodiscard]] bool starts_object(const void* address) const noexcept {
        const std::size_t offset = static_cast<std::size_t>(static_cast<const std::byte*>(address) - page_);
        return offset % granule == 0 && bits::test(starts(), offset / granule);
    }

    /// First object that starts after `previous` (null: the first of all), or null.
    [[nodiscard]] std::byte* next_object(const std::byte* previous) const noexcept {
        const std::size_t from = previous == nullptr ? 0 : static_cast<std::size_t>(previous - page_) / granule + 1;
        const std::size_t hit = bits::find_from<true>(starts(), from, granules_);
        return hit == granules_ ? nullptr : page_ + hit * granule;
    }

private:
    [[nodiscard]] std::uint64_t* used() const noexcept { return reinterpret_cast<std::uint64_t*>(page_); }
    [[nodiscard]] std::uint64_t* starts() const noexcept { return used() + words_; }

    std::byte* page_;
    std::size_t granules_;
    std::size_t words_;
};

}  // namespace varve
