//! The functions that change the address space, and those with which a program confines itself.
//!
//! The kernel's view of mappings is the recorder's business; what is reported here adds the call stack.

use std::arch::naked_asm;
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::Ordering;

use varve_preload_abi::{Event, MapOperation};

use crate::events::mapped;
use crate::operations::room;
use crate::{handler, locking, pages, placing, process, real, roots, sys};

type Pointer = *mut c_void;

/// A `Map` event with nothing but a range.
fn range(operation: MapOperation, address: Pointer, bytes: usize) -> Event<'static> {
    Event::Map {
        operation,
        address: address as u64,
        bytes: bytes as u64,
        old_address: 0,
        old_bytes: 0,
        protection: 0,
        flags: 0,
        fd: -1,
        offset: 0,
    }
}

/// What the caller of `mmap` asked for.
struct Request {
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
}

fn reported(result: Pointer, request: &Request) -> Pointer {
    if result != libc::MAP_FAILED && placing::is_on() {
        let is_file = request.flags & libc::MAP_ANONYMOUS == 0;
        placing::mapped(result as u64, request.bytes, is_file);
        return result;
    }
    if result != libc::MAP_FAILED {
        mapped(
            sys::now_ns(),
            Event::Map {
                operation: MapOperation::Mmap,
                address: result as u64,
                bytes: request.bytes as u64,
                old_address: 0,
                old_bytes: 0,
                protection: request.protection as u32,
                flags: request.flags as u32,
                fd: request.fd,
                offset: request.offset as u64,
            },
        );
    }
    result
}

/// Calls a function that gives memory once more, where it failed for what this library has of a limited address space.
fn or_again(bytes: usize, call: impl Fn() -> Pointer) -> Pointer {
    match call() {
        libc::MAP_FAILED if real::errno() == libc::ENOMEM && room::give_back_for(bytes) => call(),
        result => result,
    }
}

/// Over an existing range (MAP_FIXED) the old pages go.
fn replaces(address: Pointer, request: &Request) {
    if request.flags & libc::MAP_FIXED != 0 {
        pages::disown(address as u64, request.bytes as u64);
    }
}

/// # Safety
/// As for the C library's function of this name; so for all below.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: Pointer,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Pointer {
    let request = Request {
        bytes,
        protection,
        flags,
        fd,
        offset,
    };
    replaces(address, &request);
    // SAFETY: the caller's arguments, passed on; so in all functions below.
    let map = || unsafe { real::get().mmap(address, bytes, protection, flags, fd, offset) };
    reported(or_again(bytes, map), &request)
}

/// # Safety
/// See [`mmap`].
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    address: Pointer,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Pointer {
    let request = Request {
        bytes,
        protection,
        flags,
        fd,
        offset,
    };
    replaces(address, &request);
    // SAFETY: see `mmap`.
    let map = || unsafe { real::get().mmap64(address, bytes, protection, flags, fd, offset) };
    reported(or_again(bytes, map), &request)
}

/// # Safety
/// See [`mmap`].
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: Pointer, bytes: usize) -> c_int {
    // Afterwards another thread may get the same range: this time must come before that one's.
    let time = sys::now_ns();
    match placing::is_on() {
        true => placing::unmapped(address as u64),
        false => pages::disown(address as u64, bytes as u64),
    }
    // SAFETY: see `mmap`.
    let status = unsafe { real::get().munmap(address, bytes) };
    if status == 0 {
        mapped(time, range(MapOperation::Munmap, address, bytes));
    }
    status
}

/// # Safety
/// See [`mmap`]. The real function takes its last argument only with some flags; where the caller
/// passed none, what happens to stand in its register is passed on and ignored again.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: Pointer,
    old_bytes: usize,
    bytes: usize,
    flags: c_int,
    address: Pointer,
) -> Pointer {
    let time = sys::now_ns();
    let place = placing::dying(old as u64);
    // SAFETY: see `mmap`.
    let remap = || unsafe { real::get().mremap(old, old_bytes, bytes, flags, address) };
    let result = or_again(bytes.saturating_sub(old_bytes), remap);
    if let Some(number) = place {
        let (at, bytes) = match result {
            libc::MAP_FAILED => (old, old_bytes),
            _ => (result, bytes),
        };
        placing::moved(at as u64, bytes as u64, number);
        return result;
    }
    if result != libc::MAP_FAILED {
        if result != old {
            pages::disown(old as u64, old_bytes as u64);
        }
        let event = Event::Map {
            operation: MapOperation::Mremap,
            address: result as u64,
            bytes: bytes as u64,
            old_address: old as u64,
            old_bytes: old_bytes as u64,
            protection: 0,
            flags: flags as u32,
            fd: -1,
            offset: 0,
        };
        mapped(time, event);
    }
    result
}

/// The program break before or after a call; the C library keeps it, no system call is made.
fn program_break() -> Pointer {
    // SAFETY: an increment of zero changes nothing.
    unsafe { real::get().sbrk(0) }
}

fn moved_break(operation: MapOperation, before: Pointer) {
    let after = program_break();
    if after == before || before == libc::MAP_FAILED {
        return;
    }
    if after < before {
        pages::disown(after as u64, before as u64 - after as u64);
    }
    let mut event = range(operation, after, 0);
    if let Event::Map { old_address, .. } = &mut event {
        *old_address = before as u64;
    }
    mapped(sys::now_ns(), event);
}

/// # Safety
/// See [`mmap`].
#[unsafe(no_mangle)]
unsafe extern "C" fn brk(address: Pointer) -> c_int {
    let before = program_break();
    // SAFETY: see `mmap`.
    let status = unsafe { real::get().brk(address) };
    if status == 0 {
        moved_break(MapOperation::Brk, before);
    }
    status
}

/// # Safety
/// See [`mmap`].
#[unsafe(no_mangle)]
unsafe extern "C" fn sbrk(increment: isize) -> Pointer {
    // SAFETY: see `mmap`.
    let moves = || unsafe { real::get().sbrk(increment) };
    let before = or_again(usize::try_from(increment).unwrap_or(0), moves);
    if increment != 0 && before != libc::MAP_FAILED {
        moved_break(MapOperation::Sbrk, before);
    }
    before
}

/// # Safety
/// See [`mmap`]. Fewer arguments than five are passed on as they stand in the registers.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    // Without a filter it only asks whether the kernel has any: that fails.
    let asks = a == libc::SECCOMP_MODE_FILTER as usize && b == 0;
    if option == libc::PR_SET_SECCOMP && !asks {
        process::set_confined();
    }
    let strict = option == libc::PR_SET_SECCOMP && a == libc::SECCOMP_MODE_STRICT as usize;
    let no_counter = option == libc::PR_SET_TSC && a == libc::PR_TSC_SIGSEGV as usize;
    if strict || no_counter {
        sys::note_time();
        sys::CLOCK_FORBIDDEN.store(true, Ordering::Relaxed);
    }
    // SAFETY: see `mmap`.
    let result = unsafe { real::get().prctl(option, a, b, c, d) };
    if option == libc::PR_SET_TSC && a == libc::PR_TSC_ENABLE as usize && result == 0 {
        sys::CLOCK_FORBIDDEN.store(false, Ordering::Relaxed);
    }
    if option == libc::PR_SET_MM && result == 0 && !process::is_confined() {
        handler::note_arguments();
    }
    result
}

/// Notes that the program is about to confine itself, then jumps to the real function. A frame here
/// would break callers that clone themselves without a new stack.
///
/// # Safety
/// See [`mmap`].
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(number: c_long) -> c_long {
    naked_asm!(
        "cmp rdi, {landlock}",
        "je 7f",
        "cmp rdi, {pivot_root}",
        "je 7f",
        "cmp rdi, {chroot}",
        "je 7f",
        "cmp rdi, {unshare}",
        "je 7f",
        "cmp rdi, {setns}",
        "je 7f",
        "cmp rdi, {mlockall}",
        "je 8f",
        "cmp rdi, {seccomp}",
        "je 5f",
        "cmp rdi, {prctl}",
        "jne 2f",
        "cmp esi, {set_seccomp}",
        "jne 6f",
        "mov byte ptr [rip + {confined}], 1",
        "cmp rdx, {strict}",
        "jne 2f",
        "mov byte ptr [rip + {clock}], 1",
        "jmp 2f",
        "6:",
        "cmp esi, {set_tsc}",
        "jne 2f",
        "cmp rdx, {tsc_sigsegv}",
        "jne 2f",
        "mov byte ptr [rip + {clock}], 1",
        "jmp 2f",
        "5:",
        "cmp rsi, 1", // SECCOMP_SET_MODE_STRICT and _FILTER
        "ja 2f",
        "mov byte ptr [rip + {confined}], 1",
        "test rsi, rsi", // SECCOMP_SET_MODE_STRICT
        "jne 2f",
        "mov byte ptr [rip + {clock}], 1",
        "2:",
        "mov r11, qword ptr [rip + {real}]",
        "test r11, r11",
        "je 3f",
        "jmp r11",
        "3:",
        // Too early to know the real one. Nobody needs errno this early.
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, qword ptr [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jb 4f",
        "mov rax, -1",
        "4:",
        "ret",
        "7:",
        "jmp {narrowing}",
        "8:",
        "jmp {locking}",
        landlock = const libc::SYS_landlock_restrict_self,
        pivot_root = const libc::SYS_pivot_root,
        chroot = const libc::SYS_chroot,
        unshare = const libc::SYS_unshare,
        setns = const libc::SYS_setns,
        narrowing = sym roots::narrowing_call,
        mlockall = const libc::SYS_mlockall,
        locking = sym locking::by_number,
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        set_seccomp = const libc::PR_SET_SECCOMP,
        strict = const libc::SECCOMP_MODE_STRICT,
        set_tsc = const libc::PR_SET_TSC,
        tsc_sigsegv = const libc::PR_TSC_SIGSEGV,
        confined = sym process::CONFINED,
        clock = sym sys::CLOCK_FORBIDDEN,
        real = sym real::SYSCALL,
    )
}
