// Which pages of a range are taken: one bit each, lowest free page first.
#pragma once

#include "varve/core/bits.hpp"
#include "varve/space/mapping.hpp"

namespace varve {

class page_map {
public:
    explicit page_map(page_count pages)
        : pages_(pages.value), storage_(byte_count{bits::pieces(pages.value, 64) * sizeof(std::uint64_t)}) {}

    /// Takes `count` neighbouring pages; no_page if there are none.
    [[nodiscard]] page_index take(page_count count) noexcept {
        lowest_ = bits::find_from<false>(words(), lowest_, pages_);
        const std::size_t first = bits::find_clear_run(words(), lowest_, pages_, count.value, 1);
        if (first + count.value > pages_) {
            return no_page;
        }
        bits::assign<true>(words(), first, count.value);
        taken_ += count.value;
        end_ = first + count.value > end_ ? first + count.value : end_;
        return page_index{first};
    }

    void give_back(page_index page, page_count count) noexcept {
        bits::assign<false>(words(), to_number(page), count.value);
        taken_ -= count.value;
        lowest_ = to_number(page) < lowest_ ? to_number(page) : lowest_;
    }

    [[nodiscard]] page_count taken() const noexcept { return {taken_}; }
    [[nodiscard]] page_count room() const noexcept { return {pages_ - taken_}; }
    /// One past the highest page ever taken.
    [[nodiscard]] page_index end() const noexcept { return page_index{end_}; }

private:
    [[nodiscard]] std::uint64_t* words() const noexcept { return reinterpret_cast<std::uint64_t*>(storage_.base()); }

    std::size_t pages_;
    mapping storage_;
    std::size_t lowest_ = 0;
    std::size_t taken_ = 0;
    std::size_t end_ = 0;
};

}  // namespace varve
