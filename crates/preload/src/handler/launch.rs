//! How a fault handler is made.

use std::arch::naked_asm;
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use varve_preload_abi::SHARED_USER;
use varve_preload_abi::channel::Kind;
use varve_preload_abi::client::Connection;

use super::exempt::{note_arguments, note_statics};
use super::messages::{Socket, close};
use super::ranges::Range;
use super::{end, ending, live, memory, rights};
use crate::{limits, process, sys};

/// The handler's stack; the messages and lists that it keeps there take less than half.
pub(super) const STACK_BYTES: usize = 512 << 10;
/// The order lies above it.
const ORDER_BYTES: usize = 256;
const _: () = assert!(size_of::<Order>() <= ORDER_BYTES);
/// How long the program waits at most until its handler has given up its rights.
const MAX_CONFINING_SECONDS: usize = 5;

/// What the new process needs to know.
struct Order {
    socket: Socket,
    stack: Range,
    /// [`STARTING`], [`CONFINED`] or [`ENDED`], which the kernel writes.
    state: AtomicU32,
}

const ENDED: u32 = 0;
const STARTING: u32 = 1;
const CONFINED: u32 = 2;

pub(super) fn launch() {
    // Before the library's own start, perhaps.
    note_statics();
    note_arguments();
    limits::plan_shadows(None);
    let said = Connection::open(process::address())
        .ok()
        .filter(|connection| connection.say(Kind::Handler, None));
    if let Some(connection) = said {
        let socket = connection.into_descriptor();
        if let Some(stack) = memory::prepare() {
            make(Socket(socket), stack);
        }
        close(socket);
    }
}

/// Makes the handler, and waits until it has given up its rights: so this thread does not run while the memory's
/// `dumpable` flag changes. No signal is delivered meanwhile.
fn make(socket: Socket, stack: NonNull<u8>) {
    let bottom = stack.as_ptr() as usize;
    let top = bottom + STACK_BYTES;
    let place = top - ORDER_BYTES;
    let order = place as *mut Order;
    let new = Order {
        socket,
        stack: Range {
            start: bottom as u64,
            end: top as u64,
        },
        state: AtomicU32::new(STARTING),
    };
    // SAFETY: within fresh memory, aligned, and the stack ends below. It stays as long as the stack.
    let order = unsafe {
        order.write(new);
        &*order
    };
    let all = u64::MAX;
    let mut before = 0u64;
    set_mask(&all, &mut before);
    ending::reap_predecessors();
    // A tracer of the program that follows what it makes would hold the handler too, and so whoever waits for it.
    let flags = (libc::CLONE_VM | libc::CLONE_CHILD_CLEARTID | libc::CLONE_UNTRACED) as usize;
    let state = place + offset_of!(Order, state);
    // SAFETY: the stack below is the handler's alone from here on.
    let child = unsafe { clone_into(flags, place, handler, place, state) };
    if child > 0 {
        ending::note(child as u32);
        for _ in 0..MAX_CONFINING_SECONDS {
            if order.state.load(Ordering::Acquire) != STARTING {
                break;
            }
            futex(&order.state, libc::FUTEX_WAIT, STARTING);
        }
        if order.state.load(Ordering::Acquire) == ENDED {
            ending::reap_soon();
        }
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

/// Waits for a second at most, or wakes who waits. The kernel wakes through the shared kind, so no other will do.
fn futex(word: &AtomicU32, operation: i32, value: u32) {
    let limit = libc::timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    // SAFETY: both pointers are to memory that outlives the call.
    unsafe {
        sys::call(
            libc::SYS_futex,
            [
                word.as_ptr() as usize,
                operation as usize,
                value as usize,
                &raw const limit as usize,
                0,
                0,
            ],
        )
    };
}

extern "C" fn handler(place: usize) -> ! {
    // SAFETY: `make` wrote it there, above this stack.
    let order = unsafe { &*(place as *const Order) };
    leave(order.socket);
    let asked = ending::listen();
    let taken = rights::give_up();
    if taken.is_none() || !rights::has_own_user() {
        // The program hears of the end, and reaps it before it goes on.
        order.socket.send(&[SHARED_USER], None);
        end();
    }
    // What the kernel would write at the end is of no use from here on.
    // SAFETY: takes an address, which may be null.
    unsafe { sys::call(libc::SYS_set_tid_address, [0; 6]) };
    order.state.store(CONFINED, Ordering::Release);
    futex(&order.state, libc::FUTEX_WAKE, 1);
    if let Some(taken) = taken
        && rights::confine()
    {
        live(order.socket, asked, taken, order.stack);
    }
    end()
}

/// Leaves everything of the program's that a process inherits.
fn leave(socket: Socket) {
    // SAFETY: these take integers and C strings that live as long as the program. Only descriptors of this process's
    // own table are closed.
    unsafe {
        sys::call(libc::SYS_setsid, [0; 6]);
        let name = super::NAME.as_ptr() as usize;
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
}

/// `clone` with a stack of its own for the child, which runs a function there; the parent gets its id or an error.
/// `child_id` is where the kernel writes 0 at the child's end, with `CLONE_CHILD_CLEARTID`.
///
/// # Safety
/// The memory below `stack_top`, a multiple of 16, is the child's alone; `run` never returns.
#[unsafe(naked)]
unsafe extern "C" fn clone_into(
    flags: usize,
    stack_top: usize,
    run: extern "C" fn(usize) -> !,
    argument: usize,
    child_id: usize,
) -> isize {
    naked_asm!(
        "mov r10, r8",
        "mov r8, rdx",
        "mov r9, rcx",
        "xor edx, edx",
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
