// Lets any standard allocator act as a collective allocator: one part, swappable, of which no page is known.
#pragma once

#include <concepts>
#include <new>
#include <optional>
#include <tuple>
#include <type_traits>

#include "varve/alloc/concepts.hpp"
#include "varve/core/errors.hpp"

namespace varve {

namespace detail {
/// Allocators that cannot be assigned, as polymorphic ones, do not propagate either: they stay where they are, and are
/// equal, as the standard demands of them.
template <class A>
void exchange_allocators(A& a, A& b) noexcept {
    if constexpr (std::is_move_assignable_v<A>) {
        A mine(std::move(a));
        a = std::move(b);
        b = std::move(mine);
    }
}
}  // namespace detail

/// The sub-allocator of a standard allocator: a copy of it, with the further members.
template <standard_allocator A>
class trivial_sub_allocator {
public:
    using traits = std::allocator_traits<A>;
    using value_type = typename traits::value_type;
    using pointer = typename traits::pointer;
    using const_pointer = typename traits::const_pointer;
    using void_pointer = typename traits::void_pointer;
    using const_void_pointer = typename traits::const_void_pointer;
    using size_type = typename traits::size_type;
    using difference_type = typename traits::difference_type;
    using propagate_on_container_copy_assignment = typename traits::propagate_on_container_copy_assignment;
    using propagate_on_container_move_assignment = typename traits::propagate_on_container_move_assignment;
    using propagate_on_container_swap = typename traits::propagate_on_container_swap;
    using is_always_equal = typename traits::is_always_equal;
    template <class U>
    struct rebind {
        using other = trivial_sub_allocator<typename traits::template rebind_alloc<U>>;
    };

    explicit trivial_sub_allocator(const A& a) noexcept : inner_(a) {}
    template <standard_allocator B>
        requires(!std::same_as<A, B>)
    trivial_sub_allocator(const trivial_sub_allocator<B>& other)
    noexcept : inner_(other.inner()) {}

    [[nodiscard]] const A& inner() const noexcept { return inner_; }
    [[nodiscard]] trivial_sub_allocator select_on_container_copy_construction() const {
        return trivial_sub_allocator(traits::select_on_container_copy_construction(inner_));
    }

    [[nodiscard]] pointer allocate(std::size_t n) { return traits::allocate(inner_, n); }
    void deallocate(pointer p, std::size_t n) noexcept { traits::deallocate(inner_, p, n); }
    template <class U, class... Args>
    void construct(U* p, Args&&... args) {
        traits::construct(inner_, p, std::forward<Args>(args)...);
    }
    template <class U>
    void destroy(U* p) {
        traits::destroy(inner_, p);
    }

    [[nodiscard]] pointer try_allocate(std::size_t n) {
        VARVE_TRY {
            return traits::allocate(inner_, n);
        }
        VARVE_CATCH(const std::bad_alloc&) {
            return nullptr;
        }
    }

    template <class... R>
        requires(detail::is_request<R>&&...)
    [[nodiscard]] auto try_allocate_all(R... wanted) {
        using result = std::tuple<
            typename std::allocator_traits<typename traits::template rebind_alloc<typename R::type>>::pointer...>;
        result storage{};
        const auto free_all = [&]<std::size_t... I>(std::index_sequence<I...>) {
            ((std::get<I>(storage) != nullptr
                  ? rebound<typename R::type>().deallocate(std::get<I>(storage), wanted.count)
                  : void()),
             ...);
        };
        bool complete = false;
        VARVE_TRY {
            complete = [&]<std::size_t... I>(std::index_sequence<I...>) {
                return ((std::get<I>(storage) = rebound<typename R::type>().try_allocate(wanted.count)) && ...);
            }
            (std::index_sequence_for<R...>());
        }
        VARVE_CATCH(...) {  // what is not a lack of memory goes on
            free_all(std::index_sequence_for<R...>());
            VARVE_RETHROW;
        }
        if (complete) {
            return std::optional<result>(storage);
        }
        free_all(std::index_sequence_for<R...>());
        return std::optional<result>();
    }

    /// A standard allocator cannot tell; it is asked only by who would otherwise move the object here.
    [[nodiscard]] bool contains(const void*) const noexcept { return true; }
    [[nodiscard]] occupancy how_full() const noexcept { return {{0}, {1}}; }
    [[nodiscard]] page_index page() const noexcept { return no_page; }

    template <class B>
    friend bool operator==(const trivial_sub_allocator& a, const trivial_sub_allocator<B>& b) noexcept {
        return a.inner() == A(b.inner());
    }

private:
    template <class U>
    [[nodiscard]] auto rebound() const {
        return typename rebind<U>::other(*this);
    }

    [[no_unique_address]] A inner_;
};

/// The uniform view of both kinds.
template <standard_allocator A>
struct collective_allocator_traits : std::allocator_traits<A> {
    static constexpr bool is_collective = false;
    using sub_allocator_type = trivial_sub_allocator<A>;
    template <class U>
    using rebind_traits = collective_allocator_traits<typename std::allocator_traits<A>::template rebind_alloc<U>>;

    template <class Part>
    [[nodiscard]] static sub_allocator_type sub(const A& a, Part) {
        return sub_allocator_type(a);
    }
    [[nodiscard]] static bool contains(const A&, const void*) noexcept { return true; }
    [[nodiscard]] static bool contains(const A&, purely_local_t, const void*) noexcept { return false; }
    [[nodiscard]] static bool same_page(const A&, const void*, const void*) noexcept { return false; }
    /// There is nowhere else to move objects to.
    template <class Mover, class Tuple, class... R>
    static bool relocate(const A&, sub_allocator_type, Mover&&, Tuple, R...) noexcept {
        return false;
    }
    /// The allocator a container keeps.
    [[nodiscard]] static A own(A a) { return a; }
};

template <collective_allocator_like A>
struct collective_allocator_traits<A> : std::allocator_traits<A> {
    static constexpr bool is_collective = true;
    using sub_allocator_type = typename A::sub_allocator_type;
    template <class U>
    using rebind_traits = collective_allocator_traits<typename std::allocator_traits<A>::template rebind_alloc<U>>;

    template <class Part>
    [[nodiscard]] static sub_allocator_type sub(const A& a, Part part) {
        return a.sub(part);
    }
    [[nodiscard]] static bool contains(const A& a, const void* p) noexcept { return a.contains(p); }
    [[nodiscard]] static bool contains(const A& a, purely_local_t part, const void* p) noexcept {
        return a.contains(part, p);
    }
    [[nodiscard]] static bool same_page(const A& a, const void* p, const void* q) noexcept { return a.same_page(p, q); }
    template <class Mover, class Tuple, class... R>
    static bool relocate(const A& a, sub_allocator_type target, Mover&& mover, Tuple objects, R... sizes) {
        return a.relocate(std::move(target), std::forward<Mover>(mover), objects, sizes...);
    }
    [[nodiscard]] static A own(A a) {
        if constexpr (requires { a.tagged(); }) {
            return a.tagged();
        } else {
            return a;
        }
    }
};

}  // namespace varve
