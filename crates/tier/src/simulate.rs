//! All policies over one trace.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use varve_model::ObjectKind;

use crate::curves::curves;
use crate::error::TierError;
use crate::knapsack;
use crate::model::{Basis, MIN_SAMPLES, Model};
use crate::names::{PolicyName, Setting, run, settings};
use crate::objects::{Worth, place, place_with_spill, worth};
use crate::policies::{Placed, Placement};
use crate::replay::{Outcome, replay};
use crate::simulation::{Best, CurvePoint, ObjectLoss, PolicyResult};
use crate::spec::Tiers;
use crate::stream::Stream;

/// Points of the curves over sizes of the fastest tier.
const POINTS: u64 = 32;
/// Parts of the run for which objects are chosen anew, the default first.
const PHASES: [usize; 5] = [8, 2, 4, 16, 32];

/// What is to be simulated.
#[derive(Clone, Debug)]
pub struct SimulateOptions {
    /// The policies.
    pub policies: Vec<PolicyName>,
    /// Whether other settings than the defaults are tried.
    pub tune: bool,
    /// Threads at work.
    pub threads: usize,
    /// Objects that are listed for each policy.
    pub max_objects: usize,
}

/// A replay that is to be made.
struct Job {
    policy: PolicyName,
    setting: String,
    work: Work,
}

enum Work {
    Plain(Setting),
    /// Where objects lie, by phases.
    Placed(Vec<Placement>),
}

/// What time rests on for a stream: samples where there are enough that stand for time.
pub fn basis(stream: &Stream, samples_are_time: bool) -> Basis {
    match samples_are_time && stream.sample_count() >= MIN_SAMPLES {
        true => Basis::Samples,
        false => Basis::Touches,
    }
}

/// Replays each policy. Objects are planned on `planned`, and all is replayed on `on`, which may be the same.
///
/// # Errors
/// Tiers that do not hold the program.
pub(crate) fn policies(
    (planned, plan_basis): (&Stream, Basis),
    (on, on_basis): (&Stream, Basis),
    tiers: &Tiers,
    options: &SimulateOptions,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Vec<PolicyResult>, TierError> {
    tiers.must_hold(on.peak_pages)?;
    let model = Model::new(tiers, on, on_basis);
    let planner = Planner {
        planned,
        on,
        tiers,
        model: Model::new(tiers, planned, plan_basis),
        whole: OnceCell::new(),
        of_group: (!std::ptr::eq(planned, on)).then(|| matched(planned, on)),
    };
    let mut jobs = Vec::new();
    let mut wanted = options.policies.clone();
    wanted.sort_unstable();
    wanted.dedup();
    for &policy in &wanted {
        let mut of = match policy.is_planned() {
            true => planner.jobs(policy, options.tune),
            false => settings(policy, tiers)
                .into_iter()
                .map(|setting| Job {
                    policy,
                    setting: setting.to_string(),
                    work: Work::Plain(setting),
                })
                .collect(),
        };
        if !options.tune {
            of.truncate(1);
        }
        jobs.append(&mut of);
    }
    let outcomes = all(&jobs, options.threads, progress, |job| match &job.work {
        Work::Plain(setting) => run(job.policy, setting, on, tiers, &model),
        Work::Placed(phases) => {
            let placed = Placed::new(on.slots(), tiers, phases.clone());
            replay(on, placed, &model)
        }
    });
    let mut results: Vec<PolicyResult> = Vec::new();
    for chunk in jobs
        .iter()
        .zip(&outcomes)
        .collect::<Vec<_>>()
        .chunk_by(|a, b| a.0.policy == b.0.policy)
    {
        results.push(result(chunk, on, tiers, &model, options));
    }
    Ok(results)
}

/// Does all jobs on so many threads.
fn all(
    jobs: &[Job],
    threads: usize,
    progress: &(dyn Fn(f64) + Sync),
    work: impl Fn(&Job) -> Outcome + Sync,
) -> Vec<Outcome> {
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let outcomes: Vec<Mutex<Outcome>> = jobs.iter().map(|_| Mutex::default()).collect();
    thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some((job, outcome)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    jobs.get(at).zip(outcomes.get(at))
                } {
                    let made = work(job);
                    if let Ok(mut outcome) = outcome.lock() {
                        *outcome = made;
                    }
                    let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                    progress(done as f64 / jobs.len() as f64);
                }
            });
        }
    });
    // Who panicked has ended the program already.
    let taken = |of: Mutex<Outcome>| of.into_inner().unwrap_or_else(PoisonError::into_inner);
    outcomes.into_iter().map(taken).collect()
}

/// The group of `planned` that each group of `on` is: of the same name, kind and site.
fn matched(planned: &Stream, on: &Stream) -> Vec<Option<u32>> {
    type Key<'a> = (&'a str, Option<ObjectKind>, Option<&'a str>);
    fn key(group: &crate::stream::Group) -> Key<'_> {
        (group.name.as_str(), group.kind, group.site.as_deref())
    }
    let known: HashMap<Key<'_>, u32> = planned.groups.iter().map(key).zip(0..).collect();
    on.groups
        .iter()
        .map(|g| known.get(&key(g)).copied())
        .collect()
}

/// Places objects as a trace says, for that one or another.
struct Planner<'a> {
    planned: &'a Stream,
    on: &'a Stream,
    tiers: &'a Tiers,
    model: Model,
    /// What objects are worth in all of the trace, once somebody asked.
    whole: OnceCell<Worth>,
    /// Where the other trace is another one.
    of_group: Option<Vec<Option<u32>>>,
}

impl Planner<'_> {
    fn whole(&self) -> &Worth {
        let found = || worth(self.planned, &self.model, 1).swap_remove(0);
        self.whole.get_or_init(found)
    }

    /// The greedy choice.
    fn greedy(&self, of: &Worth) -> Placement {
        place(of, self.tiers, knapsack::greedy).0
    }

    fn jobs(&self, policy: PolicyName, tune: bool) -> Vec<Job> {
        let job = |setting: String, phases: Vec<Placement>| Job {
            policy,
            setting,
            work: Work::Placed(phases),
        };
        match policy {
            PolicyName::ObjectsBest => {
                let (placement, is_exact) = place(self.whole(), self.tiers, knapsack::best);
                let setting = match is_exact {
                    true => String::new(),
                    false => "not proven best: there are too many objects".to_owned(),
                };
                vec![job(setting, vec![self.meant(placement)])]
            }
            PolicyName::ObjectsSpill => {
                let of = self.whole();
                let placement = match self.of_group {
                    None => place_with_spill(self.planned, &self.model, of, self.tiers),
                    // Pages of one run are not those of another.
                    Some(_) => self.greedy(of),
                };
                vec![job(String::new(), vec![self.meant(placement)])]
            }
            PolicyName::ObjectsPhases => {
                let counts = if tune { &PHASES[..] } else { &PHASES[..1] };
                let phases = counts.iter().map(|&parts| {
                    let all = worth(self.planned, &self.model, parts).into_iter();
                    let placed = all.map(|of| self.meant(self.greedy(&of)));
                    job(format!("{parts} phases"), placed.collect())
                });
                phases.collect()
            }
            _ => {
                let placement = self.greedy(self.whole());
                vec![job(String::new(), vec![self.meant(placement)])]
            }
        }
    }

    /// A placement for the trace that is replayed. What the other does not have goes where there is most room.
    fn meant(&self, placement: Placement) -> Placement {
        let Some(of_group) = &self.of_group else {
            return placement;
        };
        let last = (self.tiers.all().len() - 1) as u8;
        let tier = |of: &Option<u32>| of.and_then(|g| placement.tiers.get(g as usize).copied());
        let (here, there) = (self.on.intervals().len(), self.planned.intervals().len());
        Placement {
            from: (placement.from as usize * here / there.max(1)) as u32,
            tiers: of_group.iter().map(|g| tier(g).unwrap_or(last)).collect(),
            spill: None,
        }
    }
}

fn result(
    of: &[(&Job, &Outcome)],
    stream: &Stream,
    tiers: &Tiers,
    model: &Model,
    options: &SimulateOptions,
) -> PolicyResult {
    let (job, outcome) = of[0];
    let best = of.iter().min_by_key(|(_, o)| (o.modelled_ns, o.slow()));
    let best = best.filter(|_| of.len() > 1).map(|(job, o)| Best {
        setting: job.setting.clone(),
        slow_touches: o.slow(),
        slow_share: o.slow_share(stream),
        migrations: o.moved(),
        modelled_ns: o.modelled_ns,
    });
    let placement = match &job.work {
        Work::Placed(phases) if phases.len() == 1 => phases.first(),
        _ => None,
    };
    let mut objects: Vec<ObjectLoss> = Vec::new();
    for (number, group) in stream
        .groups
        .iter()
        .enumerate()
        .filter(|(_, g)| g.touches > 0)
    {
        let slow = outcome.slow_by_group[number];
        let tier = placement.map(|p| planned(p, number, tiers));
        objects.push(ObjectLoss {
            name: group.name.clone(),
            kind: group.kind,
            site: group.site.clone(),
            peak_pages: group.peak_pages,
            touches: group.touches,
            slow_touches: slow,
            slow_share: slow as f64 / group.touches as f64,
            tier,
        });
    }
    objects.sort_by(|a, b| {
        (b.slow_touches, b.touches, &a.name).cmp(&(a.slow_touches, a.touches, &b.name))
    });
    let omitted = objects.len().saturating_sub(options.max_objects) as u64;
    objects.truncate(options.max_objects);
    PolicyResult {
        name: job.policy,
        about: job.policy.about(),
        setting: job.setting.clone(),
        is_bound: job.policy == PolicyName::Optimum,
        slow_touches: outcome.slow(),
        slow_share: outcome.slow_share(stream),
        fetched: outcome.fetched,
        migrations: outcome.moved(),
        promotions: outcome.promoted,
        demotions: outcome.demoted,
        slow_sampled_share: crate::simulation::sampled_share(job.policy, outcome, stream),
        modelled_ns: outcome.modelled_ns,
        modelled_slowdown: outcome.slowdown(stream),
        rests_on: model.basis(),
        best,
        objects,
        objects_omitted: omitted,
    }
}

/// The tier that is planned for a group, or both where it is divided.
fn planned(placement: &Placement, group: usize, tiers: &Tiers) -> String {
    let name = |tier: u8| tiers.all()[tier as usize].name.as_str();
    let rest = name(placement.tiers[group]);
    match &placement.spill {
        Some(spill) if spill.group as usize == group => {
            format!("{rest}, a part {}", name(spill.tier))
        }
        _ => rest.to_owned(),
    }
}

/// Slow touches against the size of the fastest tier.
pub(crate) fn curve(stream: &Stream, tiers: &Tiers) -> Vec<CurvePoint> {
    let peak = stream.peak_pages.0;
    let mut sizes: Vec<u64> = (0..=POINTS).map(|i| peak * i / POINTS).collect();
    sizes.push(tiers.fastest().capacity().0.min(peak));
    sizes.sort_unstable();
    sizes.dedup();
    let found = curves(stream, &sizes);
    let lru = found.lru.beyond_each(&sizes);
    let at_least = found.bounds.at_least.beyond_each(&sizes);
    let at_most = found.bounds.at_most.beyond_each(&sizes);
    let model = Model::new(tiers, stream, Basis::Touches);
    let whole = worth(stream, &model, 1).swap_remove(0);
    let points = sizes.iter().enumerate().map(|(i, &pages)| {
        let choice = knapsack::greedy(&whole.items, pages);
        let fast = stream
            .groups
            .iter()
            .zip(choice.taken)
            .filter(|(_, taken)| *taken);
        let fast: u64 = fast.map(|(group, _)| group.touches).sum();
        CurvePoint {
            fast_pages: varve_model::Pages(pages),
            share_of_peak: pages as f64 / peak.max(1) as f64,
            lru: lru[i],
            lru_at_least: at_least[i].max(found.optimum[i]),
            lru_at_most: at_most[i],
            optimum: found.optimum[i],
            objects: stream.touches - fast,
        }
    });
    points.collect()
}
