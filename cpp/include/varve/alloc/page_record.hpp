// What is known of a page without touching it.
#pragma once

#include <atomic>
#include <cstdint>

namespace varve {

enum class page_kind : std::uint8_t {
    unused,   ///< not acquired
    slab,     ///< objects of one size class
    block,    ///< objects of any size, allocated on this page by name
    run,      ///< first page of an object larger than a page
    run_tail  ///< further page of such an object
};

/// Whose objects a page holds: 0 for anybody's. A container draws a tag of its own, so that it can list its objects.
using owner_tag = std::uint32_t;

/// Lives in local memory, one per page. The atomic fields are read without a lock.
struct page_record {
    static constexpr std::uint32_t nowhere = ~std::uint32_t{0};

    std::atomic<page_kind> kind{page_kind::unused};
    bool listed = false;                 ///< in the list of slabs of its class with room
    bool settled = false;                ///< filled by the current re-blocking of its owner
    std::atomic<std::uint32_t> pins{0};  ///< handles that keep the page
    std::atomic<std::uint32_t> used{0};  ///< granules of objects
    std::uint32_t extent = 0;            ///< slab: granules per object; run: pages
    std::atomic<owner_tag> tag{0};
    std::uint32_t rover = 0;  ///< where page_block starts to search
    std::uint32_t next = nowhere;
    std::uint32_t previous = nowhere;
};

}  // namespace varve
