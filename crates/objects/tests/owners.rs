//! The owner lookup against a model that looks at every byte and every object.

use std::collections::BTreeMap;
use std::time::Instant;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use varve_model::{Address, Bytes, Page, PageRange, Pages, Pid, Time};
use varve_objects::{Layer, Owners, Span, SpanIndex, owners_at};

const LAYERS: [Layer; 5] = [
    Layer::MAPPING,
    Layer::SITE,
    Layer::POOL,
    Layer::HEAP,
    Layer::variable(1),
];

fn model(spans: &[Span], pid: Pid, page: u64, from: u64, to: u64) -> BTreeMap<SpanIndex, u64> {
    let mut bytes = BTreeMap::new();
    for byte in (page * 4096..page * 4096 + 4096).step_by(64) {
        let here: Vec<(u32, &Span)> = (0u32..)
            .zip(spans)
            .filter(|(_, span)| {
                span.pid == pid
                    && span.address.0 <= byte
                    && byte < span.address.0 + span.bytes.0
                    && span.born.0 < to
                    && span.died.0 > from
            })
            .collect();
        let Some(top) = here.iter().map(|(_, span)| span.layer).max() else {
            continue;
        };
        for (index, _) in here.iter().filter(|(_, span)| span.layer == top) {
            *bytes.entry(SpanIndex(*index)).or_insert(0) += 64;
        }
    }
    bytes
}

fn span() -> impl Strategy<Value = Span> {
    // Around the edge of a chunk, and large ones that span several or stand in the list of large ones.
    let place = prop_oneof![
        (0u64..640, 1u64..640),
        (20_000u64..20_640, 1u64..64),
        (0u64..100, 60_000u64..5_000_000)
    ];
    (1u32..3, 0usize..5, place, 0u64..20, 0u64..12).prop_map(
        |(pid, layer, (start, length), born, life)| Span {
            pid: Pid(pid),
            layer: LAYERS[layer],
            address: Address(500 * 4096 + start * 64),
            bytes: Bytes(length * 64),
            born: Time(born),
            died: if life == 11 {
                Span::FOREVER
            } else {
                Time(born + life)
            },
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))), ..ProptestConfig::with_cases(300) })]

    #[test]
    fn runs_agree_with_the_model(
        spans in prop::collection::vec(span(), 0..40),
        steps in prop::collection::vec((0u64..4, 1u64..4), 1..10),
    ) {
        let mut owners = Owners::new(&spans);
        let mut from = 0;
        for (gap, length) in steps {
            from += gap;
            let to = from + length;
            owners.advance(Time(from), Time(to));
            for pid in [Pid(1), Pid(2)] {
                let asked = PageRange { first: Page(495), count: Pages(40) };
                let mut next = 495;
                let mut failed = None;
                owners.owners(pid, asked, |pages, shares| {
                    assert_eq!(pages.first.0, next);
                    next = pages.end().0;
                    for page in pages.first.0..pages.end().0 {
                        let ours: BTreeMap<SpanIndex, u64> = shares.iter().map(|share| (share.object, share.bytes.0)).collect();
                        let truth = model(&spans, pid, page, from, to);
                        if ours != truth {
                            failed = Some((page, ours, truth));
                        }
                    }
                });
                prop_assert_eq!(failed, None);
                prop_assert_eq!(next, 535);
            }
            from = to;
        }
    }

    #[test]
    fn points_agree_with_the_model(
        spans in prop::collection::vec(span(), 0..40),
        points in prop::collection::vec((1u32..3, 0u64..60_000, 0u64..32), 1..60),
    ) {
        let points: Vec<(Pid, Address, Time)> = points
            .into_iter()
            .map(|(pid, at, time)| (Pid(pid), Address(498 * 4096 + at * 64), Time(time)))
            .collect();
        for ((pid, address, time), found) in points.iter().zip(owners_at(&spans, &points)) {
            let here = spans.iter().filter(|span| {
                span.pid == *pid
                    && span.address <= *address
                    && address.0 < span.address.0 + span.bytes.0
                    && span.born <= *time
                    && span.died > *time
            });
            let top = here.map(|span| span.layer).max();
            prop_assert_eq!(found.map(|found| spans[found.0 as usize].layer), top);
        }
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A million objects and a hundred million pages: the scale that a long trace has.
#[test]
fn a_million_objects_and_a_hundred_million_pages() {
    let before = resident_kib();
    // 250,000 alive at a time in 4 generations, over 4 GiB, inside one large mapping.
    let mut spans = vec![Span {
        pid: Pid(1),
        layer: Layer::MAPPING,
        address: Address(1 << 40),
        bytes: Bytes(4 << 30),
        born: Time(0),
        died: Span::FOREVER,
    }];
    for generation in 0..4u64 {
        spans.extend((0..250_000u64).map(|index| Span {
            pid: Pid(1),
            layer: Layer::HEAP,
            address: Address((1 << 40) + index * 4 * 4096 + 16),
            bytes: Bytes(3 * 4096),
            born: Time(generation * 1000 + index % 900),
            died: Time(generation * 1000 + 950 + index % 50),
        }));
    }
    let start = Instant::now();
    let mut owners = Owners::new(&spans);
    let mut pages = 0u64;
    let mut calls = 0u64;
    let mut attributed = 0u64;
    for step in 0..200u64 {
        owners.advance(Time(step * 20), Time(step * 20 + 20));
        for run in 0..2000u64 {
            let asked = PageRange {
                first: Page((1 << 28) + run * 500),
                count: Pages(250),
            };
            owners.owners(Pid(1), asked, |found, shares| {
                pages += found.count.0;
                calls += 1;
                attributed += u64::from(!shares.is_empty()) * found.count.0;
            });
        }
    }
    let elapsed = start.elapsed();
    let memory = resident_kib() - before;
    eprintln!(
        "{pages} pages in {calls} answers: {elapsed:?}, {} MiB for {} objects",
        memory / 1024,
        spans.len()
    );
    assert_eq!(pages, attributed);
    assert_eq!(pages, 100_000_000);
    assert!(memory < 200 << 10, "{memory} KiB");
}

#[test]
fn objects_without_number_in_one_place_are_the_newest() {
    let span = |born: u64, died: u64, bytes: u64| Span {
        pid: Pid(1),
        layer: Layer::HEAP,
        address: Address(4 << 21),
        bytes: Bytes(bytes),
        born: Time(born),
        died: Time(died),
    };
    for bytes in [1 << 20, 1 << 21, 1 << 23, 1 << 50] {
        let mut spans: Vec<Span> = (1..20_000).map(|i| span(i, i + 1, bytes)).collect();
        // One outlives the window.
        spans.push(span(0, 40_000, bytes));
        let mut owners = Owners::new(&spans);
        owners.advance(Time(0), Time(30_000));
        let page = PageRange {
            first: Page(4 << 9),
            count: Pages(1),
        };
        let mut found = Vec::new();
        owners.owners(Pid(1), page, |_, shares| {
            found.extend(shares.iter().map(|s| s.object.0));
        });
        if bytes <= 1 << 23 {
            assert!(found.len() <= 64, "{bytes}: {}", found.len());
            assert!(found.contains(&19_999), "{bytes}: the one that lives on");
        }
        assert!(found.contains(&19_998), "{bytes}: the newest");
    }
}

/// A mapping that grows is another one at each refresh within a long window. An object of the program that lived within the
/// window has its pages all the same.
#[test]
fn refreshes_of_a_mapping_do_not_displace_an_object() {
    let span = |layer, first: u64, pages: u64, born, died| Span {
        pid: Pid(1),
        layer,
        address: Address(first * 4096),
        bytes: Bytes(pages * 4096),
        born: Time(born),
        died: Time(died),
    };
    let mut spans = vec![span(Layer::SITE, 512, 2048, 10, 90)];
    for at in 0..20 {
        let born = 11 + 4 * at;
        spans.push(span(Layer::MAPPING, 0, 4096 + at, born, born + 4));
    }
    let mut owners = Owners::new(&spans);
    owners.advance(Time(0), Time(100));
    let pages = PageRange {
        first: Page(512),
        count: Pages(2048),
    };
    let mut of_object = 0;
    owners.owners(Pid(1), pages, |run, shares| {
        if shares.iter().any(|s| s.object == SpanIndex(0)) {
            of_object += run.count.0;
        }
    });
    assert_eq!(of_object, 2048);
}
