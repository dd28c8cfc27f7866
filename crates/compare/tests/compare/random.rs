//! Traces that are made up at random, beside themselves and beside others.

use proptest::prelude::*;
use varve_compare::{Measure, Verdict, diff};

use crate::made::{Made, Site};

const NAMES: [&str; 4] = ["plate", "field", "malloc", "idle"];
const FUNCTIONS: [&str; 3] = ["setup", "step", "grow"];

fn site() -> impl Strategy<Value = Site> {
    (0_usize..4, 0_usize..3, 11_u32..40, 0_u32..60, 0_u64..20).prop_map(
        |(name, function, line, touched, samples)| Site {
            samples,
            ..Site::new(NAMES[name], FUNCTIONS[function], line).touching(touched)
        },
    )
}

fn made() -> impl Strategy<Value = Made> {
    (
        proptest::collection::vec(site(), 0..8),
        1_u32..12,
        any::<bool>(),
    )
        .prop_map(|(mut sites, intervals, complete)| {
            sites.sort_by_key(|s| (s.name(), s.line));
            sites.dedup_by_key(|s| s.name());
            Made {
                intervals,
                complete,
                ..Made::new(sites)
            }
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn beside_itself_it_differs_in_nothing(made in made()) {
        let (a, b) = (made.run(), made.run());
        let found = diff(&[a], &[b]);
        prop_assert_eq!(found.differences, 0);
    }

    #[test]
    fn sides_are_mirrors_of_each_other_and_sums_are_kept(a in made(), b in made()) {
        let (a, b) = (a.run(), b.run());
        let there = diff(std::slice::from_ref(&a), std::slice::from_ref(&b));
        let back = diff(std::slice::from_ref(&b), std::slice::from_ref(&a));
        prop_assert_eq!(there.differences, back.differences);
        prop_assert_eq!(there.objects.len(), back.objects.len());
        for (x, y) in there.program.iter().zip(&back.program) {
            prop_assert_eq!(x.change.map(|c| -c), y.change);
            prop_assert_eq!(x.verdict == Verdict::Same, y.verdict == Verdict::Same);
        }
        // Each object stands in one row, whatever was matched with what: page touches add up.
        let all = |measure| there.program.iter().find(|f| f.measure == measure).cloned();
        let whole = all(Measure::PageTouches).unwrap();
        let rows = there.objects.iter().filter_map(|r| r.figure(Measure::PageTouches));
        let (mut of_a, mut of_b) = (0.0, 0.0);
        for figure in rows {
            of_a += figure.a.median.unwrap_or(0.0);
            of_b += figure.b.median.unwrap_or(0.0);
        }
        prop_assert_eq!((Some(of_a), Some(of_b)), (whole.a.median, whole.b.median));
    }
}
