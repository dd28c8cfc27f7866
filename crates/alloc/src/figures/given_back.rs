//! Memory that operations give back to the kernel, and that comes again.
//!
//! The kernel clears pages that come again anew, and each is a page fault of the program: most of that time is no time of an operation. A program that
//! fills memory once, however much, touches no more than its peak for the first time: first touches beyond that are of memory that came again, as far
//! as operations gave it back.

use std::collections::BTreeMap;

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Bytes, PAGE_BYTES, Pid};

use super::Share;
use super::operations::{CLOCK_FIRST_TOUCH, FIRST_TOUCH, frees};
use crate::read::Tables;

/// Memory that operations gave back to the kernel, and what it costs that it came again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct GivenBack {
    /// Bytes that operations gave back: by `munmap` and `brk` where they free or reallocate, and by `madvise`.
    pub bytes: Bytes,
    /// Of these, by `madvise`.
    pub advised_bytes: Bytes,
    /// Bytes of these that came again, at least, in processes in which they are three times the peak of usable bytes or more; 0 where there are none.
    pub again_bytes: Bytes,
    /// The share of CPU time in first touches of memory that came again, as far as it is known; by the clocks of CPUs. Null where no clock found the program
    /// at work.
    pub again: Option<Share>,
    /// First touches of which it is not known whether they are of memory that came again; null where there are none.
    pub unknown: Option<UnknownTouches>,
}

/// First touches of which it is not known whether they are of memory that came again.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct UnknownTouches {
    /// The share of CPU time in them, at most.
    pub at_most: Share,
    /// Why it is not known, as a part of a sentence.
    pub why: String,
}

/// Memory that came again has to be this multiple of the peak.
const TIMES: u64 = 3;
/// Of less than this nothing is said.
const MUCH_MEMORY: u64 = 8 << 20;
/// Why it is not known how much memory came again, where it is known which pages are the allocator's.
const LARGE_PAGES: &str = "a page fault may have brought more than 4 KiB (huge pages)";

/// Bytes of a process, and samples of the clocks that found it at work.
#[derive(Default)]
struct Process {
    unmapped: u64,
    advised: u64,
    touched: u64,
    /// What page faults within operations brought, at least.
    touched_inside: u64,
    peak: u64,
    /// Samples in first touches of the allocator's pages.
    in_touches: u64,
    /// Samples in the kernel outside of operations: first touches are among them.
    in_kernel: u64,
}

impl Process {
    fn given(&self) -> u64 {
        self.unmapped.saturating_add(self.advised)
    }

    /// Bytes that came again, at least: a first touch counts as 4 KiB, and may have brought more.
    fn again(&self) -> u64 {
        self.touched.saturating_sub(self.peak).min(self.given())
    }

    /// Whether fewer pages were touched than the peak has: then page faults brought more than one.
    fn lacks_touches(&self) -> bool {
        self.touched.saturating_add(self.touched_inside) < self.peak
    }

    /// Whether this is much memory, and at least that multiple of its peak.
    fn is_much(&self, bytes: u64, times: u64) -> bool {
        self.peak > 0 && bytes >= MUCH_MEMORY && bytes >= self.peak.saturating_mul(times)
    }
}

fn processes(tables: &Tables) -> BTreeMap<Pid, Process> {
    let mut found: BTreeMap<Pid, Process> = BTreeMap::new();
    for row in &tables.charges {
        let of = found.entry(row.pid).or_default();
        match (row.name.as_ref(), row.operation.as_deref()) {
            // Memory that an allocation unmaps was never touched: it lies beside a heap that has to be aligned.
            ("munmap" | "brk", Some(operation))
                if frees(operation) || operation.starts_with("realloc") =>
            {
                of.unmapped += row.bytes.0;
            }
            ("madvise", Some(_)) => of.advised += row.bytes.0,
            ("page_fault", Some(_)) => {
                of.touched_inside += row.count.saturating_mul(PAGE_BYTES);
            }
            (FIRST_TOUCH, _) => of.touched += row.count.saturating_mul(PAGE_BYTES),
            (CLOCK_FIRST_TOUCH, _) => of.in_touches += row.count,
            ("clock_kernel", None) => of.in_kernel += row.count,
            _ => {}
        }
    }
    for row in &tables.memory {
        let usable = row.peak_usable_bytes.unwrap_or_default();
        let of = found.entry(row.pid).or_default();
        of.peak = of.peak.max(usable.max(row.peak_requested_bytes).0);
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
    let (mut in_touches, mut in_again) = (0, 0.0);
    let (mut perhaps, mut reason) = (0, None);
    for (pid, of) in processes(tables) {
        found.bytes.0 += of.given();
        found.advised_bytes.0 += of.advised;
        if !of.is_much(of.given(), TIMES) {
            continue;
        }
        let why = unknown(pid);
        if why.is_none() && of.is_much(of.again(), TIMES) {
            found.again_bytes.0 += of.again();
            in_touches += of.in_touches;
            in_again += of.in_touches as f64 * (of.again() as f64 / of.touched as f64);
        } else if of.is_much(of.given(), TIMES + 1) && (why.is_some() || of.lacks_touches()) {
            // The memory that was given back last may not have come again: so it has to be one peak more.
            perhaps += match why {
                Some(_) => of.in_kernel,
                None => of.in_touches,
            };
            reason = reason.or(why).or_else(|| Some(LARGE_PAGES.to_owned()));
        }
    }
    // Each process had to touch its peak once.
    let part = match (found.again_bytes, in_touches) {
        (Bytes(0), _) => 0.0,
        (_, 0) => 1.0,
        _ => in_again / in_touches as f64,
    };
    found.again = Share::of(in_touches, samples).map(|all| Share {
        share: all.share * part,
        error: all.error * part,
    });
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

    const MIB: u64 = 1 << 20;
    /// Twenty times 96 MiB.
    const ALL: u64 = 20 * 96 * MIB;

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

    fn tables(peak_bytes: u64, charges: Vec<OperationChargeRow>) -> Tables {
        Tables {
            charges,
            memory: vec![peak(Pid(7), peak_bytes)],
            ..Tables::default()
        }
    }

    /// By 1,000 samples, where it is known what the allocator has mapped.
    fn found(of: &Tables) -> GivenBack {
        given_back(of, 1000, |_| None)
    }

    fn touches(bytes: u64, sampled: u64) -> [OperationChargeRow; 2] {
        [
            charge("first_touch", None, bytes / PAGE_BYTES, 0),
            charge("clock_first_touch", None, sampled, 0),
        ]
    }

    #[test]
    fn what_is_given_back_and_touched_anew_comes_again() {
        let mut charges = vec![charge("munmap", Some("free"), 20, ALL)];
        charges.extend(touches(ALL, 800));
        let found = found(&tables(96 * MIB, charges));
        assert_eq!((found.bytes, found.advised_bytes), (Bytes(ALL), Bytes(0)));
        assert_eq!(found.again_bytes, Bytes(19 * 96 * MIB));
        // The first of twenty times is no part of it.
        let again = found.again.unwrap();
        assert!((again.share - 0.8 * 0.95).abs() < 1e-9, "{again:?}");
        let error = 1.96 * (0.8f64 * 0.2 / 1000.0).sqrt() * 0.95;
        assert!((again.error - error).abs() < 1e-9, "{again:?}");
        assert_eq!(found.unknown, None);
    }

    #[test]
    fn memory_that_is_filled_once_does_not_come_again() {
        // All of it is in use at the end, or it is unmapped then.
        for given in [0, ALL] {
            let mut charges = vec![charge("munmap", Some("free"), 20, given)];
            charges.extend(touches(ALL, 800));
            let found = found(&tables(ALL, charges));
            assert_eq!(found.again_bytes, Bytes(0), "{given}");
            assert_eq!(found.again, Some(Share::default()), "{given}");
            assert_eq!(found.unknown, None, "{given}");
        }
    }

    #[test]
    fn memory_that_stays_mapped_does_not_come_again() {
        // An allocator that never uses a block again, and one that unmaps what lies beside its heaps as it makes them.
        let beside = charge("munmap", Some("malloc"), 20, ALL);
        for more in [None, Some(beside)] {
            let mut charges: Vec<OperationChargeRow> = touches(ALL, 800).into();
            charges.extend(more);
            let found = found(&tables(96 * MIB, charges));
            assert_eq!((found.bytes, found.again_bytes), (Bytes(0), Bytes(0)));
            assert_eq!(found.unknown, None);
        }
    }

    #[test]
    fn each_process_has_a_peak_of_its_own() {
        // Twenty processes fill and unmap 96 MiB each.
        let of = |mut row: OperationChargeRow, pid: u32| {
            row.pid = Pid(pid);
            row
        };
        let mut all = Tables::default();
        for pid in 1..=20 {
            all.memory.push(peak(Pid(pid), 96 * MIB));
            let unmaps = charge("munmap", Some("free"), 1, 96 * MIB);
            let rows = touches(96 * MIB, 40).into_iter().chain([unmaps]);
            all.charges.extend(rows.map(|row| of(row, pid)));
        }
        let found = found(&all);
        assert_eq!((found.bytes, found.again_bytes), (Bytes(ALL), Bytes(0)));
    }

    #[test]
    fn fewer_page_faults_than_pages_say_nothing() {
        // 2 MiB each.
        let mut charges = vec![charge("madvise", Some("free"), 20, ALL)];
        charges.extend(touches(ALL / 512, 300));
        let found = found(&tables(96 * MIB, charges));
        assert_eq!(
            (found.advised_bytes, found.again_bytes),
            (Bytes(ALL), Bytes(0))
        );
        let unknown = found.unknown.unwrap();
        assert!(unknown.why.contains("huge pages"), "{}", unknown.why);
        assert!((unknown.at_most.share - 0.3).abs() < 1e-9);
    }

    /// They are a part of what operations take.
    #[test]
    fn page_faults_within_operations_are_no_huge_pages() {
        let inside = charge("page_fault", Some("malloc"), ALL / 4096, 0);
        let charges = vec![charge("brk", Some("free"), 20, ALL), inside];
        let found = found(&tables(96 * MIB, charges));
        assert_eq!((found.again_bytes, found.unknown), (Bytes(0), None));
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
            given_back(&tables(96 * MIB, charges), 1000, why)
        };
        let found = of(charges);
        assert_eq!(found.again_bytes, Bytes(0));
        let unknown = found.unknown.unwrap();
        assert_eq!(unknown.why, "the program ran before");
        assert!((unknown.at_most.share - 0.5).abs() < 1e-9);
        // Where little is given back nothing is left open.
        let little = of(vec![charge("munmap", Some("free"), 1, 96 * MIB)]);
        assert_eq!(little.unknown, None);
    }
}
