//! The shared-memory ring between the preload library and the recorder.
//!
//! Each watched process has one ring, a sealed memory file that the recorder makes ([`RingReader`]) and hands over through
//! a socket ([`channel`]) to processes that the kernel says are tracked. The preload library writes it through a shared
//! mapping ([`RingWriter`]); neither side keeps a descriptor.
//!
//! # Layout
//! A header of [`HEADER_BYTES`] bytes (see `layout`), then `capacity` bytes of records, a power
//! of two. `head` and `tail` count bytes since the ring was made and never wrap; the position in
//! the memory is the count modulo the capacity. A record is a whole number of 8-byte words; the
//! first word holds its size, its kind and its state: zero while nobody has written it,
//! *reserved* while its writer fills it, *committed* when it may be read. The reader zeroes what
//! it consumed before it moves `tail`, so that a fresh reservation always starts from zeroes.
//! A record never straddles the end of the ring: a padding record fills the gap.
//!
//! # What a reader may rely on
//! - For one address, records stand in the ring in the order of the events: the `Free` is written
//!   before the memory goes back to the allocator, the `Alloc` after it came out of it.
//! - Times are CLOCK_MONOTONIC nanoseconds; across threads they are not sorted in the ring.
//! - Site 0 means "no call stack". Any other site is explained by one [`Record::Stack`] in the
//!   same ring, which may come shortly *after* the first record that names it.
//! - A forked child gets a ring of its own with its first event. It starts with the objects and
//!   page owners that its parent had at the fork: the reader must copy them.
//! - A program that replaces itself (exec) gets a new ring: the older one of the same pid is over.

pub mod channel;
#[cfg(target_arch = "x86_64")]
pub mod client;
pub mod clock;
mod error;
pub mod journal;
mod layout;
mod memory;
pub mod operations;
pub mod placing;
mod raw;
mod reader;
mod record;
pub mod server;
pub mod shadow;
mod traps;
mod writer;

pub use error::RingError;
pub use layout::{HEADER_BYTES, VERSION};
#[cfg(target_arch = "x86_64")]
pub use raw::system_call;
pub use reader::{Drained, Losses, RING_NAME, RingReader};
pub use record::{
    AllocKind, Event, Frames, MAX_FRAMES, MapOperation, OwnMemory, Record, StartCause,
};
pub use traps::{
    DEVICE, ENDING, HELLO, MAX_WORDS, PLACES, PROTECT, PROTECTED, Protect, Protected, QUIT, READY,
    RESOLVED, SHARED_USER, THREADS, TRAPS_VARIABLE, WHO, is_chosen,
};
pub use writer::{Fullness, Reservation, RingWriter};

/// The environment variable that names the folder in which the recorder listens. Must be an absolute path.
pub const DIRECTORY_VARIABLE: &str = "VARVE_PRELOAD_DIR";
/// The environment variable that says which folder that is ([`channel::Identity`]).
pub const IDENTITY_VARIABLE: &str = "VARVE_PRELOAD_ID";
/// The environment variable for the smallest heap object that is recorded on its own, in bytes.
pub const MIN_OBJECT_VARIABLE: &str = "VARVE_MIN_OBJECT";
/// The environment variable for the most frames of a call stack, up to [`MAX_FRAMES`].
pub const MAX_FRAMES_VARIABLE: &str = "VARVE_MAX_FRAMES";
/// The environment variable that, if set, asks each process for a userfaultfd: made once, handed over with the request for
/// a ring, and closed.
pub const WRITES_VARIABLE: &str = "VARVE_PRELOAD_WRITES";
