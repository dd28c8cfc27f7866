//! The memory of processes.

use std::collections::HashMap;

use varve_model::{Bytes, Duration, Pid, Time};
use varve_trace::tables::HeapMemoryRow;

use super::{Memory, Moment, ProcessFigures};
use crate::allocator_name;
use crate::read::Tables;

/// Moments that are kept of a run.
const MAX_MOMENTS: usize = 512;
/// So little is kept by any allocator.
const FEW_BYTES: u64 = 4 << 20;

/// All processes, and the one with the most memory.
pub(super) fn processes(tables: &Tables) -> (Vec<ProcessFigures>, Option<Pid>) {
    let mut counts: HashMap<Pid, u64> = HashMap::new();
    for row in &tables.operations {
        *counts.entry(row.pid).or_default() += row.count;
    }
    let mut found: HashMap<Pid, ProcessFigures> = HashMap::new();
    for row in &tables.memory {
        let of = found.entry(row.pid).or_insert_with(|| ProcessFigures {
            pid: row.pid,
            exe: tables.processes.get(&row.pid).cloned().unwrap_or_default(),
            allocator: String::new(),
            count: counts.get(&row.pid).copied().unwrap_or(0),
            peak_requested_bytes: Bytes(0),
        });
        allocator_name(&row.allocator).clone_into(&mut of.allocator);
        of.peak_requested_bytes = of.peak_requested_bytes.max(row.peak_requested_bytes);
    }
    let mut processes: Vec<ProcessFigures> = found.into_values().collect();
    processes.sort_by_key(|p| (std::cmp::Reverse(p.peak_requested_bytes), p.pid));
    let largest = processes.first().map(|p| p.pid);
    (processes, largest)
}

pub(super) fn allocator_file(tables: &Tables, of: Option<Pid>) -> String {
    let mut rows = tables.memory.iter().filter(|row| Some(row.pid) == of);
    rows.next_back()
        .map(|row| row.allocator.clone())
        .unwrap_or_default()
}

/// All memory that blocks ever lay in, about: those that began where none had begun before. What is resident beyond that is no
/// memory that the program freed: it maps some itself, and has stacks and static data. Not known where operations were not counted.
fn handed_out(tables: &Tables, of: Option<Pid>, rows: &[&HeapMemoryRow]) -> Option<u64> {
    let operations = tables.operations.iter().filter(|row| Some(row.pid) == of);
    let count: u64 = operations.clone().map(|row| row.count).sum();
    let missed = rows
        .iter()
        .map(|row| row.uncounted.saturating_add(row.unknown_frees));
    if missed.max().unwrap_or(0) > count / 100 {
        return None;
    }
    let fresh = operations.map(|row| {
        let mean = row.usable_bytes.0 as f64 / row.count.max(1) as f64;
        row.fresh as f64 * mean
    });
    Some(fresh.sum::<f64>() as u64)
}

/// Resident bytes that were blocks' and are not. What was not touched of the blocks is not resident: it is at least that much.
fn kept(row: &HeapMemoryRow, handed_out: Option<u64>) -> Option<u64> {
    let resident = row.resident_bytes?.0.min(handed_out.unwrap_or(u64::MAX));
    Some(resident.saturating_sub(row.usable_bytes.0))
}

pub(super) fn memory(tables: &Tables, of: Option<Pid>, start: Time) -> Memory {
    let rows: Vec<&HeapMemoryRow> = tables
        .memory
        .iter()
        .filter(|row| Some(row.pid) == of)
        .collect();
    let Some(last) = rows.last() else {
        return Memory::default();
    };
    let handed_out = handed_out(tables, of, &rows);
    let since = |time: Time| Duration(time.0.saturating_sub(start.0));
    let peak = rows
        .iter()
        .max_by_key(|row| row.peak_requested_bytes)
        .unwrap_or(last);
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let usable = peak.peak_usable_bytes.0.max(peak.peak_requested_bytes.0);
    let resident = rows.iter().filter_map(|row| row.resident_bytes).max();
    // A row stands until the next one, as what stays the same is not written again.
    let until = rows.iter().skip(1).chain([last]).map(|next| next.time_ns);
    let looks = rows.iter().zip(until).filter_map(|(row, until)| {
        let lasted = until.0.saturating_sub(row.time_ns.0);
        Some((kept(row, handed_out)?, row.resident_bytes?.0, lasted))
    });
    let looks: Vec<(u64, u64, u64)> = looks.collect();
    let lasted: u64 = looks.iter().map(|(.., lasted)| lasted).sum();
    let mostly = looks
        .iter()
        .filter(|(kept, all, _)| *kept > FEW_BYTES && *kept * 2 > *all);
    let mostly: u64 = mostly.map(|(.., lasted)| lasted).sum();
    let step = rows.len().div_ceil(MAX_MOMENTS).max(1);
    let moment = |row: &&HeapMemoryRow| Moment {
        time_ns: since(row.time_ns),
        requested_bytes: row.requested_bytes,
        usable_bytes: row.usable_bytes,
        resident_bytes: row.resident_bytes,
    };
    Memory {
        peak_requested_bytes: peak.peak_requested_bytes,
        peak_usable_bytes: Bytes(usable),
        peak_ns: since(peak.peak_ns),
        peak_resident_bytes: resident,
        end_requested_bytes: last.requested_bytes,
        end_blocks: last.blocks,
        internal_fragmentation: share(usable - peak.peak_requested_bytes.0, usable),
        blowup: resident.map(|most| share(most.0, peak.peak_requested_bytes.0)),
        kept_bytes: looks.iter().map(|(kept, ..)| Bytes(*kept)).max(),
        mostly_kept: (lasted > 0).then(|| share(mostly, lasted)),
        own_bytes: rows
            .iter()
            .map(|row| row.own_bytes)
            .max()
            .unwrap_or_default(),
        over_time: rows.iter().step_by(step).map(moment).collect(),
    }
}
