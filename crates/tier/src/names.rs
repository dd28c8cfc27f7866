//! The policies by name, with their settings.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use varve_model::{Bytes, Duration};

use crate::curves::optimum;
use crate::model::Model;
use crate::policies::{
    Clock, FirstTouch, Generations, HintSettings, Hints, Interleave, Lru, RegionSettings, Regions,
};
use crate::replay::{Outcome, replay};
use crate::spec::Tiers;
use crate::stream::Stream;

macro_rules! policies {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $about:literal;)*) => {
        /// A policy.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum PolicyName { $($(#[$doc])* $name,)* }

        impl PolicyName {
            /// All of them, in the order in which they are shown.
            pub const ALL: &[PolicyName] = &[$(PolicyName::$name),*];

            /// The name that the command line and results use.
            pub const fn as_str(self) -> &'static str {
                match self { $(PolicyName::$name => $text,)* }
            }

            /// What it does, in a sentence.
            pub const fn about(self) -> &'static str {
                match self { $(PolicyName::$name => $about,)* }
            }
        }
    };
}

policies! {
    /// The bound.
    Optimum = "optimum", "the fewest slow touches that are possible, for who knows the future; a bound, no policy";
    /// Pages stay where there was room.
    FirstTouch = "first_touch", "a page is made in the fastest tier with room, and stays there";
    /// Pages are spread.
    Interleave = "interleave", "pages are made in one tier after the other";
    /// Linux's NUMA balancing.
    Autonuma = "autonuma", "Linux's NUMA balancing in tiering mode: pages that fault soon after a hint are promoted, untouched ones demoted";
    /// TPP.
    Tpp = "tpp", "as TPP: pages are promoted at their second hint fault, and room is kept free";
    /// Least recently used.
    Lru = "lru", "what is touched comes to the fastest tier, what was not for the longest time leaves";
    /// Second chance.
    Clock = "clock", "as LRU, by accessed bits and a hand that goes round";
    /// Linux's multi-generational LRU.
    Mglru = "mglru", "as Linux's multi-generational LRU";
    /// DAMON's schemes.
    Damos = "damos", "as DAMON's schemes: regions of 2 MiB move, hot ones up and cold ones down";
    /// The study's.
    Objects = "objects", "whole objects, those with the most accesses per byte first; nothing moves";
    /// The best choice.
    ObjectsBest = "objects_best", "whole objects, the choice that is worth most; nothing moves";
    /// With a part.
    ObjectsSpill = "objects_spill", "as objects, and the first that does not fit is divided";
    /// By phases.
    ObjectsPhases = "objects_phases", "whole objects, chosen anew for each part of the run";
}

impl PolicyName {
    /// Whether it follows a plan of objects.
    pub const fn is_planned(self) -> bool {
        matches!(
            self,
            PolicyName::Objects
                | PolicyName::ObjectsBest
                | PolicyName::ObjectsSpill
                | PolicyName::ObjectsPhases
        )
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = PolicyName::ALL.iter().find(|p| p.as_str() == text);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = PolicyName::ALL.iter().map(|p| p.as_str()).collect();
            format!(
                "there is no policy called {text}; there are {}",
                names.join(", ")
            )
        })
    }
}

impl Serialize for PolicyName {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

/// How a policy that needs no plan is set.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Setting {
    None,
    Weights(Vec<u32>),
    Hints(HintSettings),
    FreshAge(u32),
    Regions(RegionSettings),
}

const MIB: u64 = 1 << 20;
const SECOND: u64 = 1_000_000_000;

/// The settings of a policy that are tried, the default first.
pub(crate) fn settings(of: PolicyName, tiers: &Tiers) -> Vec<Setting> {
    let hints = |base: HintSettings, scans: &[u64], thresholds: &[u64]| {
        let mut all = vec![Setting::Hints(base)];
        for &scan in scans {
            for &threshold in thresholds {
                let setting = HintSettings {
                    scan: Bytes(scan * MIB),
                    threshold: Duration(threshold),
                    ..base
                };
                if setting != base {
                    all.push(Setting::Hints(setting));
                }
            }
        }
        all
    };
    match of {
        PolicyName::Interleave => {
            let count = tiers.all().len();
            let even = vec![1; count];
            let first = [2, 4, 8].map(|n| {
                let mut weights = even.clone();
                weights[0] = n;
                weights
            });
            [even]
                .into_iter()
                .chain(first)
                .map(Setting::Weights)
                .collect()
        }
        PolicyName::Autonuma => hints(
            HintSettings::AUTONUMA,
            &[256, 1024, 4096],
            &[SECOND / 10, SECOND, 10 * SECOND],
        ),
        PolicyName::Tpp => hints(HintSettings::TPP, &[256, 1024, 4096], &[u64::MAX]),
        PolicyName::Mglru => vec![Setting::FreshAge(0), Setting::FreshAge(1)],
        PolicyName::Damos => {
            let base = RegionSettings::DEFAULT;
            let mut all = vec![Setting::Regions(base)];
            for hot in [50, 200, 800] {
                for cold in [SECOND / 5, SECOND, 5 * SECOND] {
                    let setting = RegionSettings {
                        hot,
                        cold: Duration(cold),
                        ..base
                    };
                    if setting != base {
                        all.push(Setting::Regions(setting));
                    }
                }
            }
            all
        }
        _ => vec![Setting::None],
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::None => Ok(()),
            Setting::Weights(weights) => {
                let words: Vec<String> = weights.iter().map(u32::to_string).collect();
                write!(f, "weights {}", words.join(":"))
            }
            Setting::Hints(hints) => {
                write!(f, "scan {} MiB/s", hints.scan.0 / MIB)?;
                match hints.second_fault {
                    true => Ok(()),
                    false => write!(f, ", threshold {} ms", hints.threshold.0 / 1_000_000),
                }
            }
            Setting::FreshAge(0) => f.write_str("new pages are the youngest"),
            Setting::FreshAge(_) => f.write_str("new pages are the second youngest"),
            Setting::Regions(regions) => write!(
                f,
                "hot from {} % touched, cold after {} ms",
                regions.hot / 10,
                regions.cold.0 / 1_000_000
            ),
        }
    }
}

/// Replays a policy that needs no plan.
pub(crate) fn run(
    of: PolicyName,
    setting: &Setting,
    stream: &Stream,
    tiers: &Tiers,
    model: &Model,
) -> Outcome {
    let slots = stream.slots();
    match (of, setting) {
        (PolicyName::Optimum, _) => optimum::outcome(stream, model, tiers.fastest().capacity().0),
        (PolicyName::Interleave, Setting::Weights(weights)) => replay(
            stream,
            Interleave::new(slots, tiers, weights.clone()),
            model,
        ),
        (_, Setting::Hints(hints)) => replay(stream, Hints::new(slots, tiers, *hints), model),
        (_, Setting::Regions(regions)) => {
            replay(stream, Regions::new(slots, tiers, *regions), model)
        }
        (_, Setting::FreshAge(age)) => replay(stream, Generations::new(slots, tiers, *age), model),
        (PolicyName::Lru, _) => replay(stream, Lru::new(slots, tiers), model),
        (PolicyName::Clock, _) => replay(stream, Clock::new(slots, tiers), model),
        _ => replay(stream, FirstTouch::new(slots, tiers), model),
    }
}
