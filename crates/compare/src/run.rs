//! One trace, as it is compared: its figures, objects, code and findings, in memory that depends on the sites.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Serialize;
use varve_analyse::{Analysis, FindingId, Group, Known, Touched};
use varve_model::{Capability, Duration, LossPart, ObjectKind, Pages};
use varve_trace::tables::MappingRow;
use varve_trace::{Trace, TraceError};

use crate::measure::Measure;
use crate::pattern::is_named;
use crate::place::{Identity, Place, Places, plain_function};
use crate::searched;
use crate::statistics::median;

/// Rows of each list of a run that are compared; what is beyond is counted.
pub const MAX_ROWS: usize = 20_000;

/// What was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recording {
    /// The trace.
    pub trace: PathBuf,
    /// The command line.
    pub command: Vec<String>,
    /// The exit code of the program; null where it ran on or nobody knows.
    pub exit_code: Option<i32>,
    /// Whether nothing that should be listed can be missing.
    pub complete: bool,
    /// The parts in which something may be missing; none where the trace is complete.
    pub incomplete: BTreeSet<LossPart>,
    /// The same in a sentence.
    pub statement: String,
    /// Which backend recorded.
    pub backend: String,
    /// How long.
    pub duration_ns: Duration,
    /// The median length of the intervals; null in a trace without.
    pub median_interval_ns: Option<Duration>,
    /// What of the trace is compared, in words; null where all is.
    pub selected: Option<String>,
    /// The kernel, and the CPU, of the machine; null where nobody said.
    pub machine: Option<String>,
}

impl Recording {
    /// Whether figures of the touches of its objects are whole: neither accessed pages nor objects can be missing.
    pub(crate) fn has_all_of_objects(&self) -> bool {
        !self.incomplete.iter().any(|part| part.concerns_objects())
    }
}

/// Figures by measure, one for each of a list.
pub(crate) type Figures = Vec<Option<f64>>;

/// What is compared of one thing in one run.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) identity: Identity,
    /// As reports call it.
    pub(crate) name: String,
    pub(crate) figures: Figures,
    /// Whether its figures of touches are lower bounds: others may have touched some of its pages, and the program with them.
    pub(crate) is_bound: bool,
    /// The groups of the analysis that it is made of, by position; none of code.
    pub(crate) groups: Vec<u32>,
}

/// A finding of a run.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) id: FindingId,
    pub(crate) title: String,
    pub(crate) evidence: String,
    /// The names of the objects it is about.
    pub(crate) objects: Vec<String>,
}

/// One trace, ready to be compared.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was recorded.
    pub recording: Recording,
    pub(crate) program: Vec<Known<f64>>,
    /// The most resident memory of the one process that there was, as the kernel counts it; none where that is not known.
    counted_peak: Option<f64>,
    pub(crate) objects: Vec<Item>,
    /// Objects that are left out, as there are too many.
    pub(crate) omitted: u64,
    pub(crate) lines: Vec<Item>,
    pub(crate) functions: Vec<Item>,
    /// Whether lines were left out, of which nothing is known.
    pub(crate) lacks_lines: bool,
    /// Whether the time of all code is known, so that what is not there took none.
    pub(crate) knows_code: bool,
    pub(crate) findings: Vec<Found>,
    /// Findings that the trace cannot show, and why.
    cannot: Vec<(FindingId, String)>,
    /// Build ids by the base name of the file.
    pub(crate) builds: BTreeMap<String, String>,
    /// Distinct touched memory of all objects of a name, by pattern: a page that several of them share counts once.
    distinct: HashMap<String, f64>,
}

impl Run {
    /// Of an analysis of a trace, or of the part of it that was chosen.
    ///
    /// # Errors
    /// A table that cannot be read.
    pub fn new(path: &Path, trace: &Trace, analysis: &Analysis) -> Result<Run, TraceError> {
        let labels: Vec<&str> = analysis
            .groups
            .iter()
            .filter_map(|g| g.site.as_deref())
            .collect();
        let places = Places::read(trace, &labels)?;
        let (objects, omitted) = objects(analysis, &places);
        let (lines, functions, lacks_lines) = code(analysis);
        let samples = analysis.samples.as_ref();
        let has_times = samples.is_some_and(|s| s.all.at_accesses().is_some_and(|t| t.0 > 0));
        let names: HashMap<_, &str> = analysis
            .objects
            .iter()
            .map(|o| (o.object, o.name.as_str()))
            .collect();
        let found = |f: &varve_analyse::Finding| {
            let mut objects: Vec<String> = Vec::new();
            for name in f.objects.iter().filter_map(|o| names.get(o)) {
                if !objects.iter().any(|o| o == name) {
                    objects.push((*name).to_owned());
                }
            }
            Found {
                id: f.id,
                title: f.title.clone(),
                evidence: f.evidence.clone(),
                objects,
            }
        };
        Ok(Run {
            recording: recording(path, trace, analysis),
            program: Measure::OF_PROGRAM
                .iter()
                .map(|m| of_program(*m, analysis))
                .collect(),
            counted_peak: counted_peak(analysis),
            objects,
            omitted,
            lines,
            functions,
            lacks_lines,
            knows_code: has_times && !lacks_lines,
            findings: analysis.findings.iter().map(found).collect(),
            cannot: searched::cannot(analysis),
            builds: builds(trace)?,
            distinct: HashMap::new(),
        })
    }

    /// Whether several objects have a name, so that what they touched is known only where somebody counts their pages together.
    pub fn has_several(&self, name: &str) -> bool {
        let named = self.objects.iter().filter(|i| is_named(name, &i.name));
        named.flat_map(|i| i.groups.iter()).nth(1).is_some()
    }

    /// Takes the distinct touched pages of all objects of a name.
    pub fn set_distinct(&mut self, name: &str, touched: Pages) {
        let bytes = touched.bytes().0 as f64;
        self.distinct.insert(name.to_owned(), bytes);
    }

    /// The same, where it was given.
    pub(crate) fn distinct(&self, name: &str) -> Option<f64> {
        self.distinct.get(name).copied()
    }

    /// Why a finding could not be found, where it could not.
    pub(crate) fn cannot_find(&self, finding: &str) -> Option<String> {
        let found = self.cannot.iter().find(|(id, _)| id.as_str() == finding);
        found.map(|(_, why)| why.clone())
    }

    /// A figure of the program, beside that of other runs. `is_counted`: the kernel has counted the resident memory of all of them
    /// ([`are_counted`]).
    pub(crate) fn figure(&self, measure: Measure, is_counted: bool) -> Known<f64> {
        if let (Measure::PeakResident, true, Some(peak)) = (measure, is_counted, self.counted_peak)
        {
            return Known::Exact(peak);
        }
        let at = Measure::OF_PROGRAM.iter().position(|m| *m == measure);
        at.and_then(|at| self.program.get(at).cloned())
            .unwrap_or_default()
    }
}

/// Intervals end at other moments in each run, and the most that was resident lies between them: what the kernel counts is the
/// same figure at each moment. Of several processes it has no sum.
fn counted_peak(a: &Analysis) -> Option<f64> {
    match (&a.processes[..], &a.footprint.peak_process_bytes) {
        ([_], Known::Exact(peak)) => Some(peak.0 as f64),
        _ => None,
    }
}

/// Whether the kernel has counted the resident memory of all runs, so that they are compared by it.
pub(crate) fn are_counted<'a>(mut runs: impl Iterator<Item = &'a Run>) -> bool {
    runs.all(|run| run.counted_peak.is_some())
}

fn recording(path: &Path, trace: &Trace, analysis: &Analysis) -> Recording {
    let facts = &analysis.trace;
    Recording {
        trace: path.to_owned(),
        command: facts.command.clone(),
        exit_code: facts.exit_code,
        complete: facts.complete,
        incomplete: facts.incomplete.clone(),
        statement: facts.statement.clone(),
        backend: trace.manifest.backend.as_str().to_owned(),
        duration_ns: facts.duration_ns,
        median_interval_ns: facts.median_interval_ns.value().copied(),
        selected: facts.selected.clone(),
        machine: facts
            .machine
            .value()
            .map(|m| format!("Linux {} on {}", m.kernel, m.cpu)),
    }
}

fn of_program(measure: Measure, a: &Analysis) -> Known<f64> {
    let pages = |known: &Known<varve_model::Pages>| known.map(|p| p.bytes().0 as f64);
    let f = &a.footprint;
    let has = |c: Capability| a.trace.capabilities.contains(&c);
    let lacks = |what: &str| Known::Absent(format!("the trace has no {what}"));
    let sum = |of: fn(&Group) -> Option<u64>| {
        let all: Option<Vec<u64>> = a.groups.iter().map(of).collect();
        match all.filter(|_| has(Capability::Lives)) {
            Some(all) => Known::Exact(all.iter().map(|n| *n as f64).sum()),
            None => lacks("lives of objects"),
        }
    };
    match measure {
        Measure::Touched => pages(&f.touched_pages),
        Measure::PeakWorkingSet => pages(&f.peak_working_set_pages),
        Measure::MedianWorkingSet => a.working_set.map(|all| {
            let sizes: Vec<f64> = all.iter().map(|w| w.pages.bytes().0 as f64).collect();
            median(&sizes).unwrap_or(0.0)
        }),
        Measure::PageTouches => f.page_touches.map(|n| *n as f64),
        Measure::PeakResident => pages(&f.peak_resident_pages),
        Measure::Faults => f.faults.map(|n| *n as f64),
        Measure::Unowned => a.unowned.map(|u| u.touched_pages.bytes().0 as f64),
        Measure::AccessTime => match &a.samples {
            None => lacks("samples"),
            Some(samples) => match samples.all.at_accesses() {
                None => Known::Absent("its samples have no weight in time".to_owned()),
                // Few samples, as those of a short run: the program accessed memory all the same.
                Some(Duration(0)) => Known::Absent("no access of its samples is known".to_owned()),
                Some(time) => Known::Exact(time.0 as f64),
            },
        },
        Measure::Objects => sum(|g| Some(g.objects)),
        Measure::Died => sum(|g| g.died),
        Measure::Duration => Known::Exact(a.trace.duration_ns.0 as f64),
        Measure::Held => a
            .overhead
            .map(|o| o.held_ns.0 as f64 / (o.held_of_ns.0 as f64).max(1.0)),
        Measure::MedianLife | Measure::Bytes | Measure::PeakBytes => {
            Known::Absent("it is known of objects alone".to_owned())
        }
    }
}

/// The objects of a site, those that are one by name and place put together.
fn objects(a: &Analysis, places: &Places) -> (Vec<Item>, u64) {
    let mut times: HashMap<(ObjectKind, &str), Option<u64>> = HashMap::new();
    let samples = a.samples.as_ref();
    for o in samples.iter().flat_map(|s| &s.objects) {
        let time = o.sampled.access_ns.map(|t| t.0);
        let of = times.entry((o.kind, &o.name)).or_insert(Some(0));
        *of = of.zip(time).map(|(sum, time)| sum + time);
    }
    let mut names: HashMap<(ObjectKind, &str), u32> = HashMap::new();
    for group in &a.groups {
        *names.entry((group.kind, &group.name)).or_default() += 1;
    }
    let time = |group: &Group| {
        let key = (group.kind, group.name.as_str());
        let samples = samples.filter(|s| s.all.access_ns.is_some_and(|t| t.0 > 0))?;
        // Any object may have the time at addresses that are gone.
        samples.all.gone().is_none().then_some(())?;
        // Samples know objects by their names alone.
        (names.get(&key) == Some(&1)).then_some(())?;
        match times.get(&key) {
            Some(time) => *time,
            None => (samples.omitted.objects == 0).then_some(0),
        }
    };
    let mut all: BTreeMap<Identity, Item> = BTreeMap::new();
    for (at, group) in (0..).zip(&a.groups) {
        let identity = Identity::of(group.kind, &group.name, group.site.as_deref(), places);
        let figures = of_group(group, time(group));
        let touched = group.usage.touched.get();
        let is_bound = touched.is_some_and(Touched::is_bound);
        match all.get_mut(&identity) {
            Some(item) => {
                add(&mut item.figures, &figures);
                item.is_bound |= is_bound;
                item.groups.push(at);
            }
            None => {
                let item = Item {
                    identity: identity.clone(),
                    name: group.name.clone(),
                    figures,
                    is_bound,
                    groups: vec![at],
                };
                all.insert(identity, item);
            }
        }
    }
    let mut items: Vec<Item> = all.into_values().collect();
    let omitted = items.len().saturating_sub(MAX_ROWS) as u64;
    if omitted > 0 {
        items.sort_by(|a, b| size(b).total_cmp(&size(a)));
        items.truncate(MAX_ROWS);
        items.sort_by(|a, b| a.identity.cmp(&b.identity));
    }
    (items, omitted)
}

/// What says which of many are worth a row.
fn size(item: &Item) -> f64 {
    let of = |at: usize| item.figures.get(at).copied().flatten().unwrap_or(0.0);
    // Touched memory, else allocated.
    of(0) + of(6) / 1024.0
}

fn of_group(group: &Group, time: Option<u64>) -> Figures {
    let touched = group.usage.touched.get();
    let of = |measure: &Measure| match measure {
        Measure::Touched => touched.map(|t| t.touched_bytes.0),
        Measure::PageTouches => touched.map(|t| t.page_touches),
        Measure::AccessTime => time,
        Measure::Objects => Some(group.objects),
        Measure::Died => group.died,
        Measure::MedianLife => group.median_life_ns.map(|l| l.0),
        Measure::Bytes => group.bytes.map(|b| b.0),
        Measure::PeakBytes => group.peak_bytes.map(|b| b.0),
        _ => None,
    };
    let all = Measure::OF_OBJECTS.iter().map(of);
    all.map(|n| n.map(|n| n as f64)).collect()
}

/// Adds up what is one thing under several names, as the stacks of threads of one name. There is no median of medians.
fn add(sum: &mut Figures, more: &Figures) {
    for ((sum, more), measure) in sum.iter_mut().zip(more).zip(Measure::OF_OBJECTS) {
        *sum = match measure {
            Measure::MedianLife => None,
            _ => sum.zip(*more).map(|(a, b)| a + b),
        };
    }
}

/// The lines and the functions at which time went to accesses, and whether lines were left out.
fn code(a: &Analysis) -> (Vec<Item>, Vec<Item>, bool) {
    let Some(samples) = &a.samples else {
        return Default::default();
    };
    let mut lines: BTreeMap<Identity, Item> = BTreeMap::new();
    let mut functions: BTreeMap<Identity, Item> = BTreeMap::new();
    for line in &samples.lines {
        let Some(time) = line.at_accesses() else {
            continue;
        };
        let number = line.line.map(u64::from);
        let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let of_function = Place {
            function: line.function.as_deref().map(plain_function),
            file: line.file.as_deref().or(line.module.as_deref()).map(base),
            ..Place::default()
        };
        let begins = line.function_line.map(u64::from);
        let of_line = Place {
            line: number,
            offset: number.zip(begins).and_then(|(n, at)| n.checked_sub(at)),
            ..of_function.clone()
        };
        let called = |place: &Place| match (&place.function, &place.file) {
            (Some(function), Some(file)) => format!("{function} ({file})"),
            (Some(name), None) | (None, Some(name)) => name.clone(),
            (None, None) => "code of no known file".to_owned(),
        };
        let add = |all: &mut BTreeMap<Identity, Item>, place: Place, name: String| {
            let identity = Identity {
                kind: ObjectKind::Static,
                stem: String::new(),
                place,
            };
            let item = all.entry(identity.clone()).or_insert_with(|| Item {
                identity,
                name,
                figures: vec![Some(0.0)],
                is_bound: false,
                groups: Vec::new(),
            });
            for sum in item.figures.iter_mut().flatten() {
                *sum += time.0 as f64;
            }
        };
        if number.is_some() {
            add(&mut lines, of_line, line.place());
        }
        let name = called(&of_function);
        add(&mut functions, of_function, name);
    }
    (
        lines.into_values().collect(),
        functions.into_values().collect(),
        samples.omitted.lines > 0,
    )
}

/// The build ids of what was run, by file. Of a file that was mapped with several, none is known.
fn builds(trace: &Trace) -> Result<BTreeMap<String, String>, TraceError> {
    let mut all: BTreeMap<String, Option<String>> = BTreeMap::new();
    for rows in trace.batches::<MappingRow>()? {
        for row in rows? {
            let Some(id) = row.build_id else { continue };
            let path = row.path.rsplit('/').next().unwrap_or(&row.path).to_owned();
            let of = all.entry(path).or_insert_with(|| Some(id.clone()));
            if of.as_ref().is_some_and(|of| *of != id) {
                *of = None;
            }
        }
    }
    let known = all.into_iter().filter_map(|(path, id)| Some((path, id?)));
    Ok(known.collect())
}
