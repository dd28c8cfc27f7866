//! Placing objects as a plan says (`varve tier apply`).
//!
//! Nothing is recorded here: there is no ring. An object from a certain size on has its call stack walked, once it is there; which place
//! of the plan a stack belongs to is asked once, and remembered with the stack's number. What is to be done with the objects of a place
//! stands in memory that is shared with whoever applies the plan (`varve_preload_abi::placing`), and what is done is listed there.
//!
//! Whatever fails leaves the object where it would be without a plan: the program goes on, and the failure is counted.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use varve_preload_abi::channel::Kind;
use varve_preload_abi::client::{Connection, close};
use varve_preload_abi::placing::{
    Action, ENTRIES, MAX_PLACES, MEMORY_BYTES, SLOTS, WINDOW, entry, entry_at, first_entry, header,
    lower, place, place_at, slot, slot_at,
};

use crate::thread::{self, Nesting};
use crate::{inherited, pages, process, real, sites, sys, threads, unwind};

/// The size of the smallest object that is placed; all are smaller where nothing is.
static MIN_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Whether objects are placed.
static ON: AtomicBool = AtomicBool::new(false);
/// Where the shared memory is; 0: not asked for yet, or [`NONE`].
static BASE: AtomicUsize = AtomicUsize::new(0);
static ASKS: AtomicBool = AtomicBool::new(false);
const NONE: usize = 1;

const PAGE: u64 = 4096;
/// What the C library keeps before an object that has a mapping of its own: the object's first page is its own.
const MAX_HEADER: u64 = 64;
const MLOCK_ONFAULT: usize = 1;
const MPOL_DEFAULT: usize = 0;
const MPOL_PREFERRED: usize = 1;
const MPOL_MF_MOVE: usize = 2;

/// Begins; to be called before there is a second thread.
pub(crate) fn switch_on(min_bytes: usize) {
    MIN_BYTES.store(min_bytes.max(PAGE as usize), Ordering::Relaxed);
    ON.store(true, Ordering::Relaxed);
}

/// Whether objects are placed: then nothing is recorded.
#[inline]
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The shared memory.
#[derive(Clone, Copy)]
struct Shared(NonNull<u8>);

impl Shared {
    fn word(&self, at: usize) -> &'static AtomicU64 {
        debug_assert!(at < MEMORY_BYTES && at.is_multiple_of(8));
        // SAFETY: the mapping is this long, page-aligned, stays, and is accessed by atomics alone; all offsets come of functions that
        // keep them within it.
        unsafe { AtomicU64::from_ptr(self.0.as_ptr().add(at).cast()) }
    }

    fn get(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    fn set(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    fn count(&self, at: usize) {
        self.word(at).fetch_add(1, Ordering::Relaxed);
    }
}

fn shared() -> Option<Shared> {
    match BASE.load(Ordering::Acquire) {
        0 => ask(),
        NONE => None,
        at => NonNull::new(at as *mut u8).map(Shared),
    }
}

/// Asks for the memory, once, and places what is there already.
#[cold]
fn ask() -> Option<Shared> {
    if ASKS.swap(true, Ordering::AcqRel) {
        return None;
    }
    if inherited::forbids_the_library() {
        process::set_confined();
    }
    let found = match process::is_confined() {
        true => None,
        false => real::keeping_errno(connect),
    };
    let at = found.map_or(NONE, |s| s.0.as_ptr() as usize);
    BASE.store(at, Ordering::Release);
    if let Some(shared) = found.filter(|s| s.get(header::WANTED) > 0) {
        place_wanted(shared);
    }
    found
}

fn connect() -> Option<Shared> {
    let connection = Connection::open(process::address()).ok()?;
    let said = connection.say_with(Kind::Placing, u64::from(sys::process_id()), None);
    let answer = said.then(|| connection.answer(Kind::Placing)).flatten()?;
    let memory = match answer.number as usize {
        MEMORY_BYTES => sys::map_shared(answer.descriptors[0], MEMORY_BYTES),
        _ => None,
    };
    answer.descriptors.into_iter().for_each(close);
    memory.map(Shared)
}

/// The program begins.
pub(crate) fn begin() {
    if is_on() {
        let thread = thread::current();
        thread.enter(|_| {
            threads::learn_main_bounds(thread);
            shared();
        });
    }
}

/// Static data, stacks and files that were mapped before the library began: what is wanted of this process.
fn place_wanted(shared: Shared) {
    let wanted = entry::WANTED << 32 | u64::from(sys::process_id());
    for index in 0..ENTRIES {
        if shared.get(entry_at(index, entry::STATE)) != wanted {
            continue;
        }
        let word = |which| shared.get(entry_at(index, which));
        let number = word(entry::PLACE) as usize;
        let (address, bytes) = (word(entry::ADDRESS), word(entry::BYTES));
        let whole = Whole::Pages;
        let Some(range) = part_of(shared, number, address, bytes, whole) else {
            shared.set(entry_at(index, entry::STATE), entry::EMPTY);
            continue;
        };
        settle(shared, index, number, (address, bytes), range);
    }
}

/// Which pages are an object's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whole {
    /// Those that are in it as a whole, and the first where only the allocator's header stands before it.
    Inner,
    /// All in which a part of it lies.
    Pages,
}

/// A heap object is there.
#[inline]
pub(crate) fn born(address: u64, bytes: usize) {
    if bytes >= MIN_BYTES.load(Ordering::Relaxed) {
        look(address, bytes as u64, Whole::Inner, false);
    }
}

/// Memory was mapped.
pub(crate) fn mapped(address: u64, bytes: usize, is_file: bool) {
    if bytes >= MIN_BYTES.load(Ordering::Relaxed) {
        look(address, bytes as u64, Whole::Pages, is_file);
    }
}

/// An object is about to go; its place, where it has one.
#[inline]
pub(crate) fn dying(address: u64) -> Option<usize> {
    match is_on() && pages::may_start(address) {
        true => ended(address),
        false => None,
    }
}

/// Memory is about to be unmapped.
pub(crate) fn unmapped(address: u64) {
    dying(address);
}

/// An object is there whose place is known: it was another one's before.
pub(crate) fn moved(address: u64, bytes: u64, number: usize) {
    thread::current().enter(|nesting| {
        if let (Nesting::Outermost, Some(shared)) = (nesting, shared()) {
            put(shared, number, address, bytes, Whole::Inner);
        }
    });
}

#[inline(never)]
fn look(address: u64, bytes: u64, whole: Whole, is_file: bool) {
    let thread = thread::current();
    thread.enter(|nesting| {
        if nesting == Nesting::Nested {
            return;
        }
        let Some(shared) = shared() else { return };
        shared.count(header::LOOKED_AT);
        let found = unwind::frames(thread, |frames| {
            let known = (!is_file).then(|| sites::number(frames)).flatten();
            match known.map(|(_, verdict)| verdict) {
                Some(verdict) => match verdict.load(Ordering::Relaxed) {
                    0 => {
                        let answer = question(shared, address, bytes, is_file, frames);
                        if let Some(number) = answer {
                            verdict.store(number as u32 + 1, Ordering::Relaxed);
                        }
                        answer
                    }
                    known => Some(u64::from(known - 1)),
                },
                None => question(shared, address, bytes, is_file, frames),
            }
        });
        match found {
            // Zero: it has no place.
            Some(Some(0)) => {}
            Some(Some(number)) => put(shared, number as usize - 1, address, bytes, whole),
            Some(None) => shared.count(header::UNANSWERED),
            None => shared.count(header::STACKLESS),
        }
    });
}

/// Asks which place a stack belongs to: its number plus one, or zero for none.
#[cold]
fn question(
    shared: Shared,
    address: u64,
    bytes: u64,
    is_file: bool,
    frames: &[u64],
) -> Option<u64> {
    if process::is_confined() {
        return None;
    }
    let mine = (0..SLOTS).find(|&index| {
        let taken = shared.word(slot_at(index, slot::TAKEN));
        let (done, lost) = (Ordering::AcqRel, Ordering::Relaxed);
        taken.compare_exchange(0, 1, done, lost).is_ok()
    })?;
    shared.set(slot_at(mine, slot::ADDRESS), address);
    shared.set(slot_at(mine, slot::BYTES), bytes);
    shared.set(slot_at(mine, slot::IS_FILE), u64::from(is_file));
    shared.set(slot_at(mine, slot::FRAMES), frames.len() as u64);
    for (index, frame) in frames.iter().enumerate() {
        shared.set(slot_at(mine, slot::FIRST_FRAME + index * 8), *frame);
    }
    let answer = real::keeping_errno(|| {
        let connection = Connection::open(process::address()).ok()?;
        let said = connection.say_with(Kind::Site, mine as u64, None);
        said.then(|| connection.answer(Kind::Site)).flatten()
    });
    shared.set(slot_at(mine, slot::TAKEN), 0);
    answer
        .map(|a| a.number)
        .filter(|&number| number <= MAX_PLACES as u64)
}

/// The pages of an object that are to be placed.
fn part_of(
    shared: Shared,
    number: usize,
    address: u64,
    bytes: u64,
    whole: Whole,
) -> Option<(u64, u64)> {
    let from = shared.get(place_at(number, place::FROM));
    let to = shared.get(place_at(number, place::TO)).min(bytes);
    let (first, last) = (address.checked_add(from)?, address.checked_add(to)?);
    let up = |at: u64| at.checked_next_multiple_of(PAGE);
    let down = |at: u64| at / PAGE * PAGE;
    let (first, last) = match whole {
        Whole::Pages => (down(first), up(last)?),
        Whole::Inner if first % PAGE <= MAX_HEADER => (down(first), down(last)),
        Whole::Inner => (up(first)?, down(last)),
    };
    (first < last).then_some((first, last))
}

/// Places an object and lists it.
fn put(shared: Shared, number: usize, address: u64, bytes: u64, whole: Whole) {
    let Some(range) = part_of(shared, number, address, bytes, whole) else {
        return;
    };
    let pid = sys::process_id();
    let first = first_entry(pid, address);
    let claimed = entry::CLAIMED << 32 | u64::from(pid);
    let mine = (first..first + WINDOW).find(|&index| {
        let state = shared.word(entry_at(index, entry::STATE));
        let (done, lost) = (Ordering::AcqRel, Ordering::Relaxed);
        state.compare_exchange(0, claimed, done, lost).is_ok()
    });
    let Some(mine) = mine else {
        shared.count(header::NO_ROOM);
        return;
    };
    if !pages::add_start(address) {
        shared.set(entry_at(mine, entry::STATE), entry::EMPTY);
        return;
    }
    shared.set(entry_at(mine, entry::ADDRESS), address);
    shared.set(entry_at(mine, entry::BYTES), bytes);
    shared.set(entry_at(mine, entry::PLACE), number as u64);
    settle(shared, mine, number, (address, bytes), range);
}

/// Does what is to be done with an object that has an entry, and counts it.
fn settle(
    shared: Shared,
    index: usize,
    number: usize,
    (address, _): (u64, u64),
    (from, to): (u64, u64),
) {
    let action = Action::of(shared.get(place_at(number, place::ACTION)));
    // Of what does not fit as a whole the beginning stays.
    let most = match action {
        Some(Action::Keep) => take_room(shared, to - from),
        _ => to - from,
    };
    let is_done = most > 0 && action.is_some_and(|action| act(shared, action, from, from + most));
    let done = if is_done { most } else { 0 };
    shared.set(entry_at(index, entry::FROM), from);
    shared.set(entry_at(index, entry::TO), to);
    shared.set(entry_at(index, entry::DONE), done);
    let state = entry::LIVE << 32 | u64::from(sys::process_id());
    shared.set(entry_at(index, entry::STATE), state);
    pages::add_start(address);
    shared.count(place_at(number, place::OBJECTS));
    if !is_done {
        shared.count(place_at(number, place::FAILED));
        return;
    }
    let live = shared.word(place_at(number, place::LIVE));
    let now = live.fetch_add(done, Ordering::Relaxed) + done;
    let peak = shared.word(place_at(number, place::PEAK));
    peak.fetch_max(now, Ordering::Relaxed);
}

/// Takes as much of what may be locked as there is left, up to `wanted` bytes: all processes share it.
fn take_room(shared: Shared, wanted: u64) -> u64 {
    let limit = shared.get(header::LOCK_LIMIT);
    let locked = shared.word(header::LOCKED);
    let room = |now: u64| limit.saturating_sub(now).min(wanted) / PAGE * PAGE;
    let (order, look) = (Ordering::AcqRel, Ordering::Acquire);
    let before = locked.fetch_update(order, look, |now| Some(now + room(now)));
    let given = room(before.unwrap_or(limit));
    if given < wanted {
        shared.count(header::OVER_LIMIT);
    }
    given
}

/// What a program has the kernel do; whether it did. What may be locked was taken before.
fn act(shared: Shared, action: Action, from: u64, to: u64) -> bool {
    let (at, bytes) = (from as usize, (to - from) as usize);
    let result = match action {
        Action::List => 0,
        Action::Keep => {
            // SAFETY: the program's own memory, whose content is not changed.
            let result =
                unsafe { sys::call(libc::SYS_mlock2, [at, bytes, MLOCK_ONFAULT, 0, 0, 0]) };
            if result < 0 {
                lower(shared.word(header::LOCKED), to - from);
            }
            result
        }
        Action::Yield => advise(at, bytes, libc::MADV_SEQUENTIAL),
        Action::Bind(node) => {
            let mut mask = [0u64; 16];
            let (word, bit) = (node as usize / 64, node % 64);
            if let Some(word) = mask.get_mut(word) {
                *word = 1 << bit;
            }
            bind(at, bytes, MPOL_PREFERRED, &mask)
        }
    };
    if result < 0 {
        shared.count(header::REFUSED);
        shared.set(header::REFUSED_WHY, result.unsigned_abs() as u64);
    }
    result >= 0
}

fn advise(at: usize, bytes: usize, advice: i32) -> isize {
    // SAFETY: advice that changes no content.
    unsafe { sys::call(libc::SYS_madvise, [at, bytes, advice as usize, 0, 0, 0]) }
}

/// The policy of a range; pages that are there already move.
fn bind(at: usize, bytes: usize, policy: usize, mask: &[u64; 16]) -> isize {
    let bits = size_of_val(mask) * 8 + 1;
    let nodes = match policy {
        MPOL_DEFAULT => [0, 0],
        _ => [mask.as_ptr() as usize, bits],
    };
    let arguments = [at, bytes, policy, nodes[0], nodes[1], MPOL_MF_MOVE];
    // SAFETY: a mask that lives for the call; no content is changed.
    unsafe { sys::call(libc::SYS_mbind, arguments) }
}

/// Takes back what was done with an object: what comes there next has a place of its own.
#[inline(never)]
fn ended(address: u64) -> Option<usize> {
    if !pages::take_start(address) {
        return None;
    }
    let shared = shared()?;
    let pid = sys::process_id();
    let live = entry::LIVE << 32 | u64::from(pid);
    let first = first_entry(pid, address);
    for index in first..first + WINDOW {
        let word = |which| shared.get(entry_at(index, which));
        if word(entry::STATE) != live || word(entry::ADDRESS) != address {
            continue;
        }
        let number = word(entry::PLACE) as usize;
        let (from, done) = (word(entry::FROM), word(entry::DONE));
        let action = Action::of(shared.get(place_at(number, place::ACTION)));
        if done > 0 {
            undo(shared, action, from, from + done);
            lower(shared.word(place_at(number, place::LIVE)), done);
        }
        shared.set(entry_at(index, entry::STATE), entry::EMPTY);
        return Some(number);
    }
    // A forked child's parent has placed it: locks are not inherited, the rest is.
    None
}

fn undo(shared: Shared, action: Option<Action>, from: u64, to: u64) {
    let (at, bytes) = (from as usize, (to - from) as usize);
    match action {
        Some(Action::Keep) => {
            // SAFETY: unlocks memory of the program's own.
            unsafe { sys::call(libc::SYS_munlock, [at, bytes, 0, 0, 0, 0]) };
            lower(shared.word(header::LOCKED), to - from);
        }
        Some(Action::Yield) => {
            advise(at, bytes, libc::MADV_NORMAL);
        }
        Some(Action::Bind(_)) => {
            bind(at, bytes, MPOL_DEFAULT, &[0; 16]);
        }
        Some(Action::List) | None => {}
    }
}
