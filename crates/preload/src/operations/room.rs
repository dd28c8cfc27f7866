//! Address space, where the program may have only so much of it (RLIMIT_AS, `ulimit -v`; RLIMIT_DATA, `ulimit -d`, of which the shadow is a part and
//! tables, which are shared memory, are none).
//!
//! All that this library maps counts against the program's limit, which the program may need as a whole. Where a limit is there as the program
//! begins, the library takes a small part of what it leaves, or nothing at all. Where the program sets one itself, or is refused
//! memory that it would have had alone, it gets back what the library has: nothing is counted from then on, which the recorder is told.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use varve_preload_abi::operations::{COUNTING, MEMORY_BYTES, heap, limit};

use super::{attach, sampling, shadow, table};
use crate::budget::{LIMITS, budgets, used};
use crate::thread;
use crate::{locking, operations, process, sys};

/// With less for its tables nothing is counted.
const MIN_TABLES: u64 = 8 << 20;
/// Pieces of the shadow that a program needs at least: for what it gets by `brk`, by `mmap`, and at the border of two.
const MIN_PIECES: u64 = 3;

/// How much address space tables and shadow may take.
pub(super) enum Plan {
    /// There is no limit.
    Whole,
    /// So many bytes of tables.
    Part(usize),
    /// None, for this reason of [`limit`].
    Nothing(u64),
}

/// Bytes of shadow that may yet be mapped.
static SHADOW_LEFT: AtomicU64 = AtomicU64::new(u64::MAX);
/// All was given back.
static IS_GIVEN_BACK: AtomicBool = AtomicBool::new(false);
/// Somebody does so.
static GIVES_BACK: AtomicBool = AtomicBool::new(false);

/// How much may be taken now.
pub(super) fn plan() -> Plan {
    if locking::brings_in() {
        return Plan::Nothing(limit::LOCKED);
    }
    let [space, data] = budgets(None, [0; 2]);
    let shadow = MIN_PIECES * heap::PIECE_BYTES;
    if space < MIN_TABLES + shadow || data < shadow {
        return Plan::Nothing(limit::NOTHING);
    }
    if space == u64::MAX {
        SHADOW_LEFT.store(data, Ordering::Relaxed);
        return Plan::Whole;
    }
    let most = (space / 4).min(MEMORY_BYTES as u64);
    let tables = 1u64 << most.ilog2();
    SHADOW_LEFT.store((space - tables).min(data), Ordering::Relaxed);
    Plan::Part(tables as usize)
}

/// Whether operations were to be counted, and a limit leaves no address space for what the library reports.
#[cold]
pub(crate) fn forbids_rings() -> bool {
    IS_GIVEN_BACK.load(Ordering::Relaxed)
        || operations::is_on() && matches!(plan(), Plan::Nothing(limit::NOTHING))
}

/// Whether another piece of the shadow may be mapped.
pub(super) fn take_piece() -> bool {
    let (done, other) = (Ordering::Relaxed, Ordering::Relaxed);
    SHADOW_LEFT
        .fetch_update(done, other, |left| match left {
            u64::MAX => Some(left),
            left => left.checked_sub(heap::PIECE_BYTES),
        })
        .is_ok()
}

/// The program was refused memory of so many bytes. Whether the limit would have let it have that without this library, which has given back all
/// that it had: the program's call is to be made again.
#[cold]
#[inline(never)]
pub(crate) fn give_back_for(bytes: usize) -> bool {
    if process::operations_at() <= process::NO_OPERATIONS || process::is_confined() {
        return false;
    }
    // These calls are no part of the operation that runs.
    let word = &thread::current().running.word;
    let running = word.replace(COUNTING);
    // Most programs have no limit, and are refused for another reason.
    let limits = LIMITS.map(sys::limit);
    let used = (limits != [None; 2]).then(used).flatten();
    word.set(running);
    let Some(used) = used else {
        return false;
    };
    let held = held();
    let would_fit = (0..LIMITS.len()).all(|which| {
        let alone = used[which].saturating_sub(held[which]);
        limits[which].is_none_or(|limit| alone.saturating_add(bytes as u64) <= limit)
    });
    // What another thread gives back is there for this one too.
    would_fit && (give_back(limit::GIVEN_BACK) || IS_GIVEN_BACK.load(Ordering::Acquire))
}

/// The program is about to set one of [`LIMITS`]: it gets back what is not used, and all where that would be a large part of what the limit leaves.
#[cold]
pub(crate) fn will_be_limited(resource: u32, limit: u64) {
    let Some(which) = LIMITS.iter().position(|each| *each == resource) else {
        return;
    };
    if limit == libc::RLIM64_INFINITY
        || is_parents()
        || process::operations_at() <= process::NO_OPERATIONS
        || process::is_confined()
    {
        return;
    }
    attach::cut_tables();
    let held = held();
    let budget = budgets(Some((resource, limit)), held)[which];
    match budget.checked_sub(held[which]) {
        Some(left) => _ = SHADOW_LEFT.fetch_min(left, Ordering::Relaxed),
        None => _ = give_back(limit::GIVEN_BACK),
    }
}

/// The program is about to lock all its memory: tables and shadow, of which little is used, would all be brought into memory.
#[cold]
pub(crate) fn will_be_locked() {
    if process::is_confined() {
        return;
    }
    if process::operations_at() > process::NO_OPERATIONS {
        give_back(limit::LOCKED);
    } else if process::is_new() && !is_at_work() {
        attach::drop_parents();
    }
}

/// Whether a signal handler has interrupted this thread's work on its tables, which goes on afterwards.
fn is_at_work() -> bool {
    thread::current().running.word.get() == COUNTING
}

/// Bytes of tables and shadow, as each of [`LIMITS`] counts them.
fn held() -> [u64; 2] {
    let shadow = attach::pieces().count() as u64 * heap::PIECE_BYTES;
    [attach::mapped_bytes() + shadow, shadow]
}

/// Whether a child between vfork and exec calls, which has its parent's memory and a limit of its own. A thread of a forked child has its
/// parent's number until something is reported.
pub(crate) fn is_parents() -> bool {
    !process::is_new() && thread::current().tid() != sys::thread_id()
}

/// Gives all back, and ends counting, for this reason of [`limit`]; whether that was possible.
fn give_back(why: u64) -> bool {
    let thread = thread::current();
    // A limit is the child's alone between vfork and exec, and what is locked is its parent's memory.
    let is_anothers = why != limit::LOCKED && is_parents();
    if is_anothers || is_at_work() || GIVES_BACK.swap(true, Ordering::AcqRel) {
        return false;
    }
    let base = NonNull::new(process::end_operations() as *mut u8);
    operations::switch(false);
    sampling::set_mean(0);
    let Some(shared) = base.map(table::Shared) else {
        return false;
    };
    attach::say_limit(shared, why);
    // One that does not come out of its operation keeps what it may touch.
    if !shared.is_quiet(thread.tid()) {
        return false;
    }
    for (piece, first) in attach::pieces() {
        shadow::forget_piece(piece, first);
    }
    attach::unmap_all(shared);
    IS_GIVEN_BACK.store(true, Ordering::Release);
    true
}
