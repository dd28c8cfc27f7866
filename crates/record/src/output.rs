//! What is to be written, gathered until the next flush.

use std::collections::BTreeMap;

use varve_model::Time;
use varve_trace::tables::{CounterRow, FaultRow, IntervalRow, LossRow, TouchRow};
use varve_trace::{Manifest, TraceError, TraceWriter};

use crate::lives::Lives;
use crate::samples::Sampler;
use crate::stacks::Stacks;
use crate::world::World;

/// Rows that are gathered at most before they are written, whatever the time: memory stays bounded.
const MOST_ROWS: usize = 1 << 15;

/// Rows of the tables that no other part of the recorder keeps.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) intervals: Vec<IntervalRow>,
    pub(crate) touches: Vec<TouchRow>,
    pub(crate) faults: Vec<FaultRow>,
    pub(crate) counters: Vec<CounterRow>,
    losses: Vec<LossRow>,
    totals: BTreeMap<String, u64>,
}

impl Output {
    /// Counts a loss; `total` is how much was lost of this kind since the beginning.
    pub(crate) fn lost_in_all(&mut self, time: Time, kind: &str, total: u64) {
        let before = self.totals.entry(kind.to_owned()).or_default();
        if total > *before {
            self.losses.push(LossRow {
                time_ns: time,
                kind: kind.to_owned(),
                count: total - *before,
            });
            *before = total;
        }
    }

    /// Counts a loss of this many more.
    pub(crate) fn lost(&mut self, time: Time, kind: &str, count: u64) {
        let total = self.totals.get(kind).copied().unwrap_or(0) + count;
        self.lost_in_all(time, kind, total);
    }

    pub(crate) fn is_large(&self, lives: &Lives) -> bool {
        let most = [
            self.touches.len(),
            self.faults.len(),
            lives.births.len(),
            lives.deaths.len(),
        ];
        most.into_iter().any(|n| n > MOST_ROWS)
    }

    /// Writes everything. What could be written is not written again after an error.
    pub(crate) fn flush(
        &mut self,
        writer: &mut TraceWriter,
        manifest: &mut Manifest,
        world: &mut World,
        lives: &mut Lives,
        stacks: &mut Stacks,
        samples: Option<&mut Sampler>,
    ) -> Result<(), TraceError> {
        // Touches go before the intervals that they belong to: an interval that is there is whole.
        append(writer, &mut self.touches)?;
        append(writer, &mut self.faults)?;
        append(writer, &mut stacks.rows)?;
        if let Some(samples) = samples {
            append(writer, samples.rows())?;
            manifest.samples = Some(samples.note());
        }
        // A recorder that is killed in between leaves deaths without births, and never two objects in one place.
        append(writer, &mut lives.deaths)?;
        append(writer, &mut lives.births)?;
        append(writer, &mut world.mapping_rows)?;
        append(writer, &mut world.thread_rows)?;
        append(writer, &mut world.process_rows)?;
        append(writer, &mut self.counters)?;
        append(writer, &mut self.losses)?;
        append(writer, &mut self.intervals)?;
        manifest.losses.clone_from(&self.totals);
        manifest.settle();
        writer.folder().write_manifest(manifest)
    }
}

fn append<R: varve_trace::Row>(
    writer: &mut TraceWriter,
    rows: &mut Vec<R>,
) -> Result<(), TraceError> {
    writer.append(rows)?;
    rows.clear();
    rows.shrink_to(2 * MOST_ROWS);
    Ok(())
}
