//! System calls without the C library: no `errno`, no cancellation, no interposed symbol.

/// Makes a system call; a negative result is an error number.
///
/// # Safety
/// The arguments are what the call needs, pointers included.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn system_call(number: libc::c_long, arguments: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the caller vouches for the arguments; the kernel clobbers rcx and r11 only.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result
}
