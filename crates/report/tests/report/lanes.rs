//! What lanes hold, and that any map fits.

use varve_model::{Address, Bytes, Interval, ObjectKind, Page, PageRange, Pages, Pid, Time};
use varve_objects::{Layer, Span};
use varve_report::html::{HtmlReport, MAX_PAGE_BYTES, write_html};
use varve_report::map::{GridPass, Grids, Map, Placement, Site};

use crate::html::{Decoded, page_of};

fn placement(site: u32, first: u64, pages: u64) -> Placement {
    Placement {
        site,
        pid: Pid(1),
        layer: Layer::HEAP,
        address: Address(first * 4096),
        bytes: Bytes(pages * 4096),
        place: (Pid(1), Address(first * 4096)),
        born: Time(0),
        died: None,
    }
}

fn site(name: &str, touches: u64) -> Site {
    Site {
        name: name.to_owned(),
        kind: ObjectKind::Heap,
        objects: 1,
        touches: Some(touches),
        possibly: Some(0),
    }
}

/// An empty map of objects that each are one part.
fn pass<'a>(
    placements: &[Placement],
    sites: &[Site],
    spans: &'a [Span],
    intervals: usize,
) -> GridPass<'a> {
    let of: Vec<u32> = (0..spans.len() as u32).collect();
    GridPass::new(placements, sites, (spans, &of), intervals)
}

#[test]
fn the_largest_noise_still_fits() {
    // Nothing compresses worse: every page of 4 GiB at random, over ten minutes.
    let placements: Vec<_> = (0..64)
        .map(|i| placement(i, 0x10_0000 + u64::from(i) * 20_000, 16_384))
        .collect();
    let sites: Vec<_> = (0..64).map(|i| site(&format!("noise {i}"), 1)).collect();
    let spans: Vec<_> = placements.iter().map(Placement::span).collect();
    let intervals = 12_000_u32;
    let mut pass = pass(&placements, &sites, &spans, intervals as usize);
    let mut dice = 88_172_645_463_325_252_u64;
    for i in 0..intervals {
        pass.begin(
            Interval(i),
            Time(u64::from(i) * 50),
            Time(u64::from(i + 1) * 50),
        );
        for p in &placements {
            for _ in 0..12 {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                let first = Page(p.address.page().0 + dice % 16_000);
                pass.touch(
                    p.pid,
                    PageRange {
                        first,
                        count: Pages(1 + (dice >> 20) % 300),
                    },
                );
            }
        }
    }
    let report = HtmlReport {
        map: Map {
            grids: pass.finish(),
            edges: (0..=u64::from(intervals)).map(|i| Time(i * 50)).collect(),
            working_set: vec![Pages(1); intervals as usize],
            ..Map::default()
        },
        ..HtmlReport::default()
    };
    let mut out = Vec::new();
    let size = write_html(report, &mut out).unwrap();
    assert!(
        size.coarsened > 0,
        "this noise must not fit as it is, or the test shows nothing"
    );
    assert!(size.page <= MAX_PAGE_BYTES, "{size:?}");
    assert!(
        size.page.0 > 1_000_000,
        "coarsened more than needed: {size:?}"
    );
    let decoded = Decoded::of(out);
    assert_eq!(decoded.json["lanes"].as_array().unwrap().len(), 64);
}

fn filled(placements: &[Placement], sites: &[Site], runs: &[(u64, u64)]) -> Grids {
    let spans: Vec<_> = placements.iter().map(Placement::span).collect();
    let mut pass = pass(placements, sites, &spans, 4);
    pass.begin(Interval(0), Time(0), Time(10));
    for &(first, count) in runs {
        let run = PageRange {
            first: Page(first),
            count: Pages(count),
        };
        pass.touch(Pid(1), run);
    }
    pass.finish()
}

fn in_lanes(placements: &[Placement], sites: &[Site], runs: &[(u64, u64)]) -> Decoded {
    page_of(HtmlReport {
        map: Map {
            grids: filled(placements, sites, runs),
            edges: (0..5).map(Time).collect(),
            working_set: vec![Pages(0); 4],
            ..Map::default()
        },
        ..HtmlReport::default()
    })
}

#[test]
fn the_hottest_sites_have_lanes_and_the_rest_and_the_untouched_share_theirs() {
    let placements: Vec<_> = (0..200)
        .map(|i| placement(i, 0x1000 + u64::from(i) * 3, 2))
        .collect();
    // The last 60 are not touched; of those that are, later ones are hotter.
    let sites: Vec<_> = (0..200)
        .map(|i| site(&format!("o{i}"), if i < 140 { 1 + i } else { 0 }))
        .collect();
    let runs: Vec<_> = placements[..140]
        .iter()
        .map(|p| (p.address.page().0, 3))
        .collect();
    let decoded = in_lanes(&placements, &sites, &runs);
    let lanes = decoded.json["lanes"].as_array().unwrap();
    assert_eq!(lanes.len(), 96 + 2);
    assert_eq!(lanes[0]["title"], "o139");
    assert_eq!(lanes[0]["group"], 139);
    let rest = decoded.lane("other heap objects");
    assert_eq!((&rest["objects"], &rest["pages"]), (&44.into(), &88.into()));
    assert!(rest["group"].is_null());
    let untouched = decoded.lane("60 objects without touches");
    assert_eq!(untouched["pages"], 120);
    assert_eq!(decoded.bytes(&untouched["heat"], 1), [0; 4]);
    let unknown = decoded.json["unknown"][0].as_str().unwrap();
    assert!(
        unknown.contains("140 page touches"),
        "the page between two objects belongs to none"
    );
}

#[test]
fn a_page_of_several_objects_of_a_site_is_one_page_of_its_lane() {
    // Two small objects on one page, one that lies on it and the next, and one far away; then the first again, later.
    let on = |address: u64, bytes| Placement {
        address: Address(address),
        bytes: Bytes(bytes),
        place: (Pid(1), Address(address)),
        ..placement(0, 0, 0)
    };
    let placements = [
        on(0x10_0000, 64),
        on(0x10_0100, 64),
        on(0x10_0ff0, 64),
        on(0x20_0000, 64),
        on(0x10_0000, 64),
    ];
    let sites = [Site {
        objects: 5,
        ..site("node", 3)
    }];
    let decoded = in_lanes(&placements, &sites, &[(0x100, 2), (0x200, 1)]);
    let lane = decoded.lane("node");
    assert_eq!((&lane["pages"], &lane["objects"]), (&3.into(), &5.into()));
    let segments = serde_json::json!([
        {"pid": 1, "lane_page": 0, "page": 0x100, "pages": 2},
        {"pid": 1, "lane_page": 2, "page": 0x200, "pages": 1},
    ]);
    assert_eq!(lane["segments"], segments);
    let coverage: u64 = decoded
        .bytes(&lane["coverage"], 1)
        .iter()
        .map(|&n| u64::from(n))
        .sum();
    assert_eq!(coverage, 3, "each page was touched once");
    let grids = filled(&placements, &sites, &[(0x100, 2), (0x200, 1)]);
    assert_eq!(grids.lanes()[0].page_touches(), 3, "in one interval");
}

#[test]
fn what_only_others_may_have_touched_has_no_lane_of_its_own() {
    let placements = [placement(0, 0x100, 2), placement(1, 0x200, 2)];
    let library = Site {
        possibly: Some(5),
        touches: Some(0),
        ..site("library", 0)
    };
    let own = |site: &Site| {
        let decoded = in_lanes(
            &placements,
            &[self::site("node", 3), site.clone()],
            &[(0x100, 2)],
        );
        let lanes = decoded.json["lanes"].as_array().unwrap();
        lanes.iter().filter(|lane| !lane["group"].is_null()).count()
    };
    assert_eq!(own(&library), 1);
    let touched = Site {
        touches: Some(1),
        ..library
    };
    assert_eq!(own(&touched), 2);
}
