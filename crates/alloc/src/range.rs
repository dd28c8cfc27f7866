//! The range of each figure over the allocators of many comparisons: what is normal, and what is far out.
//!
//! Per program, an allocator is *good* where the program takes at most 20 % longer than with the best one. The range over the
//! good ones is what an allocator should be in; the one over all of them says how far out others are. The idea, and the bound, are
//! those of MemPerf (OOPSLA 2023).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The version of the fields of a range as JSON. Fields may be added under the same version.
pub const RANGE_SCHEMA: &str = "varve-alloc-range/1";
/// The program takes at most so many times as long as with the best allocator where one is good.
pub const GOOD: f64 = 1.2;

/// Resident memory below this says nothing of an allocator.
const MUCH_MEMORY: u64 = 8 << 20;

/// Fewer operations than this say nothing of an allocator either.
const MANY_OPERATIONS: u64 = 10_000;

/// What is read of a comparison ([`crate::compare::Comparison`] as JSON).
#[derive(Clone, Debug, Deserialize)]
pub struct Input {
    /// [`crate::compare::COMPARISON_SCHEMA`].
    pub schema: String,
    /// The command line.
    pub command: Vec<String>,
    /// The allocators.
    pub allocators: Vec<InputAllocator>,
}

/// What is read of one allocator.
#[derive(Clone, Debug, Deserialize)]
pub struct InputAllocator {
    /// Its name.
    pub name: String,
    wall: Option<InputRatio>,
    cpu: Option<InputRatio>,
    peak: Option<InputRatio>,
    mean: Option<InputRatio>,
    judgement: Option<InputJudgement>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct InputRatio {
    ratio: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct InputJudgement {
    operations: BTreeMap<String, InputOperation>,
    time: InputTime,
    syscalls: Vec<InputCall>,
    faults: InputFaults,
    memory: InputMemory,
}

#[derive(Clone, Debug, Deserialize)]
struct InputOperation {
    count: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct InputTime {
    operations_ns: Option<u64>,
    waited_ns: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct InputCall {
    count: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct InputFaults {
    inside: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct InputMemory {
    internal_fragmentation: Option<f64>,
    blowup: Option<f64>,
    peak_heap_resident_bytes: Option<u64>,
}

/// Of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Range {
    /// The lowest.
    pub lowest: f64,
    /// Half of them are no higher.
    pub median: f64,
    /// The highest.
    pub highest: f64,
    /// How many.
    pub count: usize,
}

impl Range {
    fn of(numbers: impl Iterator<Item = f64>) -> Option<Range> {
        let mut numbers: Vec<f64> = numbers.filter(|n| n.is_finite()).collect();
        numbers.sort_by(f64::total_cmp);
        let middle = numbers.len().saturating_sub(1) / 2;
        Some(Range {
            lowest: *numbers.first()?,
            median: *numbers.get(middle)?,
            highest: *numbers.last()?,
            count: numbers.len(),
        })
    }

    /// Whether a figure is no higher than any of these: lower is better of all figures.
    fn holds(&self, figure: f64) -> bool {
        figure <= self.highest * (1.0 + 1e-9)
    }
}

/// A figure of all programs and allocators.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Its name.
    pub name: &'static str,
    /// Over all allocators; null where nobody has it.
    pub all: Option<Range>,
    /// Over those that are good for the program.
    pub good: Option<Range>,
    /// Of the one that is graded.
    pub graded: Option<Range>,
    /// In so many programs that one is no higher than any good allocator in any program.
    pub within: usize,
}

/// An allocator over all programs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// Programs that ran with it.
    pub programs: usize,
    /// Those for which it is good.
    pub good: usize,
    /// How many times as long as with the best one the programs took: the geometric mean.
    pub time: f64,
    /// The same of the most resident memory and the one with the least; null where that is not known.
    pub peak: Option<f64>,
}

/// The range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ranges {
    /// [`RANGE_SCHEMA`].
    pub schema: &'static str,
    /// The commands.
    pub programs: Vec<Vec<String>>,
    /// The one that is graded, and left out of the ranges.
    pub graded: Option<String>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// The allocators, the fastest first.
    pub allocators: Vec<Standing>,
}

/// Names of figures, in the order of [`of_run`].
const FIGURES: [&str; 10] = [
    "time, of the best",
    "CPU time, of the best",
    "peak memory, of the best",
    "mean memory, of the best",
    "ns an operation",
    "waiting, of the time of operations",
    "system calls to 1,000 operations",
    "page faults to 1,000 operations",
    "usable memory for what was asked for",
    "resident memory for what was asked for",
];

/// One allocator under one program.
struct Case<'a> {
    name: &'a str,
    is_good: bool,
    time: f64,
    peak: Option<f64>,
    figures: Vec<Option<f64>>,
}

/// Makes the range of comparisons; `graded` names an allocator that is compared with the others.
#[must_use]
pub fn range(comparisons: &[Input], graded: Option<&str>) -> Ranges {
    let programs: Vec<Vec<Case<'_>>> = comparisons.iter().map(|c| cases(c, graded)).collect();
    let figures = FIGURES.iter().enumerate().map(|(at, name)| {
        let values = |which: &dyn Fn(&Case<'_>) -> bool| -> Vec<f64> {
            let cases = programs.iter().flatten().filter(|c| which(c));
            cases.filter_map(|c| *c.figures.get(at)?).collect()
        };
        let is_graded = |case: &Case<'_>| Some(case.name) == graded;
        let good = Range::of(values(&|c| c.is_good && !is_graded(c)).into_iter());
        let own = values(&|c| is_graded(c));
        Figure {
            name,
            all: Range::of(values(&|c| !is_graded(c)).into_iter()),
            good,
            graded: Range::of(own.iter().copied()),
            within: own
                .iter()
                .filter(|n| good.is_some_and(|g| g.holds(**n)))
                .count(),
        }
    });
    let figures = figures.collect();
    Ranges {
        schema: RANGE_SCHEMA,
        programs: comparisons.iter().map(|c| c.command.clone()).collect(),
        graded: graded.map(str::to_owned),
        figures,
        allocators: standings(&programs),
    }
}

/// The allocators of one comparison that ran.
fn cases<'a>(of: &'a Input, graded: Option<&str>) -> Vec<Case<'a>> {
    let ran: Vec<&InputAllocator> = of.allocators.iter().filter(|a| a.wall.is_some()).collect();
    let best = |figure: fn(&InputAllocator) -> Option<InputRatio>| {
        // What is graded is measured by the others.
        let others = ran.iter().filter(|a| Some(a.name.as_str()) != graded);
        let ratios = others.filter_map(|a| figure(a)).map(|r| r.ratio);
        ratios.filter(|r| *r > 0.0).fold(f64::INFINITY, f64::min)
    };
    let bests = [
        best(|a| a.wall),
        best(|a| a.cpu),
        best(|a| a.peak),
        best(|a| a.mean),
    ];
    let cases = ran.iter().map(|one| {
        let ratios = [one.wall, one.cpu, one.peak, one.mean];
        let to_best = ratios.iter().zip(bests).map(|(ratio, best)| {
            let to_best = ratio.map(|r| r.ratio / best);
            to_best.filter(|r| r.is_finite() && *r > 0.0)
        });
        let mut figures: Vec<Option<f64>> = to_best.collect();
        let (time, peak) = (figures[0].unwrap_or(f64::INFINITY), figures[2]);
        match &one.judgement {
            Some(judgement) => figures.extend(of_run(judgement)),
            None => figures.resize(FIGURES.len(), None),
        }
        Case {
            name: &one.name,
            is_good: time <= GOOD,
            time,
            peak,
            figures,
        }
    });
    cases.collect()
}

/// The figures of a recorded run.
fn of_run(of: &InputJudgement) -> [Option<f64>; 6] {
    let count: u64 = of.operations.values().map(|o| o.count).sum();
    let each = |n: u64| (count >= MANY_OPERATIONS).then(|| n as f64 / count as f64);
    let thousand = |n: u64| each(n).map(|n| n * 1000.0);
    let calls: u64 = of.syscalls.iter().map(|c| c.count).sum();
    // Of little memory any ratio is chance.
    let is_much = of.memory.peak_heap_resident_bytes > Some(MUCH_MEMORY);
    let in_all = of.time.operations_ns.filter(|ns| *ns > 0);
    let waits = in_all.map(|all| of.time.waited_ns as f64 / all as f64);
    [
        in_all.and_then(each),
        waits
            .filter(|_| count >= MANY_OPERATIONS)
            .map(|waits| waits.min(1.0)),
        thousand(calls),
        thousand(of.faults.inside),
        of.memory
            .internal_fragmentation
            .map(|lost| 1.0 / (1.0 - lost).max(0.01)),
        of.memory.blowup.filter(|_| is_much),
    ]
}

fn standings(programs: &[Vec<Case<'_>>]) -> Vec<Standing> {
    let mut by_name: BTreeMap<&str, Vec<&Case<'_>>> = BTreeMap::new();
    for case in programs.iter().flatten() {
        by_name.entry(case.name).or_default().push(case);
    }
    let mean = |numbers: &mut dyn Iterator<Item = f64>| {
        let logarithms: Vec<f64> = numbers.map(f64::ln).filter(|n| n.is_finite()).collect();
        let n = logarithms.len();
        (n > 0).then(|| (logarithms.iter().sum::<f64>() / n as f64).exp())
    };
    let mut all: Vec<Standing> = by_name
        .into_iter()
        .map(|(name, cases)| Standing {
            name: name.to_owned(),
            programs: cases.len(),
            good: cases.iter().filter(|c| c.is_good).count(),
            time: mean(&mut cases.iter().map(|c| c.time)).unwrap_or(f64::INFINITY),
            peak: mean(&mut cases.iter().filter_map(|c| c.peak)),
        })
        .collect();
    all.sort_by(|a, b| a.time.total_cmp(&b.time));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(program: &str, times: &[(&str, f64, f64)]) -> Input {
        let one = |(name, time, faults): &(&str, f64, f64)| {
            serde_json::json!({
                "name": name,
                "wall": { "ratio": time, "interval": null },
                "cpu": null,
                "peak": { "ratio": 2.0, "interval": null },
                "mean": null,
                "judgement": {
                    "operations": { "malloc": { "count": 10_000 } },
                    "time": { "operations_ns": 500_000, "waited_ns": 0 },
                    "syscalls": [{ "count": 30 }],
                    "faults": { "inside": 10 * *faults as u64 },
                    "memory": {
                        "internal_fragmentation": 0.5, "blowup": 3.0, "peak_heap_resident_bytes": 4096,
                    },
                },
            })
        };
        let all: Vec<_> = times.iter().map(one).collect();
        let text = serde_json::json!({
            "schema": "varve-alloc-compare/1", "command": [program], "allocators": all,
        });
        serde_json::from_value(text).unwrap()
    }

    fn figure<'a>(of: &'a Ranges, name: &str) -> &'a Figure {
        of.figures.iter().find(|f| f.name == name).unwrap()
    }

    #[test]
    fn the_range_of_the_good_is_without_those_that_are_slow() {
        let all = [
            comparison(
                "a",
                &[
                    ("fast", 0.5, 10.0),
                    ("near", 0.59, 20.0),
                    ("slow", 0.61, 900.0),
                ],
            ),
            comparison(
                "b",
                &[("fast", 1.1, 40.0), ("near", 1.0, 30.0), ("slow", 2.0, 5.0)],
            ),
        ];
        let found = range(&all, None);
        let time = figure(&found, "time, of the best");
        let (good, whole) = (time.good.unwrap(), time.all.unwrap());
        assert!((good.highest - 1.18).abs() < 1e-9 && (good.lowest - 1.0).abs() < 1e-9);
        assert!((whole.highest - 2.0).abs() < 1e-9 && whole.count == 6);
        let faults = figure(&found, "page faults to 1,000 operations");
        assert!((faults.good.unwrap().highest - 40.0).abs() < 1e-9);
        assert!((faults.all.unwrap().highest - 900.0).abs() < 1e-9);
        assert!(
            figure(&found, "resident memory for what was asked for")
                .all
                .is_none()
        );
        let names: Vec<(&str, usize)> = found
            .allocators
            .iter()
            .map(|a| (a.name.as_str(), a.good))
            .collect();
        assert_eq!(names, [("fast", 2), ("near", 2), ("slow", 0)]);
    }

    #[test]
    fn of_few_operations_nothing_is_said() {
        let mut few = comparison("a", &[("one", 1.0, 10.0)]);
        let judgement = few.allocators[0].judgement.as_mut().unwrap();
        judgement.operations.get_mut("malloc").unwrap().count = 500;
        let found = range(&[few], None);
        assert!(figure(&found, "ns an operation").all.is_none());
        assert!(figure(&found, "time, of the best").all.is_some());
    }

    #[test]
    fn what_is_graded_is_measured_by_the_others() {
        let all = [
            comparison("a", &[("new", 0.5, 500.0), ("old", 1.0, 10.0)]),
            comparison("b", &[("new", 1.1, 9.0), ("old", 1.0, 10.0)]),
        ];
        let found = range(&all, Some("new"));
        let faults = figure(&found, "page faults to 1,000 operations");
        assert_eq!((faults.within, faults.graded.unwrap().count), (1, 2));
        assert_eq!(faults.all.unwrap().count, 2);
        let time = figure(&found, "time, of the best").graded.unwrap();
        assert!((time.lowest - 0.5).abs() < 1e-9 && (time.highest - 1.1).abs() < 1e-9);
    }
}
