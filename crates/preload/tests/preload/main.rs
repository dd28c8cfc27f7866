//! The preload library within real programs.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod common;
mod events;
mod faults;
mod jumps;
mod loading;
#[path = "../../src/memory.rs"]
mod memory;
mod of_memory;
mod operators;
