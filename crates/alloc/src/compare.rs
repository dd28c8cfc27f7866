//! Allocators compared by runs of one program: ratios with intervals, and why some are slower.

use std::collections::BTreeSet;

use serde::Serialize;
use varve_analyse::format;
use varve_model::{Bytes, Duration};

use crate::Judgement;
use crate::student::student;

/// The version of the fields of a comparison as JSON. Fields may be added under the same version.
pub const COMPARISON_SCHEMA: &str = "varve-alloc-compare/1";

/// What one run used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// From start to end.
    pub wall_ns: Duration,
    /// CPU time.
    pub cpu_ns: Duration,
    /// The most resident memory.
    pub peak_bytes: Bytes,
    /// Resident memory on average.
    pub mean_bytes: Bytes,
    /// Page faults.
    pub faults: u64,
    /// A figure that the program printed.
    pub metric: Option<f64>,
    /// The exit code, or 128 and the signal.
    pub exit_code: i32,
}

/// A ratio of figures of runs that went side by side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The geometric mean.
    pub ratio: f64,
    /// With 95 % confidence it lies between these; null where there was one run.
    pub interval: Option<(f64, f64)>,
}

impl Ratio {
    /// Of pairs: the figure, and that of the allocator with which it is compared in the same round.
    #[must_use]
    pub fn of(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Ratio> {
        let logarithms: Vec<f64> = pairs
            .filter(|(a, b)| *a > 0.0 && *b > 0.0)
            .map(|(a, b)| (a / b).ln())
            .collect();
        let n = logarithms.len();
        let mean = logarithms.iter().sum::<f64>() / n.max(1) as f64;
        let interval = (n >= 2).then(|| {
            let squares = logarithms.iter().map(|l| (l - mean).powi(2)).sum::<f64>();
            let error = (squares / (n - 1) as f64 / n as f64).sqrt() * student(n - 1);
            ((mean - error).exp(), (mean + error).exp())
        });
        (n > 0).then(|| Ratio {
            ratio: mean.exp(),
            interval,
        })
    }

    /// Whether it is at least this far from 1, and that is no chance.
    #[must_use]
    pub fn differs(&self, by: f64) -> bool {
        let is_sure = self
            .interval
            .is_some_and(|(low, high)| low > 1.0 || high < 1.0);
        is_sure && (self.ratio > 1.0 + by || self.ratio < 1.0 / (1.0 + by))
    }
}

/// One allocator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Its name.
    pub name: String,
    /// The library; null for the program's own.
    pub library: Option<String>,
    /// Why it could not be compared: it has no ratios then.
    pub failed: Option<String>,
    /// Its runs, in the order of rounds; of one that failed those before.
    pub runs: Vec<Run>,
    /// All exit codes with which runs ended, also the one that was recorded and the one for which it was left out; each once, the lowest first.
    pub exit_codes: BTreeSet<i32>,
    /// Time from start to end, compared with the program's own allocator.
    pub wall: Option<Ratio>,
    /// CPU time.
    pub cpu: Option<Ratio>,
    /// The most resident memory.
    pub peak: Option<Ratio>,
    /// Resident memory on average.
    pub mean: Option<Ratio>,
    /// The figure that the program printed.
    pub metric: Option<Ratio>,
    /// Why it is slower or larger than the best, by its outlying figures.
    pub why: Vec<String>,
    /// What its recorded run says; null where it was not recorded.
    pub judgement: Option<Judgement>,
    /// Why its recorded run says nothing, where one was made.
    pub unrecorded: Option<String>,
    /// Programs of its recorded run into which it could not be preloaded, and why.
    pub unreached: Vec<String>,
}

impl Compared {
    /// An allocator without runs; `library` is none for the program's own.
    #[must_use]
    pub fn new(name: &str, library: Option<String>) -> Compared {
        Compared {
            name: name.to_owned(),
            library,
            failed: None,
            runs: Vec::new(),
            exit_codes: BTreeSet::new(),
            wall: None,
            cpu: None,
            peak: None,
            mean: None,
            metric: None,
            why: Vec::new(),
            judgement: None,
            unrecorded: None,
            unreached: Vec::new(),
        }
    }
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// [`COMPARISON_SCHEMA`].
    pub schema: &'static str,
    /// The command line.
    pub command: Vec<String>,
    /// Rounds.
    pub rounds: u32,
    /// How much each run could read from its standard input.
    pub input_bytes: Bytes,
    /// The allocators, the fastest first, those that could not be compared last.
    pub allocators: Vec<Compared>,
    /// What to do, in words.
    pub advice: String,
    /// What to put into the start script; null where the program's own is as good.
    pub start: Option<String>,
}

/// What takes less is mostly the start of a process.
const SHORT: Duration = Duration(20_000_000);
/// Of fewer rounds nothing is advised.
const FEW_ROUNDS: usize = 3;
/// So much is worth a change.
const WORTH: f64 = 0.03;
/// A figure that is so many times the best one's is an outlier.
const OUTLYING: f64 = 1.5;

/// Compares runs of allocators, the first of which is the program's own.
#[must_use]
pub fn compare(
    command: Vec<String>,
    rounds: u32,
    input_bytes: Bytes,
    mut all: Vec<Compared>,
) -> Comparison {
    let own: Vec<Run> = all.first().map(|a| a.runs.clone()).unwrap_or_default();
    for of in all.iter_mut().filter(|of| of.failed.is_none()) {
        let pairs = |figure: fn(&Run) -> f64| {
            let pairs = of.runs.iter().zip(&own);
            Ratio::of(pairs.map(|(run, own)| (figure(run), figure(own))))
        };
        let wall = pairs(|r| r.wall_ns.0 as f64);
        let cpu = pairs(|r| r.cpu_ns.0 as f64);
        let peak = pairs(|r| r.peak_bytes.0 as f64);
        let mean = pairs(|r| r.mean_bytes.0 as f64);
        let metric = pairs(|r| r.metric.unwrap_or(0.0));
        (of.wall, of.cpu, of.peak, of.mean, of.metric) = (wall, cpu, peak, mean, metric);
    }
    let time = |of: &Compared| of.wall.map_or(f64::INFINITY, |r| r.ratio);
    all.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let best = all.first().cloned();
    for of in &mut all {
        if let Some(best) = &best {
            of.why = why(of, best);
        }
    }
    let (advice, start) = advice(&all);
    Comparison {
        schema: COMPARISON_SCHEMA,
        command,
        rounds,
        input_bytes,
        allocators: all,
        advice,
        start,
    }
}

/// What the names of figures begin with that a run has where it made such calls: others that it has not are not known of it.
const CALLS: &str = "time in ";

/// Usable bytes for each that was asked for, at the peak; none where it is not known.
fn usable_for_each(of: &Judgement) -> Option<f64> {
    let lost = of.memory.internal_fragmentation?;
    Some(1.0 / (1.0 - lost).max(0.01))
}

/// Page faults of a run from its start to its end: the median.
fn faults(runs: &[Run]) -> u64 {
    let mut faults: Vec<u64> = runs.iter().map(|run| run.faults).collect();
    faults.sort_unstable();
    faults.get(faults.len() / 2).copied().unwrap_or(0)
}

/// Figures of its runs and of the recorded one, by name: what more of them means more work or memory.
fn figures(runs: &[Run], of: &Judgement) -> Vec<(String, f64, String)> {
    let count: u64 = of.operations.values().map(|o| o.count).sum();
    let each = |n: u64| n as f64 / count.max(1) as f64;
    let faults = faults(runs);
    // Of little memory any ratio is chance.
    let resident = of.memory.peak_heap_resident_bytes;
    let is_much = resident.is_some_and(|r| r.0 > 8 << 20);
    let blowup = of.memory.blowup.filter(|_| is_much);
    let mut found = vec![
        (
            "page faults within operations".to_owned(),
            of.faults.inside as f64,
            format::count(of.faults.inside),
        ),
        (
            "waits for other threads".to_owned(),
            of.time.waited_ns.0 as f64 / 1e6,
            format::duration(of.time.waited_ns),
        ),
        (
            "page faults of a whole run (with first touches of fresh memory)".to_owned(),
            faults as f64,
            format::count(faults),
        ),
    ];
    found.extend(of.time.operations_ns.map(|time| {
        (
            "time of an operation".to_owned(),
            each(time.0),
            format::duration(Duration(each(time.0) as u64)),
        )
    }));
    found.extend(of.faults.behind.map(|behind| {
        (
            "page faults at fresh memory of the allocator's, outside of operations".to_owned(),
            behind as f64,
            format::count(behind),
        )
    }));
    found.extend(of.mmap_lock.as_ref().map(|lock| {
        let all = Duration(lock.time_ns.0.saturating_add(lock.outside_ns.0));
        (
            "waits for mmap_lock".to_owned(),
            all.0 as f64 / 1e6,
            format::duration(all),
        )
    }));
    let memory = [("usable", usable_for_each(of)), ("resident", blowup)];
    found.extend(memory.into_iter().filter_map(|(which, times)| {
        let name = format!("{which} memory for what was asked for");
        times.map(|times| (name, times, format!("{times:.2} times")))
    }));
    for call in &of.syscalls {
        found.push((
            format!("{CALLS}{}", call.name),
            call.time_ns.0 as f64 / 1e6,
            format!(
                "{} in {}",
                format::duration(call.time_ns),
                format::counted(call.count, "call")
            ),
        ));
    }
    found
}

/// The figures by which an allocator is far from the best.
fn why(of: &Compared, best: &Compared) -> Vec<String> {
    let is_worse = |ratio: Option<Ratio>, best: Option<Ratio>| {
        ratio
            .zip(best)
            .is_some_and(|(a, b)| a.ratio > b.ratio * (1.0 + WORTH))
    };
    let worse = is_worse(of.wall, best.wall) || is_worse(of.peak, best.peak);
    let (Some(own), Some(others)) = (&of.judgement, &best.judgement) else {
        return Vec::new();
    };
    if !worse || of.name == best.name {
        return Vec::new();
    }
    let others = figures(&best.runs, others);
    let mut found: Vec<(f64, String)> = Vec::new();
    for (name, value, text) in figures(&of.runs, own) {
        let other = others.iter().find(|(n, ..)| *n == name);
        if other.is_none() && !name.starts_with(CALLS) {
            continue;
        }
        let (theirs, shown) = other.map_or((0.0, "none".to_owned()), |(_, v, t)| (*v, t.clone()));
        // Of little, any ratio is chance.
        let is_much = match name.as_str() {
            n if n.starts_with("page faults") => value >= 200.0,
            n if n.starts_with(CALLS) || n.starts_with("waits") => value >= 1.0,
            _ => value > 0.0,
        };
        let ratio = value / theirs.max(value / 1e3).max(1e-9);
        if is_much && ratio >= OUTLYING {
            found.push((ratio, format!("{name}: {text}, with {} {shown}", best.name)));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, text)| text).take(3).collect()
}

fn advice(all: &[Compared]) -> (String, Option<String>) {
    let own = all
        .iter()
        .find(|a| a.library.is_none() && a.failed.is_none());
    let Some((best, own)) = all.first().zip(own) else {
        return ("No allocator could be compared.".to_owned(), None);
    };
    if all
        .iter()
        .all(|a| a.library.is_none() || a.failed.is_some())
    {
        return (
            format!("No other allocator could be compared with {}.", own.name),
            None,
        );
    }
    let Some((wall, library)) = best.wall.zip(best.library.as_ref()) else {
        return (
            format!("Keep {}: none of the others is faster.", own.name),
            None,
        );
    };
    let compared = all.iter().filter(|a| a.failed.is_none());
    let shortest = compared.flat_map(|a| &a.runs).map(|r| r.wall_ns).min();
    if let Some(shortest) = shortest.filter(|s| *s < SHORT) {
        return (
            format!(
                "Keep {}: a run takes {}, too short to say that another is faster.",
                own.name,
                format::duration(shortest)
            ),
            None,
        );
    }
    if best.runs.len() < FEW_ROUNDS {
        return (
            format!(
                "Keep {} for now: {} of each are too few to say that {} is faster; run it with -n 5 or more.",
                own.name,
                format::counted(best.runs.len() as u64, "run"),
                best.name
            ),
            None,
        );
    }
    if !wall.differs(WORTH) {
        return (
            format!(
                "Keep {}: no other is faster for sure. With {} the program took {:.1} % less time, which may be chance.",
                own.name,
                best.name,
                (1.0 - wall.ratio) * 100.0
            ),
            None,
        );
    }
    let memory = best.peak.map_or_else(String::new, |p| {
        format!(", with {:.2} times its memory at the peak", p.ratio)
    });
    (
        format!(
            "Take {}: the program took {:.2} times as long as with {}{memory}.",
            best.name, wall.ratio, own.name
        ),
        Some(format!("LD_PRELOAD={library} ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::made::judgement;

    #[test]
    fn a_ratio_is_of_pairs() {
        let same = Ratio::of([(2.0, 1.0), (4.0, 2.0), (8.0, 4.0)].into_iter()).unwrap();
        assert!((same.ratio - 2.0).abs() < 1e-9);
        let (low, high) = same.interval.unwrap();
        assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9);
        assert!(same.differs(0.1));
        let wide = Ratio::of([(1.0, 2.0), (2.0, 1.0), (1.1, 1.0)].into_iter()).unwrap();
        assert!(!wide.differs(0.0), "{wide:?}");
        assert_eq!(Ratio::of([(1.0, 0.0)].into_iter()), None);
        let once = Ratio::of([(3.0, 1.0)].into_iter()).unwrap();
        assert!(once.interval.is_none() && !once.differs(0.1));
    }

    #[test]
    fn what_is_not_known_of_the_best_explains_nothing() {
        let of = |name: &str, wall: f64, lost: Option<f64>| {
            let mut judgement = judgement();
            judgement.memory.internal_fragmentation = lost;
            Compared {
                wall: Some(Ratio {
                    ratio: wall,
                    interval: None,
                }),
                judgement: Some(judgement),
                ..Compared::new(name, None)
            }
        };
        let slow = of("slow", 2.0, Some(0.5));
        let known = why(&slow, &of("fast", 1.0, Some(0.0)));
        let expected =
            "usable memory for what was asked for: 2.00 times, with fast 1.00 times".to_owned();
        assert_eq!(known, [expected]);
        // Operations of one of them were not counted.
        let none: [String; 0] = [];
        assert_eq!(why(&slow, &of("fast", 1.0, None)), none);
        let unknown = of("slow", 2.0, None);
        assert_eq!(why(&unknown, &of("fast", 1.0, Some(0.0))), none);
    }

    #[test]
    fn the_fastest_is_advised_where_it_is_sure() {
        let runs = |ms: [u64; 4]| -> Vec<Run> {
            let run = |ms: u64| Run {
                wall_ns: Duration(ms * 1_000_000),
                ..Run::default()
            };
            ms.into_iter().map(run).collect()
        };
        let of = |name: &str, library: Option<&str>, ms| Compared {
            runs: runs(ms),
            ..Compared::new(name, library.map(str::to_owned))
        };
        let compare = |all| compare(vec![], 4, Bytes(0), all);
        let own = of("glibc", None, [100, 102, 101, 99]);
        let fast = of("fast", Some("/lib/fast.so"), [50, 51, 49, 50]);
        let same = of("same", Some("/lib/same.so"), [98, 103, 99, 100]);
        let found = compare(vec![own.clone(), fast.clone(), same.clone()]);
        assert_eq!(found.allocators[0].name, "fast");
        assert_eq!(found.start.as_deref(), Some("LD_PRELOAD=/lib/fast.so "));
        let found = compare(vec![own.clone(), same.clone()]);
        assert_eq!(found.start, None, "{}", found.advice);
        assert!(found.advice.starts_with("Keep glibc"), "{}", found.advice);
        // One that failed after fast runs is neither advised nor a measure of others.
        let crashed = Compared {
            failed: Some("it crashed".to_owned()),
            ..fast
        };
        let found = compare(vec![own.clone(), crashed.clone(), same]);
        assert_eq!((found.allocators[2].wall, found.start), (None, None));
        assert!(found.advice.starts_with("Keep glibc"), "{}", found.advice);
        let found = compare(vec![own, crashed]);
        assert_eq!(
            found.advice,
            "No other allocator could be compared with glibc."
        );
    }
}
