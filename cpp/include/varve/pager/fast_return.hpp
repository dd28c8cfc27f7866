// The handler of SIGBUS, and a way back from it that does not enter the kernel, for programs that ask for it by
// defining VARVE_PAGER_FAST_RETURN (in every file that includes the pager). It takes some 0.7 us off a fault.
//
// sigreturn restores the registers, the signal mask and the alternate stack. The pager's handler is installed so that
// the kernel changes no mask for it, and does not run on an alternate stack; what remains is the registers, and these a
// program can load by itself: XRSTOR for the vector state, IRETQ for the rest. The red zone lies above the signal frame
// and is not touched; restartable sequences are ended by the kernel before it calls the handler. Only the vector state
// that the frame has room for is loaded: XRSTOR reads memory where the rest would lie, though it only initialises it,
// and above the frame the stack may end. Tile state (AMX) has room in the frames of threads that may use it.
//
// Not the default, because a kernel may give sigreturn more to do without telling: what is relied upon is that today's
// kernels do no more. It must not be asked for where threads get a shadow stack after the first space was made, where
// code of other segments touches paged memory (Wine), or where another kernel lays out the frame (emulators, gVisor).
#pragma once

#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstddef>

#include "varve/pager/support.hpp"

#if defined(VARVE_PAGER_FAST_RETURN) && defined(__x86_64__) && !defined(__ILP32__) && !defined(VARVE_PAGER_TSAN)
#define VARVE_PAGER_RETURNS_BY_ITSELF 1
#include <cpuid.h>
#endif

namespace varve::pager::detail {

#ifdef VARVE_PAGER_RETURNS_BY_ITSELF

static_assert(offsetof(ucontext_t, uc_stack) == 16 && offsetof(ucontext_t, uc_mcontext) == 40 &&
              offsetof(ucontext_t, uc_mcontext.fpregs) == 224);

/// Where the handler returns to: the stack pointer is at the ucontext that the kernel saved. Takes the kernel's way if
/// the thread's alternate stack must be armed again, or there is no saved vector state.
[[gnu::naked]] inline void return_without_kernel() {
    __asm__(
        ".cfi_signal_frame\n"
        ".cfi_def_cfa %rsp, 0\n"
        ".cfi_offset %r8, 40\n .cfi_offset %r9, 48\n .cfi_offset %r10, 56\n .cfi_offset %r11, 64\n"
        ".cfi_offset %r12, 72\n .cfi_offset %r13, 80\n .cfi_offset %r14, 88\n .cfi_offset %r15, 96\n"
        ".cfi_offset %rdi, 104\n .cfi_offset %rsi, 112\n .cfi_offset %rbp, 120\n .cfi_offset %rbx, 128\n"
        ".cfi_offset %rdx, 136\n .cfi_offset %rax, 144\n .cfi_offset %rcx, 152\n .cfi_offset %rsp, 160\n"
        ".cfi_offset %rip, 168\n"
        "movq 224(%rsp), %rdi\n"
        "testq %rdi, %rdi\n"
        "jz 1f\n"
        "testl $0x80000000, 24(%rsp)\n"  // SS_AUTODISARM
        "jnz 1f\n"
        "cmpl $0x46505853, 464(%rdi)\n"  // FP_XSTATE_MAGIC1: the frame says which state it has room for
        "jne 1f\n"
        "movl 472(%rdi), %eax\n"  // its xfeatures (struct _fpx_sw_bytes)
        "movl 476(%rdi), %edx\n"
        "xrstor64 (%rdi)\n"
        "movq 40(%rsp), %r8\n"
        "movq 48(%rsp), %r9\n"
        "movq 56(%rsp), %r10\n"
        "movq 64(%rsp), %r11\n"
        "movq 72(%rsp), %r12\n"
        "movq 80(%rsp), %r13\n"
        "movq 88(%rsp), %r14\n"
        "movq 96(%rsp), %r15\n"
        "movq 112(%rsp), %rsi\n"
        "movq 120(%rsp), %rbp\n"
        "movq 128(%rsp), %rbx\n"
        "movq 136(%rsp), %rdx\n"
        "movq 152(%rsp), %rcx\n"
        "movl %ss, %eax\n"
        "pushq %rax\n"
        "pushq 168(%rsp)\n"  // rsp, which was at 160
        "pushq 192(%rsp)\n"  // flags, at 176
        "movl %cs, %eax\n"
        "pushq %rax\n"
        "pushq 200(%rsp)\n"  // rip, at 168
        "movq 144(%rsp), %rdi\n"
        "movq 184(%rsp), %rax\n"
        "iretq\n"
        "1: movq $15, %rax\n"  // rt_sigreturn
        "syscall\n"
        "ud2\n");
}

/// The processor must have XSAVE, and the program must not run with a shadow stack, which only the kernel can unwind.
[[nodiscard]] inline bool may_return_without_kernel() noexcept {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) {
        return false;
    }
    constexpr int shadow_stack_status = 0x5005;  // ARCH_SHSTK_STATUS, Linux commit 67840ad0fa86
    unsigned long enabled = 0;
    return ::syscall(SYS_arch_prctl, shadow_stack_status, &enabled) != 0 || enabled == 0;
}

#endif

/// Installs `handler` for `signal`, with SA_SIGINFO, SA_NODEFER and SA_RESTART and no mask. 0 or an errno value.
[[nodiscard]] inline int install_fault_handler(int signal, void (*handler)(int, siginfo_t*, void*)) noexcept {
    struct sigaction plain {};
    plain.sa_sigaction = handler;
    plain.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
    if (::sigaction(signal, &plain, nullptr) != 0) {
        return errno;
    }
#ifdef VARVE_PAGER_RETURNS_BY_ITSELF
    if (may_return_without_kernel()) {
        // As the kernel takes it; glibc's sigaction would put its own way back in.
        struct {
            void (*handler)(int, siginfo_t*, void*);
            unsigned long flags;
            void (*restorer)();
            unsigned long mask;
        } const direct{handler, SA_SIGINFO | SA_NODEFER | SA_RESTART | 0x04000000UL /* SA_RESTORER */,
                       return_without_kernel, 0};
        if (::syscall(SYS_rt_sigaction, signal, &direct, nullptr, sizeof direct.mask) != 0) {
            return errno;
        }
    }
#endif
    return 0;
}

}  // namespace varve::pager::detail
