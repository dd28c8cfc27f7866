// Ordinary anonymous memory seen as a swap space: nothing is ever paged out by this library.
#pragma once

#include <bit>
#include <stdexcept>

#include "varve/space/mapping.hpp"
#include "varve/space/swap_space.hpp"

namespace varve {

/// What the kernel may back a space with.
enum class backing {
    small_pages,  ///< memory is returned page by page
    huge_pages    ///< faster where the range is large and full
};

class plain_space {
public:
    /// Reserves `capacity`, rounded down to whole pages. `page` is a power of two from 4 KiB to 2 MiB.
    /// Throws std::invalid_argument or mapping_error.
    explicit plain_space(byte_count capacity, byte_count page = {4096}, backing memory = backing::small_pages)
        : page_(checked(page)), memory_({capacity.value / page.value * page.value}, page) {
        if (memory == backing::huge_pages) {
            memory_.allow_huge_pages();
        }
    }

    [[nodiscard]] std::byte* base() const noexcept { return memory_.base(); }
    [[nodiscard]] byte_count page_bytes() const noexcept { return page_; }
    [[nodiscard]] page_count pages() const noexcept { return {memory_.size().value / page_.value}; }

    bool acquire(page_index, page_count) noexcept { return true; }
    void release(page_index page, page_count count) noexcept {
        memory_.forget(base() + to_number(page) * page_.value, {count.value * page_.value});
    }
    void pin(page_index) noexcept {}
    void unpin(page_index) noexcept {}

private:
    static byte_count checked(byte_count page) {
        if (!std::has_single_bit(page.value) || page.value < 4096 || page.value > (std::size_t{2} << 20)) {
            throw std::invalid_argument("varve: a page is a power of two from 4 KiB to 2 MiB");
        }
        return page;
    }

    byte_count page_;
    mapping memory_;
};

static_assert(swap_space<plain_space>);

}  // namespace varve
