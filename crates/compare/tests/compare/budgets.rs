//! Budgets that hold, that are broken, and that nobody can judge.

use varve_compare::{Budget, Check, Measure, Outcome, check};

use crate::made::{Made, Site};

const PAGE: f64 = 4096.0;

fn made() -> Made {
    Made::new(vec![
        Site::new("plate", "setup", 12).touching(48),
        Site::new("field", "step", 30).touching(16),
    ])
}

fn judged(budget: Budget, made: &[Made], baseline: &[Made]) -> Check {
    let runs = |of: &[Made]| of.iter().map(Made::run).collect::<Vec<_>>();
    check(&[budget], &runs(made), &runs(baseline), 0)
}

fn touched(pages: f64) -> Budget {
    Budget::Program {
        measure: Measure::Touched,
        max: pages * PAGE,
    }
}

#[test]
fn a_limit_is_what_may_be_reached_and_not_passed() {
    // 48 and 16 pages, and 2 of the stack.
    for (max, outcome) in [(65.0, Outcome::Broken), (66.0, Outcome::Holds)] {
        let found = judged(touched(max), &[made()], &[]);
        assert_eq!(found.outcome, outcome, "{max}");
    }
    let found = judged(touched(65.0), &[made()], &[]);
    let evidence = &found.budgets[0].evidence;
    assert!(
        evidence
            .starts_with("264 KiB, 4 KiB more than 260 KiB: plate (solver.c:12, in setup) 192 KiB"),
        "{evidence}"
    );
}

#[test]
fn every_run_has_to_keep_to_it() {
    let large = Made::new(vec![Site::new("plate", "setup", 12).touching(60)]);
    let small = Made::new(vec![Site::new("plate", "setup", 12).touching(20)]);
    let found = judged(touched(40.0), &[small.clone(), large, small.clone()], &[]);
    assert_eq!(found.outcome, Outcome::Broken);
    assert!(
        found.budgets[0].evidence.contains("in 1 of 3 runs"),
        "{}",
        found.budgets[0].evidence
    );
    let found = judged(touched(40.0), &[small.clone(), small], &[]);
    assert_eq!(found.outcome, Outcome::Holds);
}

#[test]
fn what_is_not_known_is_never_passed() {
    // Samples were not taken.
    let budget = Budget::Program {
        measure: Measure::AccessTime,
        max: 1e18,
    };
    let found = judged(budget, &[made()], &[]);
    assert_eq!(found.outcome, Outcome::NotJudged);
    assert!(
        found.budgets[0].evidence.contains("no samples"),
        "{}",
        found.budgets[0].evidence
    );
    // A bound from below can break a budget, and never keep it.
    let lossy = Made {
        complete: false,
        ..made()
    };
    assert_eq!(
        judged(touched(65.0), std::slice::from_ref(&lossy), &[]).outcome,
        Outcome::Broken
    );
    let found = judged(touched(1e6), &[lossy], &[]);
    assert_eq!(found.outcome, Outcome::NotJudged);
    assert!(found.budgets[0].evidence.contains("not complete"));
    // Nor does a name that nothing has keep its budget.
    let found = judged(of_objects("plat", 1e9), &[made()], &[]);
    assert_eq!(found.outcome, Outcome::NotJudged);
    assert!(
        found.budgets[0]
            .evidence
            .contains("no object is named plat")
    );
}

fn of_objects(name: &str, max: f64) -> Budget {
    Budget::Objects {
        name: name.into(),
        measure: Measure::Touched,
        max,
    }
}

#[test]
fn objects_of_a_name_are_judged_together() {
    assert_eq!(
        judged(of_objects("plate", 48.0 * PAGE), &[made()], &[]).outcome,
        Outcome::Holds
    );
    assert_eq!(
        judged(of_objects("plate", 47.0 * PAGE), &[made()], &[]).outcome,
        Outcome::Broken
    );
    let both = judged(of_objects("*(solver.c*", 63.0 * PAGE), &[made()], &[]);
    assert_eq!(both.outcome, Outcome::Broken);
    assert!(
        both.budgets[0].evidence.contains("plate") && both.budgets[0].evidence.contains("field")
    );
}

/// What is touched at least can break a budget of objects, and never keep it.
#[test]
fn objects_that_others_may_have_touched_are_not_passed() {
    let mut shared = made();
    shared.sites[0].by_others = 8;
    let of = |name: &str, pages: f64| {
        let budget = of_objects(name, pages * PAGE);
        judged(budget, std::slice::from_ref(&shared), &[])
    };
    assert_eq!(of("plate", 47.0).outcome, Outcome::Broken);
    let unknown = of("plate", 48.0);
    assert_eq!(unknown.outcome, Outcome::NotJudged);
    let evidence = &unknown.budgets[0].evidence;
    let said = "at least 192 KiB, as others may have touched pages of these objects";
    assert!(evidence.starts_with(said), "{evidence}");
    assert_eq!(of("field", 16.0).outcome, Outcome::Holds);
}

#[test]
fn findings_are_forbidden_by_name_and_object() {
    let idle = Site {
        pages: 4096,
        touched: 0,
        ..Site::new("idle", "setup", 12)
    };
    let with = Made::new(vec![idle, Site::new("plate", "setup", 14)]);
    let no = |finding: &str, object: Option<&str>| Budget::NoFinding {
        finding: finding.into(),
        object: object.map(str::to_owned),
    };
    let outcome = |budget, made: &Made| judged(budget, std::slice::from_ref(made), &[]).outcome;
    assert_eq!(outcome(no("never-touched", None), &with), Outcome::Broken);
    assert_eq!(
        outcome(no("never-touched", Some("idle")), &with),
        Outcome::Broken
    );
    assert_eq!(
        outcome(no("never-touched", Some("plate")), &with),
        Outcome::Holds
    );
    assert_eq!(outcome(no("never-touched", None), &made()), Outcome::Holds);
    // Nobody looked for it: no access with its thread is known, and the recording is short.
    assert_eq!(outcome(no("interleave", None), &made()), Outcome::NotJudged);
    assert_eq!(outcome(no("cold-tail", None), &made()), Outcome::NotJudged);
}

#[test]
fn growth_is_relative_to_a_baseline_and_names_what_grew() {
    let growth = |max| Budget::Growth {
        measure: Measure::Touched,
        max,
    };
    let before = Made::new(vec![
        Site::new("plate", "setup", 12).touching(40),
        Site::new("field", "step", 30).touching(16),
    ]);
    let found = judged(growth(0.05), &[made()], std::slice::from_ref(&before));
    assert_eq!(found.outcome, Outcome::Broken);
    let evidence = &found.budgets[0].evidence;
    assert!(
        evidence.contains("264 KiB after 232 KiB (+13.8 %)"),
        "{evidence}"
    );
    assert!(
        evidence.contains("plate (solver.c:12, in setup) +32 KiB")
            && evidence.contains("noise is unknown"),
        "{evidence}"
    );
    assert_eq!(
        judged(growth(0.15), &[made()], std::slice::from_ref(&before)).outcome,
        Outcome::Holds
    );
    assert_eq!(
        judged(
            growth(0.0),
            std::slice::from_ref(&before),
            std::slice::from_ref(&before)
        )
        .outcome,
        Outcome::Holds
    );
    let lossy = Made {
        complete: false,
        ..before
    };
    assert_eq!(
        judged(growth(0.15), &[made()], &[lossy]).outcome,
        Outcome::NotJudged
    );
    assert_eq!(
        judged(growth(0.15), &[made()], &[]).outcome,
        Outcome::NotJudged
    );
}

#[test]
fn broken_counts_more_than_not_judged() {
    let runs = [made().run()];
    let unknown = of_objects("nobody", 1.0);
    let both = check(&[unknown.clone(), touched(1.0)], &runs, &[], 0);
    assert_eq!(both.outcome, Outcome::Broken);
    assert_eq!(
        check(&[unknown, touched(1e6)], &runs, &[], 0).outcome,
        Outcome::NotJudged
    );
    assert!(both.failed.is_empty());
    // A program that ends otherwise than expected failed by itself.
    let failed = check(&[touched(1e6)], &runs, &[], 3).failed;
    assert_eq!((failed.len(), failed[0].exit_code), (1, 0));
}
