//! Allocator operations against an independent truth.
#![allow(clippy::unwrap_used, missing_docs)]

mod attached;
mod blocks;
mod built;
mod comparisons;
mod counts;
mod diseases;
mod failures;
mod given_back;
mod kernel;
mod limits;
mod ranges;
mod reallocated;
mod situations;
mod stripped;
mod support;
mod threads;
mod trims;
mod uncounted;
