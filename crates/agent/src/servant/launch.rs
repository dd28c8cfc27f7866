//! How a servant comes to be.

use std::arch::naked_asm;
use std::ptr::NonNull;

use varve_agent_ring::{OwnMemory, TRAPS_SOCKET};

use super::ranges::Range;
use super::talk::{Socket, close};
use super::{end, live};
use crate::{process, sys, writes};

/// The servant's stack; the messages and lists that it keeps there take less than half.
const STACK_BYTES: usize = 512 << 10;
/// The stack of the process in between.
const SHORT_STACK_BYTES: usize = 16 << 10;
/// `__WCLONE`: children without an exit signal.
const WAIT_CLONE: usize = 0x8000_0000;

/// What the new processes are told. It lies on the stack of the thread that makes them, which waits.
struct Order {
    socket: Socket,
    process: u32,
    stack_top: usize,
}

pub(super) fn launch(folder: &[u8]) {
    let Some(stack) = sys::map_anonymous(STACK_BYTES) else {
        return;
    };
    let mut pair = [-1i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: fills two integers.
    let made = unsafe {
        sys::call(
            libc::SYS_socketpair,
            [
                libc::AF_UNIX as usize,
                kind as usize,
                0,
                pair.as_mut_ptr() as usize,
                0,
                0,
            ],
        )
    };
    let [ours, theirs] = pair;
    if made == 0 {
        process::note_own_memory(stack, STACK_BYTES, OwnMemory::Table);
        writes::send(folder, TRAPS_SOCKET, theirs);
        make(Socket(ours), stack);
        close(ours);
        close(theirs);
    } else {
        // SAFETY: mapped above, and nobody else knows of it.
        unsafe { sys::unmap(stack, STACK_BYTES) };
    }
}

/// Makes the servant by way of a process in between, which ends at once: so the servant is nobody's child here.
fn make(socket: Socket, stack: NonNull<u8>) {
    let top = stack.as_ptr() as usize + STACK_BYTES;
    let order = Order {
        socket,
        process: sys::process_id(),
        stack_top: top - SHORT_STACK_BYTES,
    };
    let all = u64::MAX;
    let mut before = 0u64;
    set_mask(&all, &mut before);
    let flags = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
    // SAFETY: the stack is the new process's alone and this thread waits until it has ended.
    let child = unsafe { clone_into(flags, top, between, &raw const order as usize) };
    if child > 0 {
        // SAFETY: takes integers; the status is not asked for.
        unsafe { sys::call(libc::SYS_wait4, [child as usize, 0, WAIT_CLONE, 0, 0, 0]) };
    }
    set_mask(&before, &mut 0);
}

fn set_mask(mask: &u64, before: &mut u64) {
    // SAFETY: both are signal sets of the size that is stated.
    unsafe {
        sys::call(
            libc::SYS_rt_sigprocmask,
            [
                libc::SIG_SETMASK as usize,
                std::ptr::from_ref(mask) as usize,
                std::ptr::from_mut(before) as usize,
                8,
                0,
                0,
            ],
        )
    };
}

extern "C" fn between(order: usize) -> ! {
    // SAFETY: `make` keeps it until this process has ended.
    let order = unsafe { &*(order as *const Order) };
    // What the servant needs is copied to the top of its own stack: nobody waits for it.
    let place = (order.stack_top - 64) as *mut Order;
    let copy = Order {
        socket: order.socket,
        process: order.process,
        stack_top: order.stack_top,
    };
    // SAFETY: within the stack that `launch` mapped, aligned, below this function's own part of it.
    unsafe { place.write(copy) };
    // SAFETY: the stack below is the servant's alone from here on.
    unsafe {
        clone_into(
            libc::CLONE_VM as usize,
            order.stack_top - 128,
            servant,
            place as usize,
        )
    };
    end()
}

extern "C" fn servant(order: usize) -> ! {
    // SAFETY: `between` wrote it at the top of this stack.
    let order = unsafe { &*(order as *const Order) };
    let socket = settle(order.socket);
    let end_of_stack = (order.stack_top + SHORT_STACK_BYTES) as u64;
    let stack = Range {
        start: end_of_stack - STACK_BYTES as u64,
        end: end_of_stack,
    };
    live(socket, order.process, stack);
    end()
}

/// Leaves everything of the program's that a process inherits.
fn settle(socket: Socket) -> Socket {
    // SAFETY: these take integers and C strings that live as long as the program. Only descriptors of this process's
    // own table are closed; the socket is kept, as the lowest.
    unsafe {
        sys::call(libc::SYS_setsid, [0; 6]);
        let name = c"varve-servant".as_ptr() as usize;
        sys::call(
            libc::SYS_prctl,
            [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0],
        );
        sys::call(libc::SYS_chdir, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]);
        let at = socket.0 as usize;
        if at > 0 {
            sys::call(libc::SYS_close_range, [0, at - 1, 0, 0, 0, 0]);
        }
        sys::call(
            libc::SYS_close_range,
            [at + 1, u32::MAX as usize, 0, 0, 0, 0],
        );
    }
    socket
}

/// `clone` with a stack of its own for the child, which runs a function there; the parent gets its id or an error.
///
/// # Safety
/// The memory below `stack_top`, a multiple of 16, is the child's alone; `run` never returns.
#[unsafe(naked)]
unsafe extern "C" fn clone_into(
    flags: usize,
    stack_top: usize,
    run: extern "C" fn(usize) -> !,
    argument: usize,
) -> isize {
    naked_asm!(
        "mov r8, rdx",
        "mov r9, rcx",
        "xor edx, edx",
        "xor r10d, r10d",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jnz 2f",
        "xor ebp, ebp",
        "mov rdi, r9",
        "call r8",
        "ud2",
        "2:",
        "ret",
        clone = const libc::SYS_clone,
    )
}
