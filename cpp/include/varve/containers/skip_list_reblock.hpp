// Re-blocking of a skip list in steps that can be interleaved with any other operation.
#pragma once

#include <algorithm>
#include <optional>

#include "varve/containers/skip_list_core.hpp"
#include "varve/placement/reblock.hpp"

namespace varve {

/// Adds re-blocking in key order, in steps that can be interleaved with any other operation. The highest nodes, one for
/// every 64 pages, lie together on pages of their own: every search begins with them, and few links lead from there to
/// the bottom.
template <class Slot, class Compare, class Allocator, placement_policy Placement>
class skip_list_reblock : public skip_list_core<Slot, Compare, Allocator, Placement> {
    using core = skip_list_core<Slot, Compare, Allocator, Placement>;

public:
    using core::core;
    using typename core::layout;
    using typename core::node;
    using typename core::node_ptr;

    static constexpr bool reblocks =
        Placement::reblocking != placement::order::none && core::store_type::traits::is_collective;

    /// Re-blocks at least `nodes_wanted` nodes. True when the pass over the list is complete; the next call then begins
    /// a new one. Throws when memory is out; the list is intact then, and a call goes on.
    bool step(std::size_t nodes_wanted) {
        if constexpr (!reblocks) {
            return true;
        } else {
            if (!fillers_.nodes) {
                while (this->promote(64)) {
                }
                const percent fill = fill_limit();
                fillers_.nodes.emplace(this->store(), fill);
                fillers_.index.emplace(this->store(), fill);
                this->resume_at_ = this->first().at;
            }
            if (this->resume_at_ != nullptr) {
                walk(nodes_wanted);
            }
            const bool complete = this->resume_at_ == nullptr;
            if (complete) {
                fillers_ = {};
            }
            return complete;
        }
    }

    void swap_content(skip_list_reblock& other) noexcept {
        core::swap_content(other);
        fillers_ = {};
        other.fillers_ = {};
    }

private:
    void walk(std::size_t nodes_wanted) {
        typename core::path before = this->path_to(this->resume_at_);
        const typename core::finger_scope follow(this->finger_, before);
        const auto evict = [this](void* object, auto find) {
            node* q = static_cast<node*>(object);
            void* home = q->linked ? find(layout::units(q->level)) : nullptr;
            if (home == nullptr) {
                return false;
            }
            this->move_to(home, layout::pointer_to(*q));
            return true;
        };
        const unsigned index_level = lowest_of_index();
        for (; this->resume_at_ != nullptr && nodes_wanted > 0; --nodes_wanted) {
            if (!this->is_local(this->resume_at_)) {
                const unsigned level = this->resume_at_->level;
                auto& chosen = level < index_level ? fillers_.nodes : fillers_.index;
                void* where = chosen->take(this->store(), layout::units(level), evict);
                if (where != nullptr) {
                    this->move_to(where, this->resume_at_, before);
                }
            }
            const node_ptr placed = this->resume_at_;
            for (unsigned l = 0; l <= placed->level; ++l) {
                before[l] = placed;
            }
            this->resume_at_ = layout::next(*placed, 0);
        }
    }

    /// The policy's limit; a higher one where insertion has left the pages so full that the list would grow by more
    /// than `most_growth`. A pass then leaves less room, and the next one, which begins with emptier pages, more.
    [[nodiscard]] percent fill_limit() {
        auto& memory = this->store().allocator().memory();
        const occupancy now = memory.swappable().how_full_of(this->store().allocator().tag());
        if (now.capacity.value == 0) {
            return Placement::fill;
        }
        const std::size_t now_percent = bits::pieces(now.used.value * 100, now.capacity.value);
        return std::max(Placement::fill,
                        percent{static_cast<unsigned>(bits::pieces(now_percent * 100, 100 + most_growth.value))});
    }

    /// With the released pages that a space keeps for a while, less than a fifth.
    static constexpr percent most_growth{18};

    /// The level of one node in 64 pages: half of the nodes of a level are on the next.
    [[nodiscard]] unsigned lowest_of_index() {
        constexpr std::size_t node_bytes = layout::units(1) * sizeof(typename layout::unit);
        const std::size_t page_bytes =
            this->store().allocator().memory().swappable().largest_in_page().value * Placement::fill.value / 100;
        return static_cast<unsigned>(std::bit_width(page_bytes / node_bytes)) + 6;
    }

    using filler = page_filler<typename core::store_type>;
    struct fillers {
        std::optional<filler> nodes;
        std::optional<filler> index;
    };
    struct no_fillers {};
    [[no_unique_address]] std::conditional_t<reblocks, fillers, no_fillers> fillers_;
};

}  // namespace varve
