//! Budgets: what a program may use, and whether it keeps to that.
//!
//! A budget that nobody can judge is not kept: it is reported as such, with the reason.

use serde::Serialize;
use varve_analyse::{FindingId, Known, format};
use varve_model::{Bytes, Duration};

use crate::diff::diff;
use crate::measure::{Measure, Unit};
use crate::pattern::is_named;
use crate::run::{Item, Run, are_counted};
use crate::statistics::median;

/// The version of the fields of a check as JSON. Fields may be added under the same version.
pub const CHECK_SCHEMA: &str = "varve-check/1";
/// Objects that the evidence of a broken budget names.
const NAMES: usize = 3;

/// What a program may use.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "rule", rename_all = "snake_case")]
pub enum Budget {
    /// A figure of the program is this at most, in every run.
    Program {
        /// Which.
        measure: Measure,
        /// The most.
        max: f64,
    },
    /// A figure of the objects of a name, all together, is this at most, in every run. Memory that several of them share counts once.
    Objects {
        /// The name; `*` and `?` stand for letters.
        name: String,
        /// Which figure.
        measure: Measure,
        /// The most.
        max: f64,
    },
    /// No run has this finding.
    NoFinding {
        /// The word of reports.
        finding: String,
        /// Only where it is about an object of this name.
        object: Option<String>,
    },
    /// The median of a figure of the program has grown by this share of the baseline's at most.
    Growth {
        /// Which.
        measure: Measure,
        /// The share: 0.05 are 5 %.
        max: f64,
    },
}

/// What became of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It holds.
    Holds,
    /// It does not.
    Broken,
    /// Nobody knows.
    NotJudged,
}

/// A budget, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The budget.
    pub budget: Budget,
    /// As a person says it.
    pub title: String,
    /// What became of it.
    pub outcome: Outcome,
    /// The figure of each run; null where not known or where there is none.
    pub values: Vec<Option<f64>>,
    /// Where it is broken: by how much, and by which objects. Where it cannot be judged: why. Else what was found.
    pub evidence: String,
}

/// What a check says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// [`CHECK_SCHEMA`].
    pub schema: &'static str,
    /// The runs, as they are named.
    pub traces: Vec<String>,
    /// What they are compared with; empty where no budget asks for it.
    pub baseline: Vec<String>,
    /// The budgets, in their order.
    pub budgets: Vec<Judged>,
    /// Runs that failed by themselves: which, and how.
    pub failed: Vec<FailedRun>,
    /// What became of all together: broken where any is, else not judged where any is.
    pub outcome: Outcome,
}

/// A run of a program that failed by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailedRun {
    /// Its trace.
    pub trace: String,
    /// The exit code, or 128 and the signal.
    pub exit_code: i32,
}

/// Judges runs by budgets. `expected` is the exit code with which the program ends when it does not fail.
pub fn check(budgets: &[Budget], runs: &[Run], baseline: &[Run], expected: i32) -> Check {
    let judged: Vec<Judged> = budgets
        .iter()
        .map(|budget| judge(budget, runs, baseline))
        .collect();
    let name = |r: &Run| r.recording.trace.display().to_string();
    let failed = runs.iter().filter_map(|r| {
        let exit_code = r.recording.exit_code.filter(|code| *code != expected)?;
        let trace = name(r);
        Some(FailedRun { trace, exit_code })
    });
    let any = |outcome| judged.iter().any(|j| j.outcome == outcome);
    Check {
        schema: CHECK_SCHEMA,
        traces: runs.iter().map(name).collect(),
        baseline: baseline.iter().map(name).collect(),
        failed: failed.collect(),
        outcome: match (any(Outcome::Broken), any(Outcome::NotJudged)) {
            (true, _) => Outcome::Broken,
            (false, true) => Outcome::NotJudged,
            (false, false) => Outcome::Holds,
        },
        budgets: judged,
    }
}

/// A figure as a person reads it.
pub fn amount(value: f64, unit: Unit) -> String {
    // Counts and sizes are far below the numbers that a float does not hold.
    let whole = value.round().max(0.0) as u64;
    match unit {
        Unit::Bytes => format::bytes(Bytes(whole)),
        Unit::Ns => format::duration(Duration(whole)),
        Unit::Count => format::count(whole),
        Unit::Share => format::share(value),
    }
}

impl Budget {
    /// As a person says it.
    pub fn title(&self) -> String {
        match self {
            Budget::Program { measure, max } => {
                format!(
                    "{} at most {}",
                    measure.title(),
                    amount(*max, measure.unit())
                )
            }
            Budget::Objects { name, measure, max } => format!(
                "{} of objects {name} at most {}",
                measure.title(),
                amount(*max, measure.unit())
            ),
            Budget::NoFinding { finding, object } => match object {
                Some(object) => format!("no finding {finding} of objects {object}"),
                None => format!("no finding {finding}"),
            },
            Budget::Growth { measure, max } => format!(
                "{} at most {} % above the baseline",
                measure.title(),
                round(max * 100.0)
            ),
        }
    }
}

/// Without the digits that a binary fraction adds.
fn round(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn judge(budget: &Budget, runs: &[Run], baseline: &[Run]) -> Judged {
    let (outcome, values, evidence) = match budget {
        Budget::Program { measure, max } => program(*measure, *max, runs),
        Budget::Objects { name, measure, max } => objects(name, *measure, *max, runs),
        Budget::NoFinding { finding, object } => no_finding(finding, object.as_deref(), runs),
        Budget::Growth { measure, max } => growth(*measure, *max, runs, baseline),
    };
    Judged {
        budget: budget.clone(),
        title: budget.title(),
        outcome,
        values,
        evidence,
    }
}

type Verdict = (Outcome, Vec<Option<f64>>, String);

/// Why a figure is a lower bound: of the program, and of objects where no trace lacks anything.
const NOT_COMPLETE: &str = "a trace is not complete";
const OF_OTHERS: &str = "others may have touched pages of these objects, and the program with them";

/// What a figure of every run says of a limit: broken where one is beyond it, also where that one is a lower bound, for the reason `bound`.
fn limited(
    values: &[Known<f64>],
    max: f64,
    unit: Unit,
    bound: &str,
    why: impl Fn(usize) -> String,
) -> Verdict {
    let plain: Vec<Option<f64>> = values.iter().map(|k| k.value().copied()).collect();
    let shown = |value: f64| amount(value, unit);
    let worst = plain
        .iter()
        .enumerate()
        .filter_map(|(i, v)| Some((i, (*v)?)))
        .max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((at, value)) = worst.filter(|(_, value)| *value > max) {
        let beyond = plain.iter().flatten().filter(|v| **v > max).count();
        let runs = match plain.len() {
            1 => String::new(),
            n => format!(", in {beyond} of {n} runs"),
        };
        let least = match values[at] {
            Known::AtLeast(_) => "at least ",
            _ => "",
        };
        let why = why(at);
        let evidence = format!(
            "{least}{}, {} more than {}{runs}{}{why}",
            shown(value),
            shown(value - max),
            shown(max),
            if why.is_empty() { "" } else { ": " }
        );
        return (Outcome::Broken, plain, evidence);
    }
    let unknown = values.iter().find_map(|k| match k {
        Known::Absent(why) => Some(format!("not known: {why}")),
        Known::AtLeast(value) => Some(format!(
            "at least {}, as {bound}: how much more is not known",
            shown(*value)
        )),
        Known::Exact(_) => None,
    });
    match (unknown, worst) {
        (Some(why), _) => (Outcome::NotJudged, plain, why),
        (None, None) => (Outcome::NotJudged, plain, "there is no run".to_owned()),
        (None, Some((_, value))) => {
            let most = if plain.len() > 1 { "at most " } else { "" };
            (Outcome::Holds, plain, format!("{most}{}", shown(value)))
        }
    }
}

fn program(measure: Measure, max: f64, runs: &[Run]) -> Verdict {
    let is_counted = are_counted(runs.iter());
    let values = runs.iter().map(|r| r.figure(measure, is_counted));
    let values: Vec<Known<f64>> = values.collect();
    limited(
        &values,
        max,
        measure.unit(),
        NOT_COMPLETE,
        |at| match measure {
            Measure::Touched | Measure::PeakWorkingSet | Measure::MedianWorkingSet => {
                largest(&runs[at].objects, Measure::Touched)
            }
            Measure::PageTouches => largest(&runs[at].objects, Measure::PageTouches),
            Measure::AccessTime => largest(&runs[at].objects, Measure::AccessTime),
            _ => String::new(),
        },
    )
}

/// The place of a figure of objects among those that they have.
fn position(measure: Measure) -> Option<usize> {
    Measure::OF_OBJECTS.iter().position(|m| *m == measure)
}

fn figure(item: &Item, measure: Measure) -> Option<f64> {
    position(measure).and_then(|at| item.figures.get(at).copied().flatten())
}

/// The objects with the most of a figure: `plate (solver.c:12, in setup) 10 MiB, ...`.
fn largest<'a>(items: impl IntoIterator<Item = &'a Item>, measure: Measure) -> String {
    let mut all: Vec<(&Item, f64)> = items
        .into_iter()
        .filter_map(|i| Some((i, figure(i, measure)?)))
        .filter(|(_, value)| *value > 0.0)
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.name.cmp(&b.0.name)));
    let shown = all.iter().take(NAMES);
    let shown =
        shown.map(|(item, value)| format!("{} {}", item.name, amount(*value, measure.unit())));
    let text = shown.collect::<Vec<_>>().join("; ");
    match all.len() > NAMES {
        true => format!("{text}; and {} more", all.len() - NAMES),
        false => text,
    }
}

fn objects(name: &str, measure: Measure, max: f64, runs: &[Run]) -> Verdict {
    let of = |run: &Run| -> Known<f64> {
        let named: Vec<&Item> = run
            .objects
            .iter()
            .filter(|i| is_named(name, &i.name))
            .collect();
        if run.omitted > 0 {
            // What is left out may have the name; it is smaller than all others.
            let sum = named.iter().filter_map(|i| figure(i, measure)).sum();
            return Known::AtLeast(sum);
        }
        if named.is_empty() {
            return Known::Absent(format!(
                "no object is named {name} in {}",
                run.recording.trace.display()
            ));
        }
        let values: Option<Vec<f64>> = named.iter().map(|i| figure(i, measure)).collect();
        match values {
            None => Known::Absent(format!(
                "the trace does not know {} of these objects",
                measure.title()
            )),
            Some(values) => {
                let sum: f64 = values.iter().sum();
                let distinct = run.distinct(name).filter(|_| measure == Measure::Touched);
                let sum = distinct.map_or(sum, |distinct| sum.min(distinct));
                let is_bound =
                    !run.recording.has_all_of_objects() || named.iter().any(|i| i.is_bound);
                Known::of(sum, !is_bound || !measure.is_of_touches())
            }
        }
    };
    let values: Vec<Known<f64>> = runs.iter().map(of).collect();
    let bound = match runs.iter().all(|run| run.recording.has_all_of_objects()) {
        true => OF_OTHERS,
        false => NOT_COMPLETE,
    };
    limited(&values, max, measure.unit(), bound, |at| {
        let named = runs[at].objects.iter().filter(|i| is_named(name, &i.name));
        largest(named, measure)
    })
}

fn no_finding(finding: &str, object: Option<&str>, runs: &[Run]) -> Verdict {
    let values = vec![None; runs.len()];
    let mut found = Vec::new();
    for run in runs {
        let of = run.findings.iter().filter(|f| f.id.as_str() == finding);
        let of =
            of.filter(|f| object.is_none_or(|name| f.objects.iter().any(|o| is_named(name, o))));
        found.extend(of);
    }
    if let Some(first) = found.first() {
        let runs = match runs.len() {
            1 => String::new(),
            n => format!(" (in {} of {n} runs)", found.len()),
        };
        let evidence = format!("{}{runs}: {}", first.title, first.evidence);
        return (Outcome::Broken, values, evidence);
    }
    // What accesses would show is not looked for without them.
    if let Some(why) = runs.iter().find_map(|r| r.cannot_find(finding)) {
        return (Outcome::NotJudged, values, why);
    }
    (Outcome::Holds, values, "no run has it".to_owned())
}

fn growth(measure: Measure, max: f64, runs: &[Run], baseline: &[Run]) -> Verdict {
    let is_counted = are_counted(runs.iter().chain(baseline));
    let values = runs.iter().map(|r| r.figure(measure, is_counted));
    let values: Vec<Known<f64>> = values.collect();
    let plain: Vec<Option<f64>> = values.iter().map(|k| k.value().copied()).collect();
    let not = |why: String| (Outcome::NotJudged, plain.clone(), why);
    if baseline.is_empty() {
        return not("there is no baseline".to_owned());
    }
    let middle = |of: &[Run], whose: &str| -> Result<f64, String> {
        let all = of.iter().map(|r| r.figure(measure, is_counted));
        let all: Vec<Known<f64>> = all.collect();
        if let Some(Known::Absent(why)) = all.iter().find(|k| k.value().is_none()) {
            return Err(format!("not known of {whose}: {why}"));
        }
        if all.iter().any(|k| matches!(k, Known::AtLeast(_))) {
            return Err(format!(
                "a trace of {whose} is not complete: its figure is a bound"
            ));
        }
        let known: Vec<f64> = all.iter().filter_map(|k| k.value().copied()).collect();
        median(&known).ok_or_else(|| format!("there is no run of {whose}"))
    };
    let (before, now) = match (
        middle(baseline, "the baseline"),
        middle(runs, "the program"),
    ) {
        (Err(why), _) | (_, Err(why)) => return not(why),
        (Ok(before), Ok(now)) => (before, now),
    };
    let shown = |v| amount(v, measure.unit());
    let says = match before > 0.0 {
        true => format!(
            "{} after {} ({:+.1} %)",
            shown(now),
            shown(before),
            (now / before - 1.0) * 100.0
        ),
        false => format!("{} after {}", shown(now), shown(before)),
    };
    if now <= before * (1.0 + max) {
        return (Outcome::Holds, plain, says);
    }
    let found = diff(baseline, runs);
    let of_program = found.program.iter().find(|f| f.measure == measure);
    let chance = match of_program.and_then(|f| f.p) {
        Some(p) => format!("p = {p:.3}"),
        None => "noise is unknown with one run a side".to_owned(),
    };
    let by = match measure {
        Measure::PageTouches => Measure::PageTouches,
        Measure::AccessTime => Measure::AccessTime,
        _ => Measure::Touched,
    };
    let mut grown: Vec<(&str, f64)> = found
        .objects
        .iter()
        .filter_map(|row| Some((row.name(), row.figure(by)?.change?)))
        .filter(|(_, change)| *change > 0.0)
        .collect();
    grown.sort_by(|a, b| b.1.total_cmp(&a.1));
    let grown = grown.iter().take(NAMES);
    let grown = grown.map(|(name, change)| format!("{name} +{}", amount(*change, by.unit())));
    let grown = grown.collect::<Vec<_>>().join("; ");
    let evidence = match grown.is_empty() {
        true => format!("{says}; {chance}"),
        false => format!("{says}; {chance}; grew most: {grown}"),
    };
    (Outcome::Broken, plain, evidence)
}

/// The words of all findings.
pub fn finding_words() -> Vec<&'static str> {
    FindingId::ALL.iter().map(|id| id.as_str()).collect()
}

/// The finding that has this word.
pub fn finding(word: &str) -> Option<FindingId> {
    FindingId::ALL
        .iter()
        .copied()
        .find(|id| id.as_str() == word)
}
