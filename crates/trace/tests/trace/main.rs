//! The trace on disk: what is written is read, and what is damaged is refused.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

#[macro_use]
mod common;
mod completeness;
mod document;
mod fuzzed;
mod hostile;
mod properties;
mod room;
mod round_trip;
mod size;
mod small;
