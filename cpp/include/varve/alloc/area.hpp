// An allocator over one swap space: slabs by size class, pages by name, and runs of pages for what is larger.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "varve/alloc/page_block.hpp"
#include "varve/alloc/page_map.hpp"
#include "varve/alloc/page_record.hpp"
#include "varve/core/errors.hpp"
#include "varve/space/swap_space.hpp"

namespace varve {

/// How full a page is.
struct occupancy {
    byte_count used;  ///< the page's own header included
    byte_count capacity;
    [[nodiscard]] bool under(percent limit) const noexcept { return used.value * 100 < capacity.value * limit.value; }
};

/// Every member may be called by several threads at once. `contains`, `page_of` and `how_full` take no lock and touch
/// local records only. Allocation returns null where there is no room; it does not throw.
template <swap_space Space>
class area {
public:
    /// Slots of a slab are aligned to this where their size is a multiple of it; stricter requests get pages of their
    /// own.
    static constexpr std::size_t slot_alignment = 64;

    /// The space must outlive the area.
    explicit area(Space& space)
        : space_(space),
          base_(space.base()),
          page_bytes_(space.page_bytes()),
          shift_(static_cast<unsigned>(std::countr_zero(page_bytes_.value))),
          length_(space.pages().value << shift_),
          map_(space.pages()),
          records_storage_(byte_count{space.pages().value * sizeof(page_record)}),
          with_room_(page_block::usable_granules(page_bytes_) + 1, page_record::nowhere),
          slack_(with_room_.size(), 0) {}

    area(const area&) = delete;
    area& operator=(const area&) = delete;

    ~area() {
        const std::size_t end = to_number(map_.end());
        for (std::size_t i = 0; i < end; ++i) {
            const std::size_t first = i;
            while (i < end && kind_of(page_index{i}) != page_kind::unused) {
                ++i;
            }
            if (i != first) {
                space_.release(page_index{first}, {i - first});
            }
        }
    }

    [[nodiscard]] bool contains(const void* address) const noexcept {
        return reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(base_) < length_;
    }
    [[nodiscard]] page_index page_of(const void* address) const noexcept {
        return page_index{static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - base_) >> shift_};
    }
    [[nodiscard]] byte_count page_bytes() const noexcept { return page_bytes_; }
    [[nodiscard]] page_kind kind_of(page_index page) const noexcept {
        return record(page).kind.load(std::memory_order_relaxed);
    }
    [[nodiscard]] owner_tag tag_of(page_index page) const noexcept {
        return record(page).tag.load(std::memory_order_relaxed);
    }
    [[nodiscard]] occupancy how_full(page_index page) const noexcept {
        const page_kind kind = kind_of(page);
        if (kind == page_kind::run || kind == page_kind::run_tail) {
            return {page_bytes_, page_bytes_};
        }
        const std::size_t granules = kind == page_kind::unused ? 0
                                                               : record(page).used.load(std::memory_order_relaxed) +
                                                                     page_block::header_granules(page_bytes_);
        return {{granules * page_block::granule}, page_bytes_};
    }
    /// Pages that there can be.
    [[nodiscard]] page_count pages() const noexcept { return {length_ >> shift_}; }
    /// Pages acquired from the space now.
    [[nodiscard]] page_count pages_in_use() const noexcept {
        const std::lock_guard lock(mutex_);
        return map_.taken();
    }
    /// One past the highest page ever acquired.
    [[nodiscard]] page_index end() const noexcept {
        const std::lock_guard lock(mutex_);
        return map_.end();
    }
    /// The largest object that fits on one page.
    [[nodiscard]] byte_count largest_in_page() const noexcept {
        return {page_block::usable_granules(page_bytes_) * page_block::granule};
    }

    /// From the slab of its size class, or whole pages if it is larger than a page.
    [[nodiscard]] void* allocate(byte_count size, std::size_t alignment, owner_tag tag) {
        const std::size_t granules = bits::pieces(size.value == 0 ? 1 : size.value, page_block::granule);
        const std::lock_guard lock(mutex_);
        if (granules > page_block::usable_granules(page_bytes_) || alignment > slot_alignment) {
            return alignment > page_bytes_.value ? nullptr : allocate_run(size, tag);
        }
        const std::size_t step = alignment > page_block::granule ? alignment / page_block::granule : 1;
        return allocate_slab(bits::round_up(granules, step), alignment, tag);
    }

    /// On the given page, which must be a block page that the caller keeps alive; null if it has no room.
    [[nodiscard]] void* allocate_on(page_index page, byte_count size, std::size_t alignment, owner_tag tag) noexcept {
        const std::size_t granules = bits::pieces(size.value == 0 ? 1 : size.value, page_block::granule);
        page_record& entry = record(page);
        if (entry.used.load(std::memory_order_relaxed) + granules > page_block::usable_granules(page_bytes_)) {
            return nullptr;
        }
        const std::lock_guard lock(mutex_);
        if (entry.kind.load(std::memory_order_relaxed) != page_kind::block) {
            return nullptr;
        }
        std::byte* object = block(page).take(granules, alignment, entry.rover);
        if (object != nullptr) {
            entry.used.fetch_add(static_cast<std::uint32_t>(granules), std::memory_order_relaxed);
            if (entry.tag.load(std::memory_order_relaxed) != tag) {
                entry.tag.store(0, std::memory_order_relaxed);
            }
        }
        return object;
    }

    /// An empty block page, pinned once. no_page if there is none.
    [[nodiscard]] page_index open_page(owner_tag tag) {
        const std::lock_guard lock(mutex_);
        const page_index page = acquire(page_kind::block, {1}, tag);
        if (page == no_page) {
            return no_page;
        }
        VARVE_TRY {
            space_.pin(page);
        }
        VARVE_CATCH(...) {
            release(page, {1});
            VARVE_RETHROW;
        }
        block(page).format();
        record(page).pins.store(1, std::memory_order_relaxed);
        return page;
    }

    /// `size` and `alignment` are those of the allocation.
    void deallocate(void* address, byte_count size, std::size_t alignment) noexcept {
        auto* object = static_cast<std::byte*>(address);
        const page_index page = page_of(object);
        page_record& entry = record(page);
        const std::lock_guard lock(mutex_);
        switch (entry.kind.load(std::memory_order_relaxed)) {
            case page_kind::run:
                release(page, {entry.extent});
                return;
            case page_kind::slab: {
                const std::uint32_t granules = entry.extent;
                block(page).give_back(object, granules, entry.rover);
                const auto left = entry.used.fetch_sub(granules, std::memory_order_relaxed) - granules;
                ++slack_[granules];
                if (left == 0) {
                    drop_slab(page);
                } else if (!entry.listed) {
                    list(page);
                }
                return;
            }
            case page_kind::block: {
                assert(block(page).starts_object(object));
                static_cast<void>(alignment);
                const std::size_t granules = bits::pieces(size.value == 0 ? 1 : size.value, page_block::granule);
                block(page).give_back(object, granules, entry.rover);
                entry.used.fetch_sub(static_cast<std::uint32_t>(granules), std::memory_order_relaxed);
                release_if_idle(page);
                return;
            }
            case page_kind::unused:
            case page_kind::run_tail:
                assert(false && "varve: not an address that this allocator gave out");
        }
    }

    /// Keeps a page acquired, and in memory, until the matching unpin. The page must hold an object or a pin.
    void pin(page_index page) {
        space_.pin(page);
        record(page).pins.fetch_add(1, std::memory_order_relaxed);
    }
    void unpin(page_index page) noexcept {
        space_.unpin(page);
        if (record(page).pins.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            const std::lock_guard lock(mutex_);
            release_if_idle(page);
        }
    }

    /// Calls `bool visit(void*)` for the objects on a slab or block page until it says false. The visitor may free the
    /// object it is given; the page must be pinned.
    template <class Visitor>
    void for_each_object(page_index page, Visitor&& visit) {
        std::byte* object = nullptr;
        for (;;) {
            {
                const std::lock_guard lock(mutex_);
                object = block(page).next_object(object);
            }
            if (object == nullptr || !visit(static_cast<void*>(object))) {
                return;
            }
        }
    }

    /// Begins a re-blocking by the owner of `tag`: none of its pages is settled.
    void unsettle_pages(owner_tag tag) noexcept {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < to_number(map_.end()); ++i) {
            if (tag_of(page_index{i}) == tag) {
                record(page_index{i}).settled = false;
            }
        }
    }
    /// Marks a page as laid out by the current re-blocking.
    void settle_page(page_index page) noexcept {
        const std::lock_guard lock(mutex_);
        record(page).settled = true;
    }
    /// How full the block pages of `tag` are, all together.
    [[nodiscard]] occupancy how_full_of(owner_tag tag) const noexcept {
        const std::lock_guard lock(mutex_);
        occupancy all{};
        for (std::size_t i = 0; i < to_number(map_.end()); ++i) {
            if (kind_of(page_index{i}) == page_kind::block && tag_of(page_index{i}) == tag) {
                const occupancy page = how_full(page_index{i});
                all = {all.used + page.used, all.capacity + page.capacity};
            }
        }
        return all;
    }
    /// The block pages of `tag` that are neither settled nor pinned, emptiest first.
    [[nodiscard]] std::vector<page_index> unsettled_pages(owner_tag tag) const {
        const std::lock_guard lock(mutex_);
        std::vector<page_index> pages;
        for (std::size_t i = 0; i < to_number(map_.end()); ++i) {
            const page_record& entry = record(page_index{i});
            if (entry.kind.load() == page_kind::block && entry.tag.load() == tag && !entry.settled &&
                entry.pins.load() == 0) {
                pages.push_back(page_index{i});
            }
        }
        std::sort(pages.begin(), pages.end(),
                  [this](page_index a, page_index b) { return record(a).used.load() < record(b).used.load(); });
        return pages;
    }

    /// A slab of `tag` whose objects would all fit into the holes of other slabs of its class, pinned; no_page if none.
    /// Emptying it gives a page to other classes.
    [[nodiscard]] page_index slab_to_empty(owner_tag tag) {
        constexpr int looked_at = 64;
        const std::lock_guard lock(mutex_);
        for (std::size_t granules = 1; granules < with_room_.size(); ++granules) {
            const std::size_t slots = page_block::usable_granules(page_bytes_) / granules;
            if (slack_[granules] < slots) {
                continue;
            }
            std::uint32_t best = page_record::nowhere;
            int budget = looked_at;
            for (std::uint32_t i = with_room_[granules]; i != page_record::nowhere && budget-- > 0;
                 i = record(page_index{i}).next) {
                page_record& entry = record(page_index{i});
                if (entry.tag.load(std::memory_order_relaxed) == tag && entry.pins.load() == 0 &&
                    (best == page_record::nowhere || entry.used < record(page_index{best}).used)) {
                    best = i;
                }
            }
            if (best != page_record::nowhere) {
                unlist(page_index{best});
                record(page_index{best}).listed = true;  // not offered to allocations while it is emptied
                record(page_index{best}).pins.fetch_add(1);
                return page_index{best};
            }
        }
        return no_page;
    }

    /// Ends the emptying of a slab: gives its page back if nothing is left on it.
    void end_emptying(page_index page) noexcept {
        const std::lock_guard lock(mutex_);
        page_record& entry = record(page);
        entry.pins.fetch_sub(1);
        if (entry.used.load() == 0) {
            entry.listed = false;
            drop_slab(page);
        } else {
            list(page);
        }
    }

private:
    [[nodiscard]] page_record& record(page_index page) const noexcept {
        return reinterpret_cast<page_record*>(records_storage_.base())[to_number(page)];
    }
    [[nodiscard]] page_block block(page_index page) const noexcept {
        return {base_ + (to_number(page) << shift_), page_bytes_};
    }

    page_index acquire(page_kind kind, page_count count, owner_tag tag) {
        const page_index page = map_.take(count);
        if (page == no_page) {
            return no_page;
        }
        bool granted = false;
        VARVE_TRY {
            granted = space_.acquire(page, count);
        }
        VARVE_CATCH(...) {  // a refusal, whatever it is called
        }
        if (!granted) {
            map_.give_back(page, count);
            return no_page;
        }
        for (std::size_t i = 0; i < count.value; ++i) {
            page_record* entry = std::construct_at(&record(page_index{to_number(page) + i}));
            entry->kind.store(i == 0 ? kind : page_kind::run_tail, std::memory_order_relaxed);
            entry->tag.store(tag, std::memory_order_relaxed);
        }
        return page;
    }

    void release(page_index page, page_count count) noexcept {
        for (std::size_t i = 0; i < count.value; ++i) {
            record(page_index{to_number(page) + i}).kind.store(page_kind::unused, std::memory_order_relaxed);
        }
        space_.release(page, count);
        map_.give_back(page, count);
    }

    void release_if_idle(page_index page) noexcept {
        page_record& entry = record(page);
        if (entry.kind.load() == page_kind::block && entry.used.load() == 0 && entry.pins.load() == 0) {
            release(page, {1});
        }
    }

    void* allocate_run(byte_count size, owner_tag tag) {
        const page_count count{bits::pieces(size.value, page_bytes_.value)};
        const page_index page = acquire(page_kind::run, count, tag);
        if (page == no_page) {
            return nullptr;
        }
        record(page).extent = static_cast<std::uint32_t>(count.value);
        return base_ + (to_number(page) << shift_);
    }

    void* allocate_slab(std::size_t granules, std::size_t alignment, owner_tag tag) {
        std::uint32_t first = with_room_[granules];
        // Slabs are not shared between owners: a container must be able to list what is its own.
        while (first != page_record::nowhere && record(page_index{first}).tag.load() != tag) {
            first = record(page_index{first}).next;
        }
        if (first == page_record::nowhere) {
            const page_index page = acquire(page_kind::slab, {1}, tag);
            if (page == no_page) {
                return nullptr;
            }
            block(page).format();
            record(page).extent = static_cast<std::uint32_t>(granules);
            slack_[granules] += page_block::usable_granules(page_bytes_) / granules;
            list(page);
            first = static_cast<std::uint32_t>(to_number(page));
        }
        const page_index page{first};
        page_record& entry = record(page);
        std::byte* object = block(page).take(granules, alignment, entry.rover);
        --slack_[granules];
        if (entry.used.fetch_add(static_cast<std::uint32_t>(granules)) + 2 * granules >
            page_block::usable_granules(page_bytes_)) {
            unlist(page);
        }
        return object;
    }

    void drop_slab(page_index page) noexcept {
        if (record(page).pins.load() != 0) {
            return;
        }
        if (record(page).listed) {
            unlist(page);
        }
        slack_[record(page).extent] -= page_block::usable_granules(page_bytes_) / record(page).extent;
        release(page, {1});
    }

    void list(page_index page) noexcept {
        page_record& entry = record(page);
        std::uint32_t& head = with_room_[entry.extent];
        entry.listed = true;
        entry.previous = page_record::nowhere;
        entry.next = head;
        if (head != page_record::nowhere) {
            record(page_index{head}).previous = static_cast<std::uint32_t>(to_number(page));
        }
        head = static_cast<std::uint32_t>(to_number(page));
    }

    void unlist(page_index page) noexcept {
        page_record& entry = record(page);
        if (entry.previous != page_record::nowhere) {
            record(page_index{entry.previous}).next = entry.next;
        } else {
            with_room_[entry.extent] = entry.next;
        }
        if (entry.next != page_record::nowhere) {
            record(page_index{entry.next}).previous = entry.previous;
        }
        entry.listed = false;
        entry.next = entry.previous = page_record::nowhere;
    }

    Space& space_;
    std::byte* base_;
    byte_count page_bytes_;
    unsigned shift_;
    std::size_t length_;
    mutable std::mutex mutex_;
    page_map map_;
    mapping records_storage_;
    std::vector<std::uint32_t> with_room_;  ///< per class: first slab with room
    std::vector<std::size_t> slack_;        ///< per class: free slots
};

}  // namespace varve
