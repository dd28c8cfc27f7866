// Ordinary anonymous memory seen as a swap space: nothing is ever paged out by this library.
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <stdexcept>

#include "varve/core/bits.hpp"
#include "varve/core/errors.hpp"
#include "varve/space/mapping.hpp"
#include "varve/space/swap_space.hpp"

namespace varve {

/// What the kernel may back a space with.
enum class backing {
    small_pages,  ///< memory is returned page by page
    huge_pages    ///< faster where the range is large and full
};

/// Released pages go back to the kernel together: a few wait, no more than one for 64 pages in use and 16,
/// since one that is soon asked for again would cost a call, a page fault and a huge page.
class plain_space {
public:
    /// Reserves `capacity`, rounded down to whole pages. `page` is a power of two from 4 KiB to 2 MiB.
    /// Throws std::invalid_argument or mapping_error.
    explicit plain_space(byte_count capacity, byte_count page = {4096}, backing memory = backing::small_pages)
        : page_(checked(page)),
          memory_({capacity.value / page.value * page.value}, page),
          waiting_(byte_count{bits::pieces(pages().value, 64) * sizeof(std::uint64_t)}) {
        if (memory == backing::huge_pages) {
            memory_.allow_huge_pages();
        }
    }

    [[nodiscard]] std::byte* base() const noexcept { return memory_.base(); }
    [[nodiscard]] byte_count page_bytes() const noexcept { return page_; }
    [[nodiscard]] page_count pages() const noexcept { return {memory_.size().value / page_.value}; }

    bool acquire(page_index page, page_count count) noexcept {
        const std::lock_guard lock(mutex_);
        in_use_ += count.value;
        const std::size_t end = to_number(page) + count.value;
        for (std::size_t i = bits::find_from<true>(waiting(), to_number(page), end); waiting_count_ != 0 && i < end;
             i = bits::find_from<true>(waiting(), i, end)) {
            std::memset(address_of(i), 0, page_.value);
            bits::assign<false>(waiting(), i, 1);
            --waiting_count_;
        }
        return true;
    }
    void release(page_index page, page_count count) noexcept {
        const std::lock_guard lock(mutex_);
        in_use_ -= std::min(in_use_, count.value);  // a page may be written without being acquired: it is memory
        const std::size_t first = to_number(page);
        bits::assign<true>(waiting(), first, count.value);
        waiting_count_ += count.value;
        lowest_waiting_ = std::min(lowest_waiting_, first);
        end_of_waiting_ = std::max(end_of_waiting_, first + count.value);
        if (in_use_ == 0 || waiting_count_ > in_use_ / 64 + 16) {
            forget_waiting();
        }
    }
    void pin(page_index) noexcept {}
    void unpin(page_index) noexcept {}

private:
    static byte_count checked(byte_count page) {
        if (!std::has_single_bit(page.value) || page.value < 4096 || page.value > (std::size_t{2} << 20)) {
            detail::raise(std::invalid_argument("varve: a page is a power of two from 4 KiB to 2 MiB"));
        }
        return page;
    }

    [[nodiscard]] std::uint64_t* waiting() const noexcept { return reinterpret_cast<std::uint64_t*>(waiting_.base()); }
    [[nodiscard]] std::byte* address_of(std::size_t page) const noexcept { return base() + page * page_.value; }

    void forget_waiting() noexcept {
        for (std::size_t from = bits::find_from<true>(waiting(), lowest_waiting_, end_of_waiting_);
             from < end_of_waiting_;) {
            const std::size_t to = bits::find_from<false>(waiting(), from, end_of_waiting_);
            memory_.forget(address_of(from), {(to - from) * page_.value});
            bits::assign<false>(waiting(), from, to - from);
            from = bits::find_from<true>(waiting(), to, end_of_waiting_);
        }
        waiting_count_ = 0;
        lowest_waiting_ = ~std::size_t{0};
        end_of_waiting_ = 0;
    }

    byte_count page_;
    mapping memory_;
    mapping waiting_;  ///< a bit for each page: released, and not given back yet
    std::mutex mutex_;
    std::size_t in_use_ = 0;
    std::size_t waiting_count_ = 0;
    std::size_t lowest_waiting_ = ~std::size_t{0};
    std::size_t end_of_waiting_ = 0;
};

static_assert(swap_space<plain_space>);

}  // namespace varve
