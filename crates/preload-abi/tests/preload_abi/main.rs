//! The ring and the channel: what is written is read, and what is hostile is refused.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod fuzzed;
mod ring;
