//! What the programs have counted, as rows of the tables that the preload library's counts are in.

use std::collections::HashMap;

use varve_bpf::{ProbedProcess, ProbedRow, Probes};
use varve_model::{Address, Bytes, Duration, Pid, SiteId, Tid, Time};
use varve_preload_abi::operations::{
    FAILED_CLASS, Operation, TimeKind, bucket_start, class_bytes, of_running_word,
};
use varve_sys::monotonic_now;
use varve_trace::tables::{HeapMemoryRow, OperationRow, OperationTimeRow};

use super::allocator::Allocator;
use crate::probes::operations::Rows;
use crate::probes::operations::mapped::Heap;
use crate::probes::operations::memory::{Scan, add_changed, resident};
use crate::state::State;

/// Allocations of which it is not known whether a block had begun there before.
const ALLOCATION: &str = "allocation";

/// Which row of the kernel's: thread, what was called and from where, size class, and when what it runs began.
type Key = (Pid, Tid, u64, u8, Time);

fn key(row: &ProbedRow) -> Key {
    (row.pid, row.tid, row.word, row.class, row.image)
}

/// What is known of a process's allocator.
#[derive(Clone)]
struct Known {
    name: String,
    /// Whether it is known how much of a block can be used.
    headers: bool,
    last: Option<HeapMemoryRow>,
    scan: Scan,
    uncounted: u64,
}

/// Reads what was counted.
#[derive(Default)]
pub(super) struct Reader {
    /// Rows as they were read last.
    known: HashMap<Key, ProbedRow>,
    times: HashMap<(Pid, u8, usize), u64>,
    sites: HashMap<(Pid, Time, u64), Option<SiteId>>,
    processes: HashMap<Pid, Known>,
    /// Operations of processes that have ended that were not counted.
    uncounted: u64,
}

impl Reader {
    /// The allocator of a process is known.
    pub(super) fn learns(&mut self, pid: Pid, found: &Allocator) {
        let known = self.processes.entry(pid).or_insert_with(|| Known {
            name: String::new(),
            headers: false,
            last: None,
            scan: Scan::default(),
            uncounted: 0,
        });
        known.name.clone_from(&found.name);
        known.headers = found.headers;
    }

    /// A child has its parent's allocator.
    pub(super) fn forked(&mut self, parent: Pid, child: Pid) {
        if let Some(of) = self.processes.get(&parent).cloned() {
            let of = Known {
                last: None,
                uncounted: 0,
                ..of
            };
            self.processes.insert(child, of);
        }
    }

    pub(super) fn processes(&self) -> usize {
        self.processes.len()
    }

    pub(super) fn uncounted(&self) -> u64 {
        let now: u64 = self.processes.values().map(|known| known.uncounted).sum();
        now + self.uncounted
    }

    fn has_headers(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|known| known.headers)
    }

    /// What was counted since the last time.
    pub(super) fn read(&mut self, now: Time, probes: &Probes, state: &mut State, rows: &mut Rows) {
        for row in probes.rows() {
            self.add(now, &row, state, rows);
        }
        for of in probes.times() {
            let before = self.times.entry((of.pid, of.kind, of.bucket)).or_default();
            let count = of.count.saturating_sub(std::mem::replace(before, of.count));
            if count == 0 {
                continue;
            }
            let kind = TimeKind::ALL.into_iter().find(|k| *k as u8 == of.kind);
            rows.times.push(OperationTimeRow {
                time_ns: now,
                pid: of.pid,
                kind: match kind {
                    Some(TimeKind::Reused) | None => ALLOCATION.into(),
                    Some(kind) => kind.as_str().into(),
                },
                from_ns: Duration(bucket_start(of.bucket)),
                to_ns: Duration(bucket_start(of.bucket + 1)),
                count,
            });
        }
    }

    fn add(&mut self, now: Time, row: &ProbedRow, state: &mut State, rows: &mut Rows) {
        let before = self.known.insert(key(row), *row);
        let grown = |of: fn(&ProbedRow) -> u64| of(row).wrapping_sub(before.as_ref().map_or(0, of));
        let (count, reallocated) = (grown(|r| r.count), grown(|r| r.reallocated));
        let Some((operation, site)) = of_running_word(row.word) else {
            return;
        };
        if count == 0 && reallocated == 0 {
            return;
        }
        let pid = state.processes.owner_of_memory(row.pid);
        let site = *self
            .sites
            .entry((pid, row.image, site))
            .or_insert_with(|| match site {
                0 => None,
                site => state.stacks.site(pid, now, vec![Address(site)], true),
            });
        let spent = row.ns - before.map_or(0, |before| before.ns);
        let usable = Bytes(grown(|r| r.usable.0));
        rows.operations.push(OperationRow {
            time_ns: now,
            pid,
            tid: row.tid,
            operation: Operation::as_str(operation).into(),
            class_bytes: (row.class != FAILED_CLASS).then(|| Bytes(class_bytes(row.class))),
            site,
            count,
            reallocated,
            requested_bytes: Bytes(grown(|r| r.requested.0)),
            usable_bytes: self.has_headers(row.pid).then_some(usable),
            fresh: None,
            parallel: grown(|r| r.parallel),
            timed: grown(|r| r.timed),
            timed_ns: Duration(u64::try_from(spent).unwrap_or(0)),
            timed_norm_ns: None,
        });
    }

    /// Threads have ended, and their rows were read.
    pub(super) fn release(&mut self, ended: &[(Pid, Tid)], probes: &Probes) {
        if ended.is_empty() {
            return;
        }
        self.known.retain(|key, row| {
            let stays = !ended.contains(&(key.0, key.1));
            if !stays {
                probes.remove(row);
            }
            stays
        });
    }

    /// What a process ran up to that time has ended, and its rows were read.
    pub(super) fn ends(
        &mut self,
        pid: Pid,
        time: Time,
        probes: &Probes,
        heap: Option<&Heap>,
        rows: &mut Vec<HeapMemoryRow>,
    ) {
        let mut images: Vec<Time> = Vec::new();
        self.known.retain(|key, row| {
            let stays = key.0 != pid || key.4 >= time;
            if !stays {
                images.push(key.4);
                probes.remove(row);
            }
            stays
        });
        let process = probes.process(pid);
        if let Some(process) = process.filter(|process| process.image < time) {
            images.push(process.image);
            self.add_memory(
                monotonic_now().min(time),
                &process,
                None,
                heap.map(|h| h.most),
                None,
                rows,
            );
            self.uncounted += process.uncounted;
            probes.forget_times(pid);
            self.times.retain(|(of, ..), _| *of != pid);
            if let Some(known) = self.processes.get_mut(&pid) {
                known.uncounted = 0;
                known.last = None;
            }
        }
        images.sort_unstable();
        images.dedup();
        for image in images {
            self.sites
                .retain(|(of, began, _), _| *of != pid || *began != image);
            probes.forget(pid, image);
        }
    }

    /// Looks how much memory there is; `heap` is what the allocator has mapped, where that is known.
    pub(super) fn look(
        &mut self,
        now: Time,
        process: &ProbedProcess,
        probes: &Probes,
        heap: Option<&Heap>,
        rows: &mut Vec<HeapMemoryRow>,
    ) {
        let Some(found) = resident(process.pid, &[]) else {
            return;
        };
        let known = self.processes.get_mut(&process.pid);
        let due = known.map(|known| &mut known.scan).filter(|s| s.is_due());
        let bytes = |signed: i64| u64::try_from(signed).unwrap_or(0);
        let used = || {
            let now = probes.process(process.pid);
            bytes(now.map_or(process.usable, |now| now.usable))
        };
        let scanned = due
            .zip(heap)
            .and_then(|(scan, heap)| scan.look(process.pid, &heap.ranges, used));
        let most = heap.map(|heap| heap.most);
        let resident = Some(Bytes(found.program));
        self.add_memory(now, process, resident, most, scanned, rows);
    }

    fn add_memory(
        &mut self,
        now: Time,
        process: &ProbedProcess,
        resident: Option<Bytes>,
        mapped: Option<Bytes>,
        scanned: Option<(u64, u64)>,
        rows: &mut Vec<HeapMemoryRow>,
    ) {
        let Some(known) = self.processes.get_mut(&process.pid) else {
            return;
        };
        if process.operations == 0 {
            return;
        }
        known.uncounted = process.uncounted;
        let bytes = |signed: i64| Bytes(u64::try_from(signed).unwrap_or(0));
        let usable = |signed: i64| known.headers.then(|| bytes(signed));
        let kept = scanned
            .filter(|_| known.headers)
            .map(|(resident, used)| Bytes(resident.saturating_sub(used)));
        let row = HeapMemoryRow {
            time_ns: now,
            pid: process.pid,
            allocator: known.name.clone(),
            requested_bytes: bytes(process.requested),
            usable_bytes: usable(process.usable),
            blocks: u64::try_from(process.blocks).unwrap_or(0),
            peak_requested_bytes: bytes(process.peak_requested),
            peak_usable_bytes: usable(process.peak_usable),
            peak_ns: process.peak.min(now),
            resident_bytes: resident,
            mapped_bytes: mapped,
            heap_resident_bytes: scanned.map(|(resident, _)| Bytes(resident)),
            kept_bytes: kept,
            own_bytes: Bytes(0),
            uncounted: Some(process.uncounted.saturating_add(process.uncounted_before)),
            unknown_frees: process.unknown_frees,
            unseen_frees: process.unseen_frees,
        };
        add_changed(&mut known.last, row, rows);
    }
}
