//! What the kernel says of a process in one line.

use std::fmt::Display;
use std::fs;

/// A line of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its name.
    pub name: String,
    /// The letter of its state: `T` where it is stopped, `Z` where it has ended and is not waited for yet.
    pub state: char,
    /// The process that waits for it.
    pub parent: u32,
    /// How nice it is.
    pub niceness: i32,
}

/// That of a process, by its number or `self`, or of a thread, as `PID/task/TID`; none where there is none.
pub fn stat(process: impl Display) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // A name may have anything in it.
    let (name, rest) = line.rsplit_once(") ")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    Some(Stat {
        name: name.split_once('(')?.1.to_owned(),
        state: rest.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        niceness: fields.get(16)?.parse().ok()?,
    })
}
