// The interface of std::map over a core that can search, insert and erase. Shared by the tree and the list.
#pragma once

#include <algorithm>
#include <compare>
#include <functional>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <tuple>

#include "varve/alloc/traits.hpp"
#include "varve/containers/map_iterator.hpp"
#include "varve/containers/map_slot.hpp"
#include "varve/placement/policies.hpp"

namespace varve {

namespace detail {
// What maps are deduced from.
template <class A>
concept deducible_allocator = requires(A a) {
    typename A::value_type;
    a.allocate(std::size_t{1});
};
template <class C>
concept deducible_comparison = !deducible_allocator<C>;
template <class I>
using key_from = std::remove_const_t<typename std::iter_value_t<I>::first_type>;
template <class I>
using mapped_from = typename std::iter_value_t<I>::second_type;
template <class Key, class T>
using default_map_allocator = std::allocator<std::pair<const Key, T>>;
}  // namespace detail

/// An ordered map with unique keys. As std::map, but
///  - an insertion, an erasure and a re-blocking move elements about: they invalidate all iterators, pointers and
///    references to elements; only what the operation returns is valid after it;
///  - insertion gives the strong guarantee; erase does not throw unless the comparison does;
///  - there is no extract and no merge, since elements do not own their nodes.
/// Elements are made by the allocator's `construct`, as those of std::map, so that one with an allocator of its own
/// gets the map's; they are moved about without it. Concurrent const operations are safe where the pointer type allows
/// it; anything else needs a lock of the caller's.
template <class Core, class Key, class T, class Compare, class Allocator>
class map_api {
    template <class K>
    static constexpr bool other_key = requires {
        typename Compare::is_transparent;
    };

public:
    using key_type = Key;
    using mapped_type = T;
    using value_type = std::pair<const Key, T>;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using key_compare = Compare;
    using allocator_type = Allocator;
    using reference = value_type&;
    using const_reference = const value_type&;
    using pointer = typename std::allocator_traits<Allocator>::pointer;
    using const_pointer = typename std::allocator_traits<Allocator>::const_pointer;
    using iterator = map_iterator<Core, false>;
    using const_iterator = map_iterator<Core, true>;
    using reverse_iterator = std::reverse_iterator<iterator>;
    using const_reverse_iterator = std::reverse_iterator<const_iterator>;

    static_assert(std::same_as<typename std::allocator_traits<Allocator>::value_type, value_type>,
                  "varve: the allocator of a map must be one of pair<const Key, T>");

    class value_compare {
    public:
        bool operator()(const value_type& a, const value_type& b) const { return comp(a.first, b.first); }

    protected:
        friend class map_api;
        explicit value_compare(Compare c) : comp(std::move(c)) {}
        Compare comp;  // the standard's name
    };

    map_api() requires std::default_initializable<Allocator> : map_api(Compare(), Allocator()) {}
    explicit map_api(const Allocator& a) : map_api(Compare(), a) {}
    explicit map_api(const Compare& c, const Allocator& a = Allocator()) : core_(c, a), allocator_(a) {}
    template <std::input_iterator I>
    map_api(I first, I last, const Compare& c, const Allocator& a = Allocator()) : map_api(c, a) {
        insert(first, last);
    }
    template <std::input_iterator I>
    map_api(I first, I last, const Allocator& a = Allocator()) : map_api(first, last, Compare(), a) {}
    map_api(std::initializer_list<value_type> list, const Allocator& a = Allocator())
        : map_api(list.begin(), list.end(), Compare(), a) {}
    map_api(std::initializer_list<value_type> list, const Compare& c, const Allocator& a = Allocator())
        : map_api(list.begin(), list.end(), c, a) {}

    map_api(const map_api& other)
        : map_api(other, std::allocator_traits<Allocator>::select_on_container_copy_construction(other.allocator_)) {}
    map_api(const map_api& other, const Allocator& a) : map_api(other.key_comp(), a) {
        insert(other.begin(), other.end());
    }
    /// The comparison is copied, so that `other` can still be used; the allocator is moved.
    map_api(map_api&& other) noexcept(std::is_nothrow_copy_constructible_v<Compare>)
        : core_(other.core_.compare(), Allocator(std::move(other.allocator_))),
          allocator_(std::move(other.allocator_)) {
        core_.swap_content(other.core_);
    }
    map_api(map_api&& other, const Allocator& a) : map_api(other.key_comp(), a) { take_from(other); }
    map_api& operator=(const map_api& other) {
        if (this != &other) {
            constexpr bool propagate = std::allocator_traits<Allocator>::propagate_on_container_copy_assignment::value;
            map_api copy(other, propagate ? other.allocator_ : allocator_);
            exchange(copy);
        }
        return *this;
    }
    map_api& operator=(map_api&& other) noexcept(
        std::is_nothrow_copy_constructible_v<Compare>&& detail::exchange_is_nothrow<Compare> &&
        (std::allocator_traits<Allocator>::propagate_on_container_move_assignment::value ||
         std::allocator_traits<Allocator>::is_always_equal::value)) {
        if (this != &other) {
            if constexpr (std::allocator_traits<Allocator>::propagate_on_container_move_assignment::value) {
                map_api taken(std::move(other));
                exchange(taken);
            } else {
                map_api taken(std::move(other), allocator_);
                exchange(taken);
            }
        }
        return *this;
    }
    map_api& operator=(std::initializer_list<value_type> list) {
        map_api copy(list.begin(), list.end(), key_comp(), allocator_);
        exchange(copy);
        return *this;
    }
    ~map_api() = default;

    [[nodiscard]] allocator_type get_allocator() const noexcept { return allocator_; }
    [[nodiscard]] key_compare key_comp() const { return core_.compare(); }
    [[nodiscard]] value_compare value_comp() const { return value_compare(core_.compare()); }

    [[nodiscard]] iterator begin() noexcept { return iterator(core_.first()); }
    [[nodiscard]] const_iterator begin() const noexcept { return const_iterator(core_.first()); }
    [[nodiscard]] const_iterator cbegin() const noexcept { return begin(); }
    [[nodiscard]] iterator end() noexcept { return iterator(core_.last()); }
    [[nodiscard]] const_iterator end() const noexcept { return const_iterator(core_.last()); }
    [[nodiscard]] const_iterator cend() const noexcept { return end(); }
    [[nodiscard]] reverse_iterator rbegin() noexcept { return reverse_iterator(end()); }
    [[nodiscard]] const_reverse_iterator rbegin() const noexcept { return const_reverse_iterator(end()); }
    [[nodiscard]] reverse_iterator rend() noexcept { return reverse_iterator(begin()); }
    [[nodiscard]] const_reverse_iterator rend() const noexcept { return const_reverse_iterator(begin()); }
    [[nodiscard]] const_reverse_iterator crbegin() const noexcept { return rbegin(); }
    [[nodiscard]] const_reverse_iterator crend() const noexcept { return rend(); }

    [[nodiscard]] bool empty() const noexcept { return size() == 0; }
    [[nodiscard]] size_type size() const noexcept { return core_.size(); }
    [[nodiscard]] size_type max_size() const noexcept {
        return std::min<size_type>(
            static_cast<size_type>(std::numeric_limits<difference_type>::max()) / sizeof(value_type),
            std::allocator_traits<Allocator>::max_size(allocator_));
    }

    // ---- changes ----

    std::pair<iterator, bool> insert(const value_type& v) { return add(core_.seek(v.first), v); }
    std::pair<iterator, bool> insert(value_type&& v) { return add(core_.seek(v.first), std::move(v)); }
    template <class P>
        requires std::constructible_from<value_type, P&&> std::pair<iterator, bool> insert(P&& v) {
            return emplace(std::forward<P>(v));
        }
    iterator insert(const_iterator hint, const value_type& v) {
        return add(core_.seek(hint.where(), v.first), v).first;
    }
    iterator insert(const_iterator hint, value_type&& v) {
        return add(core_.seek(hint.where(), v.first), std::move(v)).first;
    }
    template <class P>
        requires std::constructible_from<value_type, P&&> iterator insert(const_iterator hint, P&& v) {
            return emplace_hint(hint, std::forward<P>(v));
        }
    template <std::input_iterator I>
    void insert(I first, I last) {
        for (; first != last; ++first) {
            emplace_hint(end(), *first);
        }
    }
    void insert(std::initializer_list<value_type> list) { insert(list.begin(), list.end()); }

    template <class... Args>
    std::pair<iterator, bool> emplace(Args&&... args) {
        held_slot<map_slot<Key, T>> element(allocator_, std::forward<Args>(args)...);
        const auto [where, fresh] = core_.insert(element);
        return {iterator(where), fresh};
    }
    template <class... Args>
    iterator emplace_hint(const_iterator hint, Args&&... args) {
        held_slot<map_slot<Key, T>> element(allocator_, std::forward<Args>(args)...);
        auto found = core_.seek(hint.where(), element.slot().key());
        return iterator(found.there ? found.at : core_.insert(found, element));
    }

    template <class... Args>
    std::pair<iterator, bool> try_emplace(const Key& key, Args&&... args) {
        return add_pieces(core_.seek_likely(key), key, std::forward<Args>(args)...);
    }
    template <class... Args>
    std::pair<iterator, bool> try_emplace(Key&& key, Args&&... args) {
        return add_pieces(core_.seek_likely(key), std::move(key), std::forward<Args>(args)...);
    }
    template <class... Args>
    iterator try_emplace(const_iterator hint, const Key& key, Args&&... args) {
        return add_pieces(core_.seek(hint.where(), key), key, std::forward<Args>(args)...).first;
    }
    template <class... Args>
    iterator try_emplace(const_iterator hint, Key&& key, Args&&... args) {
        return add_pieces(core_.seek(hint.where(), key), std::move(key), std::forward<Args>(args)...).first;
    }
    template <class M>
    std::pair<iterator, bool> insert_or_assign(const Key& key, M&& mapped) {
        return add_or_assign(core_.seek_likely(key), key, std::forward<M>(mapped));
    }
    template <class M>
    std::pair<iterator, bool> insert_or_assign(Key&& key, M&& mapped) {
        return add_or_assign(core_.seek_likely(key), std::move(key), std::forward<M>(mapped));
    }
    template <class M>
    iterator insert_or_assign(const_iterator hint, const Key& key, M&& mapped) {
        return add_or_assign(core_.seek(hint.where(), key), key, std::forward<M>(mapped)).first;
    }
    template <class M>
    iterator insert_or_assign(const_iterator hint, Key&& key, M&& mapped) {
        return add_or_assign(core_.seek(hint.where(), key), std::move(key), std::forward<M>(mapped)).first;
    }

    /// Gives the element after the erased one.
    iterator erase(const_iterator where) {
        iterator next;
        core_.erase(where.where(), [&](const Key& key) { next = iterator(core_.upper_bound(key)); });
        return next;
    }
    iterator erase(iterator where) { return erase(const_iterator(where)); }
    iterator erase(const_iterator first, const_iterator last) {
        for (auto left = std::distance(first, last); left > 0; --left) {
            first = erase(first);
        }
        return iterator(first.where());
    }
    size_type erase(const Key& key) { return erase_key(key); }
    template <class K>
        requires(other_key<K> && !std::convertible_to<K, const_iterator>)
    size_type erase(const K& key) {
        const auto [first, last] = equal_range(key);
        const auto n = static_cast<size_type>(std::distance(first, last));
        erase(first, last);
        return n;
    }
    void clear() noexcept { core_.clear(); }

    /// The allocators change places too where they propagate on swap; else they must be equal.
    /// If the comparison's swap throws, the elements stay where they are.
    void swap(map_api& other) noexcept(detail::exchange_is_nothrow<Compare>) { exchange(other); }
    friend void swap(map_api& a, map_api& b) noexcept(detail::exchange_is_nothrow<Compare>) { a.swap(b); }

    // ---- access ----

    [[nodiscard]] T& at(const Key& key) { return existing(*this, key); }
    [[nodiscard]] const T& at(const Key& key) const { return existing(*this, key); }
    T& operator[](const Key& key) { return try_emplace(key).first->second; }
    T& operator[](Key&& key) { return try_emplace(std::move(key)).first->second; }

    [[nodiscard]] iterator find(const Key& key) { return iterator(core_.find(key)); }
    [[nodiscard]] const_iterator find(const Key& key) const { return const_iterator(core_.find(key)); }
    [[nodiscard]] bool contains(const Key& key) const { return find(key) != end(); }
    [[nodiscard]] size_type count(const Key& key) const { return contains(key) ? 1 : 0; }
    [[nodiscard]] iterator lower_bound(const Key& key) { return iterator(core_.lower_bound(key)); }
    [[nodiscard]] const_iterator lower_bound(const Key& key) const { return const_iterator(core_.lower_bound(key)); }
    [[nodiscard]] iterator upper_bound(const Key& key) { return iterator(core_.upper_bound(key)); }
    [[nodiscard]] const_iterator upper_bound(const Key& key) const { return const_iterator(core_.upper_bound(key)); }
    [[nodiscard]] std::pair<iterator, iterator> equal_range(const Key& key) {
        return {lower_bound(key), upper_bound(key)};
    }
    [[nodiscard]] std::pair<const_iterator, const_iterator> equal_range(const Key& key) const {
        return {lower_bound(key), upper_bound(key)};
    }

    template <class K>
        requires other_key<K>
    [[nodiscard]] iterator find(const K& key) { return iterator(core_.find(key)); }
    template <class K>
        requires other_key<K>
    [[nodiscard]] const_iterator find(const K& key) const { return const_iterator(core_.find(key)); }
    template <class K>
        requires other_key<K>
    [[nodiscard]] bool contains(const K& key) const { return find(key) != end(); }
    template <class K>
        requires other_key<K>
    [[nodiscard]] size_type count(const K& key) const {
        const auto [first, last] = equal_range(key);
        return static_cast<size_type>(std::distance(first, last));
    }
    template <class K>
        requires other_key<K>
    [[nodiscard]] iterator lower_bound(const K& key) { return iterator(core_.lower_bound(key)); }
    template <class K>
        requires other_key<K>
    [[nodiscard]] const_iterator lower_bound(const K& key) const { return const_iterator(core_.lower_bound(key)); }
    template <class K>
        requires other_key<K>
    [[nodiscard]] iterator upper_bound(const K& key) { return iterator(core_.upper_bound(key)); }
    template <class K>
        requires other_key<K>
    [[nodiscard]] const_iterator upper_bound(const K& key) const { return const_iterator(core_.upper_bound(key)); }
    template <class K>
        requires other_key<K>
    [[nodiscard]] std::pair<iterator, iterator> equal_range(const K& key) {
        return {lower_bound(key), upper_bound(key)};
    }
    template <class K>
        requires other_key<K>
    [[nodiscard]] std::pair<const_iterator, const_iterator> equal_range(const K& key) const {
        return {lower_bound(key), upper_bound(key)};
    }

    // ---- placement ----

    /// Lays all swapped nodes out on pages in the order of the policy; does nothing where the policy has none. Needs at
    /// most about a fifth more memory while it runs. Throws when memory is out; the map is intact then.
    void reblock() {
        while (!reblock_step(std::numeric_limits<size_type>::max())) {
        }
    }
    /// The same bit by bit, at least so many nodes (and one) a call; other operations may come in between. True when a
    /// pass is complete.
    bool reblock_step(size_type nodes) { return core_.step(std::max<size_type>(nodes, 1)); }

    /// Where the links between nodes lead. Visits every node.
    [[nodiscard]] link_count count_links() const { return core_.count_links(); }

    /// The structure itself, for tests and tools.
    [[nodiscard]] const Core& core() const noexcept { return core_; }

    friend bool operator==(const map_api& a, const map_api& b) {
        return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
    }
    friend auto operator<=>(const map_api& a, const map_api& b) requires requires(const value_type& v) { v <=> v; }
    {
        return std::lexicographical_compare_three_way(
            a.begin(), a.end(), b.begin(), b.end(),
            [](const value_type& x, const value_type& y) { return x <=> y; });  // elements may have no ==
    }

    template <class Predicate>
    friend size_type erase_if(map_api& map, Predicate predicate) {
        const size_type before = map.size();
        for (iterator i = map.begin(); i != map.end();) {
            i = predicate(*i) ? map.erase(i) : std::next(i);
        }
        return before - map.size();
    }

private:
    /// Makes an element where a search found that its key belongs, unless it found the key.
    template <class... Args>
    std::pair<iterator, bool> add(typename Core::destination found, Args&&... args) {
        if (found.there) {
            return {iterator(found.at), false};
        }
        held_slot<map_slot<Key, T>> element(allocator_, std::forward<Args>(args)...);
        return {iterator(core_.insert(found, element)), true};
    }
    template <class K, class... Args>
    std::pair<iterator, bool> add_pieces(const typename Core::destination& found, K&& key, Args&&... args) {
        return add(found, std::piecewise_construct, std::forward_as_tuple(std::forward<K>(key)),
                   std::forward_as_tuple(std::forward<Args>(args)...));
    }
    template <class K, class M>
    std::pair<iterator, bool> add_or_assign(const typename Core::destination& found, K&& key, M&& mapped) {
        if (found.there) {
            iterator(found.at)->second = std::forward<M>(mapped);
        }
        return add(found, std::forward<K>(key), std::forward<M>(mapped));
    }
    size_type erase_key(const Key& key) {
        const iterator there = find(key);
        if (there == end()) {
            return 0;
        }
        core_.erase(there.where(), [](const Key&) {});
        return 1;
    }
    template <class Self>
    static auto& existing(Self& self, const Key& key) {
        const auto there = self.find(key);
        if (there == self.end()) {
            throw std::out_of_range("varve: no such key");
        }
        return there->second;
    }
    void take_from(map_api& other) {
        if (other.allocator_ == allocator_) {
            core_.swap_content(other.core_);
            return;
        }
        for (value_type& v : other) {
            if constexpr (std::is_copy_constructible_v<Key>) {
                emplace(std::piecewise_construct, std::forward_as_tuple(v.first),
                        std::forward_as_tuple(std::move(v.second)));
            } else {  // the other map loses all its elements in any case
                emplace(std::piecewise_construct, std::forward_as_tuple(std::move(const_cast<Key&>(v.first))),
                        std::forward_as_tuple(std::move(v.second)));
            }
        }
        other.clear();
    }
    void exchange(map_api& other) noexcept(detail::exchange_is_nothrow<Compare>) {
        core_.swap_comparison(other.core_);
        core_.swap_content(other.core_);
        detail::exchange_allocators(allocator_, other.allocator_);
    }

    Core core_;
    Allocator allocator_;
};

}  // namespace varve
