//! How a program parts from its handler, so that nobody finds a child that is not the program's.
//!
//! The handler is a child of the program that has no exit signal: the program hears nothing of its end, and waits for
//! no such child unless it asks for those by name (`__WALL`, `__WCLONE`; [`crate::children`]). But children that are left over become those of
//! the next process that takes orphans in (the first of a PID namespace, a subreaper), with an exit signal like any
//! other's. So a program that ends asks its handler to end first, and reaps it. One that was replaced by another program
//! (`execve`) leaves its handler to that, whose library does the same before the program begins.
//!
//! It is asked by a signal with a word in it (`rt_sigqueueinfo`), as there is nothing else that both have: the
//! program keeps no descriptor. Where the program may not signal its handler any more, since it has given up the
//! rights that it had, the recorder ends it.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::{proc, process, sys};

/// The signal that asks a handler to end.
const SIGNAL: i32 = libc::SIGTERM;
/// What comes with it where the memory is of no use to anybody. All else asks for the pages.
const FORGET: i32 = 0x7661_7276;
/// The same from the only thread that there is.
const KEEP_ALONE: i32 = 0x7661_7277;
const KEEP: i32 = 0;

/// `__WCLONE`: children without an exit signal.
const WAIT_CLONE: usize = 0x8000_0000;
const PAUSE_NS: i64 = 100_000;
/// How long a program that ends waits for its handler, which puts back what it has moved.
const MAX_END_NS: u64 = 5_000_000_000;
/// How long one that begins waits for its predecessor's.
const MAX_BEGINNING_NS: u64 = 100_000_000;

/// The handler of this process, in the numbers of its namespace; 0: none.
static HANDLER: AtomicU32 = AtomicU32::new(0);
/// Whose child it is: a forked child has a copy of all this, and one after `vfork` the same.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Notes who the handler is.
pub(super) fn note(handler: u32) {
    PARENT.store(sys::process_id(), Ordering::Relaxed);
    HANDLER.store(handler, Ordering::Release);
}

/// The handler that is the calling process's child; none where there is none.
pub(crate) fn of_this_process() -> Option<u32> {
    let handler = HANDLER.load(Ordering::Acquire);
    (handler != 0 && PARENT.load(Ordering::Relaxed) == sys::process_id()).then_some(handler)
}

/// Whether it was the handler that a wait of the program's has found, which may have reaped it or not. What there is to be
/// said of it nobody finds again.
pub(crate) fn is_own(child: u32) -> bool {
    if of_this_process() != Some(child) {
        return false;
    }
    let changes = (libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED) as usize;
    let arguments = [child as usize, 0, WAIT_CLONE | changes, 0, 0, 0];
    loop {
        // SAFETY: takes integers; the status is not asked for.
        match unsafe { sys::call(libc::SYS_wait4, arguments) } {
            0 => return true,
            // It was stopped, or only looked at.
            1.. => {}
            _ => {
                HANDLER.store(0, Ordering::Release);
                return true;
            }
        }
    }
}

/// How a child is.
enum Child {
    Runs,
    Reaped,
    /// There is no such child without an exit signal.
    NotOwn,
}

/// Looks for a child, and reaps it where it has ended.
fn look(child: u32) -> Child {
    let options = WAIT_CLONE | libc::WNOHANG as usize;
    // SAFETY: takes integers; the status is not asked for.
    match unsafe { sys::call(libc::SYS_wait4, [child as usize, 0, options, 0, 0, 0]) } {
        0 => Child::Runs,
        1.. => Child::Reaped,
        _ => Child::NotOwn,
    }
}

/// Whether it could be asked: that may be forbidden, or the limit of queued signals be reached.
fn ask(child: u32, word: i32) -> bool {
    let information = Information {
        signal: SIGNAL,
        error: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        pid: sys::process_id() as i32,
        // SAFETY: takes no arguments, cannot fail.
        user: unsafe { sys::call(libc::SYS_getuid, [0; 6]) } as u32,
        word,
        rest: [0; 25],
    };
    let information = &raw const information as usize;
    // SAFETY: the struct is as long as the kernel's, and lives here.
    let asked = unsafe {
        sys::call(
            libc::SYS_rt_sigqueueinfo,
            [child as usize, SIGNAL as usize, information, 0, 0, 0],
        )
    };
    asked == 0
}

/// `siginfo_t` of a queued signal (`asm-generic/siginfo.h`).
#[repr(C)]
struct Information {
    signal: i32,
    error: i32,
    code: i32,
    padding: i32,
    pid: i32,
    user: u32,
    word: i32,
    rest: [i32; 25],
}
const _: () = assert!(size_of::<Information>() == 128);

fn await_end(child: u32, max_ns: u64) {
    let began = sys::now_ns();
    while matches!(look(child), Child::Runs) && sys::now_ns() - began < max_ns {
        sys::sleep_ns(PAUSE_NS);
    }
}

/// Ends this process's handler, which first puts back what it has moved, and reaps it. For a process that is about to end.
#[cold]
pub(crate) extern "C" fn leave() {
    let handler = HANDLER.load(Ordering::Acquire);
    // A program that confined itself may not do this; and whoever shares the memory of the handler's program for a
    // while, as after `vfork`, is not its parent.
    if handler == 0 || process::is_confined() || !matches!(look(handler), Child::Runs) {
        return;
    }
    if HANDLER.swap(0, Ordering::AcqRel) != handler {
        return;
    }
    let keep = match is_alone() {
        true => KEEP_ALONE,
        false => KEEP,
    };
    if ask(handler, keep) {
        await_end(handler, MAX_END_NS);
    }
}

/// Whether no other thread of the program runs.
fn is_alone() -> bool {
    let mut text = [0u64; 512];
    let line = b"\nThreads:\t1\n";
    let Some(read) = sys::ReadFile::open(c"/proc/self/status").map(|f| f.read(&mut text)) else {
        return false;
    };
    let text = proc::bytes(&text, read);
    text.windows(line.len()).any(|found| found == line)
}

/// Reaps the handler where it has ended, as when the recorder is gone.
pub(crate) fn reap() {
    let handler = HANDLER.load(Ordering::Acquire);
    if handler != 0 && !process::is_confined() && matches!(look(handler), Child::Reaped) {
        HANDLER.store(0, Ordering::Release);
    }
}

/// Reaps the handler, which is about to end.
pub(super) fn reap_soon() {
    let handler = HANDLER.swap(0, Ordering::AcqRel);
    await_end(handler, MAX_BEGINNING_NS);
}

/// Ends the handlers of what this process ran before, and reaps them. That one of them ended is reported to nobody: all
/// signals are blocked.
pub(super) fn reap_predecessors() {
    let mut text = [0u64; 64];
    let Some(read) = sys::ReadFile::open(c"/proc/thread-self/children").map(|f| f.read(&mut text))
    else {
        return;
    };
    for number in proc::numbers(proc::bytes(&text, read)) {
        let Some(child) = handler_at(number) else {
            continue;
        };
        if matches!(look(child), Child::Runs) {
            // Where it cannot be asked, the recorder ends it.
            ask(child, FORGET);
            await_end(child, MAX_BEGINNING_NS);
        }
        forget_end_of(child);
    }
}

/// The number of the process that `/proc` shows under this one, in its own namespace, where it is named like a handler.
fn handler_at(number: u32) -> Option<u32> {
    let path = proc::path(&[b"/proc/", proc::decimal(number, &mut [0; 10]), b"/status"])?;
    let mut text = [0u64; 256];
    let read = proc::open(&path)?.read(&mut text);
    let mut lines = proc::bytes(&text, read).split(|b| *b == b'\n');
    if lines.next()?.strip_prefix(b"Name:\t")? != super::NAME.to_bytes() {
        return None;
    }
    let own = lines.find_map(|line| line.strip_prefix(b"NSpid:"))?;
    proc::numbers(own).last()
}

/// Takes back the signal that reports a child's end: a child's parent that has changed its program gets it, whatever
/// the child's exit signal.
fn forget_end_of(child: u32) {
    let set = 1u64 << (libc::SIGCHLD - 1);
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut information = [0i32; 32];
    let (set, none) = (&raw const set as usize, &raw const none as usize);
    let place = information.as_mut_ptr() as usize;
    // SAFETY: all of these live here, and have the sizes that the kernel takes.
    let signal = unsafe { sys::call(libc::SYS_rt_sigtimedwait, [set, place, none, 8, 0, 0]) };
    let [_, _, _, _, from, ..] = information;
    if signal > 0 && from as u32 != child {
        // Another child's: as if nobody had looked.
        let own = sys::process_id() as usize;
        // SAFETY: the struct is what the kernel gave.
        unsafe {
            sys::call(
                libc::SYS_rt_sigqueueinfo,
                [own, signal as usize, place, 0, 0, 0],
            )
        };
    }
}

/// What the program asks of its handler.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// Put everything back and end.
    Keep,
    /// The same, and nobody uses the memory meanwhile.
    KeepAlone,
    /// End at once.
    Forget,
}

/// A descriptor that becomes readable when the program asks; negative where there is none.
pub(super) fn listen() -> i32 {
    let set = 1u64 << (SIGNAL - 1);
    let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
    // SAFETY: the set lives here, and has the size that is stated.
    unsafe {
        sys::call(
            libc::SYS_signalfd4,
            [usize::MAX, &raw const set as usize, 8, flags, 0, 0],
        ) as i32
    }
}

/// What was asked.
pub(super) fn hear(descriptor: i32) -> Option<Ending> {
    // SAFETY: zeroes are a valid `signalfd_siginfo`.
    let mut said: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::signalfd_siginfo>();
    // SAFETY: the struct lives here, and has the size that is stated.
    let read = unsafe {
        sys::call(
            libc::SYS_read,
            [descriptor as usize, &raw mut said as usize, size, 0, 0, 0],
        )
    };
    let word = (said.ssi_code == libc::SI_QUEUE).then_some(said.ssi_int);
    (read == size as isize).then_some(match word {
        Some(FORGET) => Ending::Forget,
        Some(KEEP_ALONE) => Ending::KeepAlone,
        _ => Ending::Keep,
    })
}
