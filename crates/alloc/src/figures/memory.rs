//! The memory of processes.

use std::collections::HashMap;

use varve_model::{Bytes, Duration, PAGE_BYTES, Pid, Time};
use varve_trace::tables::HeapMemoryRow;

use super::pages::Fills;
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

/// What is to be said where frees went unseen.
pub(super) fn unseen(tables: &Tables) -> Option<String> {
    let mut last: HashMap<Pid, u64> = HashMap::new();
    for row in &tables.memory {
        let of = last.entry(row.pid).or_default();
        *of = row.unseen_frees.max(*of);
    }
    let blocks: u64 = last.into_values().sum();
    (blocks > 0).then(|| format!(
        "{} came where one lived that was not seen freed: the program frees by a way of its own, such as a library that binds to the allocator's functions itself (RTLD_DEEPBIND). A block of which the end was not seen counts as living until its address comes again: what lives, and the peak, are at most what is said here.",
        varve_analyse::format::counted(blocks, "block")
    ))
}

/// When most that was asked for lived in all processes together; none where nothing was counted. Of one process its own peak, of several the look at
/// which their sum was the largest.
pub(super) fn peak(tables: &Tables) -> Option<Time> {
    let first = tables.memory.first()?.pid;
    if tables.memory.iter().all(|row| row.pid == first) {
        let most = tables
            .memory
            .iter()
            .max_by_key(|row| row.peak_requested_bytes);
        return most.map(|row| row.peak_ns);
    }
    let rows = tables.memory.iter();
    let rows = rows.map(|row| (row.time_ns, row.pid, row.requested_bytes.0));
    let ends = tables.ends.iter().map(|(pid, end)| (*end, *pid, 0));
    let mut changes: Vec<(Time, Pid, u64)> = rows.chain(ends).collect();
    changes.sort_by_key(|(time, ..)| *time);
    let mut live: HashMap<Pid, u64> = HashMap::new();
    let (mut sum, mut most, mut when) = (0, 0, None);
    for (time, pid, now) in changes {
        sum = sum + now - live.insert(pid, now).unwrap_or(0);
        if sum > most {
            (most, when) = (sum, Some(time));
        }
    }
    when
}

/// One look at the resident pages of what the allocator has mapped.
struct Look {
    time: Time,
    resident: u64,
    /// What of that lay in no block, where that is known.
    kept: Option<u64>,
    /// What of that lay on pages with blocks, at most.
    pinned: u64,
    /// How long until the next look.
    lasted: u64,
}

/// Why it is not known what the allocator has mapped, if so.
fn mapped(tables: &Tables, rows: &[&HeapMemoryRow], attached: bool) -> Result<(), String> {
    if attached {
        return Err(
            "the program ran before, and what its allocator had mapped then nobody saw".to_owned(),
        );
    }
    let lost = tables.lost_mappings;
    if lost > 0 {
        let lost = varve_analyse::format::counted(lost, "change");
        return Err(format!("{lost} of mappings were not seen"));
    }
    if rows.iter().all(|row| row.mapped_bytes.is_none()) {
        return Err("the kernel's part did not see what the allocator maps".to_owned());
    }
    let mapped = rows.iter().filter_map(|row| row.mapped_bytes).max();
    let used = rows
        .iter()
        .map(|row| row.peak_usable_bytes.unwrap_or(row.peak_requested_bytes))
        .max();
    if used.unwrap_or_default().0 > mapped.unwrap_or_default().0 + FEW_BYTES {
        return Err("the allocator has memory that nobody saw it map: it took that before its first operation, or outside of operations".to_owned());
    }
    let most = rows.iter().filter_map(|row| row.heap_resident_bytes).max();
    if used > Some(Bytes(0)) && most == Some(Bytes(0)) {
        return Err("nothing that the allocator was seen to map was resident: it has its memory from before its first operation".to_owned());
    }
    Ok(())
}

/// Whether it is known which memory the allocator of a process has mapped.
pub(super) fn knows_mapped(tables: &Tables, of: Option<Pid>, attached: bool) -> bool {
    of.is_some_and(|of| why_unmapped(tables, of, attached).is_none())
}

/// Why it is not known which memory the allocator of a process has mapped; none where it is.
pub(super) fn why_unmapped(tables: &Tables, of: Pid, attached: bool) -> Option<String> {
    let rows = tables.memory.iter().filter(|row| row.pid == of);
    let rows: Vec<&HeapMemoryRow> = rows.collect();
    mapped(tables, &rows, attached).err()
}

/// The looks, or why there are none that say something.
fn looks(
    tables: &Tables,
    rows: &[&HeapMemoryRow],
    fills: &Fills,
    attached: bool,
) -> Result<Vec<Look>, String> {
    mapped(tables, rows, attached)?;
    let looked = rows.iter().filter(|row| row.heap_resident_bytes.is_some());
    let looked: Vec<&HeapMemoryRow> = looked.copied().collect();
    if looked.is_empty() {
        return Err("the process ended before anybody looked".to_owned());
    }
    // How full pages are is looked at less often: what was freed since the last time the next one shows. After the last one it is not known, but
    // a block has free bytes beside it on no more than two pages, its first and its last.
    let pinned_at = |row: &HeapMemoryRow| match fills.range(row.time_ns..).next() {
        Some((_, fill)) => fill.pinned_bytes.0,
        None if fills.is_empty() => 0,
        None => row.blocks.saturating_mul(2 * PAGE_BYTES),
    };
    // What stays the same is not written again.
    let ends = looked.iter().skip(1).chain(rows.last());
    let look = |(row, end): (&&HeapMemoryRow, &&HeapMemoryRow)| Look {
        time: row.time_ns,
        resident: row.heap_resident_bytes.unwrap_or_default().0,
        kept: row.kept_bytes.map(|kept| kept.0),
        pinned: pinned_at(row),
        lasted: end.time_ns.0.saturating_sub(row.time_ns.0),
    };
    Ok(looked.iter().zip(ends).map(look).collect())
}

pub(super) fn memory(
    tables: &Tables,
    (of, fills): (Option<Pid>, &Fills),
    start: Time,
    attached: bool,
) -> Memory {
    let rows: Vec<&HeapMemoryRow> = tables
        .memory
        .iter()
        .filter(|row| Some(row.pid) == of)
        .collect();
    let Some(last) = rows.last() else {
        return Memory::default();
    };
    let since = |time: Time| Duration(time.0.saturating_sub(start.0));
    let peak = rows
        .iter()
        .max_by_key(|row| row.peak_requested_bytes)
        .unwrap_or(last);
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let usable = peak
        .peak_usable_bytes
        .map(|usable| usable.max(peak.peak_requested_bytes));
    let (looks, unknown) = match looks(tables, &rows, fills, attached) {
        Ok(looks) => (looks, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let highest = looks.iter().max_by_key(|look| look.resident);
    let resident = highest.map(|look| Bytes(look.resident));
    let lasted: u64 = looks.iter().map(|look| look.lasted).sum();
    let knows_kept = looks.iter().any(|look| look.kept.is_some());
    // What lies on pages with blocks nobody could give back.
    let mostly = looks.iter().filter(|look| {
        let could_go = look.kept.unwrap_or(0).saturating_sub(look.pinned);
        could_go > FEW_BYTES && could_go * 2 > look.resident
    });
    let mostly: u64 = mostly.map(|look| look.lasted).sum();
    let step = rows.len().div_ceil(MAX_MOMENTS).max(1);
    let moment = |row: &&HeapMemoryRow| Moment {
        time_ns: since(row.time_ns),
        requested_bytes: row.requested_bytes,
        usable_bytes: row.usable_bytes,
        resident_bytes: row.resident_bytes,
        heap_resident_bytes: row.heap_resident_bytes,
    };
    Memory {
        peak_requested_bytes: peak.peak_requested_bytes,
        peak_usable_bytes: usable,
        peak_ns: since(peak.peak_ns),
        peak_resident_bytes: rows.iter().filter_map(|row| row.resident_bytes).max(),
        peak_heap_resident_bytes: resident,
        peak_heap_resident_before_end_ns: highest
            .map(|look| Duration(last.time_ns.0.saturating_sub(look.time.0))),
        end_requested_bytes: last.requested_bytes,
        end_blocks: last.blocks,
        internal_fragmentation: usable
            .map(|usable| share(usable.0 - peak.peak_requested_bytes.0, usable.0)),
        blowup: resident.map(|most| share(most.0, peak.peak_requested_bytes.0)),
        kept_bytes: looks
            .iter()
            .map(|look| look.kept.map(Bytes))
            .max()
            .flatten(),
        mostly_kept: (lasted > 0 && knows_kept).then(|| share(mostly, lasted)),
        mostly_kept_ns: (lasted > 0 && knows_kept).then_some(Duration(mostly)),
        unseen_frees: last.unseen_frees,
        unknown,
        own_bytes: rows
            .iter()
            .map(|row| row.own_bytes)
            .max()
            .unwrap_or_default(),
        over_time: rows.iter().step_by(step).map(moment).collect(),
    }
}
