//! What of a trace is to be shown: from what a person typed to a selection, or to what there is instead.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use clap::Args;
use varve_compare::pattern::{glob, is_named};
use varve_model::{Capability, Duration, Interval, ObjectId, ObjectKind, Pid, Tid, Time};
use varve_trace::tables::{MarkRow, ObjectRow, ProcessRow, ThreadRow};
use varve_trace::{ClockUnit, Selection, Trace};

use super::Failure;
use crate::values::Moment;

/// What of a trace is shown.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Filter {
    /// Only objects of this name; `*` and `?` stand for letters
    #[arg(long, value_name = "NAME")]
    pub(crate) object: Option<String>,

    /// Only objects of this kind
    #[arg(long, value_name = "KIND", value_parser = object_kind)]
    pub(crate) kind: Option<ObjectKind>,

    /// Only this process
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,

    /// Only this thread, by number or name; samples, page faults and counts name threads, touched pages do not
    #[arg(long, value_name = "THREAD")]
    pub(crate) thread: Option<String>,

    /// Only from this time on: seconds since the beginning, or `300ms`
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<Moment>,

    /// Only up to this time
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<Moment>,

    /// Only the intervals that overlap with a phase of this name, as the program calls it (docs/marks.md)
    #[arg(long, value_name = "NAME")]
    pub(crate) phase: Option<String>,
}

impl Filter {
    /// Whether nothing is left out.
    pub(crate) const fn is_all(&self) -> bool {
        self.object.is_none()
            && self.kind.is_none()
            && self.pid.is_none()
            && self.thread.is_none()
            && self.from.is_none()
            && self.to.is_none()
            && self.phase.is_none()
    }
}

fn object_kind(word: &str) -> Result<ObjectKind, String> {
    let kinds: Vec<&str> = ObjectKind::ALL.iter().map(|k| k.as_str()).collect();
    word.parse()
        .map_err(|_| format!("the kinds are {}", kinds.join(", ")))
}

/// Names that a message lists.
const NAMES: usize = 12;
/// Names of phases that are looked at for it.
const MAX_NAMES: usize = 4096;

/// The part of the trace that was asked for.
pub(crate) fn choose(trace: Trace, filter: &Filter) -> Result<Trace, Failure> {
    if filter.is_all() {
        return Ok(trace);
    }
    let mut chosen = Selection::default();
    let mut parts = Vec::new();
    if let Some(pid) = filter.pid {
        chosen.pids = Some([process(&trace, Pid(pid))?].into());
        parts.push(format!("process {pid}"));
    }
    if let Some(thread) = &filter.thread {
        chosen.tids = Some(threads(&trace, thread)?);
        parts.push(format!("thread {thread}"));
    }
    if filter.object.is_some() || filter.kind.is_some() {
        // Of several processes that share an object each may have its own name for it.
        let of_processes = Selection {
            pids: chosen.pids.clone(),
            ..Selection::default()
        };
        chosen.objects = Some(objects(&trace.part(of_processes), filter)?);
        parts.extend(filter.object.as_ref().map(|o| format!("objects {o}")));
        parts.extend(filter.kind.map(|k| format!("kind {}", k.as_str())));
    }
    if filter.from.is_some() || filter.to.is_some() {
        window(&trace, filter, &mut chosen)?;
        parts.extend(filter.from.map(|t| format!("from {}", show(t.0))));
        parts.extend(filter.to.map(|t| format!("to {}", show(t.0))));
    }
    if let Some(name) = &filter.phase {
        during(&trace, name, &mut chosen)?;
        parts.push(format!("phase {}", varve_model::visible(name)));
    }
    if filter.from.is_some() || filter.phase.is_some() {
        parts.push("in whole intervals, times counted from the first on".to_owned());
    }
    chosen.description = parts.join(", ");
    let is_some = chosen.pids.is_some() || chosen.tids.is_some() || chosen.objects.is_some();
    let mut part = trace.part(chosen);
    // Touches name no thread, and resident pages are recorded of all processes together.
    if filter.thread.is_some() {
        part.manifest.capabilities.remove(&Capability::Touches);
    }
    if is_some {
        part.manifest.capabilities.remove(&Capability::Resident);
    }
    Ok(part)
}

fn show(length: Duration) -> String {
    varve_analyse::format::duration(length)
}

/// A refusal that says what there is.
fn none(what: String, there_is: Vec<String>) -> Failure {
    let rest = there_is.len().saturating_sub(NAMES);
    let mut names: Vec<String> = there_is.into_iter().take(NAMES).collect();
    if rest > 0 {
        names.push(format!("and {rest} more"));
    }
    let hint = match names.is_empty() {
        true => "the trace has none".to_owned(),
        false => format!("there are: {}", names.join(", ")),
    };
    Failure::new(what, Some(hint))
}

fn process(trace: &Trace, pid: Pid) -> Result<Pid, Failure> {
    let rows: Vec<ProcessRow> = trace.rows()?;
    if rows.iter().any(|row| row.pid == pid) {
        return Ok(pid);
    }
    let all: BTreeMap<Pid, String> = rows.into_iter().map(|r| (r.pid, r.exe)).collect();
    let base = |exe: &str| exe.rsplit('/').next().unwrap_or_default().to_owned();
    let all = all
        .into_iter()
        .map(|(pid, exe)| format!("{pid} ({})", base(&exe)));
    Err(none(
        format!("the trace has no process {pid}"),
        all.collect(),
    ))
}

fn threads(trace: &Trace, wanted: &str) -> Result<HashSet<Tid>, Failure> {
    let rows: Vec<ThreadRow> = trace.rows()?;
    let is = |row: &&ThreadRow| {
        row.tid.to_string() == wanted || (!row.name.is_empty() && glob(wanted, &row.name))
    };
    let found: HashSet<Tid> = rows.iter().filter(is).map(|row| row.tid).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let all = rows.iter().map(|row| format!("{} ({})", row.tid, row.name));
    Err(none(
        format!("the trace has no thread {wanted}"),
        all.collect(),
    ))
}

fn objects(trace: &Trace, filter: &Filter) -> Result<HashSet<ObjectId>, Failure> {
    let all = varve_analyse::object_names(trace)?;
    let of_kind = |kind: ObjectKind| filter.kind.is_none_or(|k| k == kind);
    let is = |name: &str| filter.object.as_deref().is_none_or(|o| is_named(o, name));
    let found: HashSet<ObjectId> = all
        .iter()
        .filter(|(_, kind, name)| of_kind(*kind) && is(name))
        .map(|(object, ..)| *object)
        .collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let Some(wanted) = &filter.object else {
        let kinds: HashSet<&str> = all.iter().map(|(_, kind, _)| kind.as_str()).collect();
        let mut kinds: Vec<String> = kinds.into_iter().map(str::to_owned).collect();
        kinds.sort();
        let kind = filter.kind.map_or("", ObjectKind::as_str);
        return Err(none(
            format!("the trace has no object of kind {kind}"),
            kinds,
        ));
    };
    // Those that are called alike, else the largest.
    let plain = wanted.replace(['*', '?'], "").to_lowercase();
    let rows: Vec<ObjectRow> = trace.rows()?;
    let bytes: HashMap<ObjectId, u64> = rows.iter().map(|o| (o.object, o.bytes.0)).collect();
    let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
    for (object, _, name) in all.iter().filter(|(_, kind, _)| of_kind(*kind)) {
        *sizes.entry(name).or_default() += bytes.get(object).copied().unwrap_or(0);
    }
    let mut names: Vec<(&str, u64)> = sizes.into_iter().collect();
    names.sort_by_key(|(name, bytes)| {
        let alike = !plain.is_empty() && name.to_lowercase().contains(&plain);
        (!alike, std::cmp::Reverse(*bytes))
    });
    let names = names.iter().map(|(name, _)| format!("`{name}`"));
    Err(none(
        format!("the trace has no object named `{wanted}`"),
        names.collect(),
    ))
}

/// The intervals of a time.
fn window(trace: &Trace, filter: &Filter, chosen: &mut Selection) -> Result<(), Failure> {
    if trace.manifest.clock.unit != ClockUnit::Nanoseconds {
        return Err(Failure::new(
            "this trace has no seconds: --from and --to mean nothing in it",
            None::<String>,
        ));
    }
    let intervals = varve_analyse::intervals(trace)?;
    let (Some(first), Some(last)) = (intervals.first(), intervals.last()) else {
        return Err(Failure::new("the trace has no intervals", None::<String>));
    };
    let at = |t: Option<Moment>, otherwise: Time| t.map_or(otherwise, |t| first.start_ns + t.0);
    let (from, to) = (at(filter.from, first.start_ns), at(filter.to, last.end_ns));
    let mut within = intervals
        .iter()
        .filter(|i| i.start_ns < to && i.end_ns > from);
    let Some(begin) = within.next() else {
        let length = show(last.end_ns - first.start_ns);
        return Err(Failure::new(
            "the trace has nothing in that time",
            Some(format!(
                "it goes from 0 to {length}, and --from comes before --to"
            )),
        ));
    };
    let end = within.next_back().unwrap_or(begin);
    // Whole intervals: what was touched in one is not known more closely.
    chosen.time = Some(begin.start_ns..Time(end.end_ns.0.saturating_add(1)));
    chosen.intervals = Some(begin.interval..Interval(end.interval.0.saturating_add(1)));
    Ok(())
}

/// The part of a trace in which a phase ran.
pub(crate) fn choose_phase(trace: Trace, name: &str) -> Result<Trace, Failure> {
    let mut chosen = Selection {
        description: format!("phase {}, in whole intervals", varve_model::visible(name)),
        ..Selection::default()
    };
    during(&trace, name, &mut chosen)?;
    Ok(trace.part(chosen))
}

/// The intervals, of those that are chosen, that overlap with a phase.
fn during(trace: &Trace, name: &str, chosen: &mut Selection) -> Result<(), Failure> {
    let mut intervals = varve_analyse::intervals(trace)?;
    if let Some(within) = &chosen.intervals {
        intervals.retain(|i| within.contains(&i.interval));
    }
    let mut ran = Vec::new();
    let mut names: BTreeSet<String> = BTreeSet::new();
    for rows in trace.batches::<MarkRow>()? {
        for row in rows?.into_iter().filter(|row| row.kind == "phase") {
            if row.name == name {
                let all = varve_analyse::overlapping(&intervals, row.start_ns, row.until_ns);
                ran.push(all);
            } else if names.len() < MAX_NAMES {
                names.insert(row.name);
            }
        }
    }
    if ran.is_empty() {
        if names.is_empty() && !trace.manifest.has(Capability::Marks) {
            return Err(Failure::new(
                format!(
                    "it is not known whether the program has a phase `{}`: its marks were not heard",
                    varve_model::visible(name)
                ),
                Some(
                    "a program that runs already, or is recorded with `--no-preload`, makes marks where VARVE_MARKS is in its environment (docs/marks.md)",
                ),
            ));
        }
        let names = names
            .iter()
            .map(|n| format!("`{}`", varve_model::visible(n)));
        return Err(none(
            format!("the trace has no phase `{}`", varve_model::visible(name)),
            names.collect(),
        ));
    }
    varve_analyse::join_ranges(&mut ran, |end, start| start <= end);
    let rows = ran.into_iter().filter_map(|range| {
        let rows = &intervals[range];
        Some((rows.first()?, rows.last()?))
    });
    let parts: Vec<_> = rows
        .map(|(first, last)| {
            (
                first.start_ns..Time(last.end_ns.0.saturating_add(1)),
                first.interval..Interval(last.interval.0.saturating_add(1)),
            )
        })
        .collect();
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else {
        return Err(Failure::new(
            format!(
                "no interval of the trace overlaps with phase `{}`",
                varve_model::visible(name)
            ),
            None::<String>,
        ));
    };
    chosen.time = Some(first.0.start..last.0.end);
    chosen.intervals = Some(first.1.start..last.1.end);
    chosen.parts = Some(parts);
    Ok(())
}
