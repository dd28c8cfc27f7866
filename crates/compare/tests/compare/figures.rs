//! Figures, noise and findings of two sides.

use varve_compare::{Fate, Measure, Verdict, diff};
use varve_model::Loss;

use crate::made::{Made, Site};

const PAGE: f64 = 4096.0;

#[test]
fn a_trace_beside_itself_differs_in_nothing() {
    let run = Made::new(vec![
        Site::new("plate", "setup", 12),
        Site {
            samples: 40,
            ..Site::new("field", "setup", 14)
        },
    ])
    .run();
    let found = diff(std::slice::from_ref(&run), std::slice::from_ref(&run));
    assert_eq!(found.differences, 0);
    assert_eq!(found.notes, Vec::<String>::new());
    assert!(found.objects.iter().all(|r| r.a == r.b));
    assert!(
        found
            .program
            .iter()
            .all(|f| f.change.is_none_or(|c| c == 0.0))
    );
    // Of several runs that are all the same nothing is left to test.
    let runs = vec![run.clone(), run.clone(), run];
    let found = diff(&runs, &runs);
    assert_eq!(found.differences, 0);
    assert!(found.program.iter().all(|f| f.p.is_none()));
}

#[test]
fn several_runs_beside_themselves_differ_in_nothing() {
    let short = Made::new(vec![Site::new("plate", "setup", 12)]).run();
    let long = Made::new(vec![Site::new("plate", "setup", 12).touching(48)]).run();
    let found = diff(
        &[short.clone(), long.clone()],
        &[long.clone(), short.clone()],
    );
    assert_eq!(found.differences, 0);
    assert!(found.program.iter().all(|f| f.p.is_none()));
    // The same values, not each as often.
    let found = diff(
        &[short.clone(), short.clone(), long.clone()],
        &[short, long.clone(), long],
    );
    assert!(found.differences > 0);
}

#[test]
fn what_is_touched_more_is_said_by_site() {
    let a = Made::new(vec![
        Site::new("plate", "setup", 12),
        Site::new("field", "step", 30),
    ])
    .run();
    let b = Made::new(vec![
        Site::new("plate", "setup", 12).touching(48),
        Site::new("field", "step", 30),
    ])
    .run();
    let found = diff(&[a], &[b]);
    let first = &found.objects[0];
    assert_eq!(first.name(), "plate (solver.c:12, in setup)");
    let touched = first.figure(Measure::Touched).unwrap();
    assert_eq!(
        (touched.a.median, touched.b.median),
        (Some(32.0 * PAGE), Some(48.0 * PAGE))
    );
    assert_eq!(touched.change, Some(16.0 * PAGE));
    assert_eq!(touched.verdict, Verdict::NoiseUnknown);
    assert!(!found.noise.known && found.noise.statement.contains("noise is unknown"));
    let touches = first.figure(Measure::PageTouches).unwrap();
    assert_eq!(touches.change, Some(160.0));
    let all = found
        .program
        .iter()
        .find(|f| f.measure == Measure::Touched)
        .unwrap();
    assert_eq!(all.change, Some(16.0 * PAGE));
    let of_field = found.objects.iter().find(|r| r.name().starts_with("field"));
    assert!(
        of_field
            .unwrap()
            .figures
            .iter()
            .all(|f| f.verdict == Verdict::Same)
    );
}

#[test]
fn what_one_side_lacks_is_nothing_there_where_that_is_known() {
    let a = Made::new(vec![Site::new("plate", "setup", 12)]).run();
    let b = Made::new(vec![
        Site::new("plate", "setup", 12),
        Site {
            samples: 30,
            ..Site::new("extra", "grow", 50)
        },
    ])
    .run();
    let found = diff(&[a], &[b]);
    let extra = found.objects.iter().find(|r| r.a.is_none()).unwrap();
    assert_eq!(extra.b.as_deref(), Some("extra (solver.c:50, in grow)"));
    assert_eq!(extra.matched, None);
    let touched = extra.figure(Measure::Touched).unwrap();
    assert_eq!(
        (touched.a.median, touched.b.median),
        (Some(0.0), Some(32.0 * PAGE))
    );
    // The first side has no samples: whether it took time is not known.
    let time = extra.figure(Measure::AccessTime).unwrap();
    assert_eq!((time.a.median, time.verdict), (None, Verdict::NotKnown));
    assert_eq!(time.b.median, Some(30e6));
}

/// Runs that touch so many pages of one object.
fn runs(touched: &[u32]) -> Vec<varve_compare::Run> {
    let one = |n: &u32| Made::new(vec![Site::new("plate", "setup", 12).touching(*n)]).run();
    touched.iter().map(one).collect()
}

#[test]
fn more_than_noise_is_said_of_enough_runs_alone() {
    let verdict = |a: &[u32], b: &[u32]| {
        let found = diff(&runs(a), &runs(b));
        let touched = found.objects.iter().find(|r| r.name().starts_with("plate"));
        touched.unwrap().figure(Measure::Touched).unwrap().clone()
    };
    let apart = verdict(&[30, 31, 32, 31], &[50, 51, 50, 52]);
    assert_eq!(apart.verdict, Verdict::MoreThanNoise);
    assert!((apart.p.unwrap() - 2.0 / 70.0).abs() < 1e-9);
    assert_eq!(
        (apart.a.min, apart.a.max),
        (Some(30.0 * PAGE), Some(32.0 * PAGE))
    );
    let few = verdict(&[30, 31, 32], &[50, 51, 50]);
    assert_eq!(few.verdict, Verdict::Apart);
    let alike = verdict(&[30, 40, 35, 33], &[31, 39, 36, 32]);
    assert_eq!(alike.verdict, Verdict::WithinNoise);
    let found = diff(&runs(&[30, 31, 32]), &runs(&[50, 51, 50]));
    assert!(found.noise.known && found.noise.statement.contains("too few"));
}

/// One of many figures differs by chance as much as this one does.
#[test]
fn among_many_figures_it_takes_more_to_be_more_than_noise() {
    let run = |plate: u32, field: u32, grid: u32| {
        let site = |name, line, touched| Site::new(name, "setup", line).touching(touched);
        let sites = vec![
            site("plate", 12, plate),
            site("field", 14, field),
            site("grid", 16, grid),
        ];
        Made::new(sites).run()
    };
    let a = [(30, 20, 5), (31, 21, 6), (32, 22, 7), (31, 23, 8)];
    let b = [(50, 24, 7), (51, 20, 9), (50, 22, 5), (52, 21, 6)];
    let side = |of: [(u32, u32, u32); 4]| of.map(|(plate, field, grid)| run(plate, field, grid));
    let found = diff(&side(a), &side(b));
    let plate = found.objects.iter().find(|r| r.name().starts_with("plate"));
    let touched = plate.unwrap().figure(Measure::Touched).unwrap();
    assert!((touched.p.unwrap() - 2.0 / 70.0).abs() < 1e-9);
    assert!(touched.q.unwrap() > 0.05, "{touched:?}");
    assert_eq!(touched.verdict, Verdict::Apart);
}

#[test]
fn findings_come_and_go() {
    let idle = Site {
        pages: 4096,
        touched: 0,
        ..Site::new("idle", "setup", 12)
    };
    let with = Made::new(vec![idle, Site::new("plate", "setup", 14)]).run();
    let without = Made::new(vec![Site::new("plate", "setup", 14)]).run();
    let fate = |a: &[varve_compare::Run], b: &[varve_compare::Run]| {
        let found = diff(a, b).findings;
        let of = found.into_iter().find(|f| f.id.as_str() == "never-touched");
        of.map(|f| (f.fate, f.runs))
    };
    let (with, without) = ([with], [without]);
    assert_eq!(fate(&without, &with), Some((Fate::Came, (0, 1))));
    assert_eq!(fate(&with, &without), Some((Fate::Went, (1, 0))));
    assert_eq!(fate(&with, &with), Some((Fate::Stayed, (1, 1))));
    assert_eq!(fate(&without, &without), None);
    let mixed = [with[0].clone(), without[0].clone()];
    assert_eq!(fate(&mixed, &without), Some((Fate::Wavers, (1, 0))));
}

#[test]
fn what_a_trace_lacks_is_a_bound_and_is_said() {
    let whole = Made::new(vec![Site::new("plate", "setup", 12)]);
    let part = Made {
        complete: false,
        ..whole.clone()
    };
    let found = diff(&[whole.run()], &[part.run()]);
    assert!(
        found
            .notes
            .iter()
            .any(|n| n.starts_with("B is not complete")),
        "{:?}",
        found.notes
    );
    let touched = found
        .program
        .iter()
        .find(|f| f.measure == Measure::Touched)
        .unwrap();
    assert!(!touched.a.at_least && touched.b.at_least);
}

#[test]
fn objects_that_may_be_missing_leave_the_figures_of_pages_as_they_are() {
    let whole = Made::new(vec![Site::new("plate", "setup", 12)]);
    let part = Made {
        complete: false,
        loss: Loss::Stacks,
        ..whole.clone()
    };
    let found = diff(&[whole.run()], &[part.run()]);
    let said = "B is not complete: the pages are, and figures of the touches of objects";
    assert!(
        found.notes.iter().any(|n| n.starts_with(said)),
        "{:?}",
        found.notes
    );
    let touched = |f: &&varve_compare::Figure| f.measure == Measure::Touched;
    let of_program = found.program.iter().find(touched).unwrap();
    assert!(!of_program.a.at_least && !of_program.b.at_least);
    let of_objects: Vec<_> = found
        .objects
        .iter()
        .filter_map(|row| row.figure(Measure::Touched))
        .map(|f| (f.a.at_least, f.b.at_least))
        .collect();
    assert!(!of_objects.is_empty());
    assert!(of_objects.iter().all(|bounds| *bounds == (false, true)));
}

/// A flag that any process may set is all that is known of some pages of the one object: its figures are lower bounds, and those of
/// the other are exact.
#[test]
fn what_others_may_have_touched_makes_bounds_of_its_object() {
    let plain = Made::new(vec![
        Site::new("field", "setup", 12),
        Site::new("plate", "setup", 14),
    ]);
    let mut shared = plain.clone();
    shared.sites[1].by_others = 8;
    let found = diff(&[plain.run()], &[shared.run()]);
    let bounds = |name: &str| {
        let row = found
            .objects
            .iter()
            .find(|row| row.name().starts_with(name));
        let row = row.expect("a row");
        [Measure::Touched, Measure::PageTouches, Measure::Bytes].map(|measure| {
            let figure = row.figure(measure).expect("a figure");
            (figure.a.at_least, figure.b.at_least)
        })
    };
    assert_eq!(
        bounds("plate"),
        [(false, true), (false, true), (false, false)]
    );
    assert_eq!(bounds("field"), [(false, false); 3]);
}

/// Where the intervals end does not matter to what the kernel counts.
#[test]
fn resident_memory_is_compared_by_what_the_kernel_counts() {
    const MIB: f64 = 1048576.0;
    let run = |peaks: &[u64]| {
        let mut made = Made::new(vec![Site::new("plate", "setup", 12)]);
        made.peaks = peaks.to_vec();
        made.run()
    };
    let resident = |a: &[u64], b: &[u64]| {
        let found = diff(&[run(a)], &[run(b)]);
        let mut figures = found.program.iter();
        let figure = figures.find(|f| f.measure == Measure::PeakResident);
        let figure = figure.unwrap();
        (figure.a.median, figure.b.median)
    };
    let (counted, _) = resident(&[90], &[70]);
    assert_eq!(resident(&[90], &[70]), (Some(90.0 * MIB), Some(70.0 * MIB)));
    // Where one side lacks it, or has several processes, both are known by the ends of intervals.
    let (of_ends, _) = resident(&[], &[]);
    assert_ne!(of_ends, counted);
    assert_eq!(resident(&[90], &[]), (of_ends, of_ends));
    assert_eq!(resident(&[90], &[70, 3]), (of_ends, of_ends));
}
