//! Call stacks, without frame pointers, bounded by the thread's stack.
//!
//! An unwinder with its caches is a *slot*. A thread takes one for the time of one walk; there are
//! as many as walks ever ran at the same time. Nothing is shared between slots, so nothing is locked. A slot that a thread left
//! by a jump, or by its end, is found again: by the thread when it comes back, and by whoever lacks one.

use std::arch::asm;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering, compiler_fence};

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{FrameAddress, MustNotAllocateDuringUnwind, Unwinder};
use varve_preload_abi::{Event, MAX_FRAMES, RingWriter};

use crate::modules::{self, Bytes};
use crate::thread::{Nesting, Thread};
use crate::{ARENA, own, process, sites, sys};

const SLOTS: usize = 64;
/// Code addresses whose module a slot has looked up.
const KNOWN: usize = 1 << 10;
/// Words of an unknown stack that are copied at once.
const COPY: usize = 2048;
/// A walk needs this much room below the stack pointer.
const ROOM_TO_WALK: u64 = 12 << 10;
/// Making a slot needs this much: more than a thread with a small stack has.
const ROOM_TO_BUILD: usize = 256 << 10;
/// How often and how long a thread waits for a slot when all are taken.
const YIELDS: usize = 4;
const NAPS: usize = 50;
const NAP_NS: i64 = 200_000;

struct Slot {
    unwinder: UnwinderX86_64<Bytes, MustNotAllocateDuringUnwind>,
    cache: CacheX86_64<MustNotAllocateDuringUnwind>,
    epoch: u32,
    starts: Vec<u64>,
    known: [u64; KNOWN],
    frames: [u64; MAX_FRAMES],
    copy: Vec<u64>,
    /// The tables of modules are being changed: who leaves them so has lost the slot.
    is_changing: AtomicBool,
}

struct Place {
    /// The thread that walks with it; 0: none.
    user: AtomicU32,
    slot: AtomicPtr<Slot>,
}

static PLACES: [Place; SLOTS] = [const {
    Place {
        user: AtomicU32::new(0),
        slot: AtomicPtr::new(null_mut()),
    }
}; SLOTS];

/// The stack on which slots are made, one at a time.
#[repr(align(64))]
struct BuildStack(UnsafeCell<[u8; ROOM_TO_BUILD]>);

// SAFETY: only the thread that holds `BUILDING` uses it.
unsafe impl Sync for BuildStack {}

static BUILD_STACK: BuildStack = BuildStack(UnsafeCell::new([0; ROOM_TO_BUILD]));
static BUILDING: AtomicBool = AtomicBool::new(false);

/// In a forked child: slots that other threads held are lost, maybe half changed.
pub(crate) fn recover_after_fork() {
    for place in &PLACES {
        if place.user.load(Ordering::Acquire) != 0 {
            place.slot.store(null_mut(), Ordering::Relaxed);
            place.user.store(0, Ordering::Release);
        }
    }
    BUILDING.store(false, Ordering::Release);
}

/// A thread has left its walk by a jump.
#[cold]
pub(crate) fn recover_after_jump(tid: u32) {
    for place in &PLACES {
        if place.user.load(Ordering::Relaxed) == tid {
            place.recover();
            place.give_back();
        }
    }
}

impl Place {
    /// Takes it for a thread, if no other has it.
    fn take(&self, tid: u32) -> bool {
        let taken = self
            .user
            .compare_exchange(0, tid, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok()
    }

    /// Takes it over for a thread from one that is gone.
    #[cold]
    fn inherit(&self, tid: u32) -> bool {
        let user = self.user.load(Ordering::Relaxed);
        let is_mine = user != 0
            && sys::is_gone(user)
            && self
                .user
                .compare_exchange(user, tid, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        if is_mine {
            self.recover();
        }
        is_mine
    }

    /// Makes the slot fit for use after a walk that did not come to its end. The caller has it.
    fn recover(&self) {
        let slot = self.slot.load(Ordering::Relaxed);
        // SAFETY: null, or a slot, which is never freed and which the caller has for itself.
        if let Some(slot) = unsafe { slot.as_mut() } {
            if slot.is_changing.load(Ordering::Relaxed) {
                // Its memory is lost: nobody knows what of it is whole.
                self.slot.store(null_mut(), Ordering::Relaxed);
            } else {
                slot.forget();
            }
        }
    }

    fn give_back(&self) {
        self.user.store(0, Ordering::Release);
        if WAITED_IN_VAIN.load(Ordering::Relaxed) {
            WAITED_IN_VAIN.store(false, Ordering::Relaxed);
        }
    }
}

/// No slot has become free while a thread waited for one: others need not wait until one does.
static WAITED_IN_VAIN: AtomicBool = AtomicBool::new(false);

/// Where the function that asks stands: instruction, stack pointer and frame pointer. Within that function itself, or they would be
/// of one that has returned.
#[inline(always)]
fn registers() -> [u64; 3] {
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: reads registers.
    unsafe {
        asm!(
            "lea {0}, [rip]",
            "mov {1}, rsp",
            "mov {2}, rbp",
            out(reg) ip,
            out(reg) sp,
            out(reg) bp,
            options(nomem, nostack, preserves_flags),
        );
    }
    [ip, sp, bp]
}

/// The number of the caller's call stack, 0 if it cannot be had; sends a new one.
#[inline(never)]
pub(crate) fn site(thread: &Thread, nesting: Nesting, ring: &RingWriter) -> u32 {
    let [ip, sp, bp] = registers();
    let number = if nesting == Nesting::Outermost {
        with_slot(thread, sp, |slot| {
            let count =
                catch_unwind(AssertUnwindSafe(|| slot.walk(thread, [ip, sp, bp]))).unwrap_or(0);
            send(thread, ring, &slot.frames[..count])
        })
    } else {
        None
    };
    let number = number.unwrap_or(0);
    if number == 0 {
        ring.count_stackless();
    }
    number
}

/// Has a look at the caller's call stack; `None` if it cannot be had.
#[inline(never)]
pub(crate) fn frames<T>(thread: &Thread, work: impl FnOnce(&[u64]) -> T) -> Option<T> {
    let [ip, sp, bp] = registers();
    with_slot(thread, sp, |slot| {
        let count = catch_unwind(AssertUnwindSafe(|| slot.walk(thread, [ip, sp, bp]))).unwrap_or(0);
        (count > 0).then(|| work(&slot.frames[..count]))
    })
    .flatten()
}

fn send(thread: &Thread, ring: &RingWriter, frames: &[u64]) -> u32 {
    if frames.is_empty() {
        return 0;
    }
    let Some((site, sent)) = sites::number(frames) else {
        return 0;
    };
    let generation = process::generation();
    let known = sent.load(Ordering::Relaxed);
    if known != generation
        && sent
            .compare_exchange(known, generation, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok()
        && !process::emit(ring, thread, sys::now_ns(), site, Event::Stack { frames })
    {
        // Nobody knows it: the next user sends it.
        sent.store(0, Ordering::Relaxed);
    }
    site
}

/// Bytes of stack left; unknown stacks (signal stacks, coroutines) are trusted to be large enough
/// to walk.
fn room(thread: &Thread, sp: u64) -> u64 {
    if (thread.stack_low.get()..thread.stack_high.get()).contains(&sp) {
        sp - thread.stack_low.get()
    } else {
        ROOM_TO_WALK
    }
}

fn with_slot<T>(thread: &Thread, sp: u64, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
    if room(thread, sp) < ROOM_TO_WALK || !ARENA.has_room() {
        return None;
    }
    let (index, slot) = take_slot(thread)?;
    thread.slot.set(index as u32);
    // SAFETY: the place is this thread's, and the slot with it; it is never freed.
    let result = work(unsafe { &mut *slot });
    PLACES[index].give_back();
    Some(result)
}

/// Takes a slot that nobody uses, the thread's last one first; makes one if there is none.
///
/// The wait is bounded: a thread that has left its walk by a jump gives the slot back when it comes here again, if it does.
fn take_slot(thread: &Thread) -> Option<(usize, *mut Slot)> {
    let (tid, first) = (thread.tid(), thread.slot.get() as usize);
    for round in 0..YIELDS + NAPS {
        let free = |place: &Place| place.take(tid);
        if let Some(found) = slot_in(first, free) {
            return Some(found);
        }
        if process::is_confined() {
            return None;
        }
        if round == YIELDS {
            let left = |place: &Place| place.inherit(tid);
            if let Some(found) = slot_in(first, left) {
                return Some(found);
            }
            if WAITED_IN_VAIN.load(Ordering::Relaxed) {
                return None;
            }
        }
        if round < YIELDS {
            sys::yield_now();
        } else {
            sys::sleep_ns(NAP_NS);
        }
    }
    WAITED_IN_VAIN.store(true, Ordering::Relaxed);
    None
}

/// The slot of a place that can be taken.
fn slot_in(first: usize, take: impl Fn(&Place) -> bool) -> Option<(usize, *mut Slot)> {
    for index in (first..first + SLOTS).map(|index| index % SLOTS) {
        let place = &PLACES[index];
        if !take(place) {
            continue;
        }
        let mut slot = place.slot.load(Ordering::Relaxed);
        if slot.is_null() {
            slot = build();
            place.slot.store(slot, Ordering::Relaxed);
        }
        if !slot.is_null() {
            return Some((index, slot));
        }
        place.give_back();
    }
    None
}

/// A new slot; null while another thread makes one.
#[cold]
fn build() -> *mut Slot {
    sys::without_signals(build_alone)
}

fn build_alone() -> *mut Slot {
    extern "C" fn make(result: &mut *mut Slot) {
        *result = Box::into_raw(Slot::new());
    }
    if BUILDING.swap(true, Ordering::Acquire) {
        return null_mut();
    }
    let mut slot: *mut Slot = null_mut();
    let top = BUILD_STACK.0.get() as usize + ROOM_TO_BUILD;
    // SAFETY: `BUILDING` gives the stack to this thread, its top is aligned, and the stack pointer is
    // back before anything else happens; `make` is called as its ABI says and does not unwind.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {make}",
            "mov rsp, r12",
            top = in(reg) top,
            make = sym make,
            in("rdi") &raw mut slot,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    BUILDING.store(false, Ordering::Release);
    slot
}

impl Slot {
    #[cold]
    #[inline(never)]
    fn new() -> Box<Self> {
        Box::new(Slot {
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new_in(),
            epoch: modules::epoch(),
            starts: Vec::new(),
            known: [0; KNOWN],
            frames: [0; MAX_FRAMES],
            copy: vec![0; COPY],
            is_changing: AtomicBool::new(false),
        })
    }

    /// Forgets the modules, and what was found in them.
    fn forget(&mut self) {
        self.change(|slot| {
            slot.unwinder = UnwinderX86_64::new();
            slot.starts.clear();
            slot.known = [0; KNOWN];
        });
    }

    /// Changes the tables of modules.
    fn change(&mut self, work: impl FnOnce(&mut Self)) {
        self.is_changing.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        work(self);
        compiler_fence(Ordering::SeqCst);
        self.is_changing.store(false, Ordering::Relaxed);
    }

    /// Walks the stack from the given instruction, stack and frame pointers; returns the number of
    /// frames outside this library.
    fn walk(&mut self, thread: &Thread, [ip, sp, bp]: [u64; 3]) -> usize {
        let epoch = modules::epoch();
        if epoch != self.epoch {
            self.epoch = epoch;
            self.forget();
        }
        let (low, high) = (thread.stack_low.get(), thread.stack_high.get());
        if (low..high).contains(&sp) {
            // SAFETY: within the thread's stack and at or above the stack pointer (below it lies
            // only the red zone of this very function): mapped, and read as plain words.
            self.follow([ip, sp, bp], |address| unsafe {
                if address < sp || address > high - 8 || address % 8 != 0 {
                    return Err(());
                }
                Ok((address as *const u64).read_volatile())
            })
        } else if process::is_confined() {
            0
        } else {
            let mut copy = std::mem::take(&mut self.copy);
            // A walk that was left by a jump has lost it.
            copy.resize(COPY, 0);
            let words = sys::peek(sp, &mut copy) / 8;
            let count = self.follow([ip, sp, bp], |address| {
                let index = address.checked_sub(sp).ok_or(())? as usize / 8;
                copy[..words].get(index).copied().ok_or(())
            });
            self.copy = copy;
            count
        }
    }

    fn follow(
        &mut self,
        [ip, sp, bp]: [u64; 3],
        mut read: impl FnMut(u64) -> Result<u64, ()>,
    ) -> usize {
        let own = own::bounds();
        let limit = process::frame_limit();
        let mut registers = UnwindRegsX86_64::new(ip, sp, bp);
        let mut address = FrameAddress::from_instruction_pointer(ip);
        let mut count = 0;
        while count < limit {
            if !self.learn(address.address_for_lookup()) {
                break;
            }
            let next =
                self.unwinder
                    .unwind_frame(address, &mut registers, &mut self.cache, &mut read);
            let Ok(Some(return_address)) = next else {
                break;
            };
            if !own.contains(&return_address) {
                self.frames[count] = return_address;
                count += 1;
            }
            let Some(next) = FrameAddress::from_return_address(return_address) else {
                break;
            };
            address = next;
        }
        count
    }

    /// Makes sure that the unwinder knows the module of a code address. False where unwinding there might not end.
    #[inline]
    fn learn(&mut self, address: u64) -> bool {
        let place = (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - 10)) as usize;
        if self.known[place] != address {
            if !self.look_up(address) {
                return false;
            }
            self.known[place] = address;
        }
        true
    }

    #[cold]
    fn look_up(&mut self, address: u64) -> bool {
        let Some(loaded) = modules::find(address) else {
            return true;
        };
        if let Err(place) = self.starts.binary_search(&loaded.range.start) {
            let (start, module) = (loaded.range.start, loaded.module());
            self.change(|slot| {
                slot.starts.insert(place, start);
                slot.unwinder.add_module(module);
            });
        }
        loaded.is_bounded_at(address)
    }
}
