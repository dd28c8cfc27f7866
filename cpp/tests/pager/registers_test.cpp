// A fault that is handled in the faulting thread leaves no trace in that thread: registers, flags, the red zone, the
// signal mask and the alternate stack are what they were.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <array>
#include <cstring>
#include <random>
#include <thread>

#include "support.hpp"

namespace {

using namespace varve;

constexpr std::size_t page = 4096;

pager::paged_space make() {
    pager::options o;
    o.local = {32 * page};
    return {byte_count{512 * page}, pager::memory_store({512 * page}), o};
}

#if defined(__x86_64__)

/// rbx rcx rdx rsi rdi r8 ... r15, flags, red zone
using general = std::array<std::uint64_t, 15>;

/// Loads the registers from r[0..12] and the flags from r[13], puts r[14] below the stack, reads from `address`, and
/// stores all of it back to `r`.
[[gnu::naked, gnu::noinline]] void access_between(general*, const void*) {
    __asm__(
        "pushq %rbx\n pushq %rbp\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rdi, %rbp\n"
        "movq %rsi, %rax\n"
        "pushq 104(%rbp)\n popfq\n"
        "movq 112(%rbp), %rbx\n movq %rbx, -8(%rsp)\n movq %rbx, -128(%rsp)\n"
        "movq 0(%rbp), %rbx\n movq 8(%rbp), %rcx\n movq 16(%rbp), %rdx\n movq 24(%rbp), %rsi\n movq 32(%rbp), %rdi\n"
        "movq 40(%rbp), %r8\n movq 48(%rbp), %r9\n movq 56(%rbp), %r10\n movq 64(%rbp), %r11\n movq 72(%rbp), %r12\n"
        "movq 80(%rbp), %r13\n movq 88(%rbp), %r14\n movq 96(%rbp), %r15\n"
        "movb (%rax), %al\n"
        "movq %rbx, 0(%rbp)\n movq %rcx, 8(%rbp)\n movq %rdx, 16(%rbp)\n movq %rsi, 24(%rbp)\n movq %rdi, 32(%rbp)\n"
        "movq %r8, 40(%rbp)\n movq %r9, 48(%rbp)\n movq %r10, 56(%rbp)\n movq %r11, 64(%rbp)\n movq %r12, 72(%rbp)\n"
        "movq %r13, 80(%rbp)\n movq %r14, 88(%rbp)\n movq %r15, 96(%rbp)\n"
        "movq -8(%rsp), %rbx\n movq -128(%rsp), %rcx\n"
        "pushfq\n popq 104(%rbp)\n"
        "cld\n"
        "xorq %rcx, %rbx\n addq %rcx, %rbx\n movq %rbx, 112(%rbp)\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbp\n popq %rbx\n"
        "ret\n");
}

TEST(registers, general_ones_flags_and_red_zone_survive) {
    pager::paged_space space = make();
    std::mt19937_64 random(1);
    constexpr std::uint64_t flags[] = {0x1, 0x4, 0x10, 0x40, 0x80, 0x400, 0x800};  // CF PF AF ZF SF DF OF
    for (std::size_t i = 0; i < 2000; ++i) {
        general before;
        for (std::uint64_t& r : before) {
            r = random();
        }
        before[13] = 0x202;
        for (const std::uint64_t f : flags) {
            before[13] |= random() % 2 == 0 ? f : 0;
        }
        general after = before;
        const std::uint64_t faults = space.read_statistics().faults;
        const std::size_t at = i * 37 % 512;
        const bool absent = test::present_pages(space.base() + at * page, page) == 0;
        access_between(&after, space.base() + at * page);
        EXPECT_EQ(space.read_statistics().faults - faults, absent ? 1u : 0u);
        ASSERT_EQ(before, after) << "access " << i;
    }
    EXPECT_GT(space.read_statistics().faults, 1000u);
}

/// Load vector registers from memory, read from an address, and store them back.
[[gnu::naked, gnu::noinline]] void vectors_between_sse(void*, const void*) {
    __asm__(
        "movdqu 0(%rdi), %xmm0\n movdqu 16(%rdi), %xmm1\n movdqu 32(%rdi), %xmm2\n movdqu 48(%rdi), %xmm7\n"
        "movdqu 64(%rdi), %xmm8\n movdqu 80(%rdi), %xmm15\n"
        "movb (%rsi), %al\n"
        "movdqu %xmm0, 0(%rdi)\n movdqu %xmm1, 16(%rdi)\n movdqu %xmm2, 32(%rdi)\n movdqu %xmm7, 48(%rdi)\n"
        "movdqu %xmm8, 64(%rdi)\n movdqu %xmm15, 80(%rdi)\n"
        "ret\n");
}
[[gnu::naked, gnu::noinline]] void vectors_between_avx512(void*, const void*) {
    __asm__(
        "vmovdqu64 0(%rdi), %zmm0\n vmovdqu64 64(%rdi), %zmm15\n vmovdqu64 128(%rdi), %zmm16\n"
        "vmovdqu64 192(%rdi), %zmm31\n kmovq 256(%rdi), %k1\n kmovq 264(%rdi), %k7\n"
        "movb (%rsi), %al\n"
        "vmovdqu64 %zmm0, 0(%rdi)\n vmovdqu64 %zmm15, 64(%rdi)\n vmovdqu64 %zmm16, 128(%rdi)\n"
        "vmovdqu64 %zmm31, 192(%rdi)\n kmovq %k1, 256(%rdi)\n kmovq %k7, 264(%rdi)\n"
        "vzeroupper\n"
        "ret\n");
}
[[gnu::naked, gnu::noinline]] void vectors_between_avx(void*, const void*) {
    __asm__(
        "vmovdqu 0(%rdi), %ymm0\n vmovdqu 32(%rdi), %ymm7\n vmovdqu 64(%rdi), %ymm15\n"
        "movb (%rsi), %al\n"
        "vmovdqu %ymm0, 0(%rdi)\n vmovdqu %ymm7, 32(%rdi)\n vmovdqu %ymm15, 64(%rdi)\n"
        "vzeroupper\n"
        "ret\n");
}

TEST(registers, vector_ones_survive) {
    pager::paged_space space = make();
    std::mt19937_64 random(2);
    const auto check = [&](void (*access)(void*, const void*)) {
        for (std::size_t i = 0; i < 1000; ++i) {
            std::array<std::uint64_t, 34> before;
            for (std::uint64_t& word : before) {
                word = random();
            }
            auto after = before;
            access(after.data(), space.base() + i * 37 % 512 * page);
            ASSERT_EQ(before, after);
        }
    };
    check(vectors_between_sse);
    if (__builtin_cpu_supports("avx")) {
        check(vectors_between_avx);
    }
    if (__builtin_cpu_supports("avx512bw")) {
        check(vectors_between_avx512);
    }
    EXPECT_GT(space.read_statistics().faults, 500u);
}

#endif

#if defined(__x86_64__)

/// Reads a byte from the second argument with the stack pointer at the first.
[[gnu::naked, gnu::noinline]] void access_on(void*, const void*) {
    __asm__(
        "pushq %rbp\n movq %rsp, %rbp\n"
        "movq %rdi, %rsp\n"
        "movb (%rsi), %al\n"
        "movq %rbp, %rsp\n popq %rbp\n ret\n");
}

/// The frame of the signal has room for the state that the thread may use, and nothing is mapped right above it.
TEST(registers, a_stack_may_end_above_the_frame) {
    constexpr std::size_t stack = 64 * page;
    constexpr std::size_t above = 16 * page;  // more than all state of any processor
    void* const memory = ::mmap(nullptr, stack + above, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    std::byte* const top = static_cast<std::byte*>(memory) + stack;
    ASSERT_EQ(::mprotect(top, above, PROT_NONE), 0);
    {
        pager::paged_space space = make();
        for (std::size_t i = 0; i < 200; ++i) {
            access_on(top, &test::word(space, i));
        }
        EXPECT_GE(space.read_statistics().faults, 200u);
    }
    ::munmap(memory, stack + above);
}

#endif

TEST(registers, the_signal_mask_survives) {
    pager::paged_space space = make();
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &wanted, nullptr);
    for (std::size_t i = 0; i < 500; ++i) {
        EXPECT_EQ(test::word(space, i), 0u);
        sigset_t now;
        pthread_sigmask(SIG_BLOCK, nullptr, &now);
        ASSERT_TRUE(sigismember(&now, SIGUSR2));
        ASSERT_FALSE(sigismember(&now, SIGBUS));
        ASSERT_FALSE(sigismember(&now, SIGUSR1));
    }
}

TEST(registers, an_alternate_stack_stays_armed) {
    pager::paged_space space = make();
    std::thread([&] {
        std::vector<std::byte> memory(65536);
        stack_t stack{};
        stack.ss_sp = memory.data();
        stack.ss_size = memory.size();
        stack.ss_flags = static_cast<int>(1u << 31);  // SS_AUTODISARM
        ASSERT_EQ(::sigaltstack(&stack, nullptr), 0);
        for (std::size_t i = 0; i < 200; ++i) {
            EXPECT_EQ(test::word(space, i), 0u);
            stack_t now{};
            ASSERT_EQ(::sigaltstack(nullptr, &now), 0);
            ASSERT_EQ(now.ss_sp, memory.data());
            ASSERT_EQ(static_cast<unsigned>(now.ss_flags) & (1u << 31), 1u << 31);
        }
        stack.ss_flags = SS_DISABLE;
        ::sigaltstack(&stack, nullptr);
    }).join();
}

/// Asynchronous SIGBUS goes to whoever had the signal before, from wherever the thread is. In a child, because the
/// handler stays.
TEST(registers, signals_that_somebody_sends_are_passed_on) {
    ::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
        static std::atomic<int> seen{0};
        struct sigaction action {};
        action.sa_handler = [](int) { seen.fetch_add(1); };
        ::sigaction(SIGBUS, &action, nullptr);
        pager::paged_space space = make();
        std::atomic<bool> stop{false};
        std::atomic<std::uint64_t> reads{0};
        std::uint64_t sum = 0;
        std::thread busy([&] {
            for (std::size_t i = 0; !stop; ++i) {
                sum += test::word(space, i % 512);
                reads.fetch_add(1);
            }
        });
        // One that is sent while a fault's own is pending is lost in it, as signals are: so send until it arrives. The
        // next one only when no handler runs, or they would nest until the stack ends: the signal is not held back
        // while one does.
        for (int i = 1; i <= 50; ++i) {
            while (seen.load() < i) {
                pthread_kill(busy.native_handle(), SIGBUS);
                const std::uint64_t before = reads.load();
                while (seen.load() < i && reads.load() < before + 2) {
                    std::this_thread::yield();
                }
            }
        }
        stop = true;
        busy.join();
        ::_exit(sum == 0 ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

}  // namespace
