//! Allocator operations, counted where they happen.
//!
//! One operation's way: an entry point of [`crate::heap`] or [`operators`] knows its caller and its stack pointer. [`Ongoing::begin`] writes
//! both beside what is called to where the kernel's part looks ([`Running`]), the real function runs, and [`Ongoing`] ends
//! by adding to one row of the thread's own table ([`table`]). What was asked for stands in a shadow of the heap ([`shadow`]), so that a
//! free knows it too. Of some blocks the whole stack is reported ([`sampling`]). An operation within another one on the same thread, as `operator new` calls `malloc`, is the outer one's.

mod attach;
mod choice;
mod headers;
pub(crate) mod operators;
pub(crate) mod room;
pub(crate) mod sampling;
mod shadow;
mod table;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

use varve_preload_abi::operations::{COUNTING, Operation, running_word, ticks};

use self::sampling::Sampled;
use self::table::{Block, Change};

use crate::thread::{self, Thread};
use crate::{scratch, sys};

type Pointer = *mut c_void;

/// Whether operations are counted, as far as is known: entry points look here first.
pub(crate) static SWITCH: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const ON: u8 = 1;
/// Entry points call the real function and count nothing.
pub(crate) const OFF: u8 = 2;

/// The settings were read.
pub(crate) fn switch(on: bool) {
    SWITCH.store(if on { ON } else { OFF }, Ordering::Relaxed);
}

/// An operation that runs, on this thread.
pub(crate) struct Ongoing {
    thread: &'static Thread,
    block: Block,
    operation: Operation,
    /// Where from.
    site: u64,
    /// When it began, where it is timed.
    began: Option<u64>,
}

impl Ongoing {
    /// Begins one, up to where the real function is to be called; none where it is not counted, or is part of one that is.
    #[inline(always)]
    pub(crate) fn begin(operation: Operation, site: u64, stack: u64) -> Option<Ongoing> {
        let thread = thread::current();
        let running = thread.running.word.get();
        if running != 0 && stack < thread.running.stack.get() {
            // A signal handler that allocates may find a table half changed.
            if running == COUNTING && !scratch::is_used() {
                attach::count_uncounted();
            }
            thread.inner.set(true);
            return None;
        }
        // Before the tables are looked for: who gives them back waits for threads that say this.
        thread.running.stack.set(stack);
        compiler_fence(Ordering::SeqCst);
        thread.running.word.set(COUNTING);
        compiler_fence(Ordering::SeqCst);
        let Some(block) = attach::block(thread, running_word(operation, site)) else {
            compiler_fence(Ordering::SeqCst);
            thread.running.word.set(0);
            return None;
        };
        Some(Ongoing {
            thread,
            block,
            operation,
            site,
            began: None,
        })
    }

    /// The real function is about to be called.
    #[inline(always)]
    pub(crate) fn start(&mut self) {
        let timed = self.block.is_timed();
        self.thread.inner.set(false);
        compiler_fence(Ordering::SeqCst);
        let word = running_word(self.operation, self.site);
        self.thread.running.word.set(word);
        compiler_fence(Ordering::SeqCst);
        if timed {
            self.thread.own_ticks.set(0);
            self.began = Some(ticks());
        }
    }

    /// The same, and it is timed in any case: one may take as long as all others.
    fn start_timed(&mut self) {
        self.start();
        if self.began.is_none() && !sys::CLOCK_FORBIDDEN.load(Ordering::Relaxed) {
            self.thread.own_ticks.set(0);
            self.began = Some(ticks());
        }
    }

    /// The real function has returned: how long it took, and what ran.
    #[inline(always)]
    fn stop(&self) -> (Option<u64>, u64) {
        let own = &self.thread.own_ticks;
        let took = self.began.map(|began| {
            let took = ticks().saturating_sub(began);
            took.saturating_sub(own.get())
        });
        compiler_fence(Ordering::SeqCst);
        let word = self.thread.running.word.replace(COUNTING);
        compiler_fence(Ordering::SeqCst);
        (took, word)
    }

    /// The tables are whole again.
    #[inline(always)]
    fn done(&self) {
        compiler_fence(Ordering::SeqCst);
        self.thread.running.word.set(0);
    }

    /// Ends one that is not counted after all: no allocator was there yet.
    pub(crate) fn abandon(&self) {
        self.stop();
        self.done();
    }

    /// Whether an operation ran within this one.
    pub(crate) fn had_inner(&self) -> bool {
        self.thread.inner.get()
    }

    /// Ends an allocation, or a change of size from what `before` says. A block that an entry point within it has sampled is not sampled again.
    #[inline(always)]
    pub(crate) fn allocated(
        &self,
        object: Pointer,
        requested: usize,
        before: Option<Freed>,
    ) -> Allocated {
        let (took, running) = self.stop();
        // C leaves open what a change to nothing does: where nothing came of it the block was freed.
        if let Some(gone) = before.filter(|_| object.is_null() && requested == 0) {
            let running = running_word(Operation::ReallocFree, self.site);
            self.count_freed(Operation::ReallocFree, (took, running), Some(gone));
            return Allocated {
                had_other: false,
                sampled: None,
            };
        }
        let sampled = match self.had_inner() {
            true => None,
            false => sampling::allocated(object, requested),
        };
        let had_other = self.count_allocated((took, running), object, requested, before);
        Allocated { had_other, sampled }
    }

    /// Counts an allocation. Whether a block lived there of which no free was seen.
    #[inline(always)]
    fn count_allocated(
        &self,
        (took, running): (Option<u64>, u64),
        object: Pointer,
        requested: usize,
        before: Option<Freed>,
    ) -> bool {
        if is_off() {
            // The tables were given back within this operation.
            self.done();
            return false;
        }
        if object.is_null() {
            self.block.failed(running);
            // It lives on.
            if let Some(before) = before.filter(|before| before.known) {
                let number = self.thread.number.get();
                shadow::set(before.at, before.usable, before.requested, number);
            }
            self.done();
            return false;
        }
        let usable = usable(object, requested);
        let begun = shadow::set(object as u64, usable, requested, self.thread.number.get());
        let class = self.block.count(&Change {
            running,
            operation: self.operation,
            requested: requested as u64,
            usable: usable as u64,
            fresh: begun.fresh,
            took,
        });
        match &before {
            Some(before) => self.block.reallocated(running, before.usable),
            None => self
                .block
                .chosen(running, class, object as u64, took.is_some()),
        }
        if begun.unknown {
            // Its end will not be known: it is no part of what is alive.
            attach::count_uncounted();
            if let Some(before) = before {
                self.block.add_live(before.negative());
            }
            self.done();
            return false;
        }
        if begun.shares {
            self.block.shares_line(running, begun.passed);
        }
        let mut live = [requested as i64, usable as i64, 1];
        if let Some(before) = before {
            self.block.note_peak_before(before.ended);
            let less = before.negative();
            live = [live[0] + less[0], live[1] + less[1], live[2] + less[2]];
        }
        if let Some(unseen) = begun.unseen {
            attach::count_unseen();
            live[0] -= unseen.requested as i64;
            live[1] -= unseen.usable as i64;
            live[2] -= unseen.blocks as i64;
        }
        self.block.add_live(live);
        self.done();
        begun.unseen.is_some()
    }

    /// Ends a free.
    #[inline(always)]
    pub(crate) fn freed(&self, freed: Option<Freed>) {
        let stopped = self.stop();
        self.count_freed(self.operation, stopped, freed);
    }

    /// Counts a free.
    #[inline(always)]
    fn count_freed(
        &self,
        operation: Operation,
        (took, running): (Option<u64>, u64),
        freed: Option<Freed>,
    ) {
        if is_off() {
            self.done();
            return;
        }
        let known = freed.unwrap_or_default();
        let class = self.block.count(&Change {
            running,
            operation,
            requested: known.requested as u64,
            usable: known.usable as u64,
            fresh: false,
            took,
        });
        if freed.is_some() {
            self.block.given_back(class, known.at);
            self.block.note_peak_before(known.ended);
            self.block.add_live(known.negative());
        }
        self.done();
    }
}

/// What came of an allocation.
pub(crate) struct Allocated {
    /// A block lived there of which no free was seen.
    pub(crate) had_other: bool,
    /// It is sampled: to be reported.
    pub(crate) sampled: Option<Sampled>,
}

/// A block that is about to go.
#[derive(Clone, Copy, Default)]
pub(crate) struct Freed {
    at: u64,
    requested: usize,
    usable: usize,
    /// Whether it was seen allocated.
    known: bool,
    /// When its end was reported, nanoseconds, where it was.
    ended: Option<u64>,
}

impl Freed {
    fn negative(&self) -> [i64; 3] {
        match self.known {
            true => [-(self.requested as i64), -(self.usable as i64), -1],
            false => [0; 3],
        }
    }
}

/// Looks up a block before the real function takes it, whose end may have been reported.
#[inline(always)]
pub(crate) fn take(object: Pointer, ended: Option<u64>) -> Option<Freed> {
    if object.is_null() {
        return None;
    }
    let usable = headers::usable(object);
    let at = object as u64;
    let requested = shadow::take(at, usable, thread::current().number.get());
    if requested.is_none() {
        attach::count_unknown();
    }
    Some(Freed {
        at,
        requested: requested.unwrap_or(usable),
        // Where the allocator does not say, at least what was asked for.
        usable: usable.max(requested.unwrap_or(0)),
        known: requested.is_some(),
        ended,
    })
}

/// How much of a block can be used.
#[inline(always)]
fn usable(object: Pointer, requested: usize) -> usize {
    headers::usable(object).max(requested)
}

/// Whether operations are counted.
pub(crate) fn is_on() -> bool {
    SWITCH.load(Ordering::Relaxed) == ON
}

/// Whether nothing is counted.
#[inline]
pub(crate) fn is_off() -> bool {
    SWITCH.load(Ordering::Relaxed) == OFF
}

/// The program asks how much of a block it can use, or has what is free given to the kernel.
#[inline]
pub(crate) fn asked<T>(
    (operation, site, stack): (Operation, u64, u64),
    real: impl FnOnce() -> T,
) -> T {
    match Ongoing::begin(operation, site, stack) {
        None => real(),
        Some(mut ongoing) => {
            match operation {
                Operation::Trim => ongoing.start_timed(),
                _ => ongoing.start(),
            }
            let answer = real();
            ongoing.freed(None);
            answer
        }
    }
}
