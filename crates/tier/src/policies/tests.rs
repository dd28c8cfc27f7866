//! What holds for every policy, on random traces.

use proptest::prelude::*;

use crate::curves::curves;
use crate::model::{Basis, Model};
use crate::names::PolicyName;
use crate::simulate::{self, SimulateOptions};
use crate::spec::Tiers;
use crate::testing::{PAGES, happenings, stream};

fn tiers(fast: u64, rest: &[&str]) -> Tiers {
    let first = format!("fast={}KiB,80ns", fast * 4);
    let all = [first.as_str()].into_iter().chain(rest.iter().copied());
    Tiers::new(all.map(|t| t.parse().unwrap()).collect()).unwrap()
}

const OPTIONS: fn() -> SimulateOptions = || SimulateOptions {
    policies: PolicyName::ALL.to_vec(),
    tune: true,
    threads: 1,
    max_objects: 100,
};

/// Slower tiers of several kinds.
fn rest() -> impl Strategy<Value = Vec<&'static str>> {
    prop_oneof![
        Just(vec!["slow=inf,250ns"]),
        Just(vec!["slow=inf,250ns,write=900ns,move=50ns"]),
        Just(vec!["slow=inf,250ns,bw=1GB/s"]),
        Just(vec![
            "middle=12KiB,120ns,bw=900MB/s",
            "slow=inf,5us,move=9us"
        ]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_optimum_is_never_worse_than_any_policy(of in happenings(), fast in 1..30_u64, rest in rest()) {
        let stream = stream(&of);
        prop_assume!(stream.touches > 0);
        let (tiers, on) = (tiers(fast, &rest), (&stream, Basis::Touches));
        let found = simulate::policies(on, on, &tiers, &OPTIONS(), &|_| ()).unwrap();
        prop_assert_eq!(found.len(), PolicyName::ALL.len());
        let bound = &found[0];
        prop_assert!(bound.is_bound);
        for one in &found {
            prop_assert!(bound.slow_touches <= one.slow_touches, "{}", one.name);
            prop_assert!(bound.modelled_ns <= one.modelled_ns, "{}", one.name);
            if let Some(best) = &one.best {
                prop_assert!(bound.slow_touches <= best.slow_touches, "{} {}", one.name, best.setting);
                prop_assert!(bound.modelled_ns <= best.modelled_ns, "{} {}", one.name, best.setting);
                prop_assert!(best.modelled_ns <= one.modelled_ns);
            }
            // What objects lost is what was lost.
            let lost: u64 = one.objects.iter().map(|o| o.slow_touches).sum();
            prop_assert_eq!(lost + one.fetched, one.slow_touches, "{}", one.name);
            let touches: u64 = one.objects.iter().map(|o| o.touches).sum();
            prop_assert_eq!(touches, stream.touches);
            prop_assert_eq!(one.promotions + one.demotions, one.migrations);
        }
    }

    #[test]
    fn lru_is_what_its_curve_says(of in happenings(), fast in 1..30_u64) {
        let stream = stream(&of);
        let tiers = tiers(fast, &["slow=inf,250ns"]);
        let model = Model::new(&tiers, &stream, Basis::Touches);
        let lru = super::Lru::new(stream.slots(), &tiers);
        let outcome = crate::replay(&stream, lru, &model);
        prop_assert_eq!(outcome.slow(), curves(&stream, &[]).lru.beyond(fast));
    }

    #[test]
    fn where_all_fits_nothing_is_slow(of in happenings()) {
        let stream = stream(&of);
        prop_assume!(stream.touches > 0);
        // Twice the room: some policies keep a part of it free.
        let (tiers, on) = (tiers(2 * u64::from(PAGES), &["slow=inf,250ns"]), (&stream, Basis::Touches));
        let found = simulate::policies(on, on, &tiers, &OPTIONS(), &|_| ()).unwrap();
        for one in found.iter().filter(|p| p.name != PolicyName::Interleave) {
            prop_assert_eq!(one.slow_touches, 0, "{}", one.name);
            prop_assert_eq!(one.modelled_ns, stream.length(), "{}", one.name);
        }
    }

    #[test]
    fn the_curve_of_objects_is_what_a_replay_finds(of in happenings()) {
        let stream = stream(&of);
        prop_assume!(stream.touches > 0);
        // The curve ends where all pages that live at once fit; placed objects may need more, as each keeps its room.
        let fast = 7.min(stream.peak_pages.0);
        let tiers = tiers(fast, &["slow=inf,250ns"]);
        let on = (&stream, Basis::Touches);
        let options = SimulateOptions { policies: vec![PolicyName::Objects], ..OPTIONS() };
        let found = simulate::policies(on, on, &tiers, &options, &|_| ()).unwrap();
        let curve = simulate::curve(&stream, &tiers);
        let point = curve.iter().find(|p| p.fast_pages.0 == fast).unwrap();
        prop_assert_eq!(point.objects, found[0].slow_touches);
        for point in &curve {
            prop_assert!(point.optimum <= point.lru_at_least && point.lru_at_least <= point.lru);
            prop_assert!(point.lru <= point.lru_at_most && point.optimum <= point.objects);
        }
    }
}
