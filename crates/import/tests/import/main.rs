//! Importers, against recordings of the tools themselves and damaged copies.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod cases;
mod common;
mod detection;
mod events;
mod fuzzed;
mod golden;
mod mapped_then;
mod oracle;
mod perf_file;
mod perf_forms;
mod properties;
