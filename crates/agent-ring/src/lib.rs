//! The shared-memory ring between the preload library and the recorder.
//!
//! Each watched process owns one ring file, `PID-CREATED-SEQ.ring`, in the folder that
//! [`DIRECTORY_VARIABLE`] names. The preload library writes it through a shared mapping
//! ([`RingWriter`]); the recorder reads it with plain file reads ([`RingReader`]), because a
//! mapping of a file that the target may truncate could kill the recorder with SIGBUS.
//!
//! # Layout
//! A header of [`HEADER_BYTES`] bytes (see `layout`), then `capacity` bytes of records, a power
//! of two. `head` and `tail` count bytes since the ring was made and never wrap; the position in
//! the file is the count modulo the capacity. A record is a whole number of 8-byte words; the
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

mod error;
mod layout;
mod reader;
mod record;
mod traps;
mod writer;

pub use error::RingError;
pub use layout::{HEADER_BYTES, Identity, VERSION};
pub use reader::{Drained, Losses, RingReader};
pub use record::{
    AllocKind, Event, Frames, MAX_FRAMES, MapOperation, OwnMemory, Record, StartCause,
};
pub use traps::{
    ARM, ARMED, Arm, Armed, DEVICE, MOST_WORDS, QUIT, READY, SERVED, TRAPS_SOCKET, TRAPS_VARIABLE,
    is_chosen,
};
pub use writer::{Fullness, RingWriter};

/// The environment variable that names the folder for ring files. Must be an absolute path.
pub const DIRECTORY_VARIABLE: &str = "VARVE_AGENT_DIR";
/// The environment variable for the bytes of records a ring holds; rounded up to a power of two.
pub const CAPACITY_VARIABLE: &str = "VARVE_AGENT_RING";
/// The environment variable for the smallest heap object that is recorded on its own, in bytes.
pub const MIN_OBJECT_VARIABLE: &str = "VARVE_MIN_OBJECT";
/// The environment variable for the most frames of a call stack, up to [`MAX_FRAMES`].
pub const MAX_FRAMES_VARIABLE: &str = "VARVE_MAX_FRAMES";
/// The environment variable that, if set, asks each process for a userfaultfd: made once, sent in a
/// datagram to the socket [`WRITES_SOCKET`], and closed.
pub const WRITES_VARIABLE: &str = "VARVE_AGENT_WRITES";
/// The name of the socket in the folder for ring files.
pub const WRITES_SOCKET: &str = "writes";

/// Bytes of records in a ring when nothing else was asked for.
pub const DEFAULT_CAPACITY: usize = 1 << 20;
/// The extension of a ring that is ready to be read. While it is made, it ends in `.tmp`.
pub const RING_EXTENSION: &str = "ring";
