//! The programs in the kernel, against processes that do what they are told.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod common;
mod filters;
mod flags;
mod life;
mod loaded;
mod probes;
mod vanish;
mod walk;
