// SIGBUS, through which the kernel tells a thread that it touched a page which is not there.
#pragma once

#include <signal.h>
#include <ucontext.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <system_error>

#include "varve/pager/fast_return.hpp"

namespace varve::pager {

/// What an access wanted, where the machine tells.
enum class access : std::uint8_t { read, write, unknown };

namespace detail {

/// Something that can bring pages in.
class fault_target {
public:
    /// Called in the thread that made the access. True: try the access again. False: it failed, for good or for now.
    virtual bool on_fault(std::byte* address, access kind) noexcept = 0;

protected:
    ~fault_target() = default;
};

/// The ranges of this process whose faults are handled here. Finding one takes no lock: it happens in a signal handler.
class fault_registry {
public:
    static fault_registry& instance() noexcept {
        static fault_registry one;
        return one;
    }

    /// Throws std::system_error when more than 1024 ranges exist.
    void add(std::byte* start, std::size_t bytes, fault_target& target) {
        const std::lock_guard guard(change_);
        arm();
        for (std::size_t i = 0; i < slots_.size(); ++i) {
            slot& s = slots_[i];
            if (s.target.load() == nullptr) {
                s.start = reinterpret_cast<std::uintptr_t>(start);
                s.bytes = bytes;
                s.target.store(&target);
                if (i >= used_.load()) {
                    used_.store(i + 1);
                }
                return;
            }
        }
        throw std::system_error(ENOSPC, std::generic_category(), "varve: more than 1024 paged regions");
    }

    void remove(fault_target& target) noexcept {
        const std::lock_guard guard(change_);
        for (slot& s : slots_) {
            if (s.target.load() == &target) {
                s.bytes = 0;
                s.target.store(nullptr);
            }
        }
    }

private:
    struct slot {
        std::atomic<std::uintptr_t> start{0};
        std::atomic<std::size_t> bytes{0};
        std::atomic<fault_target*> target{nullptr};
    };

    fault_target* find(std::uintptr_t address) noexcept {
        const std::size_t used = used_.load(std::memory_order_acquire);
        for (std::size_t i = 0; i < used; ++i) {
            slot& s = slots_[i];
            if (address - s.start.load(std::memory_order_relaxed) < s.bytes.load(std::memory_order_relaxed)) {
                return s.target.load(std::memory_order_acquire);
            }
        }
        return nullptr;
    }

    /// Puts the handler in front of whatever was there. A program that installs its own later
    /// must call on to this one; it must not do so and also have this one call on to it.
    void arm() {
        struct sigaction now {};
        if (::sigaction(SIGBUS, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == handle) {
            return;
        }
        before_ = now;
        // No mask, because the handler may itself touch memory of another region.
        if (const int error = install_fault_handler(SIGBUS, handle); error != 0) {
            throw std::system_error(error, std::generic_category(), "varve: sigaction(SIGBUS)");
        }
    }

    static access kind_of([[maybe_unused]] const ucontext_t* context) noexcept {
#if defined(__x86_64__)
        return (context->uc_mcontext.gregs[REG_ERR] & 2) != 0 ? access::write : access::read;
#else
        return access::unknown;
#endif
    }

    static void handle(int signal, siginfo_t* info, void* context) {
        const int saved = errno;
        fault_registry& self = instance();
        // Only the kernel's own signals have an address.
        fault_target* const target =
            info->si_code > 0 ? self.find(reinterpret_cast<std::uintptr_t>(info->si_addr)) : nullptr;
        if (target != nullptr) {
            if (target->on_fault(static_cast<std::byte*>(info->si_addr), kind_of(static_cast<ucontext_t*>(context)))) {
                errno = saved;
                return;
            }
        }
        errno = saved;
        self.pass_on(signal, info, context);
    }

    void pass_on(int signal, siginfo_t* info, void* context) noexcept {
        if ((before_.sa_flags & SA_SIGINFO) != 0) {
            before_.sa_sigaction(signal, info, context);
            return;
        }
        if (before_.sa_handler != SIG_DFL && before_.sa_handler != SIG_IGN) {
            before_.sa_handler(signal);
            return;
        }
        // Nobody else wants it: with the default action in place the access ends the process, with the right address.
        struct sigaction plain {};
        plain.sa_handler = SIG_DFL;
        ::sigaction(SIGBUS, &plain, nullptr);
    }

    std::mutex change_;
    std::array<slot, 1024> slots_{};
    std::atomic<std::size_t> used_{0};
    struct sigaction before_ {};
};

}  // namespace detail

}  // namespace varve::pager
