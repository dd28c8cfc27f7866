// How pages come into local memory.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "varve/pager/residency.hpp"
#include "varve/pager/statistics.hpp"
#include "varve/pager/store.hpp"
#include "varve/pager/support.hpp"

namespace varve::pager::detail {

/// Reads pages that the caller has claimed, and maps copies of them. Of the engine's parts it uses, all outlive it.
class incoming {
public:
    /// Pages that one batch reads at most.
    static constexpr std::size_t most_gathered = 64;

    incoming(const kernel::memory& memory, const kernel::userfault& faults, any_store& store, staging& buffers,
             counters& count, std::size_t page_bytes, std::size_t pages_in_buffer) noexcept
        : memory_(memory),
          faults_(faults),
          store_(store),
          staging_(buffers),
          counters_(count),
          page_(page_bytes),
          pages_in_buffer_(pages_in_buffer) {}

    /// So many pages are read at once, wherever they lie: enough that a disk has something to do, and no more memory
    /// than 256 KiB, or that of one page.
    [[nodiscard]] std::size_t gathered_at_most() const noexcept {
        return std::clamp<std::size_t>((std::size_t{256} << 10) / page_, 1, most_gathered);
    }

    /// Reads neighbouring pages from the store and maps them, the first `writable` ones open for writing.
    bool map(std::size_t page, std::size_t length, std::size_t writable) noexcept {
        const byte_count bytes{length * page_};
        const std::span<const std::byte> content = store_.view(offset_of(page), bytes);
        if (content.size() == bytes.value) {
            counters_.add(counted::page_reads, length);
            return map_copy(page, length, writable, content.data());
        }
        const staging::loan buffer = staging_.take();
        if (buffer.get() == nullptr ||
            !store_.read(offset_of(page), {buffer.get(), bytes.value}).complete(bytes.value)) {
            return false;
        }
        // Before the page is mapped: whoever waits for it may ask for the counts at once.
        counters_.add(counted::page_reads, length);
        return map_copy(page, length, writable, buffer.get());
    }

    /// Reads pages from anywhere in one batch and maps them. `pages` are in ascending order, `gathered_at_most` of them
    /// or fewer. Gives a bit for each that is there now.
    std::uint64_t map_all(std::span<const std::size_t> pages, bool writable) noexcept {
        std::array<std::optional<staging::loan>, most_gathered> buffers;
        std::array<read_request, most_gathered> requests;
        for (std::size_t i = 0; i < pages.size(); ++i) {
            std::optional<staging::loan>& buffer = buffers[i / pages_in_buffer_];
            if (!buffer) {
                buffer.emplace(staging_);
            }
            if (buffer->get() == nullptr) {
                pages = pages.first(i);
                break;
            }
            requests[i] = {offset_of(pages[i]), {buffer->get() + i % pages_in_buffer_ * page_, page_}, {}};
        }
        store_.read_batch({requests.data(), pages.size()});
        std::uint64_t there = 0;
        for (std::size_t first = 0, end = 0; first < pages.size(); first = end) {
            end = first + 1;
            if (!requests[first].result.complete(page_)) {
                continue;
            }
            // Neighbours are mapped in one call.
            while (end < pages.size() && end % pages_in_buffer_ != 0 && pages[end] == pages[end - 1] + 1 &&
                   requests[end].result.complete(page_)) {
                ++end;
            }
            const std::size_t length = end - first;
            counters_.add(counted::page_reads, length);
            if (map_copy(pages[first], length, writable ? length : 0, requests[first].data.data())) {
                there |= span_mask(first, length);
            }
        }
        return there;
    }

private:
    [[nodiscard]] store_offset offset_of(std::size_t page) const noexcept { return store_offset{page * page_}; }
    [[nodiscard]] kernel::extent extent_of(std::size_t page, std::size_t count) const noexcept {
        return {memory_.start() + page * page_, count * page_};
    }

    bool map_copy(std::size_t page, std::size_t length, std::size_t writable, const std::byte* content) noexcept {
        if (writable != 0) {
            if (const int error = faults_.copy(extent_of(page, writable), content, true); error != 0) {
                return false;
            }
        }
        if (writable == length) {
            return true;
        }
        if (faults_.copy(extent_of(page + writable, length - writable), content + writable * page_, false) == 0) {
            return true;
        }
        const kernel::extent partly = extent_of(page, length);
        kernel::forget({&partly, 1});
        return false;
    }

    const kernel::memory& memory_;
    const kernel::userfault& faults_;
    any_store& store_;
    staging& staging_;
    counters& counters_;
    std::size_t page_;
    std::size_t pages_in_buffer_;
};

}  // namespace varve::pager::detail
