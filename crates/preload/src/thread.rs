//! Per-thread state in the static TLS block.
//!
//! `thread_local!` in a shared library goes through `__tls_get_addr`, which may call `malloc` when
//! a library was loaded since the thread last looked: within `malloc` that never ends. A preloaded
//! library may use the initial-exec model instead: an offset from the thread pointer that is known
//! once the library is loaded. The compiler has no stable switch for it, hence the assembly.

use std::arch::{asm, global_asm};
use std::cell::Cell;
use std::sync::atomic::{Ordering, compiler_fence};

use varve_preload_abi::RingWriter;
use varve_preload_abi::operations::{COUNTING, Running, ticks};

use crate::{process, sys, unwind};

/// So much is counted in the ring at once.
const SPENT_AT_ONCE_NS: u64 = 20_000;

global_asm!(
    ".pushsection .tbss,\"awT\",@nobits",
    ".globl varve_preload_thread",
    ".hidden varve_preload_thread",
    ".type varve_preload_thread, @object",
    ".size varve_preload_thread, 128",
    ".balign 64",
    "varve_preload_thread:",
    ".zero 128",
    ".popsection",
);

/// What the library knows about the calling thread. Starts as zeroes.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// Where the frame of the slow path lies that is active on the thread; 0: none is. One that begins meanwhile means that a
    /// signal handler, or a C library function called from here, came back in.
    entry: Cell<u64>,
    tid: Cell<u32>,
    /// The generation of the process (see [`process::generation`]) that `tid` belongs to.
    tid_generation: Cell<u32>,
    /// The unwinder slot used last.
    pub(crate) slot: Cell<u32>,
    /// The bounds of the thread's stack; 0 while unknown.
    pub(crate) stack_low: Cell<u64>,
    pub(crate) stack_high: Cell<u64>,
    /// The number of its reservation, plus one; 0: it has none yet.
    pub(crate) reservation: Cell<u32>,
    /// How many records it has written.
    pub(crate) records: Cell<u32>,
    /// Nanoseconds spent on records that the ring does not count yet.
    spent: Cell<u64>,
    /// Where the memory is that the C library allocates from while it works for this library; 0: it does not (see [`crate::scratch`]).
    pub(crate) scratch: Cell<usize>,
    /// The allocator operation that runs.
    pub(crate) running: Running,
    /// Where the tables of operations are in which the thread has a block, and that block.
    pub(crate) tables: Cell<usize>,
    pub(crate) block: Cell<usize>,
    /// An operation ran within the one that runs.
    pub(crate) inner: Cell<bool>,
    /// Its number on cache lines of the heap, where it has one.
    pub(crate) number: Cell<u8>,
    pub(crate) is_numbered: Cell<bool>,
    /// Bytes of allocations until the next block is sampled.
    pub(crate) until_sample: Cell<i64>,
    /// The state of the numbers that scatter those; 0 before the first allocation.
    pub(crate) sample_random: Cell<u64>,
    /// Ticks that slow paths took within the operation that runs: they are no part of its time.
    pub(crate) own_ticks: Cell<u64>,
}

const _: () = assert!(size_of::<Thread>() == 128);

/// The calling thread's state.
#[inline]
pub(crate) fn current() -> &'static Thread {
    let pointer: *const Thread;
    // SAFETY: reads the variable's offset from the GOT and adds the thread pointer, which the x86-64
    // ABI keeps at fs:0.
    unsafe {
        asm!(
            "mov {0}, qword ptr [rip + varve_preload_thread@GOTTPOFF]",
            "add {0}, qword ptr fs:[0]",
            out(reg) pointer,
            // The same for a thread all its life.
            options(nostack, pure, readonly),
        );
    }
    // SAFETY: the block is 128 zeroed bytes, a valid `Thread`, and lives as long as the thread; the
    // reference does not leave it, since `Thread` is not `Sync`.
    unsafe { &*pointer }
}

impl Thread {
    /// How far from the thread pointer [`Thread::running`] is; the same for all threads.
    pub(crate) fn running_place(&self) -> i64 {
        let pointer: u64;
        // SAFETY: reads the thread pointer, which the x86-64 ABI keeps at fs:0.
        unsafe {
            asm!("mov {0}, qword ptr fs:[0]", out(reg) pointer, options(nostack, readonly));
        }
        let at = &raw const self.running as u64;
        at.wrapping_sub(pointer).cast_signed()
    }

    /// The kernel's id of the thread.
    #[inline]
    pub(crate) fn tid(&self) -> u32 {
        let generation = process::generation();
        if self.tid_generation.get() != generation || self.tid.get() == 0 {
            self.learn_tid();
        }
        self.tid.get()
    }

    /// Asks the kernel for it: in a forked child it is the parent's until then.
    #[cold]
    pub(crate) fn learn_tid(&self) {
        self.tid.set(sys::thread_id());
        self.tid_generation.set(process::generation());
    }

    /// Counts what was spent on a record since `began`.
    #[inline]
    pub(crate) fn spent_since(&self, began: u64, ring: &RingWriter) {
        let spent = self.spent.get() + sys::now_ns().saturating_sub(began);
        // All threads write to the ring's count.
        if spent < SPENT_AT_ONCE_NS {
            self.spent.set(spent);
        } else {
            self.spent.set(0);
            ring.count_spent(spent);
        }
    }

    /// Runs a slow path; tells it whether it is the only one active on this thread.
    #[inline]
    pub(crate) fn enter<T>(&self, work: impl FnOnce(Nesting) -> T) -> T {
        let mark = Cell::new(0u64);
        let place = &raw const mark as u64;
        if self.entry.get() != 0 && !self.has_left(place) {
            return work(Nesting::Nested);
        }
        // SAFETY: a word of this frame. It is read where it lies, if at all.
        unsafe { mark.as_ptr().write_volatile(mark_at(place)) };
        compiler_fence(Ordering::SeqCst);
        self.entry.set(place);
        compiler_fence(Ordering::SeqCst);
        let result = match self.running.word.get() {
            0 | COUNTING => work(Nesting::Outermost),
            operation => self.within(operation, || work(Nesting::Outermost)),
        };
        compiler_fence(Ordering::SeqCst);
        self.entry.set(0);
        std::hint::black_box(&mark);
        result
    }

    /// Runs a slow path within an allocator operation: what it takes is this library's, and not the allocator's.
    #[cold]
    fn within<T>(&self, operation: u64, work: impl FnOnce() -> T) -> T {
        let now = || match sys::CLOCK_FORBIDDEN.load(Ordering::Relaxed) {
            true => 0,
            false => ticks(),
        };
        let began = now();
        self.running.word.set(COUNTING);
        compiler_fence(Ordering::SeqCst);
        let result = work();
        compiler_fence(Ordering::SeqCst);
        self.running.word.set(operation);
        let took = now().saturating_sub(began);
        self.own_ticks
            .set(self.own_ticks.get().saturating_add(took));
        result
    }

    /// Whether the thread has left the slow path that it was in, by a jump out of a signal handler, where another one begins
    /// with its frame at `place`. What it held is given back.
    #[cold]
    fn has_left(&self, place: u64) -> bool {
        let entry = self.entry.get();
        let stack = self.stack_low.get()..self.stack_high.get();
        // Of other stacks nobody knows in what order they are used.
        if !stack.contains(&entry) || !stack.contains(&place) || process::is_confined() {
            return false;
        }
        let has_left = if place < entry {
            // SAFETY: in the thread's stack, above the stack pointer.
            unsafe { (entry as *const u64).read_volatile() != mark_at(entry) }
        } else {
            // A signal stack may lie in an array of the thread's own stack.
            !sys::is_on_signal_stack()
        };
        if has_left {
            self.entry.set(0);
            unwind::recover_after_jump(self.tid());
            process::recover_after_jump(self);
        }
        has_left
    }
}

/// What the frame of a slow path has at its place: hardly a number that a program has on its stack.
const fn mark_at(place: u64) -> u64 {
    place.rotate_left(32) ^ 0x9d0c_4f2b_73e6_a581
}

/// Whether a slow path interrupted another one on the same thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nesting {
    Outermost,
    /// Must use only what is lock-free and whole at every instruction: no unwinder, no arena.
    Nested,
}
