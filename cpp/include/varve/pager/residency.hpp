// Which pages are in local memory, and which leave when room is needed. The pager and the simulator share it, so that
// their counts agree; nothing here touches the paged memory or the store.
//
// Pages are kept 64 to a block: one cache line of bit masks and one short lock. The clock's hand goes over the blocks
// in the order of addresses, so that what it takes lies together: one call to the kernel protects or forgets many
// pages. User space cannot see which resident page was read. What it can see is a page that comes back: one that left
// less than one round of the hand before returns hot and is then spared as often as its heat says (the idea of 2Q's
// ghost list, at one bit a page).
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "varve/core/quantities.hpp"

namespace varve::pager {

/// Which page leaves when local memory is full.
enum class replacement {
    sweep,   ///< the next resident page under the hand, in the order of addresses
    refault  ///< as sweep, but pages that came back soon after they left are spared a few rounds
};

namespace detail {

inline constexpr std::size_t block_pages = 64;

/// `count` bits, 1 to 64, from bit `first` on.
[[nodiscard]] constexpr std::uint64_t span_mask(std::size_t first, std::size_t count) noexcept {
    return (count == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1) << first;
}

/// The masks of 64 pages. All but `lock` and `epoch` are read and written with `lock` held.
struct alignas(64) block {
    std::atomic<std::uint32_t> lock{0};
    std::atomic<std::uint32_t> epoch{0};  ///< changes when a busy page ceases to be
    std::uint64_t resident = 0;           ///< mapped in local memory
    std::uint64_t busy = 0;               ///< on its way in or out, by one thread; others wait for the epoch
    std::uint64_t dirty = 0;              ///< differs from the store, or may
    std::uint64_t pinned = 0;             ///< must stay
    std::uint64_t ghost = 0;              ///< left less than one round of the hand ago
    std::uint64_t heat_low = 0, heat_high = 0;

    void raise_heat(std::uint64_t pages) noexcept {
        heat_low |= pages;
        heat_high |= pages;
    }
    /// Takes one off the heat of those of `pages` that have any, and says which these were.
    std::uint64_t cool(std::uint64_t pages) noexcept {
        const std::uint64_t warm = pages & (heat_low | heat_high);
        const std::uint64_t borrow = warm & ~heat_low;
        heat_low ^= warm;
        heat_high ^= borrow;
        return warm;
    }
};
static_assert(sizeof(block) == 64);

/// Holds a block's lock. Never held over a call to the kernel or the store.
class holding {
public:
    explicit holding(block& b) noexcept : block_(&b) {
        while (b.lock.exchange(1, std::memory_order_acquire) != 0) {
            b.lock.wait(1, std::memory_order_relaxed);
        }
    }
    holding(const holding&) = delete;
    holding& operator=(const holding&) = delete;
    ~holding() { release(); }
    void release() noexcept {
        if (block_ != nullptr) {
            block_->lock.store(0, std::memory_order_release);
            block_->lock.notify_one();
            block_ = nullptr;
        }
    }

private:
    block* block_;
};

/// Pages of one block that the hand took: they are busy until `finish`.
struct victims {
    std::size_t block = 0;
    std::uint64_t pages = 0;
    std::uint64_t dirty = 0;       ///< of these, what must be written first
    std::uint64_t open = 0;        ///< of the dirty, what must not be write-protected
    bool bystanders_clean = true;  ///< no other page of the block would notice being write-protected
};

inline constexpr std::size_t most_victims = 128;

class residency {
public:
    residency(page_count pages, page_count budget, replacement policy)
        : budget_(budget.value),
          policy_(policy),
          count_((pages.value + block_pages - 1) / block_pages),
          blocks_(std::make_unique<block[]>(count_)) {}

    [[nodiscard]] block& at(std::size_t page) noexcept { return blocks_[page / block_pages]; }
    [[nodiscard]] block& block_at(std::size_t index) noexcept { return blocks_[index]; }
    [[nodiscard]] std::size_t blocks() const noexcept { return count_; }
    [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
    [[nodiscard]] std::size_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::size_t peak() const noexcept { return peak_.load(std::memory_order_relaxed); }
    static constexpr std::uint64_t bit(std::size_t page) noexcept { return std::uint64_t{1} << (page % block_pages); }

    /// Takes room for `n` pages, or none of it.
    [[nodiscard]] bool reserve(std::size_t n) noexcept {
        std::size_t now = used_.load(std::memory_order_relaxed);
        do {
            if (now + n > budget_) {
                return false;
            }
        } while (!used_.compare_exchange_weak(now, now + n, std::memory_order_relaxed));
        std::size_t peak = peak_.load(std::memory_order_relaxed);
        while (now + n > peak && !peak_.compare_exchange_weak(peak, now + n, std::memory_order_relaxed)) {
        }
        return true;
    }
    void give_back(std::size_t n) noexcept { used_.fetch_sub(n, std::memory_order_relaxed); }

    /// How many pages leave at once, where `asked` are configured: no more than an eighth of local memory.
    [[nodiscard]] std::size_t batch(page_count asked) const noexcept {
        return std::max<std::size_t>(1, std::min(asked.value, budget_ / 8));
    }

    /// How many pages to fetch along with `page`: as many as the run of resident pages before it is long, from two on.
    /// The block's lock is held.
    [[nodiscard]] std::size_t ahead(const block& b, std::size_t page, page_count most) const noexcept {
        const std::size_t slot = page % block_pages;
        if (most.value == 0 || slot == 0) {
            return 0;
        }
        const auto run = static_cast<std::size_t>(std::countl_one(b.resident << (block_pages - slot)));
        return run < 2 ? 0 : std::min({run, most.value, budget_ / 4});
    }

    /// Claims `page`, which is absent, and those after it up to `most` pages, the end of the block or one that is
    /// present or busy. Returns how many. The block's lock is held.
    static std::size_t claim_run(block& b, std::size_t page, std::size_t most) noexcept {
        const std::size_t slot = page % block_pages;
        const auto open = static_cast<std::size_t>(std::countr_one(~(b.resident | b.busy) >> slot));
        const std::size_t length = std::max<std::size_t>(1, std::min({most, block_pages - slot, open}));
        b.busy |= span_mask(slot, length);
        return length;
    }

    /// Marks pages that were filled. `missed` were asked for; the rest came along. Returns how many were ghosts.
    /// The block's lock is held.
    std::size_t arrived(block& b, std::uint64_t filled, std::uint64_t missed, bool written) noexcept {
        b.resident |= filled;
        if (written) {
            b.dirty |= missed;
        }
        const std::uint64_t back = b.ghost & missed;
        b.ghost &= ~filled;
        b.heat_low &= ~filled;
        b.heat_high &= ~filled;
        if (policy_ == replacement::refault) {
            b.raise_heat(back);
        }
        return static_cast<std::size_t>(std::popcount(back));
    }

    /// Ends the business of `pages` and wakes who waits for it. The block's lock is held by `hold` and let go.
    static void settle(block& b, std::uint64_t pages, holding& hold) noexcept {
        b.busy &= ~pages;
        b.epoch.fetch_add(1, std::memory_order_release);
        hold.release();
        b.epoch.notify_all();
    }

    /// The pages that are on their way now, and how often such a way has ended until now.
    struct movement {
        std::size_t busy = 0;
        std::uint64_t ended = 0;
    };
    /// Goes over all blocks, one after the other: for when there is nothing else to do.
    [[nodiscard]] movement look_for_movement() noexcept {
        movement m;
        for (std::size_t i = 0; i < count_; ++i) {
            const holding hold(blocks_[i]);
            m.busy += static_cast<std::size_t>(std::popcount(blocks_[i].busy));
            m.ended += blocks_[i].epoch.load(std::memory_order_relaxed);
        }
        return m;
    }

    /// Moves the hand until it has at least `goal` pages, or nothing more is to be had. Returns how many entries of
    /// `out` it filled.
    std::size_t take(std::size_t goal, std::span<victims> out) noexcept {
        const std::lock_guard guard(hand_);
        std::size_t entries = 0;
        std::size_t taken = 0;
        // Heat is at most 3: four rounds find a page if there is one to be found.
        for (std::size_t steps = 0; steps < 4 * count_ + 1 && taken < goal && entries < out.size(); ++steps) {
            block& b = blocks_[position_];
            victims v = look(b, goal - taken);
            if (v.pages != 0) {
                v.block = position_;
                taken += static_cast<std::size_t>(std::popcount(v.pages));
                out[entries++] = v;
            }
            if (!stay_) {
                position_ = position_ + 1 == count_ ? 0 : position_ + 1;
            }
        }
        return entries;
    }

private:
    victims look(block& b, std::size_t wanted) noexcept {
        const holding hold(b);
        // `entered_` remembers how far into this block the hand has come.
        const std::uint64_t ahead = ~std::uint64_t{0} << entered_;
        if (entered_ == 0) {
            b.ghost = 0;  // these left a whole round ago
        }
        std::uint64_t open = b.resident & ~b.busy & ~b.pinned & ahead;
        std::uint64_t chosen = 0;
        stay_ = false;
        std::uint64_t passed = open;
        const std::uint64_t warm = open & (b.heat_low | b.heat_high);
        open &= ~warm;
        while (open != 0 && wanted != 0) {
            const std::uint64_t lowest = open & -open;
            chosen |= lowest;
            open ^= lowest;
            --wanted;
        }
        if (open != 0) {
            // Full before the end of the block: the hand stops behind the last page that it took.
            const auto last = static_cast<unsigned>(63 - std::countl_zero(chosen));
            passed &= last == 63 ? ~std::uint64_t{0} : (std::uint64_t{1} << (last + 1)) - 1;
            entered_ = last + 1;
            stay_ = true;
        } else {
            entered_ = 0;
        }
        b.cool(warm & passed);
        b.busy |= chosen;
        victims v;
        v.pages = chosen;
        v.dirty = chosen & b.dirty;
        v.bystanders_clean = (b.dirty & ~chosen) == 0;
        return v;
    }

    std::size_t budget_;
    replacement policy_;
    std::size_t count_;
    std::unique_ptr<block[]> blocks_;
    alignas(64) std::atomic<std::size_t> used_{0};
    std::atomic<std::size_t> peak_{0};
    alignas(64) std::mutex hand_;
    std::size_t position_ = 0;
    unsigned entered_ = 0;
    bool stay_ = false;
};

/// Says when nothing can leave: the hand finds no page also where all that could leave are on their way for a moment.
class standstill {
public:
    /// The caller itself keeps `own` pages busy.
    standstill(residency& table, std::size_t own) noexcept : table_(table), own_(own) {}

    /// Whether no page but the caller's was busy at any moment since the call before. The first one says no.
    [[nodiscard]] bool lasts() noexcept {
        const residency::movement now = table_.look_for_movement();
        const bool still = before_.busy <= own_ && now.busy <= own_ && now.ended == before_.ended;
        before_ = now;
        return still;
    }

private:
    residency& table_;
    std::size_t own_;
    residency::movement before_{~std::size_t{0}, 0};  ///< at first as if all moved
};

/// Ends an eviction in the masks: `gone` left and their room is free, the rest of `v` stays. Returns how many left.
inline std::size_t depart(residency& table, const victims& v, std::uint64_t gone, std::uint64_t also_busy) noexcept {
    block& b = table.block_at(v.block);
    holding hold(b);
    b.resident &= ~gone;
    b.dirty &= ~gone;
    b.ghost |= gone;
    const auto left = static_cast<std::size_t>(std::popcount(gone));
    // Before the pages cease to be busy: room is in a page or free, unless something is busy.
    table.give_back(left);
    residency::settle(b, v.pages | also_busy, hold);
    return left;
}

}  // namespace detail

}  // namespace varve::pager
