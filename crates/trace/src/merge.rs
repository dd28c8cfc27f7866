//! Merging the parts of each table into one file, with row groups of a useful size.

use std::collections::BTreeMap;

use crate::tables::{
    BlockChoiceRow, CountRow, CounterRow, FaultRow, HeapMemoryRow, HeapPagesRow, IntervalRow,
    LossRow, MappingRow, OperationChargeRow, OperationRow, OperationTimeRow, ProcessRow, Row,
    SampleRow, SampledBlockRow, SharedLineRow, SparsePagesRow, ThreadRow, TouchRow,
};
use crate::writer::{TableWriter, write_table_to};
use crate::{Destination, Scratch, Trace, TraceError, TraceFolder};

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

/// Merges every table that is written as it stands; `births`, `deaths`, `stacks`, `generated` and raw marks are left in
/// `parts/` for the attribution, which removes them when it has what it needs. Tables that
/// are merged already are left alone, so that a merge that was cut short can be taken up again.
///
/// # Errors
/// Parts that cannot be read, and files that cannot be written.
pub fn finish_tables(folder: &TraceFolder, progress: MergeProgress<'_>) -> Result<(), TraceError> {
    let trace = &folder.trace()?;
    let to = &Destination::from(folder);
    let total =
        trace.count::<TouchRow>()? + trace.count::<FaultRow>()? + trace.count::<SampleRow>()?;
    let mut done = 0;
    let mut step = |rows: usize| {
        done += rows as u64;
        progress((done as f64 / total.max(1) as f64).min(1.0));
    };
    merge::<IntervalRow>(trace, to, &mut |_| ())?;
    merge::<TouchRow>(trace, to, &mut step)?;
    merge::<FaultRow>(trace, to, &mut step)?;
    merge::<SampleRow>(trace, to, &mut step)?;
    merge::<CountRow>(trace, to, &mut |_| ())?;
    merge_all_latest(trace, to)?;
    merge::<CounterRow>(trace, to, &mut |_| ())?;
    merge::<LossRow>(trace, to, &mut |_| ())?;
    if trace.has_operations() {
        merge::<OperationRow>(trace, to, &mut |_| ())?;
        merge::<OperationTimeRow>(trace, to, &mut |_| ())?;
        merge::<OperationChargeRow>(trace, to, &mut |_| ())?;
        merge::<HeapMemoryRow>(trace, to, &mut |_| ())?;
        merge::<SampledBlockRow>(trace, to, &mut |_| ())?;
        merge::<HeapPagesRow>(trace, to, &mut |_| ())?;
        merge::<SparsePagesRow>(trace, to, &mut |_| ())?;
        merge::<SharedLineRow>(trace, to, &mut |_| ())?;
        merge::<BlockChoiceRow>(trace, to, &mut |_| ())?;
    }
    Ok(())
}

/// Merges the tables that cannot be read from their parts as they are, and leaves the trace as it is.
///
/// # Errors
/// Parts that cannot be read, and files that cannot be written.
pub fn finish_tables_to(trace: &Trace, to: &Scratch) -> Result<(), TraceError> {
    merge_all_latest(trace, &to.into())
}

fn merge_all_latest(trace: &Trace, to: &Destination) -> Result<(), TraceError> {
    merge_latest(trace, to, |r: &MappingRow| {
        (
            r.pid,
            r.from_ns,
            r.address,
            r.bytes,
            r.offset,
            r.path.clone(),
        )
    })?;
    merge_latest(trace, to, |r: &ThreadRow| (r.pid, r.tid, r.born_ns))?;
    merge_latest(trace, to, |r: &ProcessRow| (r.pid, r.born_ns))
}

fn merge<R: Row>(
    trace: &Trace,
    to: &Destination,
    step: &mut dyn FnMut(usize),
) -> Result<(), TraceError> {
    if !trace.is_merged::<R>()? {
        let mut writer = TableWriter::<R>::create(to)?;
        for rows in trace.batches::<R>()? {
            let rows = rows?;
            writer.append(&rows)?;
            step(rows.len());
        }
        writer.close()?;
    }
    to.remove_parts(R::TABLE.name)
}

/// Merges a table whose rows are written again when more is known of them: the last one counts. Such
/// tables are small.
fn merge_latest<R: Row, K: Ord>(
    trace: &Trace,
    to: &Destination,
    key: impl Fn(&R) -> K,
) -> Result<(), TraceError> {
    if !trace.is_merged::<R>()? {
        let rows: Vec<R> = trace.rows()?;
        let latest: BTreeMap<K, R> = rows.into_iter().map(|r| (key(&r), r)).collect();
        write_table_to(to, &latest.into_values().collect::<Vec<_>>())?;
    }
    to.remove_parts(R::TABLE.name)
}
