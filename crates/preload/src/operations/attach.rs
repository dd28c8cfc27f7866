//! How a process comes to its tables, and a thread to its block.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence};

use varve_preload_abi::OwnMemory;
use varve_preload_abi::channel::Kind;
use varve_preload_abi::client::{Connection, close};
use varve_preload_abi::operations::{
    COUNTING, HEADER_BYTES, MEMORY_BYTES, header, heap, is_libc, limit, ticks,
};

use super::room::{self, Plan};
use super::table::{Block, CAPACITY, Shared, reading_ticks};
use super::{headers, sampling, shadow};
use crate::process::{self, Operations};
use crate::thread::{Nesting, Thread};
use crate::{loader, real, sys};

/// The memory of this process, or of the one that it was forked from.
static LATEST: AtomicUsize = AtomicUsize::new(0);
/// Bytes of it that are mapped.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// What is alive, as the header says it, in memory of the process's own: a forked child begins with its parent's as of the fork.
pub(super) static LIVE: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
/// Operations that were not counted, likewise: what a child has from its parent is not known either then.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);
/// Pieces of the shadow: every new process has them from its parent.
static SHADOWS: [[AtomicU64; 2]; header::SHADOWS] =
    [const { [const { AtomicU64::new(0) }; 2] }; header::SHADOWS];
static SHADOW_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's block; none where operations are not counted. `word` says which one is about to run.
#[inline]
pub(super) fn block(thread: &Thread, word: u64) -> Option<Block> {
    let base = process::operations_at();
    if base > process::NO_OPERATIONS && thread.tables.get() == base {
        let base = NonNull::new(base as *mut u8)?;
        return Some(Block {
            shared: Shared(base),
            at: thread.block.get(),
        });
    }
    if base == process::NO_OPERATIONS {
        return None;
    }
    claim(thread, word)
}

/// Takes a block, in the process's memory, which is asked for first where it is not there.
#[cold]
fn claim(thread: &Thread, word: u64) -> Option<Block> {
    thread.enter(|nesting| {
        if nesting == Nesting::Nested {
            return None;
        }
        let base = match process::operations_at() {
            0 => {
                // The process is new, and may be a forked one.
                thread.learn_tid();
                process::attach_operations(|| real::keeping_errno(|| ask(thread, word)))?
            }
            base => base,
        };
        if base <= process::NO_OPERATIONS {
            return None;
        }
        let shared = Shared(NonNull::new(base as *mut u8)?);
        let block = shared.claim(thread.tid(), &raw const thread.running as u64)?;
        if !thread.is_numbered.replace(true) {
            thread.number.set(shadow::number_thread());
        }
        thread.block.set(block.at);
        thread.tables.set(base);
        Some(block)
    })
}

/// Asks the recorder for the memory; an address, or that there is none to be had.
fn ask(thread: &Thread, word: u64) -> Operations {
    let Ok(connection) = Connection::open(process::address()) else {
        return Operations::None;
    };
    let place = thread.running_place();
    let said = connection.say_with(Kind::Operations, place.cast_unsigned(), None);
    let answer = match said {
        true => connection.answer(Kind::Operations),
        false => None,
    };
    let Some(answer) = answer else {
        return Operations::None;
    };
    drop(connection);
    let map = |bytes| match answer.number as usize {
        MEMORY_BYTES => sys::map_shared(answer.descriptors[0], bytes),
        _ => None,
    };
    let (bytes, why) = match room::plan() {
        Plan::Whole => (MEMORY_BYTES, limit::NOTHING),
        Plan::Part(bytes) => (bytes, limit::NOTHING),
        Plan::Nothing(why) => (0, why),
    };
    let memory = Some(bytes).filter(|bytes| *bytes > 0).and_then(map);
    let header = match memory {
        Some(_) => None,
        None => map(HEADER_BYTES),
    };
    answer.descriptors.into_iter().for_each(close);
    if let Some(header) = header {
        say_limit(Shared(header), why);
        // Of what is not counted, no block is sampled.
        sampling::set_mean(0);
        // SAFETY: mapped above, for this alone.
        unsafe { sys::unmap(header, HEADER_BYTES) };
    }
    let Some(memory) = memory else {
        return Operations::None;
    };
    let shared = Shared(memory);
    describe(shared, thread, word);
    inherit(shared);
    MAPPED.store(bytes, Ordering::Relaxed);
    CAPACITY.store(bytes, Ordering::SeqCst);
    LATEST.store(memory.as_ptr() as usize, Ordering::Release);
    process::note_own_memory(memory, bytes, OwnMemory::Table);
    Operations::At(memory)
}

/// Says what the process measures with, and whose allocator it has.
fn describe(shared: Shared, thread: &Thread, word: u64) {
    let set = |which: usize, value: u64| shared.word(which).store(value, Ordering::Relaxed);
    if !sys::CLOCK_FORBIDDEN.load(Ordering::Relaxed) {
        let twice = (0..32).map(|_| reading_ticks());
        set(header::CLOCK_TICKS, twice.min().unwrap_or(0));
        set(header::START_TICKS, ticks());
    }
    if real::get().malloc_at().is_null() {
        real::resolve();
    }
    if let Some(name) = loader::file_of(real::get().malloc_at() as u64) {
        let name = name.to_bytes();
        match is_libc(name) {
            true => headers::may_have(),
            false => wake(thread, word),
        }
        let name = &name[..name.len().min(header::ALLOCATOR_BYTES - 1)];
        for (i, piece) in name.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            set(header::ALLOCATOR + i * 8, u64::from_ne_bytes(word));
        }
    }
    set(header::START_NS, sys::now_ns());
}

/// Some allocators allocate for themselves when they are asked for a size for the first time, which is nothing of the program's: now, while
/// nothing is counted. What they map to begin with is the first operation's, that of `word`.
fn wake(thread: &Thread, word: u64) {
    let real = real::get();
    let runs = |word| {
        compiler_fence(Ordering::SeqCst);
        thread.running.word.set(word);
        compiler_fence(Ordering::SeqCst);
    };
    runs(word);
    // SAFETY: takes an integer.
    let block = unsafe { real.malloc(1) };
    runs(COUNTING);
    // SAFETY: a block that is this function's alone.
    unsafe {
        if !block.is_null() && !real::is_early(block) {
            real.malloc_usable_size(block);
            real.free(block);
        }
    }
}

/// Takes over from the parent of a forked child: its blocks are alive here too.
fn inherit(shared: Shared) {
    let pieces = SHADOW_COUNT.load(Ordering::Acquire).min(SHADOWS.len());
    for (i, piece) in SHADOWS.iter().take(pieces).enumerate() {
        let at = piece.each_ref().map(|word| word.load(Ordering::Acquire));
        write_shadow(shared, i, at);
    }
    let set = |which: usize, value: &AtomicU64| {
        let value = value.load(Ordering::Relaxed);
        shared.word(which).store(value, Ordering::Relaxed);
    };
    set(header::LIVE_REQUESTED, &LIVE[0]);
    set(header::LIVE_USABLE, &LIVE[1]);
    set(header::LIVE_BLOCKS, &LIVE[2]);
    set(header::PEAK_REQUESTED, &LIVE[0]);
    set(header::PEAK_USABLE, &LIVE[1]);
    set(header::UNCOUNTED_BEFORE, &UNCOUNTED);
    drop_parents_tables();
}

/// In a forked child: its parent's tables go.
fn drop_parents_tables() {
    let Some(parents) = NonNull::new(LATEST.swap(0, Ordering::AcqRel) as *mut u8) else {
        return;
    };
    process::forget_own_memory(parents);
    // SAFETY: a mapping of this library's own; no other thread of this child has it.
    unsafe { sys::unmap(parents, MAPPED.swap(0, Ordering::Relaxed)) };
}

/// In a forked child that has no tables yet: those of its parent go, and what is known of its parent's blocks.
pub(super) fn drop_parents() {
    for (piece, first) in pieces() {
        shadow::forget_piece(piece, first);
    }
    SHADOW_COUNT.store(0, Ordering::Release);
    drop_parents_tables();
}

/// Notes a piece of the shadow, and the first address that it says something of: the recorder reads it, and leaves it out of the program's memory.
pub(super) fn note_shadow(piece: u64, first: u64) {
    let index = SHADOW_COUNT.fetch_add(1, Ordering::AcqRel);
    if let Some([at, of]) = SHADOWS.get(index) {
        of.store(first, Ordering::Relaxed);
        at.store(piece, Ordering::Release);
    }
    if let Some(shared) = shared() {
        write_shadow(shared, index, [piece, first]);
    }
    if let Some(piece) = NonNull::new(piece as *mut u8) {
        process::note_own_memory(piece, heap::PIECE_BYTES as usize, OwnMemory::Table);
    }
}

fn write_shadow(shared: Shared, index: usize, [piece, first]: [u64; 2]) {
    if index < header::SHADOWS {
        let at = header::SHADOW + index * 16;
        shared.word(at + 8).store(first, Ordering::Relaxed);
        shared.word(at).store(piece, Ordering::Release);
    }
}

/// Says what a limit of the address space has done.
pub(super) fn say_limit(shared: Shared, what: u64) {
    shared.word(header::LIMIT).store(what, Ordering::Release);
}

/// Bytes of tables that are mapped.
pub(super) fn mapped_bytes() -> u64 {
    MAPPED.load(Ordering::Relaxed) as u64
}

/// The pieces of the shadow: where each is, and the first address that it says something of.
pub(super) fn pieces() -> impl Iterator<Item = (u64, u64)> {
    let count = SHADOW_COUNT.load(Ordering::Acquire).min(SHADOWS.len());
    SHADOWS.iter().take(count).map(|[at, first]| {
        let first = first.load(Ordering::Relaxed);
        (at.load(Ordering::Acquire), first)
    })
}

/// Unmaps the end of the tables' memory, which nothing has been taken of; there is no room for more then.
pub(super) fn cut_tables() {
    const ROOM: usize = 1 << 20;
    let Some(shared) = shared() else {
        return;
    };
    if process::operations_at() != LATEST.load(Ordering::Acquire) {
        return;
    }
    CAPACITY.store(0, Ordering::SeqCst);
    let taken = shared.word(header::NEXT).load(Ordering::SeqCst) as usize;
    let mapped = MAPPED.load(Ordering::Relaxed);
    let stays = (taken + ROOM).next_multiple_of(ROOM).min(mapped);
    MAPPED.store(stays, Ordering::Relaxed);
    CAPACITY.store(stays, Ordering::SeqCst);
    let rest = shared.0.as_ptr() as u64 + stays as u64;
    // SAFETY: of this library's own mapping, behind all that was taken and will be.
    unsafe { sys::unmap_at(rest, (mapped - stays) as u64) };
}

/// Unmaps the tables, and forgets the pieces of the shadow, when nobody uses either any more.
pub(super) fn unmap_all(shared: Shared) {
    for i in 0..header::SHADOWS {
        shared
            .word(header::SHADOW + i * 16)
            .store(0, Ordering::Release);
    }
    SHADOW_COUNT.store(0, Ordering::Release);
    LATEST.store(0, Ordering::Release);
    let bytes = MAPPED.swap(0, Ordering::Relaxed);
    process::forget_own_memory(shared.0);
    // SAFETY: a mapping of this library's own that nobody uses any more.
    unsafe { sys::unmap(shared.0, bytes) };
}

/// The process's memory, where it has it.
fn shared() -> Option<Shared> {
    let base = process::operations_at();
    (base > process::NO_OPERATIONS).then_some(())?;
    NonNull::new(base as *mut u8).map(Shared)
}

/// Counts an operation that was not counted.
#[cold]
pub(super) fn count_uncounted() {
    if let Some(shared) = shared() {
        let word = shared.word(header::UNCOUNTED);
        word.fetch_add(1, Ordering::Relaxed);
        UNCOUNTED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a block that was handed out where one lived.
#[cold]
pub(super) fn count_unseen() {
    if let Some(shared) = shared() {
        let word = shared.word(header::UNSEEN_FREES);
        word.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a free of what nobody saw allocated.
#[cold]
pub(super) fn count_unknown() {
    if let Some(shared) = shared() {
        let word = shared.word(header::UNKNOWN_FREES);
        word.fetch_add(1, Ordering::Relaxed);
    }
}
