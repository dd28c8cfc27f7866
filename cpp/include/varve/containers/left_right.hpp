// Many readers beside one writer, none of whom a reader ever waits for.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "varve/core/errors.hpp"

namespace varve {

/// Two copies of a container (or of anything): readers use one while the writer changes the other, then they change
/// places. Reading is wait-free, and writers exclude each other. What is read is the content after some number of whole
/// writes: reads and writes are linearisable, whatever the container. The price is twice the memory, every change made
/// twice, and a writer that waits for the readers that it meets. (P. Ramalhete and A. Correia, "Left-Right", 2015.)
///
/// A reader that waits for a page holds up the writer, never other readers. Content that is reached through pointers in
/// both copies is shared between them, and not protected.
template <class Container>
class left_right {
public:
    /// Both copies are made from the same arguments.
    template <class... Args>
        requires std::constructible_from<Container, const Args&...>
    explicit left_right(const Args&... args) : copies_{Container(args...), Container(args...)} {}
    /// Copies with memory of their own each. They must be equal.
    left_right(Container first, Container second) : copies_{std::move(first), std::move(second)} {}
    left_right(const left_right&) = delete;
    left_right& operator=(const left_right&) = delete;

    /// Gives what `look(const Container&)` gives. What it refers to in the container may change once it has returned.
    template <class Look>
    decltype(auto) read(Look&& look) const {
        const visit here(*this);
        return std::forward<Look>(look)(copies_[read_from_.load()]);
    }

    /// Calls `change(Container&)` on one copy, shows that to the readers, and calls it on the other: it must do the
    /// same both times. Gives what the first call gives. If that throws, nobody has seen a change.
    template <class Change>
    auto write(Change&& change) {
        const std::lock_guard one_writer(writing_);
        const unsigned old = read_from_.load();
        if (differ_) {
            // A change came to nothing in one copy before. Throws where memory is still out.
            copies_[1 - old] = std::as_const(copies_[old]);
            differ_ = false;
        }
        differ_ = true;  // until both have it
        if constexpr (std::is_void_v<std::invoke_result_t<Change&, Container&>>) {
            change(copies_[1 - old]);
            publish(old);
            repeat(change, copies_[old]);
        } else {
            auto result = change(copies_[1 - old]);
            publish(old);
            repeat(change, copies_[old]);
            return result;
        }
    }

private:
    /// How many are reading, spread over cache lines: readers that run on different processors do not meet.
    class visitors {
    public:
        [[nodiscard]] std::atomic<std::uint32_t>& mine() noexcept {
            return counts_[static_cast<unsigned>(::sched_getcpu()) % counts_.size()].value;
        }
        void wait_until_gone() const noexcept {
            for (const count& c : counts_) {
                while (c.value.load() != 0) {
                    std::this_thread::yield();
                }
            }
        }

    private:
        struct alignas(64) count {
            std::atomic<std::uint32_t> value{0};
        };
        std::array<count, 16> counts_{};
    };

    class visit {
    public:
        explicit visit(const left_right& all) noexcept : count_(all.visitors_[all.counted_in_.load()].mine()) {
            count_.fetch_add(1);
        }
        visit(const visit&) = delete;
        visit& operator=(const visit&) = delete;
        ~visit() { count_.fetch_sub(1); }

    private:
        std::atomic<std::uint32_t>& count_;
    };

    /// Sends new readers to the other copy, and returns when nobody reads `old` any more.
    /// Invariant: a reader that can be in `old` has counted itself in one of the two groups before it looked where to
    /// read. One that was counted in the group that is current now may have looked before the change; so the groups
    /// change places, and both are waited for: the one to come, which must be empty before it is used, then the other.
    void publish(unsigned old) noexcept {
        read_from_.store(1 - old);
        const unsigned before = counted_in_.load();
        visitors_[1 - before].wait_until_gone();
        counted_in_.store(1 - before);
        visitors_[before].wait_until_gone();
    }

    /// The readers have the change already. If it fails here, the next write makes the copies equal first.
    template <class Change>
    void repeat(Change& change, Container& copy) noexcept {
        VARVE_TRY {
            change(copy);
            differ_ = false;
        }
        VARVE_CATCH(...) {}
    }

    std::array<Container, 2> copies_;
    mutable std::array<visitors, 2> visitors_{};
    std::atomic<unsigned> read_from_{0};   ///< the copy that readers use
    std::atomic<unsigned> counted_in_{0};  ///< the group that readers count themselves in
    std::mutex writing_;
    bool differ_ = false;
};

}  // namespace varve
