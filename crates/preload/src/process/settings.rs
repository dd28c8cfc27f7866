//! What the recorder wants of the processes that it starts, from their environment.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use varve_preload_abi::client::Address;
use varve_preload_abi::operations::{
    ONLY_OPERATIONS_VARIABLE, OPERATIONS_VARIABLE, SAMPLE_BYTES_VARIABLE,
};
use varve_preload_abi::placing::PLACING_VARIABLE;
use varve_preload_abi::{
    DIRECTORY_VARIABLE, IDENTITY_VARIABLE, MAX_FRAMES, MAX_FRAMES_VARIABLE, MIN_OBJECT_VARIABLE,
    RingWriter, TRAPS_VARIABLE, WRITES_VARIABLE,
};

use crate::{handler, operations, own, placing, writes};

const UNREAD: u8 = 0;
const WATCHED: u8 = 1;
const UNWATCHED: u8 = 2;
static MODE: AtomicU8 = AtomicU8::new(UNREAD);

static MIN_OBJECT: AtomicUsize = AtomicUsize::new(4096);
/// Nothing is to be reported of objects and mappings.
static ONLY_OPERATIONS: AtomicBool = AtomicBool::new(false);
static FRAME_LIMIT: AtomicUsize = AtomicUsize::new(64);

struct Listener(UnsafeCell<Address>);
// SAFETY: written once, by the thread that moves `MODE` on; read after that.
unsafe impl Sync for Listener {}
static LISTENER: Listener = Listener(UnsafeCell::new(Address::NONE));

/// The smallest heap object that is recorded on its own.
#[inline]
pub(crate) fn min_object() -> usize {
    MIN_OBJECT.load(Ordering::Relaxed)
}

/// Takes over what the recorder wants it to be, where that is more.
#[inline]
pub(crate) fn follow_min_object(ring: &RingWriter) {
    let wanted = ring.min_object() as usize;
    if wanted > min_object() {
        MIN_OBJECT.store(wanted, Ordering::Relaxed);
    }
}

/// Whether nothing is to be reported of objects and mappings.
#[inline]
pub(crate) fn reports_no_objects() -> bool {
    ONLY_OPERATIONS.load(Ordering::Relaxed)
}

pub(crate) fn frame_limit() -> usize {
    FRAME_LIMIT.load(Ordering::Relaxed)
}

/// Reads the settings when they can be read; whether the process is to be watched.
pub(super) fn read_settings() -> bool {
    match MODE.load(Ordering::Acquire) {
        WATCHED => return true,
        UNWATCHED => return false,
        _ => {}
    }
    // SAFETY: null until the C library has started; the program has had no chance to change it
    // when this runs for the first time.
    if unsafe { own::environment().is_null() } {
        return false;
    }
    let number = |name| {
        variable(name).and_then(|value| std::str::from_utf8(value).ok()?.parse::<usize>().ok())
    };
    if let Some(bytes) = number(MIN_OBJECT_VARIABLE) {
        // Starts are noted per 16 bytes.
        MIN_OBJECT.store(bytes.max(16), Ordering::Relaxed);
    }
    if let Some(frames) = number(MAX_FRAMES_VARIABLE) {
        FRAME_LIMIT.store(frames.clamp(1, MAX_FRAMES), Ordering::Relaxed);
    }
    if variable(WRITES_VARIABLE).is_some() {
        writes::want();
    }
    if variable(TRAPS_VARIABLE).is_some() {
        handler::want();
    }
    let listener = variable(DIRECTORY_VARIABLE)
        .zip(variable(IDENTITY_VARIABLE))
        .and_then(|(folder, identity)| Address::new(folder, identity));
    let every = variable(OPERATIONS_VARIABLE);
    ONLY_OPERATIONS.store(
        every.is_some() && variable(ONLY_OPERATIONS_VARIABLE).is_some(),
        Ordering::Relaxed,
    );
    operations::switch(every.is_some() && listener.is_some());
    operations::sampling::set_mean(number(SAMPLE_BYTES_VARIABLE).unwrap_or(0) as u64);
    let placing = number(PLACING_VARIABLE);
    let mode = match listener {
        // Nothing is recorded: there is no ring.
        Some(listener) if placing.is_some() => {
            // SAFETY: see below.
            unsafe { *LISTENER.0.get() = listener };
            operations::switch(false);
            placing::switch_on(placing.unwrap_or(0));
            UNWATCHED
        }
        Some(listener) => {
            // SAFETY: `MODE` has not moved on yet, and the first event comes before a second thread.
            unsafe { *LISTENER.0.get() = listener };
            WATCHED
        }
        None => UNWATCHED,
    };
    MODE.store(mode, Ordering::Release);
    mode == WATCHED
}

/// An environment variable, without the C library's help.
fn variable(name: &str) -> Option<&'static [u8]> {
    // SAFETY: the environment is a null-terminated list of C strings, unchanged at this point.
    unsafe {
        let mut at = own::environment();
        while !at.is_null() && !(*at).is_null() {
            let entry = CStr::from_ptr(*at).to_bytes();
            if let Some(value) = entry
                .strip_prefix(name.as_bytes())
                .and_then(|rest| rest.strip_prefix(b"="))
            {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

/// Where the recorder listens, once `MODE` was seen to be `WATCHED`, or objects are placed.
pub(crate) fn address() -> &'static Address {
    // SAFETY: written before `MODE` moved on, which was seen.
    unsafe { &*LISTENER.0.get() }
}
