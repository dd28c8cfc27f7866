//! Putting traces in order.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod finish;
