//! Which object of one side is which of the other.

use std::collections::{BTreeMap, HashSet, VecDeque};

use serde::Serialize;
use ts_rs::TS;

use crate::place::{Identity, Place};

/// How two were found to be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(rename = "DiffMatch")]
pub enum Match {
    /// By name, function, file and line.
    Exact,
    /// By function, file and name, so many lines behind the function's beginning: the line itself is another.
    Moved,
    /// By function, file and name, and by their order in the function: their lines within it differ.
    Order,
    /// By function, file and name: it was the last on each side.
    Remaining,
    /// By name and file alone, as no other has that name: the function is another.
    Name,
}

/// Two that are the same, by their positions in both lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) by: Match,
}

/// Pairs, and what is left of each side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pairs {
    pub(crate) pairs: Vec<Pair>,
    pub(crate) only_a: Vec<usize>,
    pub(crate) only_b: Vec<usize>,
}

/// Finds pairs. Each side has each identity once.
///
/// Objects of the same name, kind, function and file are a class. Where a class has the same positions on both sides, or the
/// same number of them, its members are paired in their order; else equal positions are, and the last one on each side.
/// Positions are lines behind the function's beginning, where that is known, and columns. With `in_order` false only equal
/// positions are paired: of lines that samples hit, each run has others.
pub(crate) fn pair(a: &[Identity], b: &[Identity], in_order: bool) -> Pairs {
    let mut found = Pairs::default();
    let mut classes: BTreeMap<_, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for (i, of) in a.iter().enumerate() {
        classes.entry(class(of)).or_default().0.push(i);
    }
    for (i, of) in b.iter().enumerate() {
        classes.entry(class(of)).or_default().1.push(i);
    }
    for (_, (mut of_a, mut of_b)) in classes {
        of_a.sort_by_key(|&i| (a[i].place.position(), i));
        of_b.sort_by_key(|&i| (b[i].place.position(), i));
        in_class(a, b, (of_a, of_b), in_order, &mut found);
    }
    by_name(a, b, &mut found);
    found.pairs.sort_by_key(|p| (p.a, p.b));
    found.only_a.sort_unstable();
    found.only_b.sort_unstable();
    found
}

fn class(of: &Identity) -> (varve_model::ObjectKind, &str, Option<&str>, Option<&str>) {
    let place = &of.place;
    (
        of.kind,
        &of.stem,
        place.function.as_deref(),
        place.file.as_deref(),
    )
}

fn in_class(
    a: &[Identity],
    b: &[Identity],
    (of_a, of_b): (Vec<usize>, Vec<usize>),
    in_order: bool,
    found: &mut Pairs,
) {
    let positions = |of: &[Identity], which: &[usize]| {
        let all = which.iter().map(|&i| of[i].place.position());
        all.collect::<Vec<_>>()
    };
    let are_same = positions(a, &of_a) == positions(b, &of_b);
    if are_same || (in_order && of_a.len() == of_b.len()) {
        for (i, j) in of_a.into_iter().zip(of_b) {
            let by = how(&a[i].place, &b[j].place);
            found.pairs.push(Pair { a: i, b: j, by });
        }
        return;
    }
    let (mut left_a, mut left_b) = (of_a, of_b);
    for key in [Place::position, |place: &Place| (place.position().0, None)] {
        let mut there: BTreeMap<_, VecDeque<usize>> = BTreeMap::new();
        for &j in &left_b {
            there.entry(key(&b[j].place)).or_default().push_back(j);
        }
        left_a.retain(|&i| {
            let same = there.get_mut(&key(&a[i].place));
            let Some(j) = same.and_then(VecDeque::pop_front) else {
                return true;
            };
            let by = how(&a[i].place, &b[j].place);
            found.pairs.push(Pair { a: i, b: j, by });
            false
        });
        let mut left: Vec<usize> = there.into_values().flatten().collect();
        left.sort_by_key(|&j| (b[j].place.position(), j));
        left_b = left;
    }
    match (&left_a[..], &left_b[..]) {
        (&[i], &[j]) if in_order => found.pairs.push(Pair {
            a: i,
            b: j,
            by: Match::Remaining,
        }),
        _ => {
            found.only_a.append(&mut left_a);
            found.only_b.append(&mut left_b);
        }
    }
}

/// How two places of one class are the same.
fn how(a: &Place, b: &Place) -> Match {
    match (a.position().0 == b.position().0, a.line == b.line) {
        (_, true) => Match::Exact,
        (true, false) => Match::Moved,
        // What has no function, as static data, is known by its name.
        (false, false) if a.function.is_none() => Match::Moved,
        (false, false) => Match::Order,
    }
}

/// Pairs what is left and has a name of its own that nothing else there has: by that name and the file, then by the name.
fn by_name(a: &[Identity], b: &[Identity], found: &mut Pairs) {
    let file: fn(&Identity) -> Option<&str> = |of| of.place.file.as_deref();
    for key in [file, |_| None] {
        let mut all: BTreeMap<_, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for &i in found.only_a.iter().filter(|&&i| a[i].is_named()) {
            let of = all.entry((a[i].kind, a[i].stem.as_str(), key(&a[i])));
            of.or_default().0.push(i);
        }
        for &i in found.only_b.iter().filter(|&&i| b[i].is_named()) {
            let of = all.entry((b[i].kind, b[i].stem.as_str(), key(&b[i])));
            of.or_default().1.push(i);
        }
        let (mut paired_a, mut paired_b) = (HashSet::new(), HashSet::new());
        for (of_a, of_b) in all.into_values() {
            if let (&[i], &[j]) = (&of_a[..], &of_b[..]) {
                paired_a.insert(i);
                paired_b.insert(j);
                let by = Match::Name;
                found.pairs.push(Pair { a: i, b: j, by });
            }
        }
        found.only_a.retain(|i| !paired_a.contains(i));
        found.only_b.retain(|j| !paired_b.contains(j));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use varve_model::ObjectKind;

    use super::*;

    fn of(stem: &str, function: &str, line: u64, begins: u64) -> Identity {
        Identity {
            kind: ObjectKind::Heap,
            stem: stem.into(),
            place: Place {
                function: Some(function.into()),
                file: Some("a.c".into()),
                line: Some(line),
                offset: Some(line - begins),
                column: None,
            },
        }
    }

    fn pairs(a: &[Identity], b: &[Identity]) -> Vec<(usize, usize, Match)> {
        let found = pair(a, b, true);
        found.pairs.iter().map(|p| (p.a, p.b, p.by)).collect()
    }

    #[test]
    fn what_moved_as_a_whole_is_the_same() {
        let a = [of("malloc", "f", 12, 10), of("malloc", "f", 14, 10)];
        let b = [of("malloc", "f", 32, 30), of("malloc", "f", 34, 30)];
        assert_eq!(pairs(&a, &b), [(0, 0, Match::Moved), (1, 1, Match::Moved)]);
    }

    #[test]
    fn lines_that_came_before_leave_the_order() {
        // Two lines came at the function's beginning: what is on the line of the second now is the first.
        let a = [of("malloc", "f", 12, 10), of("malloc", "f", 14, 10)];
        let b = [of("malloc", "f", 14, 10), of("malloc", "f", 16, 10)];
        assert_eq!(pairs(&a, &b), [(0, 0, Match::Order), (1, 1, Match::Order)]);
    }

    #[test]
    fn one_that_came_is_only_there() {
        let a = [of("malloc", "f", 12, 10), of("malloc", "f", 14, 10)];
        let b = [
            of("malloc", "f", 12, 10),
            of("malloc", "f", 13, 10),
            of("malloc", "f", 14, 10),
        ];
        let found = pair(&a, &b, true);
        assert_eq!(pairs(&a, &b), [(0, 0, Match::Exact), (1, 2, Match::Exact)]);
        assert_eq!((found.only_a.len(), &found.only_b[..]), (0, &[1][..]));
    }

    #[test]
    fn a_named_one_is_known_in_another_function_and_an_unnamed_one_is_not() {
        let a = [of("plate", "setup", 12, 10), of("malloc", "setup", 13, 10)];
        let b = [of("plate", "init", 52, 50), of("malloc", "init", 53, 50)];
        assert_eq!(pairs(&a, &b), [(0, 0, Match::Name)]);
        let found = pair(&a, &b, true);
        assert_eq!((&found.only_a[..], &found.only_b[..]), (&[1][..], &[1][..]));
    }

    #[test]
    fn lines_that_samples_hit_are_not_paired_by_their_order() {
        let a = [of("", "f", 12, 10)];
        let b = [of("", "f", 15, 10)];
        let found = pair(&a, &b, false);
        assert!(found.pairs.is_empty() && found.only_a == [0] && found.only_b == [0]);
    }

    fn some() -> impl Strategy<Value = Vec<Identity>> {
        let one = (0_u64..3, 0_u64..3, 0_u64..6, 0_u64..3);
        let of = |(stem, function, line, column)| {
            let stem = ["malloc", "plate", "field"][stem as usize];
            let mut of = of(stem, &format!("f{function}"), 10 + line, 10);
            of.place.column = Some(column as u32);
            of
        };
        proptest::collection::btree_set(one, 0..20)
            .prop_map(move |all| all.into_iter().map(of).collect())
    }

    proptest! {
        #[test]
        fn each_is_in_one_pair_or_left(a in some(), b in some(), in_order: bool) {
            let found = pair(&a, &b, in_order);
            let mut of_a: Vec<usize> = found.pairs.iter().map(|p| p.a).chain(found.only_a.iter().copied()).collect();
            let mut of_b: Vec<usize> = found.pairs.iter().map(|p| p.b).chain(found.only_b.iter().copied()).collect();
            of_a.sort_unstable();
            of_b.sort_unstable();
            prop_assert_eq!(of_a, (0..a.len()).collect::<Vec<_>>());
            prop_assert_eq!(of_b, (0..b.len()).collect::<Vec<_>>());
            for p in &found.pairs {
                prop_assert_eq!((a[p.a].kind, &a[p.a].stem), (b[p.b].kind, &b[p.b].stem));
            }
        }

        #[test]
        fn a_list_beside_itself_is_itself(a in some(), in_order: bool, by in 0_u64..100) {
            let moved = |of: &Identity| {
                let mut of = of.clone();
                of.place.line = of.place.line.map(|line| line + by);
                of
            };
            let b: Vec<Identity> = a.iter().map(moved).collect();
            let found = pair(&a, &b, in_order);
            prop_assert!(found.only_a.is_empty() && found.only_b.is_empty());
            for p in &found.pairs {
                prop_assert_eq!(p.a, p.b);
                prop_assert_eq!(p.by, if by == 0 { Match::Exact } else { Match::Moved });
            }
        }
    }
}
