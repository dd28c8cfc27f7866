//! The counts that the emulator's plugin leaves in shared files, and their reader.
//!
//! One recording has a folder with one [`CONTROL`] file, shared by all processes, and one file of
//! counts for each program of each process ([`file_name`]), which the recorder makes: a header, a list of *segments*, one for each thread
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
/// How long a file of counts is. Only what is written takes room.
pub const MAX_BYTES: u64 = 64 << 30;

/// The name of the file of counts of a process that runs something since a time, nanoseconds of CLOCK_MONOTONIC.
pub fn file_name(pid: u32, since_ns: u64) -> String {
    format!("{pid}-{since_ns}.{EXTENSION}")
}

/// The process and the time from the name of a file of counts.
pub fn parse_file_name(name: &str) -> Option<(u32, u64)> {
    let (pid, rest) = name.split_once('-')?;
    let (since, extension) = rest.split_once('.')?;
    (extension == EXTENSION).then_some((pid.parse().ok()?, since.parse().ok()?))
}
