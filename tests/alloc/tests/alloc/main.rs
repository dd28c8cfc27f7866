//! Allocator operations against an independent truth.
#![allow(clippy::unwrap_used, missing_docs)]

mod blocks;
mod counts;
mod diseases;
mod ranges;
mod situations;
mod support;
