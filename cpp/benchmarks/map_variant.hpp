// A variant over any of the library's maps.
#pragma once

#include <optional>

#include "variant.hpp"
#include "varve/alloc/collective_allocator.hpp"

namespace bench {

using element = std::pair<const key_type, mapped_type>;
using allocator = varve::collective_allocator<element, varve::simulated_space>;

template <class Map>
class map_variant final : public variant {
public:
    explicit map_variant(const budgets& sizes)
        : allocator_(std::make_shared<allocator::heap_type>(
              sizes.local,
              std::make_shared<varve::simulated_space>(sizes.swappable, varve::byte_count{4096},
                                                       varve::backing::huge_pages),
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
        counting_.emplace(allocator_.memory().space(), buffer, policy);
    }
    [[nodiscard]] varve::page_traffic traffic() const override { return counting_->traffic(); }

    void update(key_type key, const mapped_type& value) override {
        const auto found = map_.find(key);
        found->second = value;
        if (counting_) {
            counting_->wrote(&found->second, {sizeof(mapped_type)});
        }
    }
    [[nodiscard]] std::uint64_t scan(key_type key, std::size_t length) const override {
        std::uint64_t sum = 0;
        const auto end = map_.end();
        for (auto i = map_.find(key); length > 0 && i != end; --length, ++i) {
            sum += i->first;
        }
        return sum;
    }

private:
    allocator allocator_;
    Map map_;
    std::optional<varve::simulated_space::counting_scope> counting_;
};

}  // namespace bench
