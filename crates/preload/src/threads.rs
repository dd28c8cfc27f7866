//! Threads and the bounds of their stacks.

use std::alloc::{Layout, alloc, dealloc};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

use varve_preload_abi::Event;

use crate::operations::room;
use crate::real::{self, StartRoutine};
use crate::thread::{self, Nesting, Thread};
use crate::{own, process, scratch, sys};

/// What a new thread is to run.
struct Task {
    start: StartRoutine,
    argument: *mut c_void,
}

/// Creates a thread that reports its stack, then runs what it was asked to.
///
/// # Safety
/// As for the C library's `pthread_create`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pthread_create(
    handle: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: StartRoutine,
    argument: *mut c_void,
) -> c_int {
    let task = thread::current().enter(|nesting| {
        if nesting == Nesting::Nested || process::ring(nesting).is_none() {
            return null_mut();
        }
        // SAFETY: of some size. Where there is no memory, the thread starts unannounced.
        let task = unsafe { alloc(Layout::new::<Task>()) }.cast::<Task>();
        if !task.is_null() {
            // SAFETY: just allocated for it.
            unsafe { task.write(Task { start, argument }) };
        }
        task
    });
    if task.is_null() {
        // SAFETY: the caller's arguments, passed on.
        return unsafe { create(handle, attributes, start, argument) };
    }
    // SAFETY: the caller's arguments; the new thread takes the task over.
    let status = unsafe { create(handle, attributes, run, task.cast()) };
    if status != 0 {
        // SAFETY: no thread was made, so the task is still this function's.
        thread::current().enter(|_| unsafe { take(task) });
    }
    status
}

/// Creates it, a second time where there was no room for its stack because of this library.
///
/// # Safety
/// As for `pthread_create`.
unsafe fn create(
    handle: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: StartRoutine,
    argument: *mut c_void,
) -> c_int {
    /// What most stacks have; the kernel says whether there is room for this one.
    const STACK_BYTES: usize = 64 << 10;
    // SAFETY: the caller's arguments.
    let make = || unsafe { real::get().pthread_create(handle, attributes, start, argument) };
    match make() {
        libc::EAGAIN | libc::ENOMEM if room::give_back_for(STACK_BYTES) => make(),
        status => status,
    }
}

/// What a task says, whose memory is given back.
///
/// # Safety
/// `pthread_create` above made it, for this thread alone.
unsafe fn take(task: *mut Task) -> (StartRoutine, *mut c_void) {
    // SAFETY: the caller's promise.
    unsafe {
        let Task { start, argument } = task.read();
        dealloc(task.cast(), Layout::new::<Task>());
        (start, argument)
    }
}

/// The first function of a thread. `pthread_exit` unwinds through it: nothing here needs dropping
/// while the program's own routine runs.
unsafe extern "C-unwind" fn run(task: *mut c_void) -> *mut c_void {
    let thread = thread::current();
    let (start, argument) = thread.enter(|nesting| {
        announce(thread, nesting);
        // SAFETY: `pthread_create` above made it for this thread alone.
        unsafe { take(task.cast()) }
    });
    // SAFETY: as the program asked.
    unsafe { start(argument) }
}

/// Reports the calling thread's stack.
fn announce(thread: &Thread, nesting: Nesting) {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut bytes, mut guard) = (null_mut(), 0usize, 0usize);
    // SAFETY: fills locals; the attributes are destroyed if and only if they were made.
    let ask = || unsafe {
        if own::pthread_getattr_np(own::thread_self(), attributes.as_mut_ptr()) != 0 {
            return false;
        }
        let found =
            own::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut bytes) == 0;
        own::pthread_attr_getguardsize(attributes.as_ptr(), &raw mut guard);
        own::pthread_attr_destroy(attributes.as_mut_ptr());
        found
    };
    // The C library asks for the thread's processors too, which is a call that a confined program need not permit.
    let known = !process::is_confined() && real::keeping_errno(|| scratch::within(ask));
    if !known {
        return;
    }
    let low = low as u64;
    thread.stack_low.set(low);
    thread.stack_high.set(low + bytes as u64);
    if let Some(ring) = process::ring(nesting) {
        let event = Event::ThreadStack {
            low,
            bytes: bytes as u64,
            guard: guard as u64,
        };
        process::emit(&ring, thread, sys::now_ns(), 0, event);
    }
}

/// The main thread's stack ends where the kernel put the program's name. (The C library would read
/// /proc for it, and allocate.)
pub(crate) fn learn_main_bounds(thread: &Thread) {
    if thread.stack_high.get() != 0 || sys::thread_id() != sys::process_id() {
        return;
    }
    // SAFETY: takes no pointers; the result is checked.
    let name = unsafe { own::auxiliary_value(libc::AT_EXECFN) } as *const c_char;
    if name.is_null() {
        return;
    }
    // SAFETY: the kernel's own copy of the name, a C string at the top of the stack.
    let end = name as u64 + unsafe { CStr::from_ptr(name) }.count_bytes() as u64;
    let high = (end | 0xfff) + 1;
    const MAX_BYTES: u64 = 1 << 30;
    let bytes = sys::limit(libc::RLIMIT_STACK)
        .unwrap_or(8 << 20)
        .min(MAX_BYTES)
        & !0xfff;
    thread.stack_high.set(high);
    thread.stack_low.set(high.saturating_sub(bytes));
}

/// Reports the main thread's stack, at the start of the program.
pub(crate) fn announce_main() {
    let thread = thread::current();
    thread.enter(|nesting| {
        let Some(ring) = process::ring(nesting) else {
            return;
        };
        learn_main_bounds(thread);
        let (low, high) = (thread.stack_low.get(), thread.stack_high.get());
        if high != 0 {
            let event = Event::ThreadStack {
                low,
                bytes: high - low,
                guard: 0,
            };
            process::emit(&ring, thread, sys::now_ns(), 0, event);
        }
    });
}
