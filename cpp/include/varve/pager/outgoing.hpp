// How pages leave local memory.
#pragma once

#include <array>
#include <bit>
#include <span>

#include "varve/pager/residency.hpp"
#include "varve/pager/statistics.hpp"
#include "varve/pager/store.hpp"
#include "varve/pager/support.hpp"

namespace varve::pager::detail {

/// What an eviction achieved, in pages.
struct eviction {
    std::size_t gone = 0;
    std::size_t failed = 0;  ///< dirty, and the store did not take them
};

/// Protects, writes and forgets batches of pages that the clock's hand took. Of the engine's parts it uses, all outlive
/// it.
class outgoing {
public:
    outgoing(residency& table, const kernel::memory& memory, const kernel::userfault& faults, any_store& store,
             staging& buffers, counters& count, std::size_t page_bytes, std::size_t pages) noexcept
        : table_(table),
          memory_(memory),
          faults_(faults),
          store_(store),
          staging_(buffers),
          counters_(count),
          page_(page_bytes),
          pages_(pages) {}

    /// Takes up to `goal` pages out, writing the dirty ones first.
    eviction evict(std::size_t goal) noexcept {
        std::array<victims, most_victims> taken;
        std::array<std::uint64_t, most_victims> kept{};
        protecting_.enter();
        const std::size_t count = table_.take(std::min(goal, most_victims), taken);
        const std::span<const victims> out{taken.data(), count};
        const int error = protect_dirty(out);
        protecting_.leave();
        if (count == 0) {
            return {};
        }
        counters_.add(counted::eviction_batches);
        write_out(out, kept, error);
        return drop(out, kept);
    }

    /// Stops writes to the dirty pages of `out`, which are busy. 0 or an errno value.
    int protect_dirty(std::span<const victims> out) noexcept {
        extents ranges(memory_.start(), page_);
        const victims* before = nullptr;
        for (const victims& v : out) {
            const std::uint64_t dirty = v.dirty & ~v.open;
            const std::size_t start = v.block * block_pages;
            if (dirty == 0) {
                before = nullptr;
            } else if (v.bystanders_clean) {
                // Protecting absent and clean pages too costs less than another call.
                const auto first = static_cast<std::size_t>(std::countr_zero(dirty));
                const auto last = 64 - static_cast<std::size_t>(std::countl_zero(dirty));
                const bool adjacent = before != nullptr && before->block + 1 == v.block;
                ranges.add(start + first, start + last, adjacent ? 2 * block_pages : 0);
                before = &v;
            } else {
                for_runs(dirty, dirty,
                         [&](std::size_t first, std::size_t last) { ranges.add(start + first, start + last); });
                before = nullptr;
            }
        }
        int error = 0;
        for (const kernel::extent& e : ranges.list()) {
            error = error != 0 ? error : faults_.protect(e, true);
        }
        return error;
    }

    /// Writes the dirty pages of `out`, which are protected unless `error` says otherwise. What could not be written is
    /// in `kept`. 0 or an errno value.
    int write_out(std::span<const victims> out, std::span<std::uint64_t> kept, int error) noexcept {
        std::array<write_request, most_victims> requests;
        std::size_t count = 0;
        std::size_t total = 0;
        for (const victims& v : out) {
            total += static_cast<std::size_t>(std::popcount(v.dirty));
            for (std::uint64_t left = v.dirty & ~v.open; left != 0; left &= left - 1) {
                const std::size_t page = v.block * block_pages + static_cast<std::size_t>(std::countr_zero(left));
                requests[count++] = {offset_of(page), {memory_.start() + page * page_, page_}, {}};
            }
        }
        if (total == 0) {
            return 0;
        }
        [[maybe_unused]] const ordered_by_protection scope;
        if (error == 0 && count != 0) {
            store_.write_batch({requests.data(), count});
        }
        std::size_t next = 0;
        std::size_t failed = 0;
        for (std::size_t i = 0; i < out.size(); ++i) {
            for (std::uint64_t left = out[i].dirty; left != 0; left &= left - 1) {
                const std::uint64_t bit = left & -left;
                const bool open = (out[i].open & bit) != 0;
                const bool written =
                    error == 0 &&
                    (open ? write_open(out[i].block * block_pages + static_cast<std::size_t>(std::countr_zero(bit)))
                          : requests[next].result.complete(page_));
                next += open ? 0 : 1;
                if (!written) {
                    kept[i] |= bit;
                    ++failed;
                }
            }
        }
        counters_.add(counted::page_writes, total - failed);
        if (failed != 0) {
            counters_.add(counted::write_failures, failed);
            error = error != 0 ? error : EIO;
        }
        return error;
    }

    /// Returns when every eviction that looked at the pages before this call has protected what it wanted to.
    void let_protections_pass() noexcept {
        protecting_.close();
        protecting_.open();
    }

private:
    /// Writes a page that the program may be writing to: a copy of it, since a store that keeps a sum of what it is
    /// given reads it more than once.
    bool write_open(std::size_t page) noexcept {
        const staging::loan copy = staging_.take();
        if (copy.get() == nullptr) {
            return false;
        }
        std::memcpy(copy.get(), memory_.start() + page * page_, page_);
        return store_.write(offset_of(page), {copy.get(), page_}).complete(page_);
    }
    [[nodiscard]] store_offset offset_of(std::size_t page) const noexcept { return store_offset{page * page_}; }
    /// The pages of a block that there are: the last one may be cut short.
    [[nodiscard]] std::uint64_t existing(std::size_t block) const noexcept {
        const std::size_t left = pages_ - block * block_pages;
        return left >= block_pages ? ~std::uint64_t{0} : span_mask(0, left);
    }

    /// Unmaps what was written or clean, in as few calls as the gaps allow: absent pages between are claimed for the
    /// moment, so that one range may cover them.
    eviction drop(std::span<const victims> out, std::span<const std::uint64_t> kept) noexcept {
        extents to_forget(memory_.start(), page_);
        std::array<std::uint64_t, most_victims> between;
        for (std::size_t i = 0; i < out.size(); ++i) {
            const victims& v = out[i];
            const std::uint64_t gone = v.pages & ~kept[i];
            block& b = table_.block_at(v.block);
            {
                const holding hold(b);
                between[i] = ~b.resident & ~b.busy & existing(v.block);
                b.busy |= between[i];
            }
            for_runs(gone | between[i], gone, [&](std::size_t first, std::size_t last) {
                to_forget.add(v.block * block_pages + first, v.block * block_pages + last);
            });
        }
        kernel::forget(to_forget.list());
        eviction result;
        for (std::size_t i = 0; i < out.size(); ++i) {
            result.gone += depart(table_, out[i], out[i].pages & ~kept[i], between[i]);
            result.failed += static_cast<std::size_t>(std::popcount(kept[i]));
        }
        counters_.add(counted::evictions, result.gone);
        return result;
    }

    residency& table_;
    const kernel::memory& memory_;
    const kernel::userfault& faults_;
    any_store& store_;
    staging& staging_;
    counters& counters_;
    std::size_t page_;
    std::size_t pages_;
    gate protecting_;
};

}  // namespace varve::pager::detail
