//! Two sides beside one another.

use std::collections::BTreeMap;

use serde::Serialize;
use ts_rs::TS;
use varve_analyse::{FindingId, Known, format};
use varve_model::ObjectKind;

use crate::measure::{Measure, Unit};
use crate::notes;
use crate::pair::{Match, pair};
use crate::place::Identity;
use crate::run::{Item, Recording, Run, are_counted};
use crate::statistics::{Permutations, adjusted, median};

/// The version of the fields of a difference as JSON. Fields may be added under the same version.
pub const DIFF_SCHEMA: &str = "varve-diff/1";
/// What is believed to be more than noise is wrong in this share of its kind, at most.
pub const MAX_FALSE: f64 = 0.05;
/// Figures that are added up for the tests of one kind of figures, at most: half a second.
const MAX_WORK: u64 = 200_000_000;

/// The traces of one side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    /// The traces, in the order of runs.
    pub runs: Vec<Recording>,
}

/// How much chance there is in the figures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Noise {
    /// Whether both sides have several runs, so that it can be told from a difference.
    pub known: bool,
    /// The same in a sentence.
    pub statement: String,
    /// Ways to put the runs on two sides that the test looked at; null where there is none.
    pub permutations: Option<u64>,
    /// Whether these are all there are.
    pub exact: bool,
    /// The least `p` that so many runs can have.
    pub least_p: Option<f64>,
}

/// Whether a figure differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(rename = "DiffVerdict")]
pub enum Verdict {
    /// Both sides have the same values, in whatever order of their runs.
    Same,
    /// It differs, and nobody knows whether by chance.
    NoiseUnknown,
    /// Chance alone would hardly do that.
    MoreThanNoise,
    /// No run of a side lies among those of the other, but chance alone may do that with so few runs, or in one of so many figures.
    Apart,
    /// Chance alone may do that.
    WithinNoise,
    /// It is not known of both sides.
    NotKnown,
}

/// A figure of the runs of a side.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
#[ts(rename = "DiffValues")]
pub struct Values {
    /// Of each run; null where not known.
    pub runs: Vec<Option<f64>>,
    /// The median of those that are known.
    pub median: Option<f64>,
    /// The least.
    pub min: Option<f64>,
    /// The most.
    pub max: Option<f64>,
    /// Whether it may be more: a trace may lack something that it depends on, or others may have touched some of the pages.
    pub at_least: bool,
    /// Why it is not known, where it is not.
    pub why: Option<String>,
}

/// A figure of both sides.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
#[ts(rename = "DiffFigure")]
pub struct Figure {
    /// What it is.
    pub measure: Measure,
    /// What it counts.
    pub unit: Unit,
    /// The first side.
    pub a: Values,
    /// The second side.
    pub b: Values,
    /// From the median of the first to that of the second; null where one is not known.
    pub change: Option<f64>,
    /// The second's median for each of the first's; null where that is nothing or not known.
    pub ratio: Option<f64>,
    /// How likely chance alone makes the means differ so, by a permutation test; null without several runs a side.
    pub p: Option<f64>,
    /// The same for one of many figures: believing all up to some `q` is wrong in this share of them (Benjamini-Hochberg).
    pub q: Option<f64>,
    /// Whether it differs.
    pub verdict: Verdict,
}

/// The objects of a site, a function or a line, on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
#[ts(rename = "DiffRow")]
pub struct Row {
    /// What the objects are; null of code.
    pub kind: Option<ObjectKind>,
    /// What it is called on the first side; null where it is only on the second.
    pub a: Option<String>,
    /// What it is called on the second side; null where it is only on the first.
    pub b: Option<String>,
    /// How they were found to be the same; null where it is on one side only.
    #[serde(rename = "match")]
    pub matched: Option<Match>,
    /// The same in words, where they were not found by name, function and line; null elsewhere.
    pub how: Option<String>,
    /// The figures that any side has.
    pub figures: Vec<Figure>,
    /// The groups of objects in the analyses of the first run of A and of B that it is made of, by position.
    #[serde(skip)]
    pub groups: [Vec<u32>; 2],
}

impl Row {
    /// A figure.
    pub fn figure(&self, measure: Measure) -> Option<&Figure> {
        self.figures.iter().find(|f| f.measure == measure)
    }

    /// What it is called, on the second side where it is there.
    pub fn name(&self) -> &str {
        let name = self.b.as_deref().or(self.a.as_deref());
        name.unwrap_or_default()
    }
}

/// What became of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "snake_case")]
#[ts(rename = "DiffFate")]
pub enum Fate {
    /// No run of the first side has it, and all of the second do.
    Came,
    /// All runs of the first side have it, and none of the second.
    Went,
    /// All runs have it.
    Stayed,
    /// Some runs have it, and some of the same side do not.
    Wavers,
}

/// A finding of either side.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
#[ts(rename = "DiffFindingChange")]
pub struct FindingChange {
    /// The rule.
    #[ts(type = "string")]
    pub id: FindingId,
    /// What became of it.
    pub fate: Fate,
    /// What it said on the first side, in the first run that has it.
    pub a: Option<String>,
    /// What it said on the second side.
    pub b: Option<String>,
    /// How many runs of each side have it.
    pub runs: (u64, u64),
}

/// What the lists leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Omitted {
    /// The most objects that a run has beyond those that are compared: the smallest.
    pub objects: u64,
    /// Whether a run has more lines of code than are compared.
    pub lines: bool,
}

/// What two sides differ in.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diff {
    /// [`DIFF_SCHEMA`].
    pub schema: &'static str,
    /// The first side.
    pub a: Side,
    /// The second side.
    pub b: Side,
    /// How much chance there is in the figures.
    pub noise: Noise,
    /// What is unlike in the recordings themselves, and what was matched how: a sentence each.
    pub notes: Vec<String>,
    /// Figures of the program.
    pub program: Vec<Figure>,
    /// Objects by site, largest change of touched memory first; those of one side only are among them.
    pub objects: Vec<Row>,
    /// Functions by the time of their accesses, largest change first.
    pub functions: Vec<Row>,
    /// Lines of code, likewise.
    pub lines: Vec<Row>,
    /// Findings of either side.
    pub findings: Vec<FindingChange>,
    /// What the lists leave out.
    pub omitted: Omitted,
    /// Figures and findings that are not the same on both sides, however little they differ.
    pub differences: u64,
}

/// Compares two sides, each of one run or several.
pub fn diff(a: &[Run], b: &[Run]) -> Diff {
    let test = Permutations::new(a.len(), b.len());
    let side = |of: &[Run]| Side {
        runs: of.iter().map(|r| r.recording.clone()).collect(),
    };
    let mut program = program(a, b);
    decide(program.iter_mut(), test.as_ref());
    let list = |measures: &[Measure], in_order, of: List| {
        let mut found = rows(a, b, measures, in_order, of);
        finish(&mut found, test.as_ref());
        found
    };
    let objects = list(&Measure::OF_OBJECTS, true, |r| (&r.objects, r.omitted == 0));
    let functions = list(&Measure::OF_CODE, false, |r| (&r.functions, r.knows_code));
    let lines = list(&Measure::OF_CODE, false, |r| (&r.lines, r.knows_code));
    let findings = findings(a, b);
    let lists = [&objects, &functions, &lines];
    let of_lists = lists.into_iter().flatten().flat_map(|r| &r.figures);
    let differs = |f: &&Figure| !matches!(f.verdict, Verdict::Same | Verdict::NotKnown);
    let differences = program.iter().chain(of_lists).filter(differs).count()
        + findings
            .iter()
            .filter(|f| f.differs(a.len(), b.len()))
            .count();
    let both = || a.iter().chain(b);
    Diff {
        schema: DIFF_SCHEMA,
        a: side(a),
        b: side(b),
        noise: noise(a.len(), b.len(), test.as_ref()),
        notes: notes::notes(a, b, &objects),
        program,
        objects,
        functions,
        lines,
        findings,
        omitted: Omitted {
            objects: both().map(|r| r.omitted).max().unwrap_or(0),
            lines: both().any(|r| r.lacks_lines),
        },
        differences: differences as u64,
    }
}

fn noise(a: usize, b: usize, test: Option<&Permutations>) -> Noise {
    let statement = match test {
        None => "noise is unknown: a side of one run does not show how much runs of the same program differ, so nothing here is called more than noise".to_owned(),
        Some(test) if test.least() > MAX_FALSE => format!(
            "{a} runs beside {b} are too few to tell any difference from noise: chance alone can put the runs so with p = {:.2}; with 4 runs a side it is 0.03",
            test.least()
        ),
        Some(test) => format!(
            "{a} runs beside {b}: p is how likely chance alone makes a difference as large, by {} arrangements of the runs on two sides ({}); q is p adjusted for how many figures of the kind are compared, and of {MAX_FALSE} at most is called more than noise",
            format::count(test.ways()),
            if test.is_exact { "all there are" } else { "drawn" }
        ),
    };
    Noise {
        known: test.is_some(),
        statement,
        permutations: test.map(Permutations::ways),
        exact: test.is_some_and(|t| t.is_exact),
        least_p: test.map(Permutations::least),
    }
}

impl FindingChange {
    /// Whether sides of so many runs differ in it: not where as large a share of each has it.
    pub fn differs(&self, runs_of_a: usize, runs_of_b: usize) -> bool {
        let (a, b) = (u128::from(self.runs.0), u128::from(self.runs.1));
        a * runs_of_b as u128 != b * runs_of_a as u128
    }
}

impl Values {
    fn of(runs: Vec<Option<f64>>, at_least: bool, why: Option<String>) -> Values {
        let known: Vec<f64> = runs.iter().copied().flatten().collect();
        Values {
            median: median(&known),
            min: known.iter().copied().reduce(f64::min),
            max: known.iter().copied().reduce(f64::max),
            at_least: at_least && !known.is_empty(),
            why: why.filter(|_| known.len() < runs.len()),
            runs,
        }
    }

    fn known(&self) -> Option<Vec<f64>> {
        self.runs.iter().copied().collect()
    }

    /// Whether both have the same values, each as often; of unlike numbers of runs, whether all are one value.
    fn is_like(&self, other: &Values) -> bool {
        let sorted = |of: &Values| {
            let mut runs = of.runs.clone();
            runs.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
            runs
        };
        let (a, b) = (sorted(self), sorted(other));
        let first = a.first().copied().flatten();
        a == b || first.is_some() && a.iter().chain(&b).all(|v| *v == first)
    }
}

impl Figure {
    fn of(measure: Measure, a: Values, b: Values) -> Figure {
        let both = a.median.zip(b.median);
        let verdict = match both {
            None => Verdict::NotKnown,
            Some(_) if a.is_like(&b) => Verdict::Same,
            Some(_) => Verdict::NoiseUnknown,
        };
        Figure {
            measure,
            unit: measure.unit(),
            change: both.map(|(a, b)| b - a),
            ratio: both.filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a),
            a,
            b,
            p: None,
            q: None,
            verdict,
        }
    }

    /// Whether no run of a side lies among those of the other.
    fn is_apart(&self) -> bool {
        let ends = (self.a.min.zip(self.a.max)).zip(self.b.min.zip(self.b.max));
        ends.is_some_and(|((a, to_a), (b, to_b))| to_a < b || to_b < a)
    }
}

/// Tests figures of one kind together, and says of each whether it differs. What is the same in all runs is not tested:
/// that does not depend on which run is on which side.
fn decide<'a>(figures: impl Iterator<Item = &'a mut Figure>, test: Option<&Permutations>) {
    let Some(test) = test else { return };
    let is_known = |f: &&mut Figure| f.a.known().is_some() && f.b.known().is_some();
    let differs = figures.filter(|f| f.verdict == Verdict::NoiseUnknown);
    let mut tested: Vec<&mut Figure> = differs.filter(is_known).collect();
    // Of very many the largest are tested, which does not depend on which run is on which side either.
    let most = (MAX_WORK / test.work().max(1)) as usize;
    if tested.len() > most {
        let size = |f: &Figure| f.a.max.unwrap_or(0.0).max(f.b.max.unwrap_or(0.0));
        tested.sort_by(|a, b| size(b).total_cmp(&size(a)));
        tested.truncate(most);
    }
    for figure in &mut tested {
        if let Some((a, b)) = figure.a.known().zip(figure.b.known()) {
            figure.p = Some(test.p(&a, &b));
        }
    }
    let p: Vec<f64> = tested.iter().filter_map(|f| f.p).collect();
    for (figure, q) in tested.into_iter().zip(adjusted(&p)) {
        figure.q = Some(q);
        figure.verdict = match q <= MAX_FALSE {
            true => Verdict::MoreThanNoise,
            false if figure.is_apart() => Verdict::Apart,
            false => Verdict::WithinNoise,
        };
    }
}

fn program(a: &[Run], b: &[Run]) -> Vec<Figure> {
    let is_counted = are_counted(a.iter().chain(b));
    let values = |runs: &[Run], measure| {
        let all = runs.iter().map(|r| r.figure(measure, is_counted));
        let all: Vec<Known<f64>> = all.collect();
        let bound = all.iter().any(|k| matches!(k, Known::AtLeast(_)));
        let why = all.iter().find_map(|k| match k {
            Known::Absent(why) => Some(why.clone()),
            _ => None,
        });
        Values::of(all.iter().map(|k| k.value().copied()).collect(), bound, why)
    };
    let of = |m: &Measure| Figure::of(*m, values(a, *m), values(b, *m));
    Measure::OF_PROGRAM.iter().map(of).collect()
}

/// What the runs of a side have of one thing, by run.
struct Member {
    identity: Identity,
    name: String,
    /// Whether its figures of touches are lower bounds in a run.
    is_bound: bool,
    /// Of the first run.
    groups: Vec<u32>,
    runs: Vec<Option<Vec<Option<f64>>>>,
}

/// What a run has of something, and whether that is all of it, so that what is not there is nothing.
type List = fn(&Run) -> (&[Item], bool);

/// The runs of one side.
struct Listed {
    members: Vec<Member>,
    /// By run and measure: whether what is not there is nothing, rather than not known.
    knows: Vec<Vec<bool>>,
    /// Whether all figures of touches are lower bounds.
    is_bound: bool,
}

fn listed(runs: &[Run], measures: &[Measure], list: List) -> Listed {
    let mut all: BTreeMap<&Identity, Member> = BTreeMap::new();
    let mut knows = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let (items, is_whole) = list(run);
        let some = |m: usize| items.iter().any(|i| i.figures.get(m) != Some(&None));
        knows.push((0..measures.len()).map(|m| is_whole && some(m)).collect());
        for item in items {
            let of = all.entry(&item.identity).or_insert_with(|| Member {
                identity: item.identity.clone(),
                name: item.name.clone(),
                is_bound: false,
                groups: Vec::new(),
                runs: vec![None; runs.len()],
            });
            of.is_bound |= item.is_bound;
            if at == 0 {
                of.groups.clone_from(&item.groups);
            }
            of.runs[at] = Some(item.figures.clone());
        }
    }
    Listed {
        members: all.into_values().collect(),
        knows,
        is_bound: runs.iter().any(|r| !r.recording.has_all_of_objects()),
    }
}

impl Listed {
    /// A figure of one of them, or of what this side does not have.
    fn values(&self, of: Option<usize>, measures: &[Measure], at: usize) -> Values {
        let member = of.map(|i| &self.members[i]);
        let of_run = |run: usize| match member.and_then(|m| m.runs[run].as_ref()) {
            Some(figures) => figures.get(at).copied().flatten(),
            None if measures[at] == Measure::MedianLife => None,
            None => self.knows[run][at].then_some(0.0),
        };
        let runs = (0..self.knows.len()).map(of_run).collect();
        let is_bound = self.is_bound || member.is_some_and(|m| m.is_bound);
        Values::of(runs, is_bound && measures[at].is_of_touches(), None)
    }
}

fn rows(a: &[Run], b: &[Run], measures: &[Measure], in_order: bool, list: List) -> Vec<Row> {
    let (of_a, of_b) = (listed(a, measures, list), listed(b, measures, list));
    let identities = |of: &Listed| {
        let all = of.members.iter().map(|m| m.identity.clone());
        all.collect::<Vec<_>>()
    };
    let found = pair(&identities(&of_a), &identities(&of_b), in_order);
    let row = |a: Option<usize>, b: Option<usize>, by: Option<Match>| {
        let figure = |at: usize| {
            let (a, b) = (of_a.values(a, measures, at), of_b.values(b, measures, at));
            Figure::of(measures[at], a, b)
        };
        let is_some = |f: &Figure| f.a.median.is_some() || f.b.median.is_some();
        let (a, b) = (a.map(|i| &of_a.members[i]), b.map(|i| &of_b.members[i]));
        let is_code = measures.len() == Measure::OF_CODE.len();
        Row {
            kind: a.or(b).map(|m| m.identity.kind).filter(|_| !is_code),
            how: a
                .zip(b)
                .zip(by)
                .and_then(|((a, b), by)| notes::how(by, &a.identity.place, &b.identity.place)),
            a: a.map(|m| m.name.clone()),
            b: b.map(|m| m.name.clone()),
            matched: by,
            figures: (0..measures.len()).map(figure).filter(is_some).collect(),
            groups: [a, b].map(|m| m.map(|m| m.groups.clone()).unwrap_or_default()),
        }
    };
    let paired = found.pairs.iter();
    let paired = paired.map(|p| row(Some(p.a), Some(p.b), Some(p.by)));
    let only_a = found.only_a.iter().map(|&i| row(Some(i), None, None));
    let only_b = found.only_b.iter().map(|&i| row(None, Some(i), None));
    paired.chain(only_a).chain(only_b).collect()
}

/// Tests the figures of a list by measure, and sorts the list by what changed most.
fn finish(rows: &mut [Row], test: Option<&Permutations>) {
    for measure in Measure::ALL {
        let figures = rows.iter_mut().flat_map(|r| &mut r.figures);
        decide(figures.filter(|f| f.measure == *measure), test);
    }
    let rank = |row: &Row| {
        let change = |m| {
            let figure = row.figure(m);
            figure.and_then(|f| f.change).map_or(0.0, f64::abs)
        };
        [
            change(Measure::Touched),
            change(Measure::AccessTime),
            change(Measure::Bytes),
            change(Measure::PageTouches),
        ]
    };
    rows.sort_by(|a, b| {
        let (x, y) = (rank(a), rank(b));
        let order = x.iter().zip(&y).map(|(x, y)| y.total_cmp(x));
        let order = order.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then);
        order.then_with(|| a.name().cmp(b.name()))
    });
}

fn findings(a: &[Run], b: &[Run]) -> Vec<FindingChange> {
    let mut ids: Vec<FindingId> = a
        .iter()
        .chain(b)
        .flat_map(|r| r.findings.iter().map(|f| f.id))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    let of = |runs: &[Run], id| {
        let mut all = runs
            .iter()
            .filter_map(|r| r.findings.iter().find(|f| f.id == id));
        let first = all.next().map(|f| f.title.clone());
        let count = u64::from(first.is_some()) + all.count() as u64;
        (first, count)
    };
    let change = |id| {
        let ((a_says, in_a), (b_says, in_b)) = (of(a, id), of(b, id));
        let fate = match (in_a, in_b) {
            (0, n) if n == b.len() as u64 => Fate::Came,
            (n, 0) if n == a.len() as u64 => Fate::Went,
            (n, m) if n == a.len() as u64 && m == b.len() as u64 => Fate::Stayed,
            _ => Fate::Wavers,
        };
        FindingChange {
            id,
            fate,
            a: a_says,
            b: b_says,
            runs: (in_a, in_b),
        }
    };
    ids.into_iter().map(change).collect()
}
