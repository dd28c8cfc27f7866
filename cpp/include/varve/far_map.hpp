// An ordered map whose nodes live in a file while they are not in use: what a program needs to exchange its std::map
// for one that is larger than its memory, without knowing more of the library.
#pragma once

#include <algorithm>
#include <filesystem>
#include <memory>

#include "varve/alloc/collective_allocator.hpp"
#include "varve/containers/btree_map.hpp"
#include "varve/pager/space.hpp"
#include "varve/pager/stores/file.hpp"

namespace varve {

namespace detail {
/// Children of a node that fills a page, but for what the page keeps of itself.
template <class Element>
inline constexpr std::size_t fanout_of_a_page =
    std::clamp<std::size_t>((4096 - 128) / (sizeof(Element) + sizeof(void*)), 2, 511) + 1;
}  // namespace detail

/// As std::map; what differs stands at ordered_api. A leaf fills a page of 4 KiB, so a look-up waits for one page, as
/// long as what lies above the leaves fits into a quarter of the local memory. Elements must not own memory that has to
/// be paged out too: a std::string keeps its text elsewhere.
template <class Key, class T, class Compare = std::less<Key>>
using far_map = btree_map<Key, T, detail::fanout_of_a_page<std::pair<const Key, T>>, Compare,
                          collective_allocator<std::pair<const Key, T>, pager::paged_space>, placement::automatic>;

/// Memory for far maps, as the argument of their constructor: `capacity` bytes at most, of which `local` are in memory
/// at any time and the rest in the file `path`. Of the local ones, a quarter is for the upper levels of the maps, which
/// never leave it. Without io_uring or direct I/O on that file system it goes on without them. The file is of no use
/// afterwards. Throws std::system_error, or std::invalid_argument.
class far_memory {
public:
    far_memory(const std::filesystem::path& path, byte_count capacity, byte_count local)
        : heap_(std::make_shared<heap<pager::paged_space>>(byte_count{local.value / 4}, space(path, capacity, local))) {
    }

    template <class Element>
    operator collective_allocator<Element, pager::paged_space>() const {
        return collective_allocator<Element, pager::paged_space>(heap_);
    }
    [[nodiscard]] pager::paged_space& space() const noexcept { return heap_->space(); }

private:
#ifdef VARVE_PAGER_HAS_URING
    using store = pager::uring_store;
#else
    using store = pager::file_store;
#endif

    static std::shared_ptr<pager::paged_space> space(const std::filesystem::path& path, byte_count capacity,
                                                     byte_count local) {
        pager::options o;
        o.local = {local.value - local.value / 4};
        return std::make_shared<pager::paged_space>(capacity, file(path, capacity), o);
    }
    static store file(const std::filesystem::path& path, byte_count capacity) {
        try {
            return store(path, capacity, pager::opening::attach_or_create, pager::kernel_cache::none);
        } catch (const std::system_error& error) {
            if (error.code() != std::errc::invalid_argument) {
                throw;
            }
            return store(path, capacity);
        }
    }

    std::shared_ptr<heap<pager::paged_space>> heap_;
};

}  // namespace varve
