//! What a simulation found, as it is written and shown.

use serde::Serialize;
use varve_analyse::Known;
use varve_model::{Duration, ObjectKind, Pages};

use crate::model::Basis;
use crate::names::PolicyName;
use crate::replay::Outcome;
use crate::spec::Tiers;
use crate::stream::Stream;

/// The version of the fields of a simulation as JSON. Fields may be added under the same version.
pub const SCHEMA: &str = "varve-tier-simulate/1";

/// What was replayed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct About {
    /// The command line.
    pub command: Vec<String>,
    /// Whether the trace says that none of the program's touches is missing.
    pub complete: bool,
    /// From the beginning of the first interval to the end of the last.
    pub duration_ns: Duration,
    /// How many intervals.
    pub intervals: u64,
    /// Pages in intervals, each once in each interval in which it was accessed.
    pub touches: u64,
    /// Those that were the first of their page's life.
    pub first_touches: u64,
    /// Distinct pages.
    pub pages: Pages,
    /// Pages that lived at one time, at most.
    pub peak_pages: Pages,
    /// Samples with an address.
    pub samples: u64,
}

/// A simulation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Simulation {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What was replayed.
    pub trace: About,
    /// The trace on which objects were planned, where that is another one.
    pub planned_on: Option<About>,
    /// The tiers, the fastest first.
    pub tiers: Tiers,
    /// What times rest on; all of them are modelled.
    pub rests_on: Basis,
    /// What a reader should know, one sentence each.
    pub notes: Vec<String>,
    /// The policies.
    pub policies: Vec<PolicyResult>,
    /// Slow touches against the size of the fastest tier.
    pub curve: Vec<CurvePoint>,
}

/// What a policy made of it, with its default setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyResult {
    /// Its name.
    pub name: PolicyName,
    /// What it does.
    pub about: &'static str,
    /// How it was set; empty where there is nothing to set.
    pub setting: String,
    /// Whether it is a bound and no policy.
    pub is_bound: bool,
    /// Touches that found their page in a slower tier, and pages that were fetched from there without a touch.
    pub slow_touches: u64,
    /// Their share of all touches.
    pub slow_share: f64,
    /// The pages of them that were fetched without a touch.
    pub fetched: u64,
    /// Pages that moved, up and down.
    pub migrations: u64,
    /// Up.
    pub promotions: u64,
    /// Down.
    pub demotions: u64,
    /// The share of sampled time, or accesses, that slower tiers served.
    pub slow_sampled_share: Known<f64>,
    /// How long the program would take; modelled.
    pub modelled_ns: Duration,
    /// The same over the length of the recorded run; modelled.
    pub modelled_slowdown: f64,
    /// What the modelled time rests on.
    pub rests_on: Basis,
    /// The best of the settings that were tried; null where there is nothing to set.
    pub best: Option<Best>,
    /// What each object lost, the one with the most slow touches first.
    pub objects: Vec<ObjectLoss>,
    /// Objects with less that are not listed.
    pub objects_omitted: u64,
}

/// A policy with its best setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Best {
    /// How it was set.
    pub setting: String,
    /// As of the policy.
    pub slow_touches: u64,
    /// As of the policy.
    pub slow_share: f64,
    /// As of the policy.
    pub migrations: u64,
    /// As of the policy.
    pub modelled_ns: Duration,
}

/// What objects of one name, kind and site lost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectLoss {
    /// Their name.
    pub name: String,
    /// What they are; null for memory of no known object.
    pub kind: Option<ObjectKind>,
    /// Where they were allocated.
    pub site: Option<String>,
    /// Touched pages that lived at one time, at most.
    pub peak_pages: Pages,
    /// Their touches.
    pub touches: u64,
    /// Those that found their page in a slower tier.
    pub slow_touches: u64,
    /// The share of them.
    pub slow_share: f64,
    /// The tier that is planned for them, or both tiers where they are divided; null where nothing is planned.
    pub tier: Option<String>,
}

/// Slow touches at a size of the fastest tier.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The size.
    pub fast_pages: Pages,
    /// The size over the pages that live at one time, at most.
    pub share_of_peak: f64,
    /// Of LRU, touches of an interval in the order of addresses.
    pub lru: u64,
    /// Of LRU, at least, whatever the order.
    pub lru_at_least: u64,
    /// Of LRU, at most, whatever the order.
    pub lru_at_most: u64,
    /// Of the optimum.
    pub optimum: u64,
    /// Of whole objects, chosen by touches per byte.
    pub objects: u64,
}

/// The share of what was sampled that slower tiers served.
pub(crate) fn sampled_share(of: PolicyName, outcome: &Outcome, stream: &Stream) -> Known<f64> {
    if of == PolicyName::Optimum {
        return Known::Absent("a bound does not say which pages are where".to_owned());
    }
    let all: f64 = outcome.sampled_ns.iter().sum();
    match stream.sample_count() {
        0 => Known::Absent("the trace has no samples with addresses".to_owned()),
        _ if all > 0.0 => Known::Exact(outcome.sampled_ns[1..].iter().sum::<f64>() / all),
        _ => Known::Absent("the samples stand for no time".to_owned()),
    }
}
