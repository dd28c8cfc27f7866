//! The process: its settings, its ring, and what happens to both at a fork.
//!
//! The ring belongs to one process. Its state stands in a page that the kernel wipes in a forked
//! child (MADV_WIPEONFORK), so a child notices at its first event that it needs a ring of its own,
//! however it was made, and without a system call per event. After `vfork` the memory is the
//! parent's, and so, rightly, are the ring and what the child does to that memory.

mod settings;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

use varve_preload_abi::channel::Kind;
use varve_preload_abi::client::{Connection, close};
use varve_preload_abi::{Event, Fullness, MAX_FRAMES, OwnMemory, Record, RingWriter, StartCause};

use crate::operations::operators;
use crate::thread::{Nesting, Thread};
use crate::{
    ARENA, handler, inherited, locking, operations, own, reservations, sys, thread, threads,
    unwind, writes,
};
use settings::read_settings;
pub(crate) use settings::{
    address, follow_min_object, frame_limit, min_object, reports_no_objects,
};

/// State of the process's ring; wiped to zeroes in a forked child.
struct State {
    status: AtomicU32,
    ring: UnsafeCell<MaybeUninit<RingWriter>>,
    /// Where the tables of operations are; 0: not asked for yet, or [`NO_OPERATIONS`].
    operations: AtomicUsize,
    /// Whether somebody asks.
    asks: AtomicBool,
    /// Whether what is mapped from now on is locked: 0, [`LOCKS`] or [`LOCKS_AND_BRINGS_IN`]. It is a property of the address space: a forked
    /// child's is not, as the kernel has it too, and the fault handler's is.
    locking: AtomicU8,
}

/// What is mapped from now on is locked as it is touched.
pub(crate) const LOCKS: u8 = 1;
/// The same, and brought into memory at once.
pub(crate) const LOCKS_AND_BRINGS_IN: u8 = 2;

/// In place of an address: operations are not counted.
pub(crate) const NO_OPERATIONS: usize = 1;

/// What became of asking for memory for the tables of operations.
pub(crate) enum Operations {
    /// It is here.
    At(NonNull<u8>),
    /// There is none.
    None,
}

const FRESH: u32 = 0;
const ATTACHING: u32 = 1;
const READY: u32 = 2;
const UNUSABLE: u32 = 3;

static STATE: AtomicPtr<State> = AtomicPtr::new(null_mut());
/// Counts the rings of this image: 0 before the first, one more in each forked child.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The process that the state belongs to, where the kernel cannot wipe it at a fork.
static UNWIPED_OWNER: AtomicU32 = AtomicU32::new(0);
/// The mapping of the latest ring, so that a child can drop its parent's.
static RING_AT: AtomicPtr<u8> = AtomicPtr::new(null_mut());
static RING_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Set once the program confines itself with seccomp: from then on no new kind of system call.
pub(crate) static CONFINED: AtomicBool = AtomicBool::new(false);

/// Enough for 256 GiB of heap, of which [`crate::pages`] has nine tables for each.
const MAX_OWN: usize = 2304;
/// Own mappings, to be reported to every new ring.
static OWN: [(AtomicU64, AtomicU64, AtomicU8); MAX_OWN] =
    [const { (AtomicU64::new(0), AtomicU64::new(0), AtomicU8::new(0)) }; MAX_OWN];
/// What stands there for a purpose where there is no mapping, and where somebody is about to note one.
const NO_PURPOSE: u8 = 0;
const TAKEN: u8 = u8::MAX;
static OWN_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Distinguishes this process from those that it was forked from.
#[inline]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Ordering::Relaxed)
}

pub(crate) fn set_confined() {
    CONFINED.store(true, Ordering::Relaxed);
}

pub(crate) fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
}

/// Where the tables of operations are; 0: not known yet, or [`NO_OPERATIONS`].
#[inline]
pub(crate) fn operations_at() -> usize {
    // SAFETY: null, or a mapping that stays.
    let state = unsafe { STATE.load(Ordering::Acquire).as_ref() };
    state.map_or(0, |state| state.operations.load(Ordering::Acquire))
}

/// Has the tables asked for, once; where they are, or [`NO_OPERATIONS`]. None where it is too early to know.
pub(crate) fn attach_operations(ask: impl FnOnce() -> Operations) -> Option<usize> {
    if !read_settings() {
        return None;
    }
    // Nobody counts: the recorder is not asked, as asking takes a while.
    if operations::is_off() {
        return Some(NO_OPERATIONS);
    }
    let state = state()?;
    while state.asks.swap(true, Ordering::AcqRel) {
        sys::yield_now();
    }
    let mut at = state.operations.load(Ordering::Acquire);
    if at == 0 {
        at = match ask_allowed().then(ask) {
            Some(Operations::At(memory)) => memory.as_ptr() as usize,
            _ => NO_OPERATIONS,
        };
        state.operations.store(at, Ordering::Release);
    }
    state.asks.store(false, Ordering::Release);
    Some(at)
}

/// Ends the counting of operations for good; where the tables are, which nobody who comes from now on will use, or 0.
pub(crate) fn end_operations() -> usize {
    // SAFETY: null, or a mapping that stays.
    let state = unsafe { STATE.load(Ordering::Acquire).as_ref() };
    let before = state.map_or(0, |s| s.operations.swap(NO_OPERATIONS, Ordering::SeqCst));
    if before > NO_OPERATIONS { before } else { 0 }
}

/// Whether what is mapped from now on is locked: 0, [`LOCKS`] or [`LOCKS_AND_BRINGS_IN`].
pub(crate) fn locking() -> u8 {
    // SAFETY: null, or a mapping that stays.
    let state = unsafe { STATE.load(Ordering::Acquire).as_ref() };
    state.map_or(0, |state| state.locking.load(Ordering::Relaxed))
}

/// Notes that it is, or is no longer.
pub(crate) fn set_locking(locking: u8) {
    if let Some(state) = state() {
        state.locking.store(locking, Ordering::Relaxed);
    }
}

/// Whether this process, as it is now, has neither a ring nor tables of operations: it has just begun, or been forked.
pub(crate) fn is_new() -> bool {
    // SAFETY: null, or a mapping that stays.
    let state = unsafe { STATE.load(Ordering::Acquire).as_ref() };
    let has_begun = |state: &State| {
        state.status.load(Ordering::Acquire) != FRESH
            || state.operations.load(Ordering::Acquire) != 0
    };
    !is_owner() || !state.is_some_and(has_begun)
}

/// Whether a connection to the recorder may be made.
fn ask_allowed() -> bool {
    if inherited::forbids_the_library() {
        set_confined();
    }
    !is_confined()
}

/// The process's ring, made if need be; `None` if there is none to be had.
#[inline]
pub(crate) fn ring(nesting: Nesting) -> Option<RingWriter> {
    attached().or_else(|| attach(nesting))
}

/// The process's ring, where it has one.
#[inline]
pub(crate) fn attached() -> Option<RingWriter> {
    // SAFETY: null, or a mapping that stays.
    let state = unsafe { STATE.load(Ordering::Acquire).as_ref() }?;
    let is_ready = state.status.load(Ordering::Acquire) == READY && is_owner();
    // SAFETY: `READY` is set after the ring was written.
    is_ready.then(|| unsafe { (*state.ring.get()).assume_init() })
}

#[inline]
fn is_owner() -> bool {
    let owner = UNWIPED_OWNER.load(Ordering::Relaxed);
    owner == 0 || owner == sys::process_id()
}

#[cold]
fn attach(nesting: Nesting) -> Option<RingWriter> {
    if !read_settings() {
        return None;
    }
    let state = state()?;
    if !is_owner() {
        state.status.store(FRESH, Ordering::Relaxed);
        UNWIPED_OWNER.store(sys::process_id(), Ordering::Relaxed);
    }
    loop {
        match state
            .status
            .compare_exchange(FRESH, ATTACHING, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => break,
            // SAFETY: `READY` is set after the ring was written.
            Err(READY) => return Some(unsafe { (*state.ring.get()).assume_init() }),
            Err(ATTACHING) if nesting == Nesting::Outermost => sys::yield_now(),
            Err(_) => return None,
        }
    }
    let generation = GENERATION.fetch_add(1, Ordering::Relaxed) + 1;
    let cause = if generation == 1 {
        StartCause::Exec
    } else {
        StartCause::Fork
    };
    if cause == StartCause::Exec && inherited::forbids_the_library() {
        set_confined();
    }
    if is_confined() {
        // The child of a program that confined itself may ask for no ring, nor unmap its parent's. That
        // nothing will be heard of it is reported there.
        if let Some(parents) = latest_ring() {
            parents.count_unheard();
        }
        state.status.store(UNUSABLE, Ordering::Release);
        return None;
    }
    own::learn_clock();
    if operations::room::forbids_rings() {
        state.status.store(UNUSABLE, Ordering::Release);
        return None;
    }
    let is_plain_fork = cause == StartCause::Fork && nesting == Nesting::Outermost;
    if is_plain_fork {
        ARENA.recover_after_fork();
        unwind::recover_after_fork();
        operators::recover_after_fork();
        reservations::recover_after_fork();
    }
    let stale = (
        NonNull::new(RING_AT.load(Ordering::Relaxed)),
        RING_BYTES.load(Ordering::Relaxed),
    );
    // Where there is none, the parent's stays: it says whether there is a recorder.
    let Some(ring) = ask_for_ring() else {
        // That nothing will be heard of this child is reported there.
        if let Some(parents) = latest_ring() {
            parents.count_unheard();
        }
        state.status.store(UNUSABLE, Ordering::Release);
        return None;
    };
    if let ((Some(stale), bytes), true) = (stale, is_plain_fork) {
        // SAFETY: the parent's ring; the only thread of this child is not writing to it.
        unsafe { sys::unmap(stale, bytes) };
    }
    // SAFETY: only the thread that set `ATTACHING` writes it.
    unsafe { (*state.ring.get()).write(ring) };
    let thread = thread::current();
    sys::note_time();
    if cause == StartCause::Exec {
        threads::learn_main_bounds(thread);
    }
    let init = Event::Init {
        pid: sys::process_id(),
        parent: sys::parent_id(),
        cause,
    };
    emit(&ring, thread, sys::now_ns(), 0, init);
    state.status.store(READY, Ordering::Release);
    for (address, bytes, purpose) in OWN.iter().take(OWN_COUNT.load(Ordering::Acquire)) {
        let purpose = match purpose.load(Ordering::Acquire) {
            1 => OwnMemory::Ring,
            2 => OwnMemory::Heap,
            3 => OwnMemory::Table,
            _ => continue,
        };
        let (address, bytes) = (
            address.load(Ordering::Relaxed),
            bytes.load(Ordering::Relaxed),
        );
        emit(
            &ring,
            thread,
            sys::now_ns(),
            0,
            Event::PreloadMapping {
                address,
                bytes,
                purpose,
            },
        );
    }
    let own = Event::PreloadMapping {
        address: RING_AT.load(Ordering::Relaxed) as u64,
        bytes: ring.bytes() as u64,
        purpose: OwnMemory::Ring,
    };
    emit(&ring, thread, sys::now_ns(), 0, own);
    if cause == StartCause::Exec {
        tell_mappings(&ring, thread);
    }
    handler::start();
    Some(ring)
}

/// Tells what the program maps at its beginning.
fn tell_mappings(ring: &RingWriter, thread: &Thread) {
    let Some(file) = sys::ReadFile::open(c"/proc/self/maps") else {
        return;
    };
    loop {
        let mut text = [0u64; MAX_FRAMES];
        let bytes = file.read(&mut text);
        let event = Event::MapsText {
            text: &text[..bytes.div_ceil(8)],
            last: bytes == 0,
        };
        if !emit(ring, thread, sys::now_ns(), 0, event) || bytes == 0 {
            break;
        }
    }
}

/// Writes one record; returns whether it found room.
#[inline]
pub(crate) fn emit(
    ring: &RingWriter,
    thread: &Thread,
    time_ns: u64,
    site: u32,
    event: Event<'_>,
) -> bool {
    let record = Record {
        time_ns,
        tid: thread.tid(),
        site,
        event,
    };
    let mut patience = Patience::default();
    let mut write = || {
        let wait = |fullness| patience.wait(fullness, ring);
        ring.write(&record, time_ns, reservations::of(thread, ring), wait)
    };
    let written = match JUMPS.load(Ordering::Relaxed) {
        true => sys::without_signals(write),
        false => write(),
    };
    if patience.since != 0 {
        ring.count_waited(sys::now_ns() - patience.since);
    }
    if ring.is_over(time_ns) {
        give_up();
    }
    written
}

/// A handler of the program has jumped out of a slow path: from now on no signal reaches a thread that writes a record. That
/// costs two system calls a record, which most programs need not pay.
static JUMPS: AtomicBool = AtomicBool::new(false);

/// The thread has left a slow path by a jump.
#[cold]
pub(crate) fn recover_after_jump(thread: &Thread) {
    JUMPS.store(true, Ordering::Relaxed);
    if let Some(ring) = attached() {
        reservations::give_up_own(thread, &ring);
    }
}

/// The recorder is gone: from now on calls are only passed on.
#[cold]
fn give_up() {
    // SAFETY: null, or a mapping that stays.
    if let Some(state) = unsafe { STATE.load(Ordering::Acquire).as_ref() }
        && is_owner()
    {
        handler::reap();
        let (ready, gone) = (Ordering::AcqRel, Ordering::Acquire);
        let _ = state.status.compare_exchange(READY, UNUSABLE, ready, gone);
    }
}

/// How long a record may wait for room.
#[derive(Default)]
struct Patience {
    since: u64,
}

const PAUSE_NS: i64 = 50_000;
const MAX_WAIT_NS: u64 = 2_000_000;
/// Until a reader has opened the ring, which it does once: a longer wait, but few of them.
const MAX_FIRST_WAIT_NS: u64 = 20_000_000;
static FIRST_WAITS: AtomicU32 = AtomicU32::new(0);

impl Patience {
    #[cold]
    fn wait(&mut self, fullness: Fullness, ring: &RingWriter) -> bool {
        let now = sys::now_ns();
        if self.since == 0 {
            self.since = now;
            if fullness == Fullness::ReaderNotYet
                && FIRST_WAITS.fetch_add(1, Ordering::Relaxed) > 10
            {
                FIRST_WAITS.store(11, Ordering::Relaxed);
                return false;
            }
        }
        let longest = match fullness {
            Fullness::ReaderAlive => MAX_WAIT_NS,
            Fullness::ReaderNotYet => MAX_FIRST_WAIT_NS,
            Fullness::ReaderGone => return false,
        };
        if is_confined() {
            return false;
        }
        reservations::give_up_for_others(ring);
        if now - self.since >= longest {
            return false;
        }
        sys::sleep_ns(PAUSE_NS);
        true
    }
}

/// A mapping of the library's own is about to go: no later ring is told of it.
pub(crate) fn forget_own_memory(address: NonNull<u8>) {
    for (at, _, purpose) in OWN.iter().take(OWN_COUNT.load(Ordering::Acquire)) {
        if at.load(Ordering::Relaxed) == address.as_ptr() as u64 {
            purpose.store(NO_PURPOSE, Ordering::Release);
        }
    }
}

/// Tells this and every later ring of a mapping of the library's own.
pub(crate) fn note_own_memory(address: NonNull<u8>, bytes: usize, purpose: OwnMemory) {
    let (address, bytes) = (address.as_ptr() as u64, bytes as u64);
    let is_free = |own: &&(AtomicU64, AtomicU64, AtomicU8)| {
        let (done, other) = (Ordering::Acquire, Ordering::Relaxed);
        let set = own.2.compare_exchange(NO_PURPOSE, TAKEN, done, other);
        set.is_ok()
    };
    if let Some((index, own)) = OWN.iter().enumerate().find(|(_, own)| is_free(own)) {
        own.0.store(address, Ordering::Relaxed);
        own.1.store(bytes, Ordering::Relaxed);
        own.2.store(purpose as u8, Ordering::Release);
        OWN_COUNT.fetch_max(index + 1, Ordering::AcqRel);
    }
    locking::mapped(address, bytes);
    // SAFETY: null, or a mapping that stays.
    if let Some(state) = unsafe { STATE.load(Ordering::Acquire).as_ref() }
        && state.status.load(Ordering::Acquire) == READY
        && is_owner()
    {
        // SAFETY: `READY` is set after the ring was written.
        let ring = unsafe { (*state.ring.get()).assume_init() };
        emit(
            &ring,
            thread::current(),
            sys::now_ns(),
            0,
            Event::PreloadMapping {
                address,
                bytes,
                purpose,
            },
        );
    }
}

/// The latest ring: address and bytes, 0 where there is none.
pub(crate) fn ring_memory() -> (u64, u64) {
    let at = RING_AT.load(Ordering::Relaxed) as u64;
    (at, RING_BYTES.load(Ordering::Relaxed) as u64)
}

/// Hands on the library's own mappings, the ring aside: address and bytes.
pub(crate) fn each_own_memory(mut each: impl FnMut(u64, u64)) {
    for (address, bytes, purpose) in OWN.iter().take(OWN_COUNT.load(Ordering::Acquire)) {
        if !matches!(purpose.load(Ordering::Acquire), NO_PURPOSE | TAKEN) {
            each(
                address.load(Ordering::Relaxed),
                bytes.load(Ordering::Relaxed),
            );
        }
    }
    let state = STATE.load(Ordering::Acquire);
    if !state.is_null() {
        each(state as u64, 4096);
    }
}

/// An address in the library's code.
pub(crate) fn some_code() -> u64 {
    some_code as fn() -> u64 as *const () as u64
}

fn state() -> Option<&'static State> {
    let existing = STATE.load(Ordering::Acquire);
    if existing.is_null() {
        let memory = sys::map_anonymous(4096)?;
        const MADV_WIPEONFORK: usize = 18;
        // SAFETY: advice on the page just mapped.
        let result = unsafe {
            sys::call(
                libc::SYS_madvise,
                [memory.as_ptr() as usize, 4096, MADV_WIPEONFORK, 0, 0, 0],
            )
        };
        if result != 0 {
            UNWIPED_OWNER.store(sys::process_id(), Ordering::Relaxed);
        }
        let fresh = memory.as_ptr().cast();
        if STATE
            .compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: nobody else has seen this page.
            unsafe { sys::unmap(memory, 4096) };
        }
    }
    // SAFETY: a zeroed page is a valid fresh `State`, and stays.
    unsafe { STATE.load(Ordering::Acquire).as_ref() }
}

/// The latest ring of this process, or of the one that it was forked from.
fn latest_ring() -> Option<RingWriter> {
    let memory = NonNull::new(RING_AT.load(Ordering::Relaxed))?;
    // SAFETY: it stays mapped until a forked child drops it, which forgets it first.
    unsafe { RingWriter::attach(memory, RING_BYTES.load(Ordering::Relaxed)) }
}

/// Whether a recorder reads what this process, or the one that it was forked from, reports.
pub(crate) fn is_recorded() -> bool {
    latest_ring().is_some_and(|ring| ring.is_read(sys::now_ns()))
}

/// Asks the recorder for a ring, and hands over what it wants of each process.
fn ask_for_ring() -> Option<RingWriter> {
    let connection = Connection::open(address()).ok()?;
    let fault = writes::make();
    let said = connection.say(Kind::Ring, fault);
    close(fault.unwrap_or(-1));
    let answer = said.then(|| connection.answer(Kind::Ring)).flatten()?;
    drop(connection);
    let bytes = answer.number as usize;
    let memory = sys::map_shared(answer.descriptors[0], bytes);
    answer.descriptors.into_iter().for_each(close);
    let memory = memory?;
    // SAFETY: the mapping is page-aligned and of this size, and stays until a forked child without the ring's writers
    // drops it.
    let Some(ring) = (unsafe { RingWriter::attach(memory, bytes) }) else {
        // SAFETY: mapped above, and nobody else knows of it.
        unsafe { sys::unmap(memory, bytes) };
        return None;
    };
    RING_BYTES.store(bytes, Ordering::Relaxed);
    RING_AT.store(memory.as_ptr(), Ordering::Relaxed);
    Some(ring)
}
