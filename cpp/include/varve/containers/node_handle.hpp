// What `extract` gives: an element that is in no container.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include "varve/containers/slots.hpp"

namespace varve {

namespace detail {
template <class Slot, bool IsMap = Slot::is_map>
struct handle_access {
    using value_type = typename Slot::value_type;
};
template <class Slot>
struct handle_access<Slot, true> {
    using key_type = typename Slot::key_type;
    using mapped_type = typename Slot::mapped_type;
};
}  // namespace detail

/// As std::map::node_type, but the element is moved into the handle, since it has no node of its own: references to it
/// do not outlive `extract`. A large element takes memory of the allocator. `Slot` is map_slot or set_slot.
template <class Slot, class Allocator>
class node_handle : public detail::handle_access<Slot> {
    using storage = detail::slot_storage<Slot, Allocator>;

public:
    using allocator_type = Allocator;

    constexpr node_handle() noexcept = default;
    node_handle(node_handle&& other) noexcept { take_over(other); }
    node_handle& operator=(node_handle&& other) noexcept {
        if (this != std::addressof(other)) {
            reset();
            take_over(other);
        }
        return *this;
    }
    ~node_handle() { reset(); }

    [[nodiscard]] bool empty() const noexcept { return !full_; }
    explicit operator bool() const noexcept { return full_; }
    /// Of a handle that is not empty, as all that follows.
    [[nodiscard]] allocator_type get_allocator() const { return *allocator_; }
    [[nodiscard]] auto& key() const noexcept requires Slot::is_map { return at()->movable.first; }
    [[nodiscard]] auto& mapped() const noexcept requires Slot::is_map { return at()->movable.second; }
    [[nodiscard]] auto& value() const noexcept requires(!Slot::is_map) { return at()->value; }

    void swap(node_handle& other) noexcept {
        node_handle mine(std::move(other));
        other.take_over(*this);
        take_over(mine);
    }
    friend void swap(node_handle& a, node_handle& b) noexcept { a.swap(b); }

private:
    template <class, bool>
    friend class ordered_api;

    /// Raw storage, for `fill`. Throws where it is memory of the allocator and there is none.
    explicit node_handle(const Allocator& a) : allocator_(a) { storage_.emplace(a); }
    void fill(Slot& from) noexcept {
        Slot::transfer(at(), std::addressof(from), 1);
        full_ = true;
    }

    [[nodiscard]] Slot* at() const noexcept { return const_cast<std::optional<storage>&>(storage_)->at(); }
    void reset() noexcept {
        if (full_) {
            at()->destroy();
        }
        full_ = false;
        storage_.reset();
        allocator_.reset();
    }
    /// Into an empty one.
    void take_over(node_handle& other) noexcept {
        if (!other.full_) {
            return;
        }
        allocator_.emplace(std::move(*other.allocator_));
        if constexpr (storage::is_inside) {
            storage_.emplace(*allocator_);
            Slot::transfer(at(), other.at(), 1);
        } else {
            storage_.emplace(std::move(*other.storage_));
        }
        full_ = true;
        other.full_ = false;
        other.reset();
    }

    std::optional<Allocator> allocator_;
    std::optional<storage> storage_;
    bool full_ = false;
};

}  // namespace varve
