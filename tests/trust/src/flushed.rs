//! What a recorder has written so far: the event that a test waits for where it would wait for a time.

use std::fs;
use std::path::Path;

use varve_faults::{Running, Stage, patiently};

/// How often the rows of a table were flushed into the trace of a recorder that is at work: twice a second, those of intervals
/// each time after one has ended.
pub fn flushed(trace: &Path, table: &str) -> usize {
    let parts = fs::read_dir(trace.join("parts"));
    let names = parts.into_iter().flatten().flatten().map(|e| e.file_name());
    let is_part = |name: &str| name.starts_with(&format!("{table}-")) && name.ends_with(".parquet");
    names.filter(|n| n.to_str().is_some_and(is_part)).count()
}

/// Waits until they were flushed so many times more. After three flushes of intervals at least one of them lies between now and then
/// as a whole: the first may have only older ones, and the second begins with one that runs now.
///
/// # Panics
/// Where that does not happen.
pub fn wait_for_flushes(stage: &Stage, recorder: &Running, table: &str, more: usize) {
    let trace = stage.path("trace.varve");
    let before = flushed(&trace, table);
    assert!(
        patiently(|| flushed(&trace, table) >= before + more),
        "no rows of {table}: {}",
        recorder.messages()
    );
}
