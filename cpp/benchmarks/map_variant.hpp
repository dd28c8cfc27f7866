// A variant over any of the library's maps, its swappable part paged for real or on paper.
#pragma once

#include <optional>

#include "variant.hpp"
#include "varve/alloc/collective_allocator.hpp"
#include "varve/pager/space.hpp"
#include "varve/pager/stores/memory.hpp"

namespace bench {

using element = std::pair<const key_type, mapped_type>;

/// How each kind of pager is made and asked.
template <pager_kind>
class paged_memory;

template <>
class paged_memory<pager_kind::simulated> {
public:
    using space = varve::simulated_space;

    [[nodiscard]] static std::shared_ptr<space> make(const budgets& sizes) {
        return std::make_shared<space>(sizes.swappable, varve::byte_count{4096}, varve::backing::huge_pages);
    }
    void start(space& memory, varve::page_count buffer, varve::replacement policy) {
        counting_.emplace(memory, buffer, policy);
    }
    [[nodiscard]] varve::page_traffic traffic(space&) const { return counting_->traffic(); }
    [[nodiscard]] std::optional<paging> details(const space&) const { return std::nullopt; }
    void wrote(const void* address, varve::byte_count size) {
        if (counting_) {
            counting_->wrote(address, size);
        }
    }

private:
    std::optional<varve::simulated_space::counting_scope> counting_;
};

template <>
class paged_memory<pager_kind::real> {
public:
    using space = varve::pager::paged_space;

    [[nodiscard]] static std::shared_ptr<space> make(const budgets& sizes) {
        varve::pager::options o;
        o.local = {sizes.buffer.value * o.page.value};
        return std::make_shared<space>(sizes.swappable, varve::pager::memory_store(sizes.swappable), o);
    }
    void start(space& memory, varve::page_count, varve::replacement) {
        memory.page_out();
        before_ = memory.read_statistics();
    }
    /// What is dirty it learns by writing it.
    [[nodiscard]] varve::page_traffic traffic(space& memory) const {
        const auto now = memory.read_statistics();
        memory.flush();
        return {now.page_reads - before_.page_reads, now.page_writes - before_.page_writes,
                memory.read_statistics().page_writes - now.page_writes};
    }
    [[nodiscard]] std::optional<paging> details(const space& memory) const {
        const auto now = memory.read_statistics();
        return paging{now.faults - before_.faults, now.write_traps - before_.write_traps, memory.base(),
                      memory.base() + memory.pages().value * memory.page_bytes().value};
    }
    void wrote(const void*, varve::byte_count) {}  // the hardware tells

private:
    varve::pager::statistics before_;
};

template <template <class Allocator> class Map, pager_kind Kind>
class map_variant final : public variant {
public:
    using space = typename paged_memory<Kind>::space;
    using allocator = varve::collective_allocator<element, space>;

    explicit map_variant(const budgets& sizes)
        : allocator_(std::make_shared<typename allocator::heap_type>(sizes.local, paged_memory<Kind>::make(sizes),
                                                                     varve::backing::huge_pages)),
          map_(allocator_) {}

    void insert(key_type key, const mapped_type& value) override { map_.emplace(key, value); }
    void reblock() override { map_.reblock(); }
    [[nodiscard]] varve::link_count links() const override { return map_.count_links(); }
    [[nodiscard]] footprint memory() const override {
        auto& heap = allocator_.memory();
        return {{heap.local().pages_in_use().value * heap.local().page_bytes().value},
                {heap.swappable().pages_in_use().value * heap.swappable().page_bytes().value}};
    }

    void start_counting(varve::page_count buffer, varve::replacement policy) override {
        paged_.start(allocator_.memory().space(), buffer, policy);
    }
    [[nodiscard]] varve::page_traffic traffic() override { return paged_.traffic(allocator_.memory().space()); }
    [[nodiscard]] std::optional<paging> real_paging() const override {
        return paged_.details(allocator_.memory().space());
    }

    void update(key_type key, const mapped_type& value) override {
        const auto found = map_.find(key);
        found->second = value;
        paged_.wrote(&found->second, {sizeof(mapped_type)});
    }
    void fetch_ahead() override { fetches_ahead_ = true; }
    [[nodiscard]] std::uint64_t scan(key_type key, std::size_t length) const override {
        std::uint64_t sum = 0;
        const auto end = map_.end();
        auto i = map_.find(key);
        if (fetches_ahead_) {
            map_.prefetch(i, length);
        }
        for (; length > 0 && i != end; --length, ++i) {
            sum += i->first;
        }
        return sum;
    }

private:
    allocator allocator_;
    Map<allocator> map_;
    paged_memory<Kind> paged_;
    bool fetches_ahead_ = false;
};

}  // namespace bench
