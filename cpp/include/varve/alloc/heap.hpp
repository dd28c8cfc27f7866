// One memory: a local part with a budget, and a swappable part on a space of the caller's choice.
#pragma once

#include <cstdint>
#include <memory>

#include "varve/alloc/area.hpp"
#include "varve/alloc/parts.hpp"
#include "varve/space/plain_space.hpp"

namespace varve {

/// Sizes of a heap.
struct heap_sizes {
    byte_count local;      ///< budget of the purely local part: committed memory, not only live objects
    byte_count swappable;  ///< address range of the swappable part
};

/// Shared by all allocators made from it; gives all memory back when the last of them goes. Thread-safe.
template <swap_space Space>
class heap {
public:
    /// A heap over a space that others may look at too. With huge pages behind the local part, the kernel commits 2 MiB
    /// at a time, but no more than the budget.
    heap(byte_count local_budget, std::shared_ptr<Space> space, backing local = backing::small_pages)
        : space_(std::move(space)),
          local_space_(local_budget, byte_count{4096}, local),
          local_(local_space_),
          swappable_(*space_) {}

    [[nodiscard]] bool is_local(const void* address) const noexcept { return local_.contains(address); }
    [[nodiscard]] bool is_swappable(const void* address) const noexcept { return swappable_.contains(address); }
    [[nodiscard]] bool contains(const void* address) const noexcept {
        return is_local(address) || is_swappable(address);
    }

    [[nodiscard]] area<plain_space>& local() noexcept { return local_; }
    [[nodiscard]] area<Space>& swappable() noexcept { return swappable_; }
    [[nodiscard]] Space& space() noexcept { return *space_; }

    void deallocate(void* address, byte_count size, std::size_t alignment) noexcept {
        if (is_local(address)) {
            local_.deallocate(address, size, alignment);
        } else {
            swappable_.deallocate(address, size, alignment);
        }
    }

    /// A tag that no other owner of this heap has.
    [[nodiscard]] owner_tag new_tag() noexcept { return next_tag_.fetch_add(1, std::memory_order_relaxed); }

private:
    std::shared_ptr<Space> space_;
    plain_space local_space_;
    area<plain_space> local_;
    area<Space> swappable_;
    std::atomic<owner_tag> next_tag_{1};
};

/// A heap on a space of type `Space` made for it. Throws mapping_error.
template <swap_space Space = plain_space>
[[nodiscard]] std::shared_ptr<heap<Space>> make_heap(heap_sizes sizes, byte_count page = {4096}) {
    return std::make_shared<heap<Space>>(sizes.local, std::make_shared<Space>(sizes.swappable, page));
}

}  // namespace varve
