// What std::map, std::multimap, std::set and std::multiset have in common, over a core that can search, insert and
// erase.
#pragma once

#include <algorithm>
#include <compare>
#include <concepts>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>

#include "varve/alloc/traits.hpp"
#include "varve/containers/map_iterator.hpp"
#include "varve/containers/node_handle.hpp"
#include "varve/containers/slots.hpp"
#include "varve/placement/policies.hpp"

namespace varve {

namespace detail {
template <class Element>
concept ordered = requires(const Element& e) {
    { e < e } -> std::convertible_to<bool>;
};
/// By <=>, if there is one, else by <, as the standard's containers do.
template <ordered Element>
constexpr auto compare_elements(const Element& a, const Element& b) {
    if constexpr (requires { a <=> b; }) {
        return a <=> b;
    } else {
        return a < b ? std::weak_ordering::less : b < a ? std::weak_ordering::greater : std::weak_ordering::equivalent;
    }
}
}  // namespace detail

template <class Core, bool Multi>
class ordered_api;

namespace detail {
// What containers are deduced from.
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

/// The value_compare of maps.
template <class Compare, class Value>
class compare_by_key {
public:
    bool operator()(const Value& a, const Value& b) const { return comp(a.first, b.first); }

protected:
    template <class, bool>
    friend class varve::ordered_api;
    explicit compare_by_key(Compare c) : comp(std::move(c)) {}
    Compare comp;  // the standard's name
};

/// A template of its own, so that the compiler's message names both types.
template <class Given, class Element>
struct allocates {
    static_assert(
        std::is_same_v<Given, Element>,
        "varve: the allocator's value_type is not the container's: pair<const Key, T> for a map, Key for a set");
    static constexpr bool value = true;
};
template <class Compare, class Key>
struct orders {
    static_assert(std::is_invocable_r_v<bool, const Compare&, const Key&, const Key&>,
                  "varve: the comparison must be callable, as const, with two keys, and say which is first");
    static constexpr bool value = true;
};
}  // namespace detail

/// An ordered container; `Multi`: of elements with keys that may be equal, which stay in the order of their insertion.
/// As the standard's, but
///  - an insertion, an erasure and a re-blocking move elements about: they invalidate all iterators, pointers and
///    references to elements; only what the operation returns is valid after it;
///  - insertion gives the strong guarantee; erase does not throw unless the comparison does;
///  - `extract` moves the element out, into the handle, and may run out of memory where the element is larger than 1
///  KiB;
///    `merge` moves elements from node to node. It throws where memory is out; the elements are in either container
///    then. Containers of other kinds, fan-outs, comparisons and placements can be merged if elements and allocator are
///    the same.
/// Elements are made by the allocator's `construct`, as those of the standard's, so that one with an allocator of its
/// own gets the container's; they are moved about without it. Elements may be larger than the stack. Concurrent const
/// operations are safe where the pointer type allows it; anything else needs a lock of the caller's.
template <class Core, bool Multi>
class ordered_api {
protected:
    using slot = typename Core::slot;
    using destination = typename Core::destination;
    using held = held_slot<slot, typename Core::allocator_type>;
    template <class K>
    static constexpr bool other_key = requires {
        typename Core::key_compare::is_transparent;
    };

public:
    using key_type = typename slot::key_type;
    using value_type = typename slot::value_type;
    using size_type = std::size_t;
    using difference_type = std::ptrdiff_t;
    using key_compare = typename Core::key_compare;
    using value_compare =
        std::conditional_t<slot::is_map, detail::compare_by_key<key_compare, value_type>, key_compare>;
    using allocator_type = typename Core::allocator_type;
    using reference = value_type&;
    using const_reference = const value_type&;
    using pointer = typename std::allocator_traits<allocator_type>::pointer;
    using const_pointer = typename std::allocator_traits<allocator_type>::const_pointer;
    using iterator = map_iterator<Core, !slot::is_map>;
    using const_iterator = map_iterator<Core, true>;
    using reverse_iterator = std::reverse_iterator<iterator>;
    using const_reverse_iterator = std::reverse_iterator<const_iterator>;
    using node_type = node_handle<slot, allocator_type>;
    /// What `insert` and `emplace` give: the element; and, where keys are unique, whether it is new.
    using insertion = std::conditional_t<Multi, iterator, std::pair<iterator, bool>>;
    struct unique_handle_insertion {
        iterator position;
        bool inserted = false;
        node_type node;
    };
    using insert_return_type = std::conditional_t<Multi, iterator, unique_handle_insertion>;

    static_assert(detail::allocates<typename std::allocator_traits<allocator_type>::value_type, value_type>::value);
    static_assert(detail::orders<key_compare, key_type>::value);

    ordered_api() requires std::default_initializable<allocator_type> : ordered_api(key_compare(), allocator_type()) {}
    explicit ordered_api(const allocator_type& a) : ordered_api(key_compare(), a) {}
    explicit ordered_api(const key_compare& c, const allocator_type& a = allocator_type())
        : allocator_(a), core_(c, a) {}
    /// Linear where the range is in order.
    template <std::input_iterator I>
    ordered_api(I first, I last, const key_compare& c, const allocator_type& a = allocator_type()) : ordered_api(c, a) {
        insert(first, last);
    }
    template <std::input_iterator I>
    ordered_api(I first, I last, const allocator_type& a = allocator_type())
        : ordered_api(first, last, key_compare(), a) {}
    ordered_api(std::initializer_list<value_type> list, const allocator_type& a = allocator_type())
        : ordered_api(list.begin(), list.end(), key_compare(), a) {}
    ordered_api(std::initializer_list<value_type> list, const key_compare& c,
                const allocator_type& a = allocator_type())
        : ordered_api(list.begin(), list.end(), c, a) {}

    ordered_api(const ordered_api& other)
        : ordered_api(other,
                      std::allocator_traits<allocator_type>::select_on_container_copy_construction(other.allocator_)) {}
    ordered_api(const ordered_api& other, const allocator_type& a) : ordered_api(other.key_comp(), a) {
        insert(other.begin(), other.end());
    }
    /// The comparison is copied, so that `other` can still be used; the allocator is moved.
    ordered_api(ordered_api&& other) noexcept(std::is_nothrow_copy_constructible_v<key_compare>)
        : allocator_(std::move(other.allocator_)), core_(other.core_.compare(), allocator_) {
        core_.swap_content(other.core_);
    }
    ordered_api(ordered_api&& other, const allocator_type& a) : ordered_api(other.key_comp(), a) { take_from(other); }
    ordered_api& operator=(const ordered_api& other) {
        if (this != std::addressof(other)) {
            constexpr bool propagate =
                std::allocator_traits<allocator_type>::propagate_on_container_copy_assignment::value;
            ordered_api copy(other, propagate ? other.allocator_ : allocator_);
            exchange(copy);
        }
        return *this;
    }
    ordered_api& operator=(ordered_api&& other) noexcept(
        std::is_nothrow_copy_constructible_v<key_compare>&& detail::exchange_is_nothrow<key_compare> &&
        (std::allocator_traits<allocator_type>::propagate_on_container_move_assignment::value ||
         std::allocator_traits<allocator_type>::is_always_equal::value)) {
        if (this != std::addressof(other)) {
            if constexpr (std::allocator_traits<allocator_type>::propagate_on_container_move_assignment::value) {
                ordered_api taken(std::move(other));
                exchange(taken);
            } else {
                ordered_api taken(std::move(other), allocator_);
                exchange(taken);
            }
        }
        return *this;
    }
    ordered_api& operator=(std::initializer_list<value_type> list) {
        ordered_api copy(list.begin(), list.end(), key_comp(), allocator_);
        exchange(copy);
        return *this;
    }
    ~ordered_api() = default;

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
            std::allocator_traits<allocator_type>::max_size(allocator_));
    }

    // ---- changes ----

    insertion insert(const value_type& v) { return add(seek(slot::key_of(v)), v); }
    insertion insert(value_type&& v) { return add(seek(slot::key_of(v)), std::move(v)); }
    template <class P>
        requires(slot::is_map&& std::constructible_from<value_type, P&&>)
    insertion insert(P&& v) { return emplace(std::forward<P>(v)); }
    iterator insert(const_iterator hint, const value_type& v) { return place_of(add(seek(hint, slot::key_of(v)), v)); }
    iterator insert(const_iterator hint, value_type&& v) {
        return place_of(add(seek(hint, slot::key_of(v)), std::move(v)));
    }
    template <class P>
        requires(slot::is_map&& std::constructible_from<value_type, P&&>)
    iterator insert(const_iterator hint, P&& v) { return emplace_hint(hint, std::forward<P>(v)); }
    template <std::input_iterator I>
    void insert(I first, I last) {
        for (; first != last; ++first) {
            if constexpr (std::same_as<std::remove_cvref_t<std::iter_reference_t<I>>, value_type>) {
                insert(end(), *first);
            } else {
                emplace_hint(end(), *first);
            }
        }
    }
    void insert(std::initializer_list<value_type> list) { insert(list.begin(), list.end()); }

    template <class... Args>
    insertion emplace(Args&&... args) {
        held element(allocator_, std::forward<Args>(args)...);
        return add_loose(seek(element.slot().key()), element);
    }
    template <class... Args>
    iterator emplace_hint(const_iterator hint, Args&&... args) {
        held element(allocator_, std::forward<Args>(args)...);
        return place_of(add_loose(seek(hint, element.slot().key()), element));
    }

    /// Gives the element after the erased one.
    iterator erase(const_iterator where) { return iterator(core_.template take_out<true>(where.where(), destroy)); }
    iterator erase(iterator where) requires(!std::same_as<iterator, const_iterator>) {
        return erase(const_iterator(where));
    }
    /// Linear in the number of elements between.
    iterator erase(const_iterator first, const_iterator last) {
        if (first == begin() && last == end()) {
            clear();
            return end();
        }
        return iterator(core_.erase(first.where(), static_cast<size_type>(std::distance(first, last))));
    }
    size_type erase(const key_type& key) { return erase_key(key); }
    template <class K>
        requires(other_key<K> && !std::convertible_to<K, const_iterator> && !std::convertible_to<K, iterator>)
    size_type erase(const K& key) { return erase_key(key); }
    void clear() noexcept { core_.clear(); }

    /// The element is out of the container, and its memory belongs to the handle.
    node_type extract(const_iterator where) {
        node_type out(allocator_);
        core_.template take_out<false>(where.where(), [&](slot& s) { out.fill(s); });
        return out;
    }
    /// The first with that key; an empty handle if there is none.
    node_type extract(const key_type& key) {
        const const_iterator there = std::as_const(*this).first_of(key);
        return there == end() ? node_type() : extract(there);
    }
    /// If the key is there already, the handle comes back. It keeps its element also where memory is out.
    insert_return_type insert(node_type&& handle) {
        if constexpr (Multi) {
            return handle.empty() ? end() : add_handle(seek(handle.at()->key()), handle);
        } else {
            if (handle.empty()) {
                return {end(), false, {}};
            }
            const auto [at, fresh] = add_handle(seek(handle.at()->key()), handle);
            return {at, fresh, std::move(handle)};
        }
    }
    iterator insert(const_iterator hint, node_type&& handle) {
        return handle.empty() ? end() : place_of(add_handle(seek(hint, handle.at()->key()), handle));
    }

    /// Moves all elements here whose keys are not here yet, or all, in the order of the source.
    template <class Core2, bool Multi2>
        requires(
            std::same_as<typename Core2::slot, slot>&& std::same_as<typename Core2::allocator_type, allocator_type>)
    void merge(ordered_api<Core2, Multi2>& source) {
        if constexpr (std::same_as<ordered_api, ordered_api<Core2, Multi2>>) {
            if (this == std::addressof(source)) {
                return;
            }
        }
        for (auto from = source.core_.first(); !(from == source.core_.last());) {
            destination found = seek(Core2::slot_at(from).key());
            if (found.there) {
                from.advance();
            } else {
                from = source.core_.template take_out<true>(from, [&](slot& s) {
                    borrowed_slot<slot> element(s);
                    core_.insert(found, element);
                });
            }
        }
    }
    template <class Core2, bool Multi2>
    void merge(ordered_api<Core2, Multi2>&& source) {
        merge(source);
    }

    /// The allocators change places too where they propagate on swap; else they must be equal.
    /// If the comparison's swap throws, the elements stay where they are.
    void swap(ordered_api& other) noexcept(detail::exchange_is_nothrow<key_compare>) { exchange(other); }

    // ---- look-up ----

    [[nodiscard]] iterator find(const key_type& key) { return iterator(core_.find(key)); }
    [[nodiscard]] const_iterator find(const key_type& key) const { return const_iterator(core_.find(key)); }
    [[nodiscard]] bool contains(const key_type& key) const { return find(key) != end(); }
    [[nodiscard]] size_type count(const key_type& key) const { return count_of<!Multi>(key); }
    [[nodiscard]] iterator lower_bound(const key_type& key) { return iterator(core_.lower_bound(key)); }
    [[nodiscard]] const_iterator lower_bound(const key_type& key) const {
        return const_iterator(core_.lower_bound(key));
    }
    [[nodiscard]] iterator upper_bound(const key_type& key) { return iterator(core_.upper_bound(key)); }
    [[nodiscard]] const_iterator upper_bound(const key_type& key) const {
        return const_iterator(core_.upper_bound(key));
    }
    [[nodiscard]] std::pair<iterator, iterator> equal_range(const key_type& key) {
        return {lower_bound(key), upper_bound(key)};
    }
    [[nodiscard]] std::pair<const_iterator, const_iterator> equal_range(const key_type& key) const {
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
    [[nodiscard]] size_type count(const K& key) const { return count_of<false>(key); }
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
    /// most about a fifth more memory while it runs. Throws when memory is out; the container is intact then.
    void reblock() {
        while (!reblock_step(std::numeric_limits<size_type>::max())) {
        }
    }
    /// The same bit by bit, at least so many nodes (and one) a call; other operations may come in between. True when a
    /// pass is complete.
    bool reblock_step(size_type nodes) { return core_.step(std::max<size_type>(nodes, 1)); }

    /// Fetches the pages of the next `elements` elements, `first` included: a walk over them then waits for few pages,
    /// where it would stop at each in turn. For trees on memory that is paged; elsewhere there is nothing to do. A
    /// hint: nodes may be fuller or emptier than is guessed, and of very many pages only the first are fetched.
    void prefetch(const_iterator first, size_type elements) const {
        if constexpr (requires { requires Core::fetches_ahead; }) {
            core_.fetch_ahead(first.where(), elements);
        }
    }

    /// Where the links between nodes lead. Visits every node.
    [[nodiscard]] link_count count_links() const { return core_.count_links(); }

    /// The structure itself, for tests and tools.
    [[nodiscard]] const Core& core() const noexcept { return core_; }

    friend bool operator==(const ordered_api& a, const ordered_api& b) {
        return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin());
    }
    /// Element by element, as the standard's; of elements, < is enough.
    friend auto operator<=>(const ordered_api& a, const ordered_api& b) requires detail::ordered<value_type> {
        using category =
            decltype(detail::compare_elements(std::declval<const value_type&>(), std::declval<const value_type&>()));
        const_iterator x = a.begin();
        const_iterator y = b.begin();
        for (; x != a.end() && y != b.end(); ++x, ++y) {
            if (const category c = detail::compare_elements(*x, *y); c != 0) {
                return c;
            }
        }
        return category((x != a.end()) <=> (y != b.end()));
    }

    template <class Predicate>
    friend size_type erase_if(ordered_api& all, Predicate predicate) {
        const size_type before = all.size();
        for (iterator i = all.begin(); i != all.end();) {
            i = predicate(*i) ? all.erase(i) : std::next(i);
        }
        return before - all.size();
    }

protected:
    [[nodiscard]] destination seek(const key_type& key) const {
        if constexpr (Multi) {
            return core_.seek_behind(key);
        } else {
            return core_.seek(key);
        }
    }
    [[nodiscard]] destination seek(const_iterator hint, const key_type& key) const {
        if constexpr (Multi) {
            return core_.seek_behind(hint.where(), key);
        } else {
            return core_.seek(hint.where(), key);
        }
    }
    /// Makes an element where a search found that its key belongs, unless it found the key.
    template <class... Args>
    insertion add(destination found, Args&&... args) {
        if (found.there) {
            return result(iterator(found.at), false);
        }
        held element(allocator_, std::forward<Args>(args)...);
        return result(iterator(core_.insert(found, element)), true);
    }
    [[nodiscard]] static insertion result(iterator at, bool fresh) {
        if constexpr (Multi) {
            return at;
        } else {
            return {at, fresh};
        }
    }
    [[nodiscard]] static iterator place_of(const insertion& done) noexcept {
        if constexpr (Multi) {
            return done;
        } else {
            return done.first;
        }
    }

    [[no_unique_address]] allocator_type allocator_;
    Core core_;

private:
    template <class, bool>
    friend class ordered_api;

    static constexpr auto destroy = [](slot& s) noexcept { s.destroy(); };

    insertion add_loose(destination found, loose_slot<slot>& element) {
        return found.there ? result(iterator(found.at), false) : result(iterator(core_.insert(found, element)), true);
    }
    insertion add_handle(destination found, node_type& handle) {
        if (found.there) {
            return result(iterator(found.at), false);
        }
        borrowed_slot<slot> element(*handle.at());
        const iterator at(core_.insert(found, element));
        handle.full_ = false;
        handle.reset();
        return result(at, true);
    }
    [[nodiscard]] const_iterator first_of(const key_type& key) const {
        if constexpr (Multi) {
            const const_iterator at = lower_bound(key);
            return at == end() || core_.compare()(key, slot::key_of(*at)) ? end() : at;
        } else {
            return find(key);
        }
    }
    template <bool Unique, class K>
    [[nodiscard]] size_type count_of(const K& key) const {
        if constexpr (Unique) {
            return contains(key) ? 1 : 0;
        } else {
            const auto [first, last] = equal_range(key);
            return static_cast<size_type>(std::distance(first, last));
        }
    }
    template <class K>
    size_type erase_key(const K& key) {
        if constexpr (!Multi && std::same_as<K, key_type>) {
            return core_.take_key(key, destroy) ? 1 : 0;
        } else {
            const auto [first, last] = equal_range(key);
            const auto n = static_cast<size_type>(std::distance(first, last));
            core_.erase(first.where(), n);
            return n;
        }
    }
    void take_from(ordered_api& other) {
        if (other.allocator_ == allocator_) {
            core_.swap_content(other.core_);
            return;
        }
        // It loses all its elements, also where memory runs out before all are here: some of them are moved from.
        struct emptied {
            ordered_api& all;
            ~emptied() { all.clear(); }
        } const at_the_end{other};
        for (auto from = other.core_.first(); !(from == other.core_.last()); from.advance()) {
            slot& s = Core::slot_at(from);
            if constexpr (slot::is_map) {
                emplace_hint(end(), std::piecewise_construct, std::forward_as_tuple(std::move(s.movable.first)),
                             std::forward_as_tuple(std::move(s.movable.second)));
            } else {
                emplace_hint(end(), std::move(s.value));
            }
        }
    }
    void exchange(ordered_api& other) noexcept(detail::exchange_is_nothrow<key_compare>) {
        core_.swap_comparison(other.core_);
        core_.swap_content(other.core_);
        detail::exchange_allocators(allocator_, other.allocator_);
    }
};

}  // namespace varve
