//! How long operations take, and the allocator's share of the run.

use std::collections::BTreeMap;

use varve_model::Duration;
use varve_trace::tables::{OperationChargeRow, OperationTimeRow};

use super::operations::waited;
use super::{CallFigures, OperationFigures, Share, TimeFigures, Times};
use crate::read::Tables;

/// Confidence of 95 %, in standard deviations.
const CONFIDENCE: f64 = 1.96;

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
        let of = TimeFigures {
            timed,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            max_ns: at(1.0),
            mean_ns: mean_and_square(&histogram).0,
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
    calls: &[CallFigures],
) -> Times {
    let waited = waited(calls);
    let queued = Duration(calls.iter().map(|c| c.queued_ns.0).sum());
    let clocks = |inside: bool| {
        let rows = tables.charges.iter().filter(|c| is_clock(c));
        let rows = rows.filter(move |c| c.operation.is_some() == inside);
        rows.fold((0, 0), |(n, ns), c| (n + c.count, ns + c.total_ns.0))
    };
    let ((inside, inside_ns), (outside, outside_ns)) = (clocks(true), clocks(false));
    let samples = inside + outside;
    let cpu_ns = inside_ns + outside_ns;
    let operations_ns: u64 = operations.values().map(|o| o.time_ns.0).sum();
    let sampled = (samples > 0).then(|| {
        let share = inside as f64 / samples as f64;
        // Of none, three could have been missed (the rule of three).
        let error = CONFIDENCE * (share * (1.0 - share) / samples as f64).sqrt();
        Share {
            share,
            error: error.max(3.0 / samples as f64).min(1.0),
        }
    });
    let timed: u64 = operations.values().map(|o| o.timed).sum();
    let by_timing = (cpu_ns > 0 && timed > 0).then(|| {
        let share =
            operations_ns.saturating_sub(waited.0.saturating_add(queued.0)) as f64 / cpu_ns as f64;
        let (mean, square) = mean_and_square(&histogram(tables.times.iter()));
        let deviation = (square - mean * mean).max(0.0).sqrt() / mean.max(1.0);
        // The whole is known as well as the clocks know it.
        let of_whole = 1.0 / (samples as f64).sqrt();
        let of_times = deviation / (timed as f64).sqrt();
        Share {
            share: share.min(1.0),
            error: (share * CONFIDENCE * of_times.hypot(of_whole)).min(1.0),
        }
    });
    let differ = match (by_timing, sampled) {
        (Some(a), Some(b)) => {
            (a.share - b.share).abs() > a.error + b.error + a.share.max(b.share) / 10.0
        }
        _ => false,
    };
    Times {
        cpu_ns: Duration(cpu_ns),
        operations_ns: Duration(operations_ns),
        waited_ns: waited,
        queued_ns: queued,
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
