//! The tables of one process, and what they have grown by.

use std::collections::{HashMap, HashSet};

use varve_model::{Address, Bytes, Duration, Pid, SiteId, Tid, Time};
use varve_preload_abi::operations::{
    BUCKETS, BlockState, CHOICE_CLASS, FAILED_CLASS, OperationsReader, RowSnapshot,
    SHARED_LINE_CLASS, ThreadBlock, TimeKind, Totals, bucket_start, class_bytes, is_libc,
    is_reallocated, of_row_key, ticks,
};
use varve_sys::{monotonic_now, thread_cpu_time};
use varve_trace::tables::{
    BlockChoiceRow, HeapMemoryRow, OperationRow, OperationTimeRow, SharedLineRow,
};

use super::Rows;
use super::mapped::Heap;
use super::memory::{Resident, Scan, add_changed, after_rest, resident};
use super::pages::{self, Fills};
use crate::state::State;

/// What a tick of the processor's clock is worth.
pub(super) struct Scale {
    ticks: u64,
    time: Time,
}

impl Scale {
    pub(super) fn begin() -> Scale {
        Scale {
            ticks: ticks(),
            time: monotonic_now(),
        }
    }

    /// Nanoseconds of a tick.
    fn ns(&self) -> f64 {
        let (passed, time) = (
            ticks().saturating_sub(self.ticks),
            monotonic_now() - self.time,
        );
        time.0 as f64 / passed.max(1) as f64
    }
}

/// The tables of one process.
pub(super) struct Tables {
    pub(super) pid: Pid,
    /// When what it runs began.
    pub(super) image: Time,
    reader: OperationsReader,
    allocator: Option<String>,
    /// Rows as they were read last, by block and key.
    known: HashMap<(usize, u64), RowSnapshot>,
    times: Vec<u64>,
    sites: HashMap<u64, Option<SiteId>>,
    last: Option<HeapMemoryRow>,
    /// The most bytes that were asked for at once, as far as was found.
    peak: Peak,
    /// What was found last.
    library_bytes: u64,
    scan: Scan,
    fills: Fills,
    /// When it is looked next how full they are.
    next_fill: Time,
}

/// The sum of the squares of times, of each of which what the clock takes is left out: of so many times, which are so long in all. It is no less than of
/// as many equal times, whatever the program has written into its tables.
fn without_clock(squares: f64, (count, sum): (f64, f64), clock: f64) -> f64 {
    let least = (sum - clock * count).max(0.0).powi(2) / count.max(1.0);
    (squares - 2.0 * clock * sum + clock * clock * count).max(least)
}

/// The most bytes that were asked for at once, what of these blocks could be used, and when that was.
#[derive(Clone, Copy, Default)]
struct Peak {
    requested: i64,
    usable: i64,
    time: Time,
}

impl Peak {
    /// Notes one that was found, which counts from when it is the highest: threads have not said of what is theirs alone when that was.
    fn note(&mut self, found: Peak) {
        if found.requested > self.requested {
            *self = found;
        }
    }
}

/// What one look finds.
#[derive(Clone, Copy, Default)]
struct Look {
    resident: Option<Resident>,
    /// Of the allocator: the most bytes that it had mapped, resident ones, and those of them that lay in no block.
    mapped: Option<Bytes>,
    heap: Option<(u64, u64)>,
}

/// glibc has the size of a block in the 8 bytes before it (malloc/malloc.c, "Chunk representation").
const GLIBC_HEADER: i64 = 8;

/// It is looked how full the allocator's pages are no more often than this.
const FILL_EVERY: Duration = Duration(200_000_000);

impl Tables {
    pub(super) fn new(pid: Pid, image: Time, reader: OperationsReader) -> Tables {
        Tables {
            pid,
            image,
            reader,
            allocator: None,
            known: HashMap::new(),
            times: vec![0; TimeKind::ALL.len() * BUCKETS],
            sites: HashMap::new(),
            last: None,
            peak: Peak::default(),
            library_bytes: 0,
            scan: Scan::default(),
            fills: Fills::default(),
            next_fill: Time(0),
        }
    }

    /// Reads all rows and times; what they have grown by since the last time.
    pub(super) fn read(&mut self, now: Time, scale: &Scale, state: &mut State, rows: &mut Rows) {
        let ns = scale.ns();
        for block in self.reader.blocks() {
            if block.state == BlockState::InUse {
                self.read_block(&block, now, ns, state, rows);
            }
        }
        self.read_times(now, ns, rows);
    }

    /// Reads the blocks of threads that have ended, and gives them to others.
    pub(super) fn release(
        &mut self,
        ended: &HashSet<(Pid, Tid)>,
        now: Time,
        scale: &Scale,
        state: &mut State,
        rows: &mut Rows,
    ) {
        let ns = scale.ns();
        for block in self.reader.blocks() {
            let tid = state.processes.thread_known_as(self.pid, Tid(block.tid));
            if block.state == BlockState::InUse && ended.contains(&(self.pid, tid)) {
                self.read_block(&block, now, ns, state, rows);
                self.reader.release(&block);
            }
        }
    }

    fn clock_ticks(&self) -> u64 {
        self.reader.clock().map_or(0, |(_, _, clock)| clock)
    }

    fn read_block(
        &mut self,
        block: &ThreadBlock,
        now: Time,
        ns: f64,
        state: &mut State,
        rows: &mut Rows,
    ) {
        let pid = self.pid;
        let tid = state.processes.thread_known_as(pid, Tid(block.tid));
        let clock = self.clock_ticks();
        let (known, sites) = (&mut self.known, &mut self.sites);
        self.reader.rows(block, |row| {
            let before = known.entry((block.at, row.key)).or_default();
            let grown = |now: u64, before: u64| now.wrapping_sub(before);
            let count = grown(row.count, before.count);
            let Some((operation, site, class)) = of_row_key(row.key) else {
                return;
            };
            if count == 0 {
                return;
            }
            let stacks = &mut state.stacks;
            let site = *sites
                .entry(site)
                .or_insert_with(|| stacks.site(pid, now, vec![Address(site)], true));
            let operation = operation.as_str().into();
            // Of rows that are no size class's, the part of their blocks that counts apart.
            let part = grown(row.fresh, before.fresh).min(count);
            match class {
                SHARED_LINE_CLASS => rows.lines.push(SharedLineRow {
                    time_ns: now,
                    pid,
                    tid,
                    operation,
                    site,
                    blocks: count,
                    active: part,
                }),
                CHOICE_CLASS => rows.choices.push(BlockChoiceRow {
                    time_ns: now,
                    pid,
                    tid,
                    operation,
                    site,
                    blocks: count,
                    far: part,
                }),
                class => {
                    // Blocks of the class that became others are counted in rows of their own.
                    let (count, reallocated) = match is_reallocated(row.key) {
                        true => (0, count),
                        false => (count, 0),
                    };
                    let timed = grown(row.timed, before.timed);
                    let ticks = grown(row.ticks, before.ticks);
                    let spent = ticks.saturating_sub(clock.saturating_mul(timed));
                    let squares = without_clock(
                        row.squares - before.squares,
                        (timed as f64, ticks as f64),
                        clock as f64,
                    );
                    rows.operations.push(OperationRow {
                        time_ns: now,
                        pid,
                        tid,
                        operation,
                        class_bytes: (class != FAILED_CLASS).then(|| Bytes(class_bytes(class))),
                        site,
                        count,
                        reallocated,
                        requested_bytes: Bytes(grown(row.requested, before.requested)),
                        usable_bytes: Some(Bytes(grown(row.usable, before.usable))),
                        fresh: Some(grown(row.fresh, before.fresh)),
                        parallel: grown(row.parallel, before.parallel),
                        timed,
                        timed_ns: Duration((spent as f64 * ns) as u64),
                        timed_norm_ns: Some(Duration((squares.sqrt() * ns) as u64)),
                    });
                }
            }
            *before = row;
        });
    }

    fn read_times(&mut self, now: Time, ns: f64, rows: &mut Rows) {
        let clock = self.clock_ticks();
        let time = |bucket: usize| {
            let ticks = bucket_start(bucket).saturating_sub(clock);
            Duration((ticks as f64 * ns) as u64)
        };
        for (index, before) in self.times.iter_mut().enumerate() {
            let (kind, bucket) = (index / BUCKETS, index % BUCKETS);
            let found = self.reader.bucket(kind, bucket);
            let count = found.wrapping_sub(*before);
            if count > 0 {
                rows.times.push(OperationTimeRow {
                    time_ns: now,
                    pid: self.pid,
                    kind: TimeKind::ALL[kind].as_str().into(),
                    from_ns: time(bucket),
                    to_ns: time(bucket + 1),
                    count,
                });
                *before = found;
            }
        }
    }

    /// Operations that were not counted.
    pub(super) fn uncounted(&self) -> u64 {
        self.reader.totals().uncounted
    }

    /// Whether a limit of its address space has kept the process from counting, all or what was at the end.
    pub(super) fn is_limited(&self) -> bool {
        self.reader.is_limited()
    }

    /// Whether that it locked its memory has ended the counting.
    pub(super) fn is_locked(&self) -> bool {
        self.reader.is_locked()
    }

    /// Bytes that blocks take: those that can be used, and what the allocator has before each for itself, where that is known.
    fn taken(&self, is_glibc: bool) -> u64 {
        let blocks = self.reader.blocks();
        let totals = self.reader.totals();
        let pending = |which: usize| blocks.iter().map(|block| block.pending[which]).sum::<i64>();
        let headers = match is_glibc {
            true => (totals.blocks.saturating_add(pending(2))).saturating_mul(GLIBC_HEADER),
            false => 0,
        };
        let usable = totals.usable.saturating_add(pending(1));
        u64::try_from(usable.saturating_add(headers)).unwrap_or(0)
    }

    /// Whether the allocator is the C library's.
    fn is_glibc(&mut self) -> bool {
        is_libc(self.allocator().as_bytes())
    }

    /// The file that has the allocator, once the process has said so.
    fn allocator(&mut self) -> &String {
        self.allocator
            .get_or_insert_with(|| self.reader.allocator())
    }

    /// Looks how much memory there is; `heap` is what the allocator has mapped, where that is known.
    pub(super) fn look(&mut self, now: Time, heap: Option<&Heap>, rows: &mut Rows) {
        let Some(resident) = resident(self.pid, &self.reader.own_memory()) else {
            return;
        };
        self.library_bytes = resident.library;
        let mut look = Look {
            resident: Some(resident),
            mapped: heap.map(|heap| heap.most),
            heap: heap.and_then(|heap| self.scanned(&heap.ranges)),
        };
        // The kernel's sum is some pages behind, and the program goes on meanwhile: what the allocator has is a part of it.
        if let (Some(all), Some((part, _))) = (&mut look.resident, look.heap) {
            all.program = all.program.max(part);
        }
        self.add(now, &look, &mut rows.memory);
        if let Some(heap) = heap {
            self.fill(now, &heap.ranges, rows);
        }
    }

    /// Looks how full the pages of what the allocator has mapped are.
    fn fill(&mut self, now: Time, ranges: &[(u64, u64)], rows: &mut Rows) {
        if now < self.next_fill || self.reader.clock().is_none() {
            return;
        }
        let is_glibc = self.is_glibc();
        let began = thread_cpu_time();
        let fill = pages::look(self.pid, &self.reader.shadows(), ranges, is_glibc);
        self.next_fill = after_rest(began).max(now + FILL_EVERY);
        if let Some(fill) = fill {
            self.fills.add(now, self.pid, fill, &mut rows.pages);
        }
    }

    /// Notes what the tables say of a process whose memory is gone, and what its allocator had mapped.
    pub(super) fn last(&mut self, now: Time, heap: Option<&Heap>, rows: &mut Rows) {
        let look = Look {
            mapped: heap.map(|heap| heap.most),
            ..Look::default()
        };
        self.add(now, &look, &mut rows.memory);
        self.end(rows);
    }

    /// What is kept to the end.
    pub(super) fn end(&mut self, rows: &mut Rows) {
        self.fills.end(self.pid, &mut rows.pages, &mut rows.sparse);
    }

    /// Resident bytes of what the allocator has mapped, and how many of them at least lay in no block.
    fn scanned(&mut self, ranges: &[(u64, u64)]) -> Option<(u64, u64)> {
        if !self.scan.is_due() {
            return None;
        }
        let is_glibc = self.reader.clock().is_some() && self.is_glibc();
        let mut scan = std::mem::take(&mut self.scan);
        let found = scan.look(self.pid, ranges, || self.taken(is_glibc));
        self.scan = scan;
        let (resident, taken) = found?;
        Some((resident, resident.saturating_sub(taken)))
    }

    fn add(&mut self, now: Time, look: &Look, rows: &mut Vec<HeapMemoryRow>) {
        if self.reader.clock().is_none() {
            return;
        }
        let Totals {
            mut requested,
            mut usable,
            mut blocks,
            peak_requested,
            peak_usable,
            peak_ns,
            uncounted,
            uncounted_before,
            unknown_frees,
            unseen_frees,
        } = self.reader.totals();
        let (live, live_usable) = (requested, usable);
        self.peak.note(Peak {
            requested: peak_requested,
            usable: peak_usable,
            time: Time(peak_ns.min(now.0)),
        });
        for block in self.reader.blocks() {
            self.peak.note(Peak {
                requested: live + block.most[0],
                usable: live_usable + block.most[1],
                time: now,
            });
            requested += block.pending[0];
            usable += block.pending[1];
            blocks += block.pending[2];
        }
        let bytes = |signed: i64| Bytes(u64::try_from(signed).unwrap_or(0));
        let counts = !self.is_limited() && !self.is_locked();
        let allocator = self.allocator().clone();
        let row = HeapMemoryRow {
            time_ns: now,
            pid: self.pid,
            allocator,
            requested_bytes: bytes(requested),
            usable_bytes: Some(bytes(usable)),
            blocks: u64::try_from(blocks).unwrap_or(0),
            peak_requested_bytes: bytes(self.peak.requested),
            peak_usable_bytes: Some(bytes(self.peak.usable)),
            peak_ns: self.peak.time,
            resident_bytes: look.resident.map(|found| Bytes(found.program)),
            mapped_bytes: look.mapped,
            heap_resident_bytes: look.heap.map(|(resident, _)| Bytes(resident)),
            kept_bytes: look.heap.map(|(_, kept)| Bytes(kept)),
            own_bytes: Bytes(self.library_bytes + self.reader.taken_bytes()),
            uncounted: counts.then_some(uncounted.saturating_add(uncounted_before)),
            unknown_frees,
            unseen_frees,
        };
        add_changed(&mut self.last, row, rows);
    }
}

#[cfg(test)]
mod tests {
    use super::without_clock;

    #[test]
    fn what_the_clock_takes_is_no_part_of_the_squares() {
        // 10 and 30 ticks, of which the clock takes 4: 6² + 26².
        let squares = without_clock(1000.0, (2.0, 40.0), 4.0);
        assert!((squares - 712.0).abs() < 1e-9, "{squares}");
        // What a program has written there is no less than what equal times have.
        for wrong in [f64::NAN, -1.0, 0.0, f64::NEG_INFINITY] {
            let squares = without_clock(wrong, (2.0, 40.0), 4.0);
            assert!((squares - 512.0).abs() < 1e-9, "{squares}");
        }
        assert!(without_clock(0.0, (0.0, 0.0), 4.0).abs() < 1e-9);
    }
}
