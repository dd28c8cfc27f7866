//! From a trace to a simulation and a plan.

mod made;

use std::collections::BTreeSet;

use made::{Made, object, sample, site, touch};
use proptest::prelude::*;
use varve_model::{Bytes, Pages, Pid, Time};
use varve_tier::{
    Basis, Plan, PlanOptions, PolicyName, SimulateOptions, Simulation, TierError, Tiers, basis,
    plan, read, simulate,
};
use varve_trace::Trace;
use varve_trace::tables::{MappingRow, TouchRow};

const ROOM: Bytes = Bytes(1 << 30);

fn tiers(texts: &[&str]) -> Tiers {
    Tiers::new(texts.iter().map(|t| t.parse().unwrap()).collect()).unwrap()
}

fn two(fast_pages: u64) -> Tiers {
    tiers(&[
        &format!("fast={}KiB,80ns", fast_pages * 4),
        "slow=inf,250ns",
    ])
}

fn simulated(trace: &Trace, on: Option<&Trace>, tiers: &Tiers) -> Result<Simulation, TierError> {
    let options = SimulateOptions {
        policies: PolicyName::ALL.to_vec(),
        tune: false,
        threads: 2,
        max_objects: 10,
    };
    simulate(trace, on, tiers, &options, ROOM, &|_| ())
}

fn policy(of: &Simulation, name: PolicyName) -> &varve_tier::PolicyResult {
    of.policies.iter().find(|p| p.name == name).unwrap()
}

/// A cold object that is touched first, and a hot one that is touched in each interval afterwards.
fn hot_and_cold() -> Made {
    let mut made = Made::new(20);
    made.objects = vec![object(0, "cold", 1000, 100), object(1, "hot", 5000, 50)];
    made.sites = vec![site(0, 10, 0x5000_1000), site(1, 20, 0x5000_2000)];
    made.touches.push(touch(0, 1000, 100, None));
    for i in 1..20 {
        made.touches.push(touch(i, 5000, 50, None));
    }
    made
}

#[test]
fn placing_the_hot_object_beats_first_touch_and_the_report_says_which_object_loses() {
    let (_folder, trace) = hot_and_cold().write();
    let found = simulated(&trace, None, &two(100)).unwrap();
    assert_eq!(found.trace.touches, 100 + 19 * 50);
    assert_eq!(
        (found.trace.pages, found.trace.peak_pages),
        (Pages(150), Pages(150))
    );
    let first = policy(&found, PolicyName::FirstTouch);
    assert_eq!(first.slow_touches, 19 * 50);
    assert_eq!(first.objects[0].name, "hot");
    assert_eq!(first.objects[0].slow_touches, 19 * 50);
    assert_eq!(first.objects[1].slow_touches, 0);
    let placed = policy(&found, PolicyName::Objects);
    assert_eq!(placed.slow_touches, 100);
    assert_eq!(placed.objects[0].name, "cold");
    assert_eq!(placed.objects[0].tier.as_deref(), Some("slow"));
    assert_eq!(placed.objects[1].tier.as_deref(), Some("fast"));
    assert!(placed.modelled_ns < first.modelled_ns);
    // LRU lets the cold object leave, and no touch is slow.
    assert_eq!(policy(&found, PolicyName::Lru).slow_touches, 0);
    assert_eq!(policy(&found, PolicyName::Optimum).slow_touches, 0);
    // Half of the cold object fits as well.
    assert_eq!(policy(&found, PolicyName::ObjectsSpill).slow_touches, 50);
}

#[test]
fn what_is_given_back_makes_room() {
    let mut made = Made::new(4);
    made.touches = vec![touch(0, 1000, 10, None), touch(1, 1000, 10, None)];
    made.touches
        .extend([touch(2, 2000, 10, None), touch(3, 2000, 10, None)]);
    let mapping = |page: u64, from: u64, to: Option<u64>| MappingRow {
        pid: Pid(1),
        address: varve_model::Address(page * 4096),
        bytes: Bytes(10 * 4096),
        perms: "rw-p".into(),
        offset: 0,
        path: String::new(),
        device: "00:00".into(),
        inode: 0,
        build_id: None,
        from_ns: Time(from),
        to_ns: to.map(Time),
    };
    made.mappings = vec![
        mapping(1000, 0, Some(2 * made::STEP - 2000)),
        mapping(2000, 0, None),
    ];
    let mut first = object(0, "a", 1000, 10);
    first.layer = 2;
    first.died_ns = Some(Time(2 * made::STEP - 2000));
    let mut second = object(1, "b", 2000, 10);
    second.layer = 2;
    made.objects = vec![first, second];
    let (_folder, trace) = made.write();
    let found = simulated(&trace, None, &two(10)).unwrap();
    assert_eq!(found.trace.peak_pages, Pages(10));
    assert_eq!(policy(&found, PolicyName::FirstTouch).slow_touches, 0);
    // The same where nothing is given back.
    made.objects[0].died_ns = None;
    let (_folder, trace) = made.write();
    let found = simulated(&trace, None, &two(10)).unwrap();
    assert_eq!(policy(&found, PolicyName::FirstTouch).slow_touches, 20);
}

#[test]
fn a_plan_from_one_run_holds_for_another_with_other_addresses() {
    let (_a, trace) = hot_and_cold().write();
    let mut other = hot_and_cold();
    for row in &mut other.touches {
        row.page.0 += 100_000;
    }
    for row in &mut other.objects {
        row.address.0 += 100_000 * 4096;
    }
    other.objects.push(object(7, "new", 900_000, 5));
    other.touches.push(touch(19, 900_000, 5, None));
    let (_b, on) = other.write();
    let found = simulated(&trace, Some(&on), &two(100)).unwrap();
    assert_eq!(found.planned_on.as_ref().map(|p| p.touches), Some(1050));
    assert_eq!(found.trace.touches, 1055);
    let placed = policy(&found, PolicyName::Objects);
    assert_eq!(placed.slow_touches, 105);
}

#[test]
fn samples_say_how_often_and_writes_what_they_cost() {
    let mut made = hot_and_cold();
    // The cold object is touched as rarely, and each of its accesses takes long.
    for i in 0..200 {
        made.samples.push(sample(i / 8, 1000 + i % 100, 1));
    }
    let (_folder, trace) = made.write();
    let (stream, of) = read(&trace, ROOM, &mut |_| ()).unwrap();
    assert_eq!((of.samples, of.samples_elsewhere), (200, 0));
    assert_eq!(basis(&stream, of.samples_are_time), Basis::Samples);
    let found = simulated(&trace, None, &two(100)).unwrap();
    let placed = policy(&found, PolicyName::Objects);
    assert_eq!(
        placed
            .objects
            .iter()
            .find(|o| o.name == "cold")
            .unwrap()
            .slow_touches,
        0
    );
    assert_eq!(placed.slow_sampled_share.value(), Some(&0.0));
    // Writes that are slow cost more than reads that are.
    let time = |written| {
        let mut made = hot_and_cold();
        made.touches
            .iter_mut()
            .for_each(|t| t.written = Some(written));
        let (_folder, trace) = made.write();
        let tiers = tiers(&["fast=400KiB,80ns", "slow=inf,250ns,write=900ns"]);
        let found = simulated(&trace, None, &tiers).unwrap();
        policy(&found, PolicyName::FirstTouch).modelled_ns
    };
    assert!(time(true) > time(false));
}

#[test]
fn what_cannot_be_simulated_says_why() {
    let (_folder, trace) = hot_and_cold().write();
    let small = tiers(&["fast=40KiB,80ns", "slow=40KiB,250ns"]);
    let why = simulated(&trace, None, &small).unwrap_err();
    assert_eq!(
        why.to_string(),
        "the tiers hold 80 KiB and the program has 600 KiB in use at once"
    );
    assert!(why.hint().unwrap().contains("inf"));
    let mut hidden = hot_and_cold();
    hidden.hides_touches = true;
    let (_folder, trace) = hidden.write();
    assert!(matches!(
        simulated(&trace, None, &two(9)),
        Err(TierError::NoTouches(_))
    ));
    let (_folder, trace) = Made::new(3).write();
    assert!(matches!(
        simulated(&trace, None, &two(9)),
        Err(TierError::NoTouches(_))
    ));
}

#[test]
fn hostile_traces_end_in_an_error() {
    let mut made = Made::new(3);
    // More pages than any machine has, in a few rows.
    for i in 0..3 {
        made.touches.push(touch(i, 0, u32::MAX, None));
        made.touches.push(touch(i, (1 << 52) - 10, u32::MAX, None));
    }
    let (_folder, trace) = made.write();
    assert!(matches!(
        read(&trace, Bytes(64 << 20), &mut |_| ()),
        Err(TierError::Trace(_))
    ));
    // A page in each 2 MiB of a large address space.
    let mut made = Made::new(1);
    made.touches = (0..20_000).map(|i| touch(0, i * 512, 1, None)).collect();
    let (_folder, trace) = made.write();
    assert!(read(&trace, Bytes(64 << 20), &mut |_| ()).is_err());
    assert!(read(&trace, Bytes(4 << 30), &mut |_| ()).is_ok());
    // Intervals out of order, of which none is left out silently.
    let mut made = hot_and_cold();
    made.touches.push(touch(0, 7000, 3, None));
    let (_folder, trace) = made.write();
    let (_, of) = read(&trace, ROOM, &mut |_| ()).unwrap();
    assert_eq!(of.touched.stray, 1);
}

#[test]
fn a_plan_names_sites_and_is_read_again() {
    let mut made = hot_and_cold();
    made.mappings = vec![MappingRow {
        pid: Pid(1),
        address: varve_model::Address(0x5000_0000),
        bytes: Bytes(0x10_000),
        perms: "r-xp".into(),
        offset: 0x1000,
        path: "/usr/bin/solver".into(),
        device: "08:01".into(),
        inode: 9,
        build_id: Some("00aa".into()),
        from_ns: Time(0),
        to_ns: None,
    }];
    let (_folder, trace) = made.write();
    let made_plan = |fast| {
        let options = PlanOptions {
            min_named: Bytes(4096),
            ..PlanOptions::default()
        };
        let of = plan(&trace, &two(fast), &options, ROOM, &mut |_| ()).unwrap();
        assert_eq!(Plan::parse(&of.to_toml()), Ok(of.clone()));
        of
    };
    // Hot and cold lie whole where they fit alone.
    let of = made_plan(50);
    let tier = |name: &str| {
        of.places
            .iter()
            .find(|p| p.name == name)
            .map(|p| p.tier.as_str())
    };
    assert_eq!((tier("hot"), tier("cold")), (Some("fast"), Some("slow")));
    let frame = &of.places.iter().find(|p| p.name == "hot").unwrap().frames[0];
    assert_eq!(
        (frame.function.as_str(), frame.line, frame.offset),
        ("setup", 20, 0x3000)
    );
    assert_eq!(frame.build_id, "00aa");
    // With room for half of the cold one, that half is named.
    let of = made_plan(100);
    let cold = of.places.iter().find(|p| p.name == "cold").unwrap();
    let part = cold.part.unwrap();
    assert_eq!(
        (part.to - part.from, cold.tier.as_str()),
        (50 * 4096, "fast")
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// What a stream has is what the table has, whatever the rows: overlapping, in any order, written or not.
    #[test]
    fn each_page_of_an_interval_is_read_once(
        rows in prop::collection::vec((0..6_u32, 0..1500_u64, 1..700_u32, prop::option::of(any::<bool>())), 1..40),
    ) {
        let mut touches: Vec<TouchRow> =
            rows.iter().map(|&(i, page, pages, written)| touch(i, page, pages, written)).collect();
        touches.sort_by_key(|t| t.interval);
        let mut made = Made::new(6);
        made.touches = touches;
        let (_folder, trace) = made.write();
        let (stream, _) = read(&trace, ROOM, &mut |_| ()).unwrap();
        let mut all = BTreeSet::new();
        for i in 0..6_u32 {
            let (mut pages, mut written) = (BTreeSet::new(), BTreeSet::new());
            for &(_, first, count, wrote) in rows.iter().filter(|r| r.0 == i) {
                for page in first..first + u64::from(count) {
                    pages.insert(page);
                    if wrote == Some(true) {
                        written.insert(page);
                    }
                }
            }
            all.extend(pages.iter().copied());
            let runs: Vec<_> = stream.runs(i as usize).collect();
            let found: u64 = runs.iter().map(|r| u64::from(r.end - r.first)).sum();
            prop_assert_eq!(found, pages.len() as u64);
            let wrote = runs.iter().filter(|r| r.written == Some(true));
            let wrote: u64 = wrote.map(|r| u64::from(r.end - r.first)).sum();
            prop_assert_eq!(wrote, written.len() as u64);
        }
        prop_assert_eq!(stream.pages, Pages(all.len() as u64));
    }
}
