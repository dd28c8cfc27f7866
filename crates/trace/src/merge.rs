//! Merging the parts of each table into one file, with row groups of a useful size.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::table_file::TableFile;
use crate::tables::{
    CountRow, CounterRow, FaultRow, IntervalRow, LossRow, MappingRow, ProcessRow, Row, SampleRow,
    ThreadRow, TouchRow,
};
use crate::writer::{part_files, write_table};
use crate::{Trace, TraceError};

/// The tables that [`finish_tables`] leaves, even where they are empty.
pub(crate) const MERGED: [&str; 10] = [
    IntervalRow::TABLE.name,
    TouchRow::TABLE.name,
    FaultRow::TABLE.name,
    SampleRow::TABLE.name,
    CountRow::TABLE.name,
    MappingRow::TABLE.name,
    ThreadRow::TABLE.name,
    ProcessRow::TABLE.name,
    CounterRow::TABLE.name,
    LossRow::TABLE.name,
];

/// Called with the share of the work that is done, 0 to 1.
pub type MergeProgress<'a> = &'a mut dyn FnMut(f64);

/// Merges every table that is written as it stands; `births`, `deaths` and `stacks` are left in
/// `parts/` for the attribution, which calls [`remove_parts`] when it has what it needs. Tables that
/// are merged already are left alone, so that a merge that was cut short can be taken up again.
pub fn finish_tables(folder: &Path, progress: MergeProgress<'_>) -> Result<(), TraceError> {
    let trace = Trace::open(folder)?;
    let total =
        trace.count::<TouchRow>()? + trace.count::<FaultRow>()? + trace.count::<SampleRow>()?;
    let mut done = 0;
    let mut step = |rows: usize| {
        done += rows as u64;
        progress((done as f64 / total.max(1) as f64).min(1.0));
    };
    merge::<IntervalRow>(&trace, &mut |_| ())?;
    merge::<TouchRow>(&trace, &mut step)?;
    merge::<FaultRow>(&trace, &mut step)?;
    merge::<SampleRow>(&trace, &mut step)?;
    merge::<CountRow>(&trace, &mut |_| ())?;
    merge_latest(&trace, |r: &MappingRow| {
        (
            r.pid,
            r.from_ns,
            r.address,
            r.bytes,
            r.offset,
            r.path.clone(),
        )
    })?;
    merge_latest(&trace, |r: &ThreadRow| (r.pid, r.tid, r.born_ns))?;
    merge_latest(&trace, |r: &ProcessRow| (r.pid, r.born_ns))?;
    merge::<CounterRow>(&trace, &mut |_| ())?;
    merge::<LossRow>(&trace, &mut |_| ())
}

fn merge<R: Row>(trace: &Trace, step: &mut dyn FnMut(usize)) -> Result<(), TraceError> {
    let folder = trace.folder();
    let target = folder.join(format!("{}.parquet", R::TABLE.name));
    if !target.is_file() {
        let mut writer = TableFile::create(&target, R::TABLE, R::schema())?;
        for rows in trace.batches::<R>()? {
            let rows = rows?;
            writer.write_rows(&rows)?;
            step(rows.len());
        }
        writer.close()?;
    }
    remove_parts(folder, R::TABLE.name)
}

/// Merges a table whose rows are written again when more is known of them: the last one counts. Such
/// tables are small.
fn merge_latest<R: Row, K: Ord>(trace: &Trace, key: impl Fn(&R) -> K) -> Result<(), TraceError> {
    let target = trace.folder().join(format!("{}.parquet", R::TABLE.name));
    if !target.is_file() {
        let rows: Vec<R> = trace.rows()?;
        let latest: BTreeMap<K, R> = rows.into_iter().map(|r| (key(&r), r)).collect();
        write_table(trace.folder(), &latest.into_values().collect::<Vec<_>>())?;
    }
    remove_parts(trace.folder(), R::TABLE.name)
}

/// Removes the parts of a table that stands merged.
pub fn remove_parts(folder: &Path, table: &str) -> Result<(), TraceError> {
    let prefix = format!("{table}-");
    for path in part_files(folder)? {
        let name = path
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default();
        if name.starts_with(&prefix) {
            fs::remove_file(&path).map_err(TraceError::io("remove", &path))?;
        }
    }
    let parts = folder.join("parts");
    if part_files(folder)?.is_empty() && parts.is_dir() {
        fs::remove_dir(&parts).map_err(TraceError::io("remove", &parts))?;
    }
    Ok(())
}
