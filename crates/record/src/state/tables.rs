//! What is to be written, gathered until the next flush.

use std::collections::BTreeMap;

use varve_model::{Loss, Time};
use varve_trace::tables::{CounterRow, FaultRow, IntervalRow, LossRow, TouchRow};
use varve_trace::{TraceError, TraceWriter};

use super::State;

/// Rows that are gathered at most before they are written, whatever the time: memory stays bounded.
const MAX_ROWS: usize = 1 << 15;

/// Rows of the tables that no other part of the recorder keeps.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) intervals: Vec<IntervalRow>,
    pub(crate) touches: Vec<TouchRow>,
    pub(crate) faults: Vec<FaultRow>,
    pub(crate) counters: Vec<CounterRow>,
    losses: Vec<LossRow>,
    totals: BTreeMap<Loss, u64>,
}

impl Tables {
    /// Counts a loss; `total` is how much was lost of this kind since the beginning.
    pub(crate) fn lost_in_all(&mut self, time: Time, kind: Loss, total: u64) {
        let before = self.totals.entry(kind).or_default();
        if total > *before {
            self.losses.push(LossRow {
                time_ns: time,
                kind: kind.as_str().to_owned(),
                count: total - *before,
            });
            *before = total;
        }
    }

    /// Counts a loss of this many more.
    pub(crate) fn lost(&mut self, time: Time, kind: Loss, count: u64) {
        let total = self.totals.get(&kind).copied().unwrap_or(0) + count;
        self.lost_in_all(time, kind, total);
    }

    /// Whether so much has come that it should be written.
    pub(crate) fn is_large(&self) -> bool {
        self.touches.len().max(self.faults.len()) > MAX_ROWS
    }

    /// How much was lost in all, by kind.
    pub(crate) fn totals(&self) -> BTreeMap<String, u64> {
        let totals = self.totals.iter();
        totals
            .map(|(kind, n)| (kind.as_str().to_owned(), *n))
            .collect()
    }
}

/// Writes everything of the state, and what `probes` write of their own. What could be written is not written again after an
/// error.
pub(crate) fn flush(
    state: &mut State,
    writer: &mut TraceWriter,
    probes: impl FnOnce(&mut TraceWriter) -> Result<(), TraceError>,
) -> Result<(), TraceError> {
    let tables = &mut state.tables;
    // Touches go before the intervals that they belong to: an interval that is there is whole.
    append(writer, &mut tables.touches)?;
    append(writer, &mut tables.faults)?;
    append(writer, &mut state.stacks.rows)?;
    probes(writer)?;
    // A recorder that is killed in between leaves deaths without births, and never two objects in one place.
    append(writer, &mut state.objects.deaths)?;
    append(writer, &mut state.objects.births)?;
    append(writer, &mut state.processes.mapping_rows)?;
    append(writer, &mut state.processes.thread_rows)?;
    append(writer, &mut state.processes.process_rows)?;
    append(writer, &mut tables.counters)?;
    append(writer, &mut tables.losses)?;
    append(writer, &mut tables.intervals)
}

/// Writes rows and forgets them.
pub(crate) fn append<R: varve_trace::Row>(
    writer: &mut TraceWriter,
    rows: &mut Vec<R>,
) -> Result<(), TraceError> {
    writer.append(rows)?;
    rows.clear();
    rows.shrink_to(2 * MAX_ROWS);
    Ok(())
}
