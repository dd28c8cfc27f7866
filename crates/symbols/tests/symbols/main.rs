//! Names and call stacks, against programs whose answers are known.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod common;
mod hostile;
mod statics;
mod symbolize;
mod unwind;
