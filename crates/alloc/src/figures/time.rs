//! How long operations take, and the allocator's share of the run.

use std::collections::BTreeMap;

use varve_model::Duration;
use varve_trace::tables::{OperationChargeRow, OperationTimeRow};

use super::estimate::CONFIDENCE;
use super::operations::{only_allocates, waited};
use super::timing::Whole;
use super::{CallFigures, LockWaits, OperationFigures, Share, TimeFigures, Times};
use crate::read::Tables;

/// A share by timing is known where its error is no more than this part of it ...
const MAX_ERROR: f64 = 0.5;
/// ... or than this part of all CPU time.
const MAX_ERROR_OF_LITTLE: f64 = 0.02;

/// Times of one kind: bounds and counts, in order.
fn histogram<'a>(rows: impl Iterator<Item = &'a OperationTimeRow>) -> BTreeMap<(u64, u64), u64> {
    let mut found = BTreeMap::new();
    for row in rows {
        *found.entry((row.from_ns.0, row.to_ns.0)).or_default() += row.count;
    }
    found
}

fn mean_and_square(histogram: &BTreeMap<(u64, u64), u64>) -> (f64, f64) {
    let count: u64 = histogram.values().sum();
    let middle = |(from, to): &(u64, u64)| (*from as f64 + *to as f64) / 2.0;
    let total: f64 = histogram.iter().map(|(b, n)| middle(b) * *n as f64).sum();
    let squares = histogram.iter().map(|(b, n)| middle(b).powi(2) * *n as f64);
    let count = count.max(1) as f64;
    (total / count, squares.sum::<f64>() / count)
}

pub(super) fn distributions(tables: &Tables) -> BTreeMap<String, TimeFigures> {
    let mut kinds: BTreeMap<&str, Vec<&OperationTimeRow>> = BTreeMap::new();
    for row in &tables.times {
        kinds.entry(&row.kind).or_default().push(row);
    }
    let figures = |(kind, rows): (&str, Vec<&OperationTimeRow>)| {
        let histogram = histogram(rows.into_iter());
        let timed: u64 = histogram.values().sum();
        let at = |share: f64| {
            let wanted = (timed as f64 * share).ceil() as u64;
            let mut passed = 0;
            let found = histogram.iter().find(|(_, n)| {
                passed += **n;
                passed >= wanted
            });
            Duration(found.map_or(0, |((_, to), _)| *to))
        };
        let (mean, square) = mean_and_square(&histogram);
        let deviation = (square - mean * mean).max(0.0).sqrt();
        let of = TimeFigures {
            timed,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            max_ns: at(1.0),
            mean_ns: mean,
            mean_error_ns: CONFIDENCE * deviation / (timed.max(1) as f64).sqrt(),
        };
        (kind.to_owned(), of)
    };
    kinds.into_iter().map(figures).collect()
}

/// What the clocks of CPUs found; `clock_gettime` is a system call.
fn is_clock(charge: &OperationChargeRow) -> bool {
    matches!(charge.name.as_ref(), "clock_user" | "clock_kernel")
}

pub(super) fn shares(
    tables: &Tables,
    operations: &BTreeMap<String, OperationFigures>,
    (calls, lock): (&[CallFigures], Option<&LockWaits>),
    probed: bool,
) -> Times {
    // Who keeps its CPU takes CPU time.
    let asleep = lock.map_or(0, |lock| lock.time_ns.0.saturating_sub(lock.spun_ns.0));
    let waited = Duration(waited(calls).0.saturating_add(asleep));
    let queued = Duration(calls.iter().map(|c| c.queued_ns.0).sum());
    let clocks = |inside: bool| {
        let rows = tables.charges.iter().filter(|c| is_clock(c));
        let rows = rows.filter(move |c| c.operation.is_some() == inside);
        rows.fold((0, 0), |(n, ns), c| (n + c.count, ns + c.total_ns.0))
    };
    let ((inside, inside_ns), (outside, outside_ns)) = (clocks(true), clocks(false));
    let samples = inside + outside;
    let cpu_ns = inside_ns + outside_ns;
    let in_own_code = tables.charges.iter().filter(|c| {
        let operation = c.operation.as_deref();
        c.name == "clock_user" && operation.is_some_and(only_allocates)
    });
    let allocating_ns = Duration(in_own_code.map(|c| c.total_ns.0).sum());
    let pausing = tables.charges.iter().filter(|c| c.name == "clock_pause");
    let pausing = pausing.map(|c| c.count).sum();
    let sampled = Share::of(inside, samples);
    let timed: u64 = operations.values().map(|o| o.timed).sum();
    // What probes take is longer than most operations: times without it say how long long ones are, and no sum.
    let without_cpu = waited.0.saturating_add(queued.0);
    let whole = Whole::of(operations.values(), Duration(without_cpu));
    let in_calls: u64 = calls.iter().map(|c| c.time_ns.0).sum();
    let operations_ns = whole.ns.filter(|_| cpu_ns > 0 && !probed);
    let by_timing = operations_ns.map(|Duration(operations_ns)| {
        let of_cpu = |ns: u64| ns as f64 / cpu_ns as f64;
        let share = of_cpu(operations_ns - without_cpu);
        let (mean, square) = mean_and_square(&histogram(tables.times.iter()));
        let deviation = (square - mean * mean).max(0.0).sqrt() / mean.max(1.0);
        // The whole is known as well as the clocks know it.
        let of_whole = 1.0 / (samples as f64).sqrt();
        let of_times = deviation / (timed as f64).sqrt();
        let error = (of_cpu(operations_ns) * of_times).hypot(share * of_whole);
        Share {
            share: share.min(1.0),
            error: (CONFIDENCE * error).min(1.0),
        }
    });
    // A few operations that waited for a CPU while they were timed outweigh all others.
    let by_timing =
        by_timing.filter(|of| of.error <= (of.share * MAX_ERROR).max(MAX_ERROR_OF_LITTLE));
    let differ = match (by_timing, sampled) {
        (Some(a), Some(b)) => {
            (a.share - b.share).abs() > a.error + b.error + a.share.max(b.share) / 10.0
        }
        _ => false,
    };
    Times {
        cpu_ns: Duration(cpu_ns),
        operations_ns: whole.ns,
        operations_error: whole.error,
        operations_least_ns: whole.least.max(Duration(in_calls)),
        waited_ns: waited,
        queued_ns: queued,
        spinning: Share::of(pausing, samples),
        allocating_ns: (samples > 0).then_some(allocating_ns),
        counting_ns: Duration(
            tables
                .counting
                .iter()
                .filter(|c| is_clock(c))
                .map(|c| c.total_ns.0)
                .sum(),
        ),
        timed: by_timing,
        sampled,
        samples,
        differ,
    }
}
