//! The memory of processes.

use std::collections::{HashMap, HashSet};

use varve_model::{Bytes, Duration, PAGE_BYTES, Pid, Tid, Time};
use varve_trace::tables::HeapMemoryRow;

use super::pages::Fills;
use super::{Memory, Moment, ProcessFigures};
use crate::allocator_name;
use crate::read::Tables;

/// Moments that are kept of a run.
const MAX_MOMENTS: usize = 512;
/// So little is kept by any allocator.
const FEW_BYTES: u64 = 4 << 20;
/// What a thread has freed and not yet said, at most (`PENDING_BYTES` of the preload library's tables): so much may the peak be too high for each.
const PENDING_BYTES: u64 = 64 << 10;

/// All processes, and the one with the most memory. Where the peak of one is not known its resident memory stands for it, and where that is not known
/// either it may have had more than any other.
pub(super) fn processes(tables: &Tables) -> (Vec<ProcessFigures>, Option<Pid>) {
    let mut counts: HashMap<Pid, u64> = HashMap::new();
    for row in &tables.operations {
        *counts.entry(row.pid).or_default() += row.count;
    }
    let mut rows: HashMap<Pid, Vec<&HeapMemoryRow>> = HashMap::new();
    for row in &tables.memory {
        rows.entry(row.pid).or_default().push(row);
    }
    let figures = rows.into_iter().map(|(pid, rows)| {
        let peak = rows.iter().map(|row| row.peak_requested_bytes).max();
        let peak = peak.filter(|_| uncounted(&rows).is_none());
        let resident = rows.iter().filter_map(|row| row.resident_bytes).max();
        let allocator = rows.last().map(|row| allocator_name(&row.allocator));
        let of = ProcessFigures {
            pid,
            exe: tables.processes.get(&pid).cloned().unwrap_or_default(),
            allocator: allocator.unwrap_or_default().to_owned(),
            count: counts.get(&pid).copied().unwrap_or(0),
            peak_requested_bytes: peak,
        };
        (peak.or(resident).unwrap_or(Bytes(u64::MAX)), of)
    });
    let mut processes: Vec<(Bytes, ProcessFigures)> = figures.collect();
    processes.sort_by_key(|(most, of)| (std::cmp::Reverse(*most), of.pid));
    let processes: Vec<ProcessFigures> = processes.into_iter().map(|(_, of)| of).collect();
    let largest = processes.first().map(|p| p.pid);
    (processes, largest)
}

/// Why it is not known what lives in a process, by its rows; none where it is.
fn uncounted(rows: &[&HeapMemoryRow]) -> Option<String> {
    if rows.last().is_some_and(|row| row.uncounted.is_none()) {
        return Some("operations were not counted to the end".to_owned());
    }
    // Another program that the process goes on to begins anew.
    let (mut all, mut before) = (0u64, 0);
    for now in rows.iter().filter_map(|row| row.uncounted) {
        all = all.saturating_add(now.checked_sub(before).unwrap_or(now));
        before = now;
    }
    let were = if all == 1 { "was" } else { "were" };
    let operations = varve_analyse::format::counted(all, "operation");
    (all > 0).then(|| format!("{operations} {were} not counted"))
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

/// The most bytes of blocks.
fn most_used(rows: &[&HeapMemoryRow]) -> u64 {
    let used = |row: &&HeapMemoryRow| row.peak_usable_bytes.unwrap_or(row.peak_requested_bytes);
    rows.iter().map(used).max().unwrap_or_default().0
}

/// Whether blocks took more than the allocator of their process was seen to map.
fn has_more_than_mapped(tables: &Tables, rows: &[&HeapMemoryRow]) -> bool {
    let mapped = rows.iter().filter_map(|row| row.mapped_bytes).max();
    let mapped = mapped.unwrap_or_default().0;
    // Blocks whose end was not seen make the peak higher by what nobody knows.
    let is_exact = rows.iter().all(|row| row.unseen_frees == 0);
    // What was mapped just before the last look may have come to light after it, unless that was at the end of the process.
    let settled = match rows.split_last() {
        Some((last, before)) if last.resident_bytes.is_some() => before,
        _ => rows,
    };
    let of = rows.first().map(|row| row.pid);
    let threads = tables.operations.iter().filter(|row| Some(row.pid) == of);
    let threads: HashSet<Tid> = threads.map(|row| row.tid).collect();
    let pending = PENDING_BYTES.saturating_mul(threads.len() as u64);
    let is_beyond = |rows, less: u64| most_used(rows) > mapped + less.min(FEW_BYTES);
    is_exact && is_beyond(settled, pending) || is_beyond(rows, FEW_BYTES)
}

/// Why it is not known what the allocator has mapped, if so.
fn mapped(tables: &Tables, rows: &[&HeapMemoryRow], attached: bool) -> Result<(), String> {
    if attached {
        return Err(
            "the program ran before, and what its allocator had mapped then nobody saw".to_owned(),
        );
    }
    if let Some(why) = uncounted(rows) {
        return Err(why);
    }
    let lost = tables.lost_mappings;
    if lost > 0 {
        let lost = varve_analyse::format::counted(lost, "change");
        return Err(format!("{lost} of mappings were not seen"));
    }
    if rows.iter().all(|row| row.mapped_bytes.is_none()) {
        return Err("the kernel's part did not see what the allocator maps".to_owned());
    }
    let used = most_used(rows);
    if has_more_than_mapped(tables, rows) {
        return Err("the allocator has memory that nobody saw it map: it took that before its first operation, or outside of operations".to_owned());
    }
    let most = rows.iter().filter_map(|row| row.heap_resident_bytes).max();
    if used > 0 && most == Some(Bytes(0)) {
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

/// Memory where nobody looked: what called no operation has none.
fn without_rows(is_none: bool) -> Memory {
    Memory {
        peak_requested_bytes: is_none.then_some(Bytes(0)),
        peak_ns: is_none.then_some(Duration(0)),
        end_requested_bytes: is_none.then_some(Bytes(0)),
        end_blocks: is_none.then_some(0),
        ..Memory::default()
    }
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
        return without_rows(tables.operations.is_empty());
    };
    let since = |time: Time| Duration(time.0.saturating_sub(start.0));
    let peak = rows
        .iter()
        .max_by_key(|row| row.peak_requested_bytes)
        .unwrap_or(last);
    let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let uncounted = uncounted(&rows);
    let knows_live = uncounted.is_none();
    let usable = peak.peak_usable_bytes.filter(|_| knows_live);
    let usable = usable.map(|usable| usable.max(peak.peak_requested_bytes));
    let (looks, unknown) = match looks(tables, &rows, fills, attached) {
        Ok(looks) => (looks, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let knows_heap = unknown.is_none();
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
        requested_bytes: knows_live.then_some(row.requested_bytes),
        usable_bytes: row.usable_bytes.filter(|_| knows_live),
        resident_bytes: row.resident_bytes,
        heap_resident_bytes: row.heap_resident_bytes.filter(|_| knows_heap),
    };
    Memory {
        peak_requested_bytes: knows_live.then_some(peak.peak_requested_bytes),
        peak_usable_bytes: usable,
        peak_ns: knows_live.then_some(since(peak.peak_ns)),
        peak_resident_bytes: rows.iter().filter_map(|row| row.resident_bytes).max(),
        peak_heap_resident_bytes: resident,
        peak_heap_resident_before_end_ns: highest
            .map(|look| Duration(last.time_ns.0.saturating_sub(look.time.0))),
        end_requested_bytes: knows_live.then_some(last.requested_bytes),
        end_blocks: knows_live.then_some(last.blocks),
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
        uncounted,
        unknown,
        own_bytes: rows
            .iter()
            .map(|row| row.own_bytes)
            .max()
            .unwrap_or_default(),
        over_time: rows.iter().step_by(step).map(moment).collect(),
    }
}

#[cfg(test)]
mod tests {
    use varve_trace::tables::OperationRow;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A process that had so much in use at its peak, of which all that the allocator had mapped was resident.
    fn row(pid: u32, time: u64, peak: u64, uncounted: Option<u64>) -> HeapMemoryRow {
        HeapMemoryRow {
            time_ns: Time(time),
            pid: Pid(pid),
            allocator: "/lib/libc.so.6".into(),
            requested_bytes: Bytes(peak / 2),
            usable_bytes: Some(Bytes(peak / 2)),
            blocks: 3,
            peak_requested_bytes: Bytes(peak),
            peak_usable_bytes: Some(Bytes(peak)),
            peak_ns: Time(time),
            resident_bytes: Some(Bytes(60 * MIB)),
            mapped_bytes: Some(Bytes(64 * MIB)),
            heap_resident_bytes: Some(Bytes(50 * MIB)),
            kept_bytes: Some(Bytes(40 * MIB)),
            own_bytes: Bytes(0),
            uncounted,
            unknown_frees: 0,
            unseen_frees: 0,
        }
    }

    fn tables(memory: Vec<HeapMemoryRow>) -> Tables {
        Tables {
            memory,
            ..Tables::default()
        }
    }

    fn of(tables: &Tables) -> Memory {
        memory(tables, (Some(Pid(1)), &Fills::new()), Time(0), false)
    }

    #[test]
    fn nothing_is_known_of_what_lives_where_operations_were_not_counted() {
        let rows = |uncounted| tables(vec![row(1, 1, 2000, Some(0)), row(1, 2, 2000, uncounted)]);
        let known = of(&rows(Some(0)));
        assert_eq!(known.peak_requested_bytes, Some(Bytes(2000)));
        assert_eq!(known.end_blocks, Some(3));
        assert!(known.blowup.is_some() && known.kept_bytes.is_some());
        assert_eq!((&known.uncounted, &known.unknown), (&None, &None));
        let lost = rows(Some(53_637));
        let found = of(&lost);
        let why = Some("53,637 operations were not counted".to_owned());
        assert_eq!((&found.uncounted, &found.unknown), (&why, &why));
        let expected = Memory {
            peak_resident_bytes: Some(Bytes(60 * MIB)),
            uncounted: why.clone(),
            unknown: why.clone(),
            over_time: found.over_time.clone(),
            ..Memory::default()
        };
        assert_eq!(found, expected);
        let is_unknown = |moment: &Moment| {
            let live = (moment.requested_bytes, moment.usable_bytes);
            live == (None, None) && moment.heap_resident_bytes.is_none()
        };
        assert!(found.over_time.len() == 2 && found.over_time.iter().all(is_unknown));
        assert_eq!(why_unmapped(&lost, Pid(1), false), why);
        assert!(!knows_mapped(&lost, Some(Pid(1)), false));
    }

    #[test]
    fn why_it_is_not_known_is_said() {
        let why = |rows: &[Option<u64>]| {
            let rows = rows.iter().map(|uncounted| row(1, 1, 2000, *uncounted));
            of(&tables(rows.collect())).uncounted
        };
        let said = |text: &str| Some(text.to_owned());
        let one = said("1 operation was not counted");
        assert_eq!(why(&[Some(0), Some(1), Some(1)]), one);
        // The process went on to another program.
        let two = said("7 operations were not counted");
        assert_eq!(why(&[Some(4), Some(5), Some(0), Some(2)]), two);
        let ended = said("operations were not counted to the end");
        assert_eq!(why(&[Some(0), None]), ended);
        assert_eq!(why(&[Some(3), None]), ended);
        assert_eq!(why(&[None, Some(0)]), None);
    }

    #[test]
    fn one_whose_peak_is_not_known_may_have_had_the_most() {
        let of = |uncounted, resident: Option<u64>| {
            let seen = HeapMemoryRow {
                resident_bytes: resident.map(Bytes),
                ..row(2, 1, 2000, uncounted)
            };
            let (all, largest) = processes(&tables(vec![row(1, 1, 20 * MIB, Some(0)), seen]));
            let peaks: Vec<_> = all.iter().map(|of| of.peak_requested_bytes).collect();
            (peaks, largest)
        };
        let (counted, few) = (Some(Bytes(20 * MIB)), Some(Bytes(2000)));
        let first = Some(Pid(1));
        assert_eq!(of(Some(0), Some(60 * MIB)), (vec![counted, few], first));
        assert_eq!(of(Some(9), Some(MIB)), (vec![counted, None], first));
        let second = (vec![None, counted], Some(Pid(2)));
        assert_eq!(of(Some(9), Some(60 * MIB)), second);
        assert_eq!(of(None, None), second);
    }

    #[test]
    fn what_called_no_operation_has_no_memory() {
        let nothing = of(&Tables::default());
        assert_eq!(nothing.peak_requested_bytes, Some(Bytes(0)));
        assert_eq!(nothing.end_blocks, Some(0));
        let malloc = OperationRow {
            time_ns: Time(1),
            pid: Pid(1),
            tid: varve_model::Tid(1),
            operation: "malloc".into(),
            class_bytes: Some(Bytes(64)),
            site: None,
            count: 1,
            reallocated: 0,
            requested_bytes: Bytes(60),
            usable_bytes: Some(Bytes(64)),
            fresh: Some(1),
            parallel: 0,
            timed: 0,
            timed_ns: Duration(0),
            timed_norm_ns: Some(Duration(0)),
        };
        let unseen = of(&Tables {
            operations: vec![malloc],
            ..Tables::default()
        });
        let figures = (unseen.peak_requested_bytes, unseen.end_blocks);
        assert_eq!(figures, (None, None));
    }

    const KIB: u64 = 1 << 10;

    /// A look at blocks of so many bytes at the most, where so much was mapped and resident.
    fn look(time: u64, used: u64, mapped: u64, resident: Option<u64>) -> HeapMemoryRow {
        HeapMemoryRow {
            time_ns: Time(time),
            pid: Pid(7),
            allocator: "/lib/libc.so.6".into(),
            requested_bytes: Bytes(0),
            usable_bytes: Some(Bytes(0)),
            blocks: 0,
            peak_requested_bytes: Bytes(used),
            peak_usable_bytes: Some(Bytes(used)),
            peak_ns: Time(time),
            resident_bytes: resident.map(Bytes),
            mapped_bytes: Some(Bytes(mapped)),
            heap_resident_bytes: resident.map(Bytes),
            kept_bytes: None,
            own_bytes: Bytes(0),
            uncounted: Some(0),
            unknown_frees: 0,
            unseen_frees: 0,
        }
    }

    fn is_known(memory: Vec<HeapMemoryRow>) -> bool {
        let tables = Tables {
            memory,
            ..Tables::default()
        };
        why_unmapped(&tables, Pid(7), false).is_none()
    }

    /// Eight threads have 300 KB each in arenas that nobody saw mapped.
    #[test]
    fn little_memory_that_nobody_saw_mapped_is_not_known() {
        let of = |used| {
            vec![
                look(1, 0, 132 * KIB, Some(4096)),
                look(2, used, 132 * KIB, None),
            ]
        };
        assert!(!is_known(of(2400 * KIB)));
        assert!(!is_known(of(133 * KIB)));
        assert!(is_known(of(132 * KIB)));
    }

    #[test]
    fn what_was_mapped_just_now_may_come_to_light_later() {
        let growing = |end| {
            let last = look(2, 2400 * KIB, 132 * KIB, end);
            vec![look(1, 100 * KIB, 132 * KIB, Some(4096)), last]
        };
        assert!(is_known(growing(Some(4096))));
        assert!(!is_known(growing(None)));
        let much = look(2, 8400 * KIB, 132 * KIB, Some(4096));
        assert!(!is_known(vec![much]));
    }

    #[test]
    fn a_peak_that_is_too_high_says_nothing() {
        let mut last = look(2, 2400 * KIB, 132 * KIB, None);
        last.unseen_frees = 1;
        assert!(is_known(vec![look(1, 0, 132 * KIB, Some(4096)), last]));
    }
}
