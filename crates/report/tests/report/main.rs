//! Reports of traces whose figures are known.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::undocumented_unsafe_blocks
)]

mod alloc_page;
mod exact_page;
mod export;
mod head;
mod html;
mod lanes;
mod made;
mod terminal;
