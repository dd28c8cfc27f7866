//! Records of perf events: written forms, and damaged ones.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod fuzzed;
mod spe;
