//! Memory that operations give back to the kernel, and that comes again.
//!
//! The kernel clears pages that come again anew, and each is a page fault of the program: most of that time is no time of an operation.
//!
//! # How it is known
//!
//! **By page faults.** Had the allocator kept the touched pages that its operations gave back, as many of the first touches that follow would have found
//! one of them: these are of memory that came again. The recorder counts them as they happen (`record/src/probes/operations/mapped.rs`), and how often
//! clocks found a thread in one. What the program itself gives back, what is mapped and hardly touched, and memory that is filled once, however much, is
//! not among them. Each is 4 KiB or more.
//!
//! **By the counter of pages**, where a page fault brings more (huge pages). `A` is what is there of the allocator's memory, `G` what operations have given
//! back of it and `L` what the program has given back itself, up to a moment: what has come is `A + G + L`. Of that no more than `max(A) + L` did not come
//! again, so that `A + G - max(A)` did, or more: `G - max(A)` at least. A maximum of `A` stands before a call that takes pages away, where all that the
//! process has is read, of which `A` is a part. What is counted for `G` is never more than what went.
//!
//! Both hold for each program that a process runs, and so for their sums.

use std::collections::BTreeMap;

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Bytes, PAGE_BYTES, Pid};

use super::Share;
use super::operations::{
    ADVISED_RESIDENT, ADVISED_TOUCHED, CAME_AGAIN, CAME_AGAIN_BY_KERNEL, CAME_AGAIN_IN_OPERATION,
    CLOCK_CAME_AGAIN, CLOCK_FIRST_TOUCH, FIRST_TOUCH, FIRST_TOUCH_IN_OPERATION, MOST_RESIDENT,
    UNMAPPED_RESIDENT, UNMAPPED_TOUCHED, frees,
};
use crate::read::Tables;

/// Memory that operations gave back to the kernel, and what it costs that it came again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct GivenBack {
    /// Bytes of pages that were there and that operations gave back, at least: what they unmapped, and what they gave back by `madvise` at once.
    pub bytes: Bytes,
    /// Of these, by `madvise`.
    pub advised_bytes: Bytes,
    /// Bytes of addresses, whether anything was there or not: of `munmap` and `brk` in operations that free or reallocate, and of `madvise`.
    pub address_bytes: Bytes,
    /// Bytes that came again, at least, in processes in which three times as much or more came again as did not; 0 where there are none.
    pub again_bytes: Bytes,
    /// The share of CPU time in first touches of memory that came again, by the program's own code and outside of operations; by the clocks of CPUs. Null
    /// where no clock found the program at work, where the kernel made most of them for the program, as in `read`, and where it is not known which memory
    /// is the allocator's.
    pub again: Option<Share>,
    /// First touches of which it is not known what they took because their memory came again; null where there are none.
    pub unknown: Option<UnknownTouches>,
}

/// First touches of which it is not known what they took because their memory came again.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct UnknownTouches {
    /// The share of CPU time in them, at most.
    pub at_most: Share,
    /// Why it is not known, as a part of a sentence.
    pub why: String,
}

/// As many times as much has to come again as does not.
const TIMES: u64 = 3;
/// Of less than this nothing is said.
const MUCH_MEMORY: u64 = 8 << 20;
/// One first touch in so many may be the kernel's for the time of all to be that of the others.
const FEW: u64 = 100;
/// Why it is not known how long first touches of memory that came again took, where it is known which they are.
const BY_KERNEL: &str = "the kernel made many of them, in system calls such as read";

/// What operations gave back in one way, in bytes that were there: by page faults, and by the counter of pages. Both are no more than it was.
#[derive(Default)]
struct Given {
    touched: u64,
    resident: u64,
}

impl Given {
    fn bytes(&self) -> u64 {
        self.touched.max(self.resident)
    }
}

/// Bytes, first touches and samples of a process.
#[derive(Default)]
struct Process {
    unmapped: Given,
    advised: Given,
    addresses: u64,
    /// First touches, within operations and elsewhere, and those of memory that came again.
    touches: u64,
    again: u64,
    /// Of these outside of operations, those that the kernel made.
    again_outside: u64,
    again_by_kernel: u64,
    /// Bytes that were there at once, at most.
    most: u64,
    /// The peaks of usable bytes.
    peak: u64,
    /// Samples in first touches of the allocator's pages, and of memory that came again.
    in_touches: u64,
    in_again: u64,
    /// Samples in the kernel outside of operations: first touches are among them.
    in_kernel: u64,
}

impl Process {
    fn given(&self) -> u64 {
        self.unmapped.bytes().saturating_add(self.advised.bytes())
    }

    /// Bytes that came again at least, by the counter of pages.
    fn counted(&self) -> u64 {
        let given = self.unmapped.resident.saturating_add(self.advised.resident);
        given.saturating_sub(self.most)
    }

    /// Bytes that came again, at least.
    fn again_bytes(&self) -> u64 {
        let touched = self.again.saturating_mul(PAGE_BYTES);
        touched.max(self.counted())
    }

    /// Whether much memory was given back, and that many times as much came again as did not.
    fn is_again_and_again(&self) -> bool {
        let exceeds = |again: u64, once: u64| again > 0 && again >= once.saturating_mul(TIMES);
        let fresh = self.touches.saturating_sub(self.again);
        self.given() >= MUCH_MEMORY
            && (exceeds(self.again, fresh) || exceeds(self.counted(), self.most))
    }

    /// Whether it may be so, where page faults do not say it. The memory that was given back last may not have come again: so it has to be one peak more.
    fn may_be(&self) -> bool {
        let least = self.peak.saturating_mul(TIMES + 1);
        self.peak > 0 && self.addresses >= least.max(MUCH_MEMORY)
    }

    /// Whether there is a time of first touches outside of operations: not where the kernel made most of them.
    fn has_time(&self) -> bool {
        self.again_by_kernel <= self.again_outside / 2
    }

    /// Whether it is not that of all of them.
    fn lacks_time(&self) -> bool {
        self.again_by_kernel.saturating_mul(FEW) > self.again_outside
    }
}

fn processes(tables: &Tables) -> BTreeMap<Pid, Process> {
    let mut found: BTreeMap<Pid, Process> = BTreeMap::new();
    for row in &tables.charges {
        let of = found.entry(row.pid).or_default();
        let bytes = row.bytes.0;
        match (row.name.as_ref(), row.operation.as_deref()) {
            // Memory that an allocation unmaps was never touched: it lies beside a heap that has to be aligned.
            ("munmap" | "brk", Some(operation))
                if frees(operation) || operation.starts_with("realloc") =>
            {
                of.addresses += bytes;
            }
            ("madvise", Some(_)) => of.addresses += bytes,
            (UNMAPPED_TOUCHED, _) => of.unmapped.touched += bytes,
            (UNMAPPED_RESIDENT, _) => of.unmapped.resident += bytes,
            (ADVISED_TOUCHED, _) => of.advised.touched += bytes,
            (ADVISED_RESIDENT, _) => of.advised.resident += bytes,
            // A row has what it has grown by.
            (MOST_RESIDENT, _) => of.most += bytes,
            (FIRST_TOUCH | FIRST_TOUCH_IN_OPERATION, _) => of.touches += row.count,
            (CAME_AGAIN, _) => {
                of.again += row.count;
                of.again_outside += row.count;
            }
            (CAME_AGAIN_IN_OPERATION, _) => of.again += row.count,
            (CAME_AGAIN_BY_KERNEL, _) => of.again_by_kernel += row.count,
            (CLOCK_FIRST_TOUCH, _) => of.in_touches += row.count,
            (CLOCK_CAME_AGAIN, _) => of.in_again += row.count,
            ("clock_kernel", None) => of.in_kernel += row.count,
            _ => {}
        }
    }
    for ((pid, _), peak) in peaks(tables) {
        found.entry(pid).or_default().peak += peak;
    }
    found
}

/// The most bytes that could be used at once in blocks, of each program of each process.
fn peaks(tables: &Tables) -> BTreeMap<(Pid, usize), u64> {
    let mut found: BTreeMap<(Pid, usize), u64> = BTreeMap::new();
    for row in &tables.memory {
        let usable = row.peak_usable_bytes.unwrap_or_default();
        let program = tables.program_at(row.pid, row.time_ns);
        let peak = found.entry((row.pid, program)).or_default();
        *peak = usable.max(row.peak_requested_bytes).0.max(*peak);
    }
    found
}

/// `samples`: samples of the program's CPU time; `unknown`: why it is not known which memory the allocator of a process has mapped, where it is not.
pub(super) fn given_back(
    tables: &Tables,
    samples: u64,
    unknown: impl Fn(Pid) -> Option<String>,
) -> GivenBack {
    let mut found = GivenBack::default();
    let (mut in_again, mut is_timed) = (0, false);
    let (mut perhaps, mut reason) = (0, None);
    for (pid, of) in processes(tables) {
        found.bytes.0 += of.given();
        found.advised_bytes.0 += of.advised.bytes();
        found.address_bytes.0 += of.addresses;
        if of.given().max(of.addresses) < MUCH_MEMORY {
            continue;
        }
        let why = unknown(pid);
        let is_much = of.is_again_and_again();
        if is_much {
            found.again_bytes.0 += of.again_bytes();
            in_again += of.in_again;
            is_timed |= why.is_none() && of.has_time();
        }
        let is_open = match why {
            Some(_) => is_much || of.may_be(),
            None => is_much && of.lacks_time(),
        };
        if is_open {
            perhaps += of.in_kernel.saturating_sub(of.in_touches);
            reason = reason.or(why).or_else(|| Some(BY_KERNEL.to_owned()));
        }
    }
    let again = Share::of(in_again, samples);
    found.again = match found.again_bytes {
        Bytes(0) => again.map(|_| Share::default()),
        _ => again.filter(|_| is_timed),
    };
    found.unknown = reason
        .zip(Share::of(perhaps, samples))
        .map(|(why, at_most)| UnknownTouches { at_most, why });
    found
}

#[cfg(test)]
mod tests {
    use varve_model::{Duration, Time};
    use varve_trace::tables::{HeapMemoryRow, OperationChargeRow};

    use super::*;

    type Rows = Vec<OperationChargeRow>;

    const MIB: u64 = 1 << 20;
    const BLOCK: u64 = 96 * MIB;
    /// Twenty blocks.
    const ALL: u64 = 20 * BLOCK;

    fn charge(
        name: &'static str,
        operation: Option<&str>,
        count: u64,
        bytes: u64,
    ) -> OperationChargeRow {
        OperationChargeRow {
            time_ns: Time(1),
            pid: Pid(7),
            operation: operation.map(str::to_owned),
            site: None,
            name: name.into(),
            count,
            total_ns: Duration(0),
            queued_ns: Duration(0),
            bytes: Bytes(bytes),
            failed: 0,
        }
    }

    /// A process that had so much in use at its peak.
    fn peak(pid: Pid, bytes: u64) -> HeapMemoryRow {
        HeapMemoryRow {
            time_ns: Time(1),
            pid,
            allocator: "/lib/libc.so.6".into(),
            requested_bytes: Bytes(0),
            usable_bytes: Some(Bytes(0)),
            blocks: 0,
            peak_requested_bytes: Bytes(bytes - 8),
            peak_usable_bytes: Some(Bytes(bytes)),
            peak_ns: Time(1),
            resident_bytes: None,
            mapped_bytes: None,
            heap_resident_bytes: None,
            kept_bytes: None,
            own_bytes: Bytes(0),
            uncounted: Some(0),
            unknown_frees: 0,
            unseen_frees: 0,
        }
    }

    fn tables(charges: Rows) -> Tables {
        Tables {
            charges,
            memory: vec![peak(Pid(7), BLOCK)],
            ..Tables::default()
        }
    }

    /// By 1,000 samples, where it is known what the allocator has mapped.
    fn found(charges: Rows) -> GivenBack {
        given_back(&tables(charges), 1000, |_| None)
    }

    /// Bytes that were touched for the first time outside of operations, those that came again, and the samples in both.
    fn touches(bytes: [u64; 2], sampled: [u64; 2]) -> Rows {
        let [touched, again] = bytes.map(|bytes| bytes / PAGE_BYTES);
        vec![
            charge(FIRST_TOUCH, None, touched, 0),
            charge(CAME_AGAIN, None, again, 0),
            charge(CLOCK_FIRST_TOUCH, None, sampled[0], 0),
            charge(CLOCK_CAME_AGAIN, None, sampled[1], 0),
        ]
    }

    /// What operations gave back of touched memory, in such rows.
    fn gives(name: &'static str, bytes: u64) -> OperationChargeRow {
        charge(name, None, bytes / PAGE_BYTES, bytes)
    }

    fn with(mut rows: Rows, more: OperationChargeRow) -> Rows {
        rows.push(more);
        rows
    }

    #[test]
    fn what_is_given_back_and_touched_anew_comes_again() {
        let rows = touches([ALL, ALL - BLOCK], [800, 750]);
        let unmaps = charge("munmap", Some("free"), 20, ALL + 7);
        let rows = with(with(rows, gives(UNMAPPED_TOUCHED, ALL)), unmaps);
        let found = found(rows);
        assert_eq!((found.bytes, found.advised_bytes), (Bytes(ALL), Bytes(0)));
        assert_eq!(found.address_bytes, Bytes(ALL + 7));
        assert_eq!(found.again_bytes, Bytes(ALL - BLOCK));
        assert_eq!(found.again, Share::of(750, 1000));
        assert_eq!(found.unknown, None);
    }

    #[test]
    fn memory_that_is_filled_once_does_not_come_again() {
        // All of it is in use at the end, or it is unmapped then.
        for given in [0, ALL] {
            let rows = touches([ALL, 0], [800, 0]);
            let found = found(with(rows, gives(UNMAPPED_TOUCHED, given)));
            assert_eq!(found.again_bytes, Bytes(0), "{given}");
            assert_eq!(found.again, Some(Share::default()), "{given}");
            assert_eq!(found.unknown, None, "{given}");
        }
    }

    /// Addresses say nothing: what is mapped and hardly touched, beside memory that the program empties itself.
    #[test]
    fn addresses_are_no_memory() {
        let rows = touches([ALL, 20 * PAGE_BYTES], [800, 1]);
        let rows = with(rows, gives(UNMAPPED_TOUCHED, 20 * PAGE_BYTES));
        let found = found(with(rows, charge("munmap", Some("free"), 20, ALL)));
        assert_eq!(found.bytes, Bytes(20 * PAGE_BYTES));
        assert_eq!((found.again_bytes, found.unknown), (Bytes(0), None));
    }

    #[test]
    fn what_comes_again_twice_is_not_much() {
        let of = |times: u64| {
            let rows = touches([(times + 1) * BLOCK, times * BLOCK], [300, 200]);
            found(with(rows, gives(ADVISED_TOUCHED, (times + 1) * BLOCK))).again_bytes
        };
        assert_eq!((of(2), of(3)), (Bytes(0), Bytes(3 * BLOCK)));
    }

    /// Those within operations are a part of what operations take.
    #[test]
    fn first_touches_within_operations_count_and_have_no_time() {
        let pages = |bytes: u64| bytes / PAGE_BYTES;
        let rows = vec![
            charge(FIRST_TOUCH_IN_OPERATION, None, pages(ALL), 0),
            charge(CAME_AGAIN_IN_OPERATION, None, pages(ALL - BLOCK), 0),
            gives(UNMAPPED_TOUCHED, ALL),
        ];
        let found = found(rows);
        assert_eq!(found.again_bytes, Bytes(ALL - BLOCK));
        assert_eq!(found.again, Share::of(0, 1000));
        assert_eq!(found.unknown, None);
    }

    /// A page fault for 2 MiB: the counter says what these were.
    #[test]
    fn huge_pages_come_again_as_well() {
        let rows = touches([ALL / 512, (ALL - BLOCK) / 512], [300, 280]);
        let rows = with(rows, gives(ADVISED_TOUCHED, ALL / 512));
        let by_counter = charge(ADVISED_RESIDENT, Some("free"), 20, ALL - MIB);
        let rows = with(rows, by_counter);
        let beside = |own: u64| with(rows.clone(), charge(MOST_RESIDENT, None, 20, own));
        // With memory of the program's own.
        let known = found(beside(BLOCK + 5 * MIB));
        assert_eq!(known.advised_bytes, Bytes(ALL - MIB));
        assert_eq!(known.again_bytes, Bytes(ALL - BLOCK - 6 * MIB));
        assert_eq!(known.again, Share::of(280, 1000));
        assert_eq!(known.unknown, None);
        // Where that is much it is known of fewer bytes, and the time is the same.
        let of = found(beside(ALL));
        assert_eq!(of.again_bytes, Bytes((ALL - BLOCK) / 512));
        assert_eq!(of.again, Share::of(280, 1000));
    }

    #[test]
    fn the_time_of_what_the_kernel_touches_is_not_known() {
        let kernel = |all: u64, again: u64, by_kernel: u64| {
            let rows = touches([all, again], [0, 0]);
            let rows = with(rows, gives(UNMAPPED_TOUCHED, all));
            let by_kernel = by_kernel / PAGE_BYTES;
            let rows = with(rows, charge(CAME_AGAIN_BY_KERNEL, None, by_kernel, 0));
            found(with(rows, charge("clock_kernel", None, 900, 0)))
        };
        let all = kernel(ALL, ALL - BLOCK, ALL - BLOCK);
        assert_eq!(all.again_bytes, Bytes(ALL - BLOCK));
        assert_eq!(all.again, None);
        let unknown = all.unknown.unwrap();
        assert!(unknown.why.contains("read"), "{}", unknown.why);
        assert_eq!(Some(unknown.at_most), Share::of(900, 1000));
        // Of less than half of them it is known, and of few nothing is said.
        let some = kernel(ALL, ALL - BLOCK, ALL / 4);
        assert_eq!(some.again, Share::of(0, 1000));
        assert!(some.unknown.is_some());
        let few = kernel(ALL, ALL - BLOCK, BLOCK / 10);
        assert_eq!(few.unknown, None);
    }

    #[test]
    fn each_process_and_each_program_has_a_peak_of_its_own() {
        // Twenty processes, or twenty programs of one, fill and unmap 96 MiB each.
        for is_one in [false, true] {
            let mut all = Tables::default();
            for number in 1..=20 {
                let pid = Pid(if is_one { 7 } else { number });
                let end = Time(u64::from(number) * 100);
                let resident = charge(UNMAPPED_RESIDENT, Some("free"), 1, BLOCK);
                let rows = with(touches([BLOCK, 0], [40, 0]), resident);
                let rows = with(rows, charge(MOST_RESIDENT, None, 1, BLOCK));
                for mut row in with(rows, charge("munmap", Some("free"), 1, BLOCK)) {
                    row.pid = pid;
                    row.time_ns = end;
                    all.charges.push(row);
                }
                let mut memory = peak(pid, BLOCK);
                memory.time_ns = end;
                all.memory.push(memory);
                // The next one begins as this one ends.
                all.begins.entry(pid).or_default().push(Time(end.0 - 100));
            }
            for why in [None, Some("the program ran before".to_owned())] {
                let found = given_back(&all, 1000, |_| why.clone());
                assert_eq!((found.bytes, found.again_bytes), (Bytes(ALL), Bytes(0)));
                assert_eq!(found.unknown, None, "{is_one} {why:?}");
            }
        }
    }

    #[test]
    fn what_the_allocator_has_mapped_may_not_be_known() {
        let charges = vec![
            charge("munmap", Some("free"), 20, ALL),
            charge("clock_kernel", Some("free"), 90, 0),
            charge("clock_kernel", None, 500, 0),
        ];
        let of = |charges| {
            let why = |_| Some("the program ran before".to_owned());
            given_back(&tables(charges), 1000, why)
        };
        let unknown = |of: GivenBack| of.unknown.map(|unknown| (unknown.why, unknown.at_most));
        let expected = Some((
            "the program ran before".to_owned(),
            Share::of(500, 1000).unwrap(),
        ));
        let addresses = of(charges.clone());
        assert_eq!(addresses.again_bytes, Bytes(0));
        assert_eq!(unknown(addresses), expected);
        // What came again the counter says, and not what it took.
        let counted = [
            charge(UNMAPPED_RESIDENT, Some("free"), 20, ALL),
            charge(MOST_RESIDENT, None, 20, BLOCK),
        ];
        let counted = of(charges.into_iter().chain(counted).collect());
        assert_eq!(counted.again_bytes, Bytes(ALL - BLOCK));
        assert_eq!(counted.again, None);
        assert_eq!(unknown(counted), expected);
        // Where little is given back nothing is left open.
        let little = of(vec![charge("munmap", Some("free"), 1, BLOCK)]);
        assert_eq!(little.unknown, None);
    }
}
