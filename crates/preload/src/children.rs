//! Waits for children, which must not find the fault handler.
//!
//! The handler is a child without an exit signal ([`handler`]), which the kernel leaves out of a wait unless it is for
//! such children too (`__WALL`) or for them alone (`__WCLONE`). Among all children those waits would find the handler: they
//! would report its end, and not fail with `ECHILD` where there is nothing else to wait for. There is no way to have the
//! kernel leave out one child. But since Linux 4.7 it finds what a process traces without `__WALL`, so that this flag is
//! needed for children without an exit signal alone. Where the program has none of its own, which is nearly always so, the
//! wait is made without it, and the kernel does everything else. Where it has, the wait is made as asked, and made again
//! if it was the handler that ended.
//!
//! What stays: two threads that wait for such children at once, of which one gets the last. The other goes on waiting, as
//! does one that begins before another thread makes the first such child, and a debugger that waits with `__WCLONE` alone
//! when it traces nobody any more and has children.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::proc::{self, Stat};
use crate::{handler, process, real, sys};

/// Waits that find children without an exit signal.
const CLONES: c_int = libc::__WALL | libc::__WCLONE;
/// The number of the field of `/proc/PID/stat` that has the exit signal.
const EXIT_SIGNAL: usize = 38;

/// The program has traced a process, which waits with `__WCLONE` find whatever its exit signal is.
static TRACES: AtomicBool = AtomicBool::new(false);

/// Whose ends a wait is for.
#[derive(Clone, Copy)]
enum Whose {
    Any,
    /// Of one child.
    One(libc::id_t),
    /// Of the children in a process group.
    Group(libc::id_t),
    /// Of one that cannot be the handler.
    Other,
}

impl Whose {
    /// As `wait4` takes it.
    fn of(pid: libc::pid_t) -> Whose {
        match pid {
            -1 => Whose::Any,
            // The handler has left the program's group.
            0 => Whose::Other,
            1.. => Whose::One(pid.cast_unsigned()),
            _ => Whose::Group(pid.unsigned_abs()),
        }
    }

    /// As `waitid` takes it.
    fn of_kind(kind: libc::idtype_t, id: libc::id_t) -> Whose {
        match kind {
            libc::P_ALL => Whose::Any,
            libc::P_PID => Whose::One(id),
            libc::P_PGID if id != 0 => Whose::Group(id),
            _ => Whose::Other,
        }
    }

    /// The options with which the kernel says what it would say if there were no handler; none where there is no child that
    /// is waited for.
    fn options(self, options: c_int) -> Option<c_int> {
        let Some(handler) = handler::of_this_process() else {
            return Some(options);
        };
        match self {
            // The group of the handler has nobody else in it.
            Whose::One(id) | Whose::Group(id) => (id != handler).then_some(options),
            Whose::Other => Some(options),
            Whose::Any if has_clones(options & libc::__WNOTHREAD != 0) => Some(options),
            Whose::Any if options & libc::__WALL != 0 => Some(options & !CLONES),
            Whose::Any if TRACES.load(Ordering::Relaxed) && has_others() => Some(options),
            Whose::Any => None,
        }
    }
}

/// Whether there is anything to wait for besides children without the usual exit signal: other children, or what is traced.
fn has_others() -> bool {
    let options = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
    let arguments = [libc::P_ALL as usize, 0, 0, options as usize, 0, 0];
    // SAFETY: takes integers, reaps nobody and waits for nobody; what is found is not asked for.
    let failed = unsafe { sys::call(libc::SYS_waitid, arguments) };
    failed != -(libc::ECHILD as isize)
}

/// Whether the process, or the calling thread alone, has children without the usual exit signal besides the handler. Yes
/// where that cannot be looked up.
#[cold]
fn has_clones(of_this_thread: bool) -> bool {
    if process::is_confined() {
        return true;
    }
    let own = proc::path(&[b"/proc/thread-self/children"]);
    let of_thread = own.and_then(|path| has_clones_in(&path));
    if of_this_thread || of_thread != Some(false) {
        return of_thread.unwrap_or(true);
    }
    let Some(tasks) = sys::ReadFile::open(c"/proc/self/task") else {
        return true;
    };
    let mut room = [0u64; 256];
    loop {
        let count = tasks.entries(&mut room);
        let mut left = proc::bytes(&room, count);
        if left.is_empty() {
            return false;
        }
        while let Some((name, rest)) = next_entry(left) {
            left = rest;
            // A thread that has ended meanwhile has no children, and the names of this folder and of that above are no numbers.
            let path = proc::path(&[b"/proc/self/task/", name, b"/children"]);
            if path.and_then(|path| has_clones_in(&path)) == Some(true) {
                return true;
            }
        }
    }
}

/// The name of the first entry that getdents64(2) has read, and what is left.
fn next_entry(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    const LENGTH: usize = 16;
    const NAME: usize = 19;
    let length = entries.get(LENGTH..LENGTH + 2)?;
    let length = usize::from(u16::from_ne_bytes(length.try_into().ok()?));
    let (entry, rest) = entries.split_at_checked(length)?;
    let name = entry.get(NAME..)?.split(|byte| *byte == 0).next()?;
    Some((name, rest))
}

/// The same of the children that a file lists, their numbers with a space behind each; none where there is no such file.
fn has_clones_in(children: &proc::Path) -> Option<bool> {
    let file = proc::open(children)?;
    let mut room = [0u64; 64];
    let mut number = None;
    loop {
        let count = file.read(&mut room);
        if count == 0 {
            return Some(false);
        }
        for byte in proc::bytes(&room, count) {
            let digit = char::from(*byte).to_digit(10);
            number = match (digit, number) {
                (Some(digit), before) => Some(before.unwrap_or(0) * 10 + digit),
                (None, Some(child)) if is_clone(child) => return Some(true),
                (None, _) => None,
            };
        }
    }
}

/// Whether a child has another exit signal than others have, and is no handler. One that is gone has not.
fn is_clone(child: u32) -> bool {
    let looked = || {
        let path = proc::path(&[b"/proc/", proc::decimal(child, &mut [0; 10]), b"/stat"])?;
        let mut room = [0u64; 128];
        let count = proc::open(&path)?.read(&mut room);
        let stat = Stat::of(proc::bytes(&room, count))?;
        let signal = stat.field(EXIT_SIGNAL)?;
        Some(signal != libc::SIGCHLD as u64 && stat.name != handler::NAME.to_bytes())
    };
    looked().unwrap_or(false)
}

fn no_child() -> c_int {
    real::set_errno(libc::ECHILD);
    -1
}

/// Waits until it is not the handler that has ended. `wait` takes options.
fn wait_for(whose: Whose, options: c_int, wait: impl Fn(c_int) -> libc::pid_t) -> libc::pid_t {
    if options & CLONES == 0 {
        return wait(options);
    }
    loop {
        let Some(options) = whose.options(options) else {
            return no_child();
        };
        let found = wait(options);
        if found <= 0 || !handler::is_own(found.cast_unsigned()) {
            return found;
        }
    }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn waitpid(
    pid: libc::pid_t,
    status: *mut c_int,
    options: c_int,
) -> libc::pid_t {
    // SAFETY: the caller's arguments.
    wait_for(Whose::of(pid), options, |options| unsafe {
        real::get().waitpid(pid, status, options)
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn wait3(
    status: *mut c_int,
    options: c_int,
    usage: *mut libc::rusage,
) -> libc::pid_t {
    // SAFETY: the caller's arguments.
    wait_for(Whose::Any, options, |options| unsafe {
        real::get().wait3(status, options, usage)
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn wait4(
    pid: libc::pid_t,
    status: *mut c_int,
    options: c_int,
    usage: *mut libc::rusage,
) -> libc::pid_t {
    // SAFETY: the caller's arguments.
    wait_for(Whose::of(pid), options, |options| unsafe {
        real::get().wait4(pid, status, options, usage)
    })
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn waitid(
    kind: libc::idtype_t,
    id: libc::id_t,
    information: *mut libc::siginfo_t,
    options: c_int,
) -> c_int {
    if options & CLONES == 0 {
        // SAFETY: the caller's arguments.
        return unsafe { real::get().waitid(kind, id, information, options) };
    }
    // SAFETY: zeroes are a valid `siginfo_t`.
    let mut own: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let to = match information.is_null() {
        true => &raw mut own,
        false => information,
    };
    loop {
        let Some(options) = Whose::of_kind(kind, id).options(options) else {
            return no_child();
        };
        // SAFETY: the caller's arguments, or room that lives here.
        let result = unsafe { real::get().waitid(kind, id, to, options) };
        // SAFETY: the kernel has filled in what it says of children, or zeroes.
        if result != 0 || !handler::is_own(unsafe { (*to).si_pid() }.cast_unsigned()) {
            return result;
        }
    }
}

/// As the C library's, which takes four arguments at most.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ptrace(
    request: c_uint,
    pid: libc::pid_t,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    if request != libc::PTRACE_TRACEME {
        TRACES.store(true, Ordering::Relaxed);
    }
    // SAFETY: the caller's arguments.
    unsafe { real::get().ptrace(request, pid, address, data) }
}
