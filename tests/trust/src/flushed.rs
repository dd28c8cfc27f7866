//! What a recorder has written so far: the event that a test waits for where it would wait for a time.

use varve_faults::{Running, Stage, patiently};
use varve_truth::flushed;

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
