//! Operations by name, caller, class and thread, and what the kernel did within them.

use std::collections::{BTreeMap, HashMap};

use varve_model::{Bytes, Duration, Pid, SiteId, Tid};

use super::timing::{Timing, Total, by_clocks};
use super::{
    CallFigures, ClassFigures, Faults, LockWaits, OperationFigures, Share, SiteFigures,
    ThreadFigures, TimeFigures,
};
use crate::read::Tables;

/// A sum with one figure more: known where all of them are.
fn with(sum: Option<u64>, more: Option<u64>, is_first: bool) -> Option<u64> {
    match is_first {
        true => more,
        false => Some(sum? + more?),
    }
}

fn with_bytes(sum: Option<Bytes>, more: Option<Bytes>, is_first: bool) -> Option<Bytes> {
    with(sum.map(|b| b.0), more.map(|b| b.0), is_first).map(Bytes)
}

/// `realloc` and `reallocarray` to 0 bytes that freed the block.
const FREED_BY_REALLOC: &str = "realloc(0)";
/// The program has what is free given to the kernel.
pub(crate) const TRIM: &str = "malloc_trim";

/// Whether it gives memory back, blocks or what is free of its memory.
pub(super) fn frees(operation: &str) -> bool {
    operation.starts_with("free")
        || operation.starts_with("delete")
        || [FREED_BY_REALLOC, TRIM].contains(&operation)
}

/// Whether it gives memory out.
pub(crate) fn allocates(operation: &str) -> bool {
    !frees(operation) && operation != "malloc_usable_size"
}

/// Sums by operation: every n-th is timed, so that these are never empty in a run of some length.
fn sums(tables: &Tables) -> HashMap<&str, Timing> {
    let mut sums: HashMap<&str, Timing> = HashMap::new();
    for row in &tables.operations {
        sums.entry(&row.operation).or_default().add(row);
    }
    sums
}

pub(super) fn by_name(
    tables: &Tables,
    times: &BTreeMap<String, TimeFigures>,
) -> BTreeMap<String, OperationFigures> {
    let mut found: BTreeMap<String, OperationFigures> = BTreeMap::new();
    // Of a block that could not be noted it is not known whether it was fresh.
    let mut uncounted = tables.memory.iter().filter_map(|row| row.uncounted);
    let knows_fresh = uncounted.all(|count| count == 0);
    for row in tables.operations.iter().filter(|row| row.count > 0) {
        let name = row.operation.to_string();
        let of = found.entry(name).or_default();
        let is_first = of.count == 0;
        of.count += row.count;
        of.requested_bytes.0 += row.requested_bytes.0;
        of.usable_bytes = with_bytes(of.usable_bytes, row.usable_bytes, is_first);
        of.fresh = with(of.fresh, row.fresh.filter(|_| knows_fresh), is_first);
        of.parallel += row.parallel;
        of.timed += row.timed;
        if row.class_bytes.is_none() {
            of.failed += row.count;
        }
    }
    for row in tables.charges.iter().filter(|c| is_call(&c.name)) {
        let Some(operation) = row.operation.as_deref() else {
            continue;
        };
        if let Some(of) = found.get_mut(operation) {
            of.syscalls += row.count;
        }
    }
    for (name, sum) in sums(tables) {
        if let Some(of) = found.get_mut(name) {
            let total = sum.total(&sum);
            of.time_ns = Duration(total.ns as u64);
            of.mean_ns = total.ns / sum.count.max(1) as f64;
            let error = total.share_of_error();
            of.time_error = error.unwrap_or_else(|| time_error(name, &sum, times));
        }
    }
    found
}

/// How far off the mean of those that were timed may be, as a share of it, where squares were not recorded: they vary as the times of their kind do.
fn time_error(name: &str, sum: &Timing, times: &BTreeMap<String, TimeFigures>) -> f64 {
    let is_of = |kind: &str| match kind {
        "free" => frees(name),
        "realloc" => name.starts_with("realloc") && !frees(name),
        "aligned" => name.contains("align") || matches!(name, "valloc" | "pvalloc"),
        _ => allocates(name),
    };
    let error_of_one = |t: &TimeFigures| t.mean_error_ns * (t.timed as f64).sqrt();
    let of_kind = times.iter().filter(|(kind, _)| is_of(kind));
    let error = of_kind.map(|(_, t)| error_of_one(t)).fold(0.0, f64::max);
    let mean = sum.ns / sum.timed.max(1) as f64;
    match sum.timed == sum.count {
        true => 0.0,
        false => error / (sum.timed.max(1) as f64).sqrt() / mean.max(1.0),
    }
}

/// Names of what is charged that are no system calls.
const NO_CALLS: [&str; 20] = [
    "page_fault",
    FIRST_TOUCH,
    FIRST_TOUCH_BY_KERNEL,
    FIRST_TOUCH_IN_OPERATION,
    CAME_AGAIN,
    CAME_AGAIN_BY_KERNEL,
    CAME_AGAIN_IN_OPERATION,
    UNMAPPED_TOUCHED,
    UNMAPPED_RESIDENT,
    ADVISED_TOUCHED,
    ADVISED_RESIDENT,
    MOST_RESIDENT,
    "clock_user",
    "clock_kernel",
    "clock_pause",
    CLOCK_FIRST_TOUCH,
    CLOCK_CAME_AGAIN,
    LOCK_SLEPT,
    LOCK_SPUN,
    LOCK_OF_OTHERS,
];
pub(super) const FIRST_TOUCH: &str = "first_touch";
pub(super) const FIRST_TOUCH_BY_KERNEL: &str = "first_touch_by_kernel";
pub(super) const FIRST_TOUCH_IN_OPERATION: &str = "first_touch_in_operation";
pub(super) const CAME_AGAIN: &str = "came_again";
pub(super) const CAME_AGAIN_BY_KERNEL: &str = "came_again_by_kernel";
pub(super) const CAME_AGAIN_IN_OPERATION: &str = "came_again_in_operation";
pub(super) const UNMAPPED_TOUCHED: &str = "unmapped_touched";
pub(super) const UNMAPPED_RESIDENT: &str = "unmapped_resident";
pub(super) const ADVISED_TOUCHED: &str = "advised_touched";
pub(super) const ADVISED_RESIDENT: &str = "advised_resident";
pub(super) const MOST_RESIDENT: &str = "most_resident";
pub(super) const CLOCK_FIRST_TOUCH: &str = "clock_first_touch";
pub(super) const CLOCK_CAME_AGAIN: &str = "clock_came_again";
const LOCK_SLEPT: &str = "mmap_lock";
const LOCK_SPUN: &str = "mmap_lock_spun";
const LOCK_OF_OTHERS: &str = "mmap_lock_of_others";

/// Whether what was charged is a system call, by its name.
fn is_call(name: &str) -> bool {
    !NO_CALLS.contains(&name)
}

/// System calls by name.
pub(super) fn calls(tables: &Tables, operations: u64) -> Vec<CallFigures> {
    let mut found: BTreeMap<&str, CallFigures> = BTreeMap::new();
    let mut sites: HashMap<(&str, Option<SiteId>), u64> = HashMap::new();
    let inside = tables.charges.iter().filter(|c| c.operation.is_some());
    for row in inside.filter(|c| is_call(&c.name)) {
        let name: &str = &row.name;
        let of = found.entry(name).or_insert_with(|| CallFigures {
            name: name.to_owned(),
            count: 0,
            by_frees: 0,
            failed: 0,
            time_ns: Duration(0),
            queued_ns: Duration(0),
            bytes: Bytes(0),
            per_operation: 0.0,
            sites: Vec::new(),
        });
        of.count += row.count;
        of.failed += row.failed;
        let operation = row.operation.as_deref().unwrap_or_default();
        if operation.starts_with("free") || operation.starts_with("delete") {
            of.by_frees += row.count;
        }
        of.time_ns.0 += row.total_ns.0;
        of.queued_ns.0 += row.queued_ns.0;
        of.bytes.0 += row.bytes.0;
        *sites.entry((name, row.site)).or_default() += row.count;
    }
    let mut calls: Vec<CallFigures> = found.into_values().collect();
    for call in &mut calls {
        call.per_operation = call.count as f64 / operations.max(1) as f64;
        let of = sites.iter().filter(|((name, _), _)| *name == call.name);
        call.sites = by_caller(tables, of.map(|((_, site), count)| (*site, *count)));
        call.sites.truncate(3);
    }
    calls.sort_by(|a, b| b.time_ns.cmp(&a.time_ns).then_with(|| a.name.cmp(&b.name)));
    calls
}

/// How long operations waited for others.
pub(super) fn waited(calls: &[CallFigures]) -> Duration {
    const WAITS: [&str; 4] = ["futex", "nanosleep", "clock_nanosleep", "sched_yield"];
    let waits = calls.iter().filter(|c| WAITS.contains(&c.name.as_str()));
    Duration(waits.map(|c| c.time_ns.0).sum())
}

/// Waits for the lock of mappings.
pub(super) fn lock_waits(tables: &Tables) -> LockWaits {
    let mut found = LockWaits::default();
    let mut sites: Vec<(Option<SiteId>, u64)> = Vec::new();
    for row in &tables.charges {
        let is_inside = row.operation.is_some();
        match row.name.as_ref() {
            LOCK_OF_OTHERS if is_inside => found.others_ns.0 += row.total_ns.0,
            LOCK_SLEPT | LOCK_SPUN if is_inside => {
                found.waits += row.count;
                found.time_ns.0 += row.total_ns.0;
                found.queued_ns.0 += row.queued_ns.0;
                if row.name == LOCK_SPUN {
                    found.spun_ns.0 += row.total_ns.0;
                }
                sites.push((row.site, row.count));
            }
            LOCK_SLEPT | LOCK_SPUN => {
                found.outside += row.count;
                found.outside_ns.0 += row.total_ns.0;
            }
            _ => {}
        }
    }
    found.sites = by_caller(tables, sites.into_iter());
    found.sites.truncate(3);
    found
}

/// Page faults; `samples`: samples of the program's CPU time; `knows_heap`: whether it is known which pages are the allocator's.
pub(super) fn faults(tables: &Tables, operations: u64, samples: u64, knows_heap: bool) -> Faults {
    let of = |inside: bool| {
        let rows = tables.charges.iter().filter(|c| c.name == "page_fault");
        rows.filter(|c| c.operation.is_some() == inside)
            .map(|c| c.count)
            .sum::<u64>()
    };
    let named = |name: &str| {
        let rows = tables.charges.iter().filter(|c| c.name == name);
        rows.map(|c| c.count).sum::<u64>()
    };
    let (behind, by_kernel) = (named(FIRST_TOUCH), named(FIRST_TOUCH_BY_KERNEL));
    // Clocks find those by the program's own code alone.
    let knows_time = knows_heap && by_kernel <= behind / 2;
    Faults {
        inside: of(true),
        outside: of(false),
        behind: knows_heap.then_some(behind),
        behind_by_kernel: knows_heap.then_some(by_kernel),
        behind_share: Share::of(named(CLOCK_FIRST_TOUCH), samples).filter(|_| knows_time),
        per_operation: of(true) as f64 / operations.max(1) as f64,
    }
}

pub(super) fn label(tables: &Tables, site: Option<SiteId>) -> String {
    let row = site.and_then(|site| tables.sites.get(&site));
    match row {
        Some(row) if !row.label.is_empty() => row.label.clone(),
        _ => "(unknown caller)".to_owned(),
    }
}

/// Callers of blocks that are kept.
const MAX_CALLERS: usize = 20;

/// Blocks by the name of their caller, those with most first.
pub(super) fn by_caller(
    tables: &Tables,
    blocks: impl Iterator<Item = (Option<SiteId>, u64)>,
) -> Vec<(String, u64)> {
    let mut of: HashMap<Option<SiteId>, u64> = HashMap::new();
    for (site, count) in blocks.filter(|(_, count)| *count > 0) {
        *of.entry(site).or_default() += count;
    }
    let mut by_name: HashMap<String, u64> = HashMap::new();
    for (site, count) in of {
        *by_name.entry(label(tables, site)).or_default() += count;
    }
    let mut sites: Vec<(String, u64)> = by_name.into_iter().collect();
    sites.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    sites.truncate(MAX_CALLERS);
    sites
}

/// Sites that are kept.
const MAX_SITES: usize = 200;

/// Callers: what lies at one line of one function is one.
pub(super) fn sites(tables: &Tables) -> Vec<SiteFigures> {
    struct Site<'a> {
        figures: SiteFigures,
        sums: HashMap<&'a str, Timing>,
        /// Samples of clocks, and the CPU time that these stand for.
        clocks: (u64, u64),
    }
    let all = sums(tables);
    let mut found: HashMap<String, Site<'_>> = HashMap::new();
    let fresh = |site, label: &str| Site {
        figures: SiteFigures {
            site,
            label: label.to_owned(),
            operations: Vec::new(),
            count: 0,
            requested_bytes: Bytes(0),
            freed_bytes: Bytes(0),
            timed: 0,
            time_ns: None,
            time_error: None,
            time_unknown: None,
            cpu_ns: None,
            cpu_error: None,
            syscalls: 0,
            syscall_ns: Duration(0),
            faults: 0,
        },
        sums: HashMap::new(),
        clocks: (0, 0),
    };
    for row in &tables.operations {
        let label = label(tables, row.site);
        let of = found
            .entry(label.clone())
            .or_insert_with(|| fresh(row.site, &label));
        of.figures.count += row.count;
        match frees(&row.operation) {
            true => of.figures.freed_bytes.0 += row.requested_bytes.0,
            false => of.figures.requested_bytes.0 += row.requested_bytes.0,
        }
        of.sums.entry(&row.operation).or_default().add(row);
    }
    for row in tables.charges.iter().filter(|c| c.operation.is_some()) {
        let label = label(tables, row.site);
        let of = found
            .entry(label.clone())
            .or_insert_with(|| fresh(row.site, &label));
        match row.name.as_ref() {
            "page_fault" => of.figures.faults += row.count,
            "clock_user" | "clock_kernel" => {
                of.clocks.0 += row.count;
                of.clocks.1 += row.total_ns.0;
            }
            name if !is_call(name) => {}
            _ => {
                of.figures.syscalls += row.count;
                of.figures.syscall_ns.0 += row.total_ns.0;
            }
        }
    }
    let nothing = Timing::default();
    let finished = found.into_values().map(|mut site| {
        let mut names: Vec<(&str, Timing)> = site.sums.into_iter().collect();
        names.sort_by(|a, b| b.1.count.cmp(&a.1.count).then_with(|| a.0.cmp(b.0)));
        let mut total = Total::default();
        for (name, sum) in &names {
            site.figures.timed += sum.timed;
            total.add(sum.total(all.get(name).unwrap_or(&nothing)));
        }
        let of = &mut site.figures;
        (of.time_ns, of.time_error, of.time_unknown) = total.figure();
        (of.cpu_ns, of.cpu_error) = by_clocks(site.clocks);
        site.figures.operations = names.iter().map(|(name, _)| (*name).to_owned()).collect();
        site.figures
    });
    let mut sites: Vec<SiteFigures> = finished.collect();
    // Operations that wait take time and no CPU.
    let costs = |of: &SiteFigures| of.time_ns.max(of.cpu_ns);
    sites.sort_by(|a, b| {
        (costs(b), b.count)
            .cmp(&(costs(a), a.count))
            .then_with(|| a.label.cmp(&b.label))
    });
    sites.truncate(MAX_SITES);
    sites
}

/// Whether it does nothing with the memory that it gives out, neither clear nor copy it.
pub(super) fn only_allocates(operation: &str) -> bool {
    allocates(operation) && operation != "calloc" && !operation.starts_with("realloc")
}

pub(super) fn classes(tables: &Tables) -> Vec<ClassFigures> {
    let mut found: BTreeMap<u64, ClassFigures> = BTreeMap::new();
    let mut times: HashMap<u64, Timing> = HashMap::new();
    // A trim frees no block.
    for row in tables.operations.iter().filter(|o| o.operation != TRIM) {
        let Some(bytes) = row.class_bytes else {
            continue;
        };
        let of = found.entry(bytes.0).or_insert_with(|| ClassFigures {
            bytes,
            ..ClassFigures::default()
        });
        of.reallocated += row.reallocated;
        if frees(&row.operation) {
            of.freed += row.count;
        } else if allocates(&row.operation) && row.count > 0 {
            of.usable_bytes = with_bytes(of.usable_bytes, row.usable_bytes, of.count == 0);
            of.count += row.count;
            of.requested_bytes.0 += row.requested_bytes.0;
            if only_allocates(&row.operation) {
                times.entry(bytes.0).or_default().add(row);
            }
        }
    }
    for (class, sum) in times {
        if let Some(of) = found.get_mut(&class) {
            of.timed = sum.timed;
            of.timing = sum;
            (of.time_ns, of.time_error, of.time_unknown) = sum.total(&sum).figure();
        }
    }
    found
        .into_values()
        .filter(|c| c.count > 0 || c.bytes.0 > 0)
        .collect()
}

pub(super) fn threads(tables: &Tables) -> Vec<ThreadFigures> {
    let all = sums(tables);
    let nothing = Timing::default();
    let mut found: HashMap<(Pid, Tid), ThreadFigures> = HashMap::new();
    let mut of_thread: HashMap<(Pid, Tid, &str), Timing> = HashMap::new();
    for row in &tables.operations {
        let key = (row.pid, row.tid);
        let of = found.entry(key).or_insert_with(|| ThreadFigures {
            pid: row.pid,
            tid: row.tid,
            name: tables.threads.get(&key).cloned().unwrap_or_default(),
            count: 0,
            requested_bytes: Bytes(0),
            freed_bytes: Bytes(0),
            timed: 0,
            time_ns: None,
            time_error: None,
            time_unknown: None,
        });
        of.count += row.count;
        match frees(&row.operation) {
            true => of.freed_bytes.0 += row.requested_bytes.0,
            false => of.requested_bytes.0 += row.requested_bytes.0,
        }
        let sum = of_thread.entry((row.pid, row.tid, &row.operation));
        sum.or_default().add(row);
    }
    let mut totals: HashMap<(Pid, Tid), Total> = HashMap::new();
    for ((pid, tid, name), sum) in of_thread {
        let total = sum.total(all.get(name).unwrap_or(&nothing));
        totals.entry((pid, tid)).or_default().add(total);
        if let Some(of) = found.get_mut(&(pid, tid)) {
            of.timed += sum.timed;
        }
    }
    for (thread, total) in totals {
        if let Some(of) = found.get_mut(&thread) {
            (of.time_ns, of.time_error, of.time_unknown) = total.figure();
        }
    }
    let mut threads: Vec<ThreadFigures> = found.into_values().collect();
    threads.sort_by_key(|t| (std::cmp::Reverse(t.count), t.pid, t.tid));
    threads
}

#[cfg(test)]
mod tests {
    use varve_model::Time;
    use varve_trace::tables::{OperationChargeRow, OperationRow};

    use super::*;

    /// Blocks of one class: how many operations of that name, and how many of its blocks these took.
    fn row(operation: &'static str, class: u64, count: u64, reallocated: u64) -> OperationRow {
        OperationRow {
            time_ns: Time(1),
            pid: Pid(1),
            tid: Tid(1),
            operation: operation.into(),
            class_bytes: Some(Bytes(class)),
            site: None,
            count,
            reallocated,
            requested_bytes: Bytes(count * 10),
            usable_bytes: Some(Bytes(count * 16)),
            fresh: Some(count),
            parallel: 0,
            timed: 0,
            timed_ns: Duration(0),
            timed_norm_ns: Some(Duration(0)),
        }
    }

    #[test]
    fn calls_that_fail_are_among_all_calls() {
        let charge = |count, bytes, failed| OperationChargeRow {
            time_ns: Time(1),
            pid: Pid(1),
            operation: Some("malloc".to_owned()),
            site: None,
            name: "mmap".into(),
            count,
            total_ns: Duration(0),
            queued_ns: Duration(0),
            bytes: Bytes(bytes),
            failed,
        };
        let tables = Tables {
            charges: vec![charge(5, 8192, 3), charge(2, 4096, 1)],
            ..Tables::default()
        };
        let found = calls(&tables, 7);
        let figures = |c: &CallFigures| (c.count, c.failed, c.bytes);
        let figures: Vec<_> = found.iter().map(figures).collect();
        assert_eq!(figures, [(7, 4, Bytes(12288))]);
    }

    #[test]
    fn what_a_realloc_takes_leaves_its_class() {
        let tables = Tables {
            operations: vec![
                row("realloc", 64, 0, 7),
                row("malloc", 64, 10, 0),
                row("realloc", 96, 6, 0),
                row("reallocarray", 96, 0, 2),
                row("reallocarray", 96, 2, 0),
                row("free", 96, 5, 0),
                row("realloc(0)", 96, 1, 0),
            ],
            ..Tables::default()
        };
        let found = classes(&tables);
        let figures = |c: &ClassFigures| (c.bytes.0, c.count, c.freed, c.reallocated);
        let figures: Vec<_> = found.iter().map(figures).collect();
        assert_eq!(figures, [(64, 10, 0, 7), (96, 8, 6, 2)]);
        // What it freed was not asked for.
        let callers = sites(&tables);
        let bytes = |of: &SiteFigures| (of.requested_bytes, of.freed_bytes);
        assert_eq!(bytes(&callers[0]), (Bytes(180), Bytes(60)));
        assert_eq!(found[0].usable_bytes, Some(Bytes(160)));
        let named = by_name(&tables, &BTreeMap::new());
        assert_eq!(
            (named["realloc"].count, named["reallocarray"].count),
            (6, 2)
        );
        assert_eq!(named["realloc"].usable_bytes, Some(Bytes(96)));
    }

    #[test]
    fn a_trim_frees_no_block_and_makes_calls_of_its_own() {
        let charge = |name: &'static str, count| OperationChargeRow {
            time_ns: Time(1),
            pid: Pid(1),
            operation: Some(TRIM.to_owned()),
            site: None,
            name: name.into(),
            count,
            total_ns: Duration(0),
            queued_ns: Duration(0),
            bytes: Bytes(0),
            failed: 0,
        };
        let tables = Tables {
            operations: vec![row("malloc", 0, 2, 0), row(TRIM, 0, 3, 0)],
            charges: vec![
                charge("madvise", 7),
                charge("brk", 2),
                charge("page_fault", 9),
            ],
            ..Tables::default()
        };
        let found = classes(&tables);
        assert_eq!((found[0].count, found[0].freed), (2, 0));
        let named = by_name(&tables, &BTreeMap::new());
        assert_eq!((named[TRIM].count, named[TRIM].syscalls), (3, 9));
        assert_eq!(named["malloc"].syscalls, 0);
        assert!(!allocates(TRIM));
        let calls = calls(&tables, 5);
        assert!(calls.iter().all(|call| call.by_frees == 0), "{calls:?}");
    }
}
