//! What a recorder has written so far.

use std::fs;
use std::path::Path;

/// How often the rows of a table were flushed into the trace of a recorder that is at work: twice a second, those of intervals
/// each time after one has ended.
pub fn flushed(trace: &Path, table: &str) -> usize {
    let parts = fs::read_dir(trace.join("parts"));
    let names = parts.into_iter().flatten().flatten().map(|e| e.file_name());
    let is_part = |name: &str| name.starts_with(&format!("{table}-")) && name.ends_with(".parquet");
    names.filter(|n| n.to_str().is_some_and(is_part)).count()
}
