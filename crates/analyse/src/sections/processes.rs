//! Each process.

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Bytes, Pages, Pid, Time};
use varve_trace::tables::ProcessRow;

use crate::Known;
use crate::known::{Together, together};

together! {
    /// What touches say of a process.
    pub ProcessTouched as ProcessTouchedFields {
        /// Distinct pages touched.
        touched_pages: Pages,
        /// The part of them that other processes touched too.
        shared_pages: Pages,
        /// Sum over intervals of pages touched.
        page_touches: u64,
    }
    maybe {}
}

/// A process.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ProcessUse {
    /// The process.
    pub pid: Pid,
    /// Its last command line; empty where unknown. Where several processes had the pid, those of all of them, each of them
    /// before `; then `: all figures are of all of them together.
    pub command: String,
    /// What touches say; nothing in a trace without.
    #[serde(flatten)]
    pub touched: Together<ProcessTouched>,
    /// Its threads, as far as known.
    pub threads: u32,
    /// When it began or was first seen.
    pub born_ns: Option<Time>,
    /// When it ended, where that was seen.
    pub died_ns: Option<Time>,
    /// Its exit code, where its end was seen.
    pub exit_code: Option<i32>,
    /// The most memory of it that was resident at once, from the beginning to the end of each of its programs, as the kernel counts it.
    pub peak_resident: Known<Bytes>,
}

/// Why the peak of a program that ran before the recording began is not known.
const BEGAN: &str = "it ran before the recording began, and may have had its peak then";

/// Why a peak of resident memory is not known, by the word of the table.
fn why_no_peak(row: &ProcessRow) -> &'static str {
    match row.peak_resident_why.as_deref() {
        Some("running") => "it had not ended as the recording did",
        Some("began") => BEGAN,
        Some("earlier") => {
            "what ran before it in its process had as much or more, and this kernel shows the larger of the two alone"
        }
        Some("borrowed") => "it had the memory of its parent to its end",
        Some("emulated") => "the memory of the emulator is counted with it",
        Some("kernel") => "this kernel does not show it",
        _ => "the record does not say",
    }
}

/// The largest peak of these programs, which is a bound where that of another is not known. One that had its parent's memory is
/// not looked at beside others: that memory is the parent's. `start` is when the recording began, where they may have run before.
pub(crate) fn peak<'a>(rows: impl Iterator<Item = &'a ProcessRow>, start: Time) -> Known<Bytes> {
    let (mut largest, mut why) = (None, None);
    for row in rows {
        let is_borrowed = row.peak_resident_why.as_deref() == Some("borrowed");
        match row.peak_resident_bytes {
            Some(_) if row.born_ns < start => why = why.or(Some(BEGAN)),
            Some(bytes) => largest = largest.max(Some(bytes)),
            None if is_borrowed => (),
            None => why = why.or(Some(why_no_peak(row))),
        }
    }
    match (largest, why) {
        (Some(bytes), why) => Known::of(bytes, why.is_none()),
        (None, why) => Known::Absent(why.unwrap_or("no process had memory of its own").to_owned()),
    }
}
