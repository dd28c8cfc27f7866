//! Objects of two builds.

use varve_compare::{Match, Measure, diff};

use crate::made::{Made, Site};

#[test]
fn lines_that_moved_are_the_same_places() {
    let a = Made::new(vec![
        Site::new("malloc", "setup", 12),
        Site::new("malloc", "setup", 14),
    ]);
    let moved = |s: &Site| Site {
        line: s.line + 20,
        function_line: s.function_line + 20,
        ..s.clone()
    };
    let b = Made {
        sites: a.sites.iter().map(moved).collect(),
        build: "bb22",
        tid: 99,
        ..a.clone()
    };
    let found = diff(&[a.run()], &[b.run()]);
    assert_eq!(found.differences, 0, "only lines and thread numbers differ");
    let of = |line: u32| format!("malloc (solver.c:{line}, in setup)");
    let moved: Vec<_> = found
        .objects
        .iter()
        .filter(|r| r.matched == Some(Match::Moved))
        .map(|r| (r.a.clone().unwrap(), r.b.clone().unwrap()))
        .collect();
    assert!(
        moved.contains(&(of(12), of(32))) && moved.contains(&(of(14), of(34))),
        "{moved:?}"
    );
    let how = found.objects.iter().find_map(|r| r.how.clone()).unwrap();
    assert!(how.contains("as far into the function"), "{how}");
    assert!(
        found
            .notes
            .iter()
            .any(|n| n.starts_with("other builds: solver")),
        "{:?}",
        found.notes
    );
}

#[test]
fn a_line_within_the_function_leaves_the_order_and_says_so() {
    let a = Made::new(vec![
        Site::new("malloc", "setup", 12).touching(10),
        Site::new("malloc", "setup", 14).touching(20),
    ]);
    let mut b = a.clone();
    b.sites.iter_mut().for_each(|s| s.line += 2);
    let found = diff(&[a.run()], &[b.run()]);
    for row in found
        .objects
        .iter()
        .filter(|r| r.name().starts_with("malloc"))
    {
        assert_eq!(row.matched, Some(Match::Order));
        assert!(
            row.how
                .as_ref()
                .is_some_and(|h| h.contains("order in the function"))
        );
        assert_eq!(row.figure(Measure::Touched).unwrap().change, Some(0.0));
    }
    assert!(
        found
            .notes
            .iter()
            .any(|n| n.contains("2 sites matched by their order")),
        "{:?}",
        found.notes
    );
}

#[test]
fn what_went_to_another_function_is_known_by_its_name_and_malloc_is_not() {
    let a = Made::new(vec![
        Site::new("plate", "setup", 12),
        Site::new("malloc", "setup", 14),
    ]);
    let mut b = a.clone();
    b.sites.iter_mut().for_each(|s| s.function = "prepare");
    let found = diff(&[a.run()], &[b.run()]);
    let plate = found
        .objects
        .iter()
        .find(|r| r.name().starts_with("plate"))
        .unwrap();
    assert_eq!(plate.matched, Some(Match::Name));
    assert!(
        plate
            .how
            .as_ref()
            .unwrap()
            .contains("in setup (solver.c) in A, in prepare (solver.c) in B")
    );
    let alone: Vec<_> = found
        .objects
        .iter()
        .filter(|r| r.matched.is_none())
        .collect();
    assert_eq!(alone.len(), 2);
    assert!(alone.iter().all(|r| r.name().starts_with("malloc")));
}

#[test]
fn two_on_one_line_are_told_apart_by_their_columns() {
    let at = |column, touched| Site {
        column,
        ..Site::new("malloc", "setup", 12).touching(touched)
    };
    // One label: a report has them as one, and so has a difference.
    let both = Made::new(vec![at(5, 10), at(40, 20)]).run();
    let found = diff(std::slice::from_ref(&both), std::slice::from_ref(&both));
    assert_eq!(found.differences, 0);
}
