//! Puts a trace in order, at the end of a recording or when it is read: [`finish_trace`].
//!
//! `varve-symbols` says what code and data are called, `varve-objects` who owns an address when. Here both are joined
//! with a trace's tables:
//!
//! 1. Call stacks get functions, files and lines, and each allocation site the name that a person would give.
//! 2. Static data and mappings become objects.
//! 3. Births and deaths become lives, as they are read.
//! 4. Samples get the innermost object that lay at their address.

mod finish;
mod finish_trace;
mod generated;
mod packages;
mod sampled;

pub use finish::{Finished, finish};
pub use finish_trace::finish_trace;
pub use varve_symbols::OpenFiles;
