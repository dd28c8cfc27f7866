//! Says to Varve where in its work a program is: phases and events, which `varve record` puts into the trace.
//!
//! ```
//! let load = varve_mark::phase(c"load"); // ends with its scope
//! varve_mark::event(c"first request");
//! drop(load);
//! ```
//!
//! Where nobody records, a mark is a load and a branch; the first one also looks for a variable in the environment. Where somebody
//! does, it is a system call that changes nothing. Phases may be nested, and each thread has its own. A name has up to 128 bytes. On other systems
//! than Linux on x86-64 nothing happens at all. `varve/mark.h` is the same for C and C++.

use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU8, Ordering};

/// Nobody records.
const OFF: u8 = 0;
/// Somebody does.
const ON: u8 = 1;
/// Not known yet.
const UNKNOWN: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

const BEGIN: usize = 1;
const END: usize = 2;
const EVENT: usize = 3;

/// A phase of the thread that began it, for as long as it lives.
#[derive(Debug)]
#[must_use = "the phase ends when this is dropped"]
pub struct Phase<'a> {
    name: &'a CStr,
    /// It ends on the thread on which it began.
    thread: PhantomData<*const ()>,
}

/// A phase begins; it ends when the result is dropped.
pub fn phase(name: &CStr) -> Phase<'_> {
    say(name, BEGIN);
    Phase {
        name,
        thread: PhantomData,
    }
}

impl Drop for Phase<'_> {
    fn drop(&mut self) {
        say(self.name, END);
    }
}

/// Something happened.
pub fn event(name: &CStr) {
    say(name, EVENT);
}

#[inline]
fn say(name: &CStr, what: usize) {
    if STATE.load(Ordering::Relaxed) != OFF {
        say_if_heard(name, what);
    }
}

#[cold]
#[inline(never)]
fn say_if_heard(name: &CStr, what: usize) {
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let is_heard = std::env::var_os("VARVE_MARKS").is_some();
        STATE.store(if is_heard { ON } else { OFF }, Ordering::Relaxed);
    }
    if STATE.load(Ordering::Relaxed) == ON {
        call(name, what);
    }
}

/// `brk(0)`, which says where the break is and changes nothing. The kernel does not look at the other arguments.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[allow(
    unsafe_code,
    reason = "the system call that is the mark, without a dependency"
)]
fn call(name: &CStr, what: usize) {
    // One more than is kept shows that there is more. Counting them brings them into memory, where the kernel looks.
    let bytes = std::hint::black_box(name).to_bytes().iter().take(129);
    let bytes = bytes
        .filter(|byte| std::hint::black_box(**byte) != 0)
        .count();
    // SAFETY: a break of zero is a question. The kernel changes nothing but the registers that are named.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") 12_usize => _,
            in("rdi") 0_usize,
            in("rsi") 0x5652_5600_usize | what,
            in("rdx") name.as_ptr(),
            in("r10") bytes,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
fn call(_name: &CStr, _what: usize) {}
