// Storage for the nodes of one container: locally, near another node, or on the page being started.
#pragma once

#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "varve/alloc/traits.hpp"

namespace varve {

/// `Allocator` allocates units, the granules that nodes are measured in. Addresses are raw: nodes of one container
/// differ in size, so none of them is an object of the allocator's type.
template <class Allocator>
class node_store {
public:
    using traits = collective_allocator_traits<Allocator>;
    using unit = typename traits::value_type;
    using unit_ptr = typename traits::pointer;
    using sub_type = typename traits::sub_allocator_type;

    explicit node_store(Allocator a) : allocator_(traits::own(std::move(a))) {}

    [[nodiscard]] const Allocator& allocator() const noexcept { return allocator_; }

    [[nodiscard]] bool is_local(const void* node) const noexcept {
        return traits::contains(allocator_, purely_local, node);
    }
    [[nodiscard]] bool same_page(const void* a, const void* b) const noexcept {
        return traits::same_page(allocator_, a, b);
    }

    [[nodiscard]] void* try_local(std::size_t units) {
        if constexpr (traits::is_collective) {
            return raw(traits::sub(allocator_, purely_local).try_allocate(units));
        } else {
            return nullptr;
        }
    }

    [[nodiscard]] void* try_on(sub_type& part, std::size_t units) { return raw(part.try_allocate(units)); }

    /// In swappable memory: on the page of the first neighbour whose page has room, else on the page being started,
    /// else on a fresh one. Half of a page is left to the neighbours of the nodes that started it. Neighbours may be
    /// null. Throws what the allocator throws when memory is out.
    [[nodiscard]] void* near(std::initializer_list<const void*> neighbours, std::size_t units) {
        if constexpr (!traits::is_collective) {
            return raw(traits::allocate(allocator_, units));
        } else {
            for (const void* neighbour : neighbours) {
                // Asked first, because a handle fetches the page.
                if (neighbour == nullptr || allocator_.room_beside(neighbour).value < units * sizeof(unit)) {
                    continue;
                }
                auto home = traits::sub(allocator_, owner_of{neighbour});
                if (void* p = raw(home.try_allocate(units)); p != nullptr) {
                    return p;
                }
            }
            if (page_.filling && page_.filling->how_full().under(percent{50})) {
                if (void* p = raw(page_.filling->try_allocate(units)); p != nullptr) {
                    return p;
                }
            }
            if (sizeof(unit) * units < page_room()) {
                page_.filling.reset();
                page_.filling.emplace(traits::sub(allocator_, fresh_page));
                page_.room = page_.filling->how_full().capacity.value - page_.filling->how_full().used.value;
                if (void* p = raw(page_.filling->try_allocate(units)); p != nullptr) {
                    return p;
                }
                page_.filling.reset();  // larger than a page
            }
            return raw(traits::sub(allocator_, swappable_plain).allocate(units));
        }
    }

    void free(void* node, std::size_t units) noexcept {
        traits::deallocate(allocator_, std::pointer_traits<unit_ptr>::pointer_to(*static_cast<unit*>(node)), units);
    }

    /// Lets the page being filled go, so that an empty structure holds no page.
    void stop_filling() noexcept {
        if constexpr (traits::is_collective) {
            page_.filling.reset();
        }
    }

    /// Whether pages can be fetched before they are touched.
    static constexpr bool fetches_ahead = requires(const Allocator& a, std::span<const page_index> pages) {
        a.memory().space().prefetch(pages);
    };
    /// Fetches the pages of nodes together; of those beyond a limit none, since too many push each other out.
    void fetch(std::vector<const void*>& nodes) const requires(fetches_ahead) {
        auto& memory = allocator_.memory();
        std::vector<page_index> pages;
        for (const void* node : nodes) {
            if (memory.is_swappable(node) && pages.size() < most_fetched) {
                const page_index page = memory.swappable().page_of(node);
                if (pages.empty() || pages.back() != page) {
                    pages.push_back(page);
                }
            }
        }
        memory.space().prefetch(pages);
    }

    /// A page of the container's own that holds nothing yet. Throws what the allocator throws.
    [[nodiscard]] sub_type new_page() { return traits::sub(allocator_, fresh_page); }

    void swap(node_store& other) noexcept {
        detail::exchange_allocators(allocator_, other.allocator_);
        if constexpr (traits::is_collective) {  // others fill no pages
            std::optional<sub_type> mine(page_.filling);
            page_.filling = other.page_.filling;
            other.page_.filling = mine;
            std::swap(page_.room, other.page_.room);
        }
    }

    node_store(const node_store&) = default;
    node_store& operator=(const node_store&) = default;

private:
    static constexpr std::size_t most_fetched = 128;

    [[nodiscard]] static void* raw(unit_ptr p) noexcept {
        return p == nullptr ? nullptr : static_cast<void*>(std::to_address(p));
    }
    /// What fits on a fresh page; unknown, and thus anything, before the first.
    [[nodiscard]] std::size_t page_room() const noexcept { return page_.room == 0 ? ~std::size_t{0} : page_.room + 1; }

    struct open_page {
        std::optional<sub_type> filling;
        std::size_t room = 0;
    };
    struct no_page_of_its_own {};
    [[no_unique_address]] Allocator allocator_;
    [[no_unique_address]] std::conditional_t<traits::is_collective, open_page, no_page_of_its_own> page_;
};

}  // namespace varve
