//! What is analysed, against traces whose answers are known.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod common;
mod figures;
mod findings;
mod fold;
mod memory;
mod part;
mod possibly_others;
mod sharing;
mod traps;
