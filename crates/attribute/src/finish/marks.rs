//! Marks of the program: beginnings and ends of phases become one row each.

use std::collections::HashMap;

use varve_model::Time;
use varve_trace::tables::{BegunMarkRow, EndedMarkRow, MarkRow, Row};
use varve_trace::{Destination, Trace, TraceError, write_table_to};

/// More than any recorder keeps.
const MAX_MARKS: u64 = 1 << 21;

/// Writes `marks` where there are any.
pub(super) fn write(trace: &Trace, to: &Destination) -> Result<(), TraceError> {
    let count = trace.count::<BegunMarkRow>()?;
    if trace.is_merged::<MarkRow>()? || count == 0 {
        return Ok(());
    }
    let count = count.max(trace.count::<EndedMarkRow>()?);
    if count > MAX_MARKS {
        return Err(TraceError::BadTable {
            path: trace.folder().join("parts").join(BegunMarkRow::TABLE.name),
            message: format!("it has {count} marks, and no recorder keeps more than {MAX_MARKS}"),
        });
    }
    let mut ends: HashMap<u64, (Time, bool)> = HashMap::new();
    for rows in trace.batches::<EndedMarkRow>()? {
        ends.extend(rows?.into_iter().map(|r| (r.mark, (r.time_ns, r.said))));
    }
    let mut marks: Vec<MarkRow> = Vec::new();
    for rows in trace.batches::<BegunMarkRow>()? {
        marks.extend(rows?.into_iter().map(|row| {
            let end = ends.get(&row.mark).copied();
            MarkRow {
                pid: row.pid,
                tid: row.tid,
                kind: row.kind,
                name: row.name,
                start_ns: row.time_ns,
                end_ns: end.filter(|(_, said)| *said).map(|(time, _)| time),
                until_ns: end.map(|(time, _)| time),
            }
        }));
    }
    marks.sort_by_key(|row| row.start_ns);
    write_table_to(to, &marks)
}
