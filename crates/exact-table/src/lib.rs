//! The counts that the emulator's plugin leaves in shared files, and their reader.
//!
//! One recording has a folder with one [`CONTROL`] file, shared by all processes, and one file of
//! counts for each program of each process (`PID-TIME.exact`): a header, a list of *segments*, one for each thread
//! and interval, and for each segment a table of entries, hashed by page. The plugin counts in them in
//! place, so that a killed program loses nothing; nobody else writes. All numbers are native-endian words.
#![forbid(unsafe_code)]

pub mod layout;
mod program;
mod reader;

pub use program::Program;
pub use reader::{Control, Counts, CountsError, Entry, Image, Segment};

/// The file that all processes of a recording share.
pub const CONTROL: &str = "control";
/// The extension of files of counts.
pub const EXTENSION: &str = "exact";
