//! Which memory an instruction accesses.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod aarch64;
mod executed;
mod fuzzed;
mod vectors;
