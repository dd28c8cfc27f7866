use proptest::prelude::*;
use varve_model::{Duration, Pid, Time};

use super::*;
use crate::stream::{Builder, SlotRun};
use crate::testing::group;

/// A program that touches these pages in each interval.
fn program(intervals: &[Vec<u32>]) -> Stream {
    let mut builder = Builder::new(vec![group("none")]);
    for i in 0..8 {
        builder.grow(Pid(1), i);
    }
    for (at, pages) in intervals.iter().enumerate() {
        let mut pages = pages.clone();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            builder.touch(SlotRun {
                first: page,
                end: page + 1,
                written: None,
            });
        }
        builder.end_interval(Time(at as u64 * 1000), Duration(1000), 1);
    }
    builder.finish(Vec::new(), 1)
}

fn run() -> Unlimited {
    Unlimited {
        wall_ns: Duration(1_000_000),
        parallel: 1.0,
        peak: Bytes(1000 * PAGE_BYTES),
        fixed: Bytes(0),
    }
}

#[test]
fn what_fits_costs_nothing_and_what_is_never_used_again_is_written_alone() {
    let all: Vec<Vec<u32>> = (0..10).map(|_| (0..500).collect()).collect();
    assert_eq!(paged(&program(&all), 500, &[]), Paged::default());
    // 1000 pages one after the other, each in one interval alone.
    let stream: Vec<Vec<u32>> = (0..10)
        .map(|i| (i * 100..i * 100 + 100).collect())
        .collect();
    let found = paged(&program(&stream), 300, &[]);
    assert_eq!((found.reads, found.stuck), (0, 0));
    assert!(
        (700..=700 + BATCH_PAGES).contains(&found.writes),
        "{found:?}"
    );
}

const BATCH_PAGES: u64 = 32;

#[test]
fn a_cyclic_scan_reads_at_least_what_the_optimum_does_and_hot_pages_stay() {
    // 600 pages round and round, 50 in an interval, of which 400 fit: LRU would read every page each time.
    let scan: Vec<Vec<u32>> = (0..120_u32)
        .map(|i| ((i % 12) * 50..(i % 12) * 50 + 50).collect())
        .collect();
    let stream = program(&scan);
    let found = paged(&stream, 400, &[]);
    let drawn = curves(&stream, &[400]);
    assert!(
        found.reads >= drawn.optimum[0],
        "{found:?} {:?}",
        drawn.optimum
    );
    assert!(found.reads <= drawn.lru.beyond(400), "{found:?}");
    // A hundred hot pages beside a stream that nobody looks at again: they leave when memory is full for the first time, as all pages look
    // alike then, and hardly again.
    let mixed: Vec<Vec<u32>> = (0..60_u32)
        .map(|i| (0..100).chain(200 + i * 50..250 + i * 50).collect())
        .collect();
    let found = paged(&program(&mixed), 400, &[]);
    assert!(found.reads <= 200, "{found:?}");
}

#[test]
fn the_least_memory_is_the_end_of_what_holds_from_the_top() {
    let scan: Vec<Vec<u32>> = (0..120_u32)
        .map(|i| ((i % 12) * 50..(i % 12) * 50 + 50).collect())
        .collect();
    let stream = program(&scan);
    let memories: Vec<Bytes> = (1..=7).map(|n| Bytes(n * 100 * PAGE_BYTES)).collect();
    let prices = PagePrices {
        read_ns: 5000.0,
        near_read_ns: 5000.0,
        write_ns: 3000.0,
    };
    let points = fit(&stream, &run(), &prices, &memories, 2, &|_| ());
    assert_eq!(points.len(), 7);
    let of = |p: &FitPoint| p.kernel;
    assert_eq!(
        least_memory(&points, 0.05, of),
        Some(Bytes(600 * PAGE_BYTES))
    );
    assert_eq!(least_memory(&points[..3], 0.05, of), None);
    assert!(points[1].kernel.slowdown > 1.0 && points[6].kernel.slowdown == 0.0);
    assert!(points.iter().all(|p| p.planned.wall_ns <= p.kernel.wall_ns));
}

proptest! {
    #[test]
    fn no_reclaim_reads_less_than_the_optimum(
        intervals in prop::collection::vec(prop::collection::vec(0..300_u32, 1..60), 2..40),
        room in 64..200_u64,
    ) {
        let stream = program(&intervals);
        let found = paged(&stream, room, &[]);
        let least = curves(&stream, &[room]).optimum[0];
        prop_assert!(found.reads >= least, "{found:?} {least}");
        // What is read was written before.
        prop_assert!(found.writes >= found.reads);
        prop_assert!(found.near_reads <= found.reads);
    }
}
