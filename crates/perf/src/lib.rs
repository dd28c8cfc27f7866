//! What perf events leave behind, wherever it stands: in a `perf.data` that is imported or in the ring of an event that
//! the recorder has opened.
//!
//! The layouts are those of `include/uapi/linux/perf_event.h`; each module cites what else it follows. Nothing here makes a
//! system call, and whatever the bytes are, reading them ends in a value or in none.

mod attr;
mod bytes;
mod data_source;
pub mod ibs;
pub mod ring;
pub mod spe;

pub use attr::{Attr, Body, Chain, Trailer, sample_bit};
pub use bytes::{Bytes, hex};
pub use data_source::{DataSource, level_of_text};
