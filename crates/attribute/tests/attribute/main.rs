//! Names and owners, against programs whose answers are known.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod common;
mod finish;
mod hostile;
mod owners;
mod statics;
mod symbolize;
mod unwind;
