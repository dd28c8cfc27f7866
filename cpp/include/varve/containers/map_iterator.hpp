// The bidirectional iterator of both ordered maps.
#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <type_traits>

namespace varve {

/// `Core::position` says where; `Core::value_at` gives the element there.
template <class Core, bool Constant>
class map_iterator {
public:
    using iterator_category = std::bidirectional_iterator_tag;
    using value_type = typename Core::value_type;
    using difference_type = std::ptrdiff_t;
    using reference = std::conditional_t<Constant, const value_type&, value_type&>;
    using pointer = std::conditional_t<Constant, const value_type*, value_type*>;
    using position = typename Core::position;

    map_iterator() noexcept = default;
    explicit map_iterator(position where) noexcept : where_(where) {}
    template <bool C>
        requires(Constant && !C)
    map_iterator(const map_iterator<Core, C>& other)
    noexcept : where_(other.where()) {}

    [[nodiscard]] position where() const noexcept { return where_; }
    reference operator*() const noexcept { return Core::value_at(where_); }
    pointer operator->() const noexcept { return std::addressof(Core::value_at(where_)); }
    map_iterator& operator++() noexcept {
        where_.advance();
        return *this;
    }
    map_iterator& operator--() noexcept {
        where_.retreat();
        return *this;
    }
    map_iterator operator++(int) noexcept {
        map_iterator old = *this;
        ++*this;
        return old;
    }
    map_iterator operator--(int) noexcept {
        map_iterator old = *this;
        --*this;
        return old;
    }
    template <bool C>
    friend bool operator==(const map_iterator& a, const map_iterator<Core, C>& b) noexcept {
        return a.where() == b.where();
    }

private:
    position where_{};
};

}  // namespace varve
