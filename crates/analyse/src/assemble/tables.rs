//! The small tables of a trace.

use std::collections::{HashMap, HashSet};

use varve_model::{Duration, ObjectKind, Pid, SiteId, Time, c_library, is_recorders};
use varve_trace::tables::{IntervalRow, LossRow, ObjectRow, ProcessRow, SiteRow, ThreadRow};
use varve_trace::{Manifest, Trace, TraceError};

use crate::analysis::HoldWork;
use crate::fold::Sites;
use crate::memory::{Homes, Objects};
use crate::sweep::intervals;

/// How long nothing was recorded between two intervals: more than the target was held for.
fn paused(intervals: &[IntervalRow]) -> Duration {
    let gaps = intervals
        .windows(2)
        .map(|pair| (pair[1].start_ns - pair[0].end_ns).0);
    let paused = gaps
        .zip(intervals)
        .filter(|(gap, before)| *gap > before.held_ns.0)
        .map(|(gap, before)| gap - before.held_ns.0);
    Duration(paused.fold(0, u64::saturating_add))
}

/// What the intervals of a recording say of its length and its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// From the start of the first interval to the end of the last.
    pub length: Duration,
    /// The part of it in which the recording was paused.
    pub paused: Duration,
    /// How long the target was held.
    pub held: Duration,
    /// The time of which that is a part: what was recorded, and the last hold, which comes behind the last interval.
    pub held_of: Duration,
    /// The longest single hold, and what it had to do.
    pub longest_hold: Duration,
    /// None where nobody was held.
    pub longest_hold_work: Option<HoldWork>,
}

impl Recorded {
    /// Of these intervals, in the order of time.
    pub fn of(intervals: &[IntervalRow]) -> Recorded {
        let (Some(first), Some(last)) = (intervals.first(), intervals.last()) else {
            return Recorded::default();
        };
        let held = intervals.iter().map(|i| i.held_ns.0);
        let (length, paused) = (last.end_ns - first.start_ns, paused(intervals));
        let longest = intervals.iter().max_by_key(|i| i.longest_hold_ns);
        Recorded {
            length,
            paused,
            held: Duration(held.fold(0, u64::saturating_add)),
            held_of: Duration((length - paused).0.saturating_add(last.held_ns.0)),
            longest_hold: longest.map(|i| i.longest_hold_ns).unwrap_or_default(),
            longest_hold_work: longest.and_then(HoldWork::of),
        }
    }
}

/// The small tables of a trace.
pub(crate) struct Tables {
    pub(crate) intervals: Vec<IntervalRow>,
    pub(crate) objects: Vec<ObjectRow>,
    pub(crate) sites: HashMap<SiteId, String>,
    /// Call stacks that begin in a library, below the C library's own functions.
    pub(crate) library_sites: HashSet<SiteId>,
    pub(crate) threads: Vec<ThreadRow>,
    /// Only a time of the recording is seen: what was touched outside of it is not known.
    pub(crate) is_window: bool,
    pub(super) processes: Vec<ProcessRow>,
    pub(super) losses: Vec<LossRow>,
}

impl Tables {
    /// `objects` are those of the trace, each once.
    pub(super) fn read(trace: &Trace, objects: Vec<ObjectRow>) -> Result<Tables, TraceError> {
        let processes: Vec<ProcessRow> = trace.rows()?;
        let programs: HashSet<&str> = processes
            .iter()
            .flat_map(|row| [Some(row.exe.as_str()), row.file.as_deref()])
            .flatten()
            .map(base_name)
            .collect();
        let (mut sites, mut library_sites) = (HashMap::new(), HashSet::new());
        for batch in trace.batches::<SiteRow>()? {
            for row in batch? {
                if is_librarys(&row, &programs) {
                    library_sites.insert(row.site);
                }
                sites.insert(row.site, row.label);
            }
        }
        Ok(Tables {
            intervals: intervals(trace)?,
            objects,
            sites,
            library_sites,
            threads: trace.rows()?,
            is_window: trace.selection().is_some_and(|s| s.time.is_some()),
            processes,
            losses: trace.rows()?,
        })
    }

    /// Where the objects lie.
    pub(crate) fn homes<'a>(&'a self, all: &'a Objects) -> Homes<'a> {
        Homes {
            rows: &self.objects,
            places: &all.places,
        }
    }

    /// The objects by name, kind and site as a person reads them, numbered from 0 on: sites of one label are one.
    pub(super) fn sites(&self) -> Sites {
        let mut numbers: HashMap<(&str, ObjectKind, Option<&str>), u32> = HashMap::new();
        let of = self.objects.iter().map(|row| {
            let next = numbers.len() as u32;
            let key = (row.name.as_str(), row.kind, self.site(row));
            *numbers.entry(key).or_insert(next)
        });
        Sites::new(of.collect())
    }

    /// Where an object was allocated.
    pub(crate) fn site(&self, row: &ObjectRow) -> Option<&str> {
        self.sites.get(&row.site?).map(String::as_str)
    }

    /// Whether a process came of another one and went on with its program.
    pub(crate) fn has_forks(&self) -> bool {
        let known: HashMap<Pid, &str> = self
            .processes
            .iter()
            .map(|p| (p.pid, p.exe.as_str()))
            .collect();
        let same = |p: &ProcessRow| known.get(&p.parent).is_some_and(|exe| *exe == p.exe);
        self.processes.iter().any(|p| p.pid != p.parent && same(p))
    }

    /// Whether an object, by position, is the recorder's.
    pub(crate) fn is_own(&self, position: usize) -> bool {
        self.objects[position].kind == ObjectKind::Recorder
    }

    pub(super) fn start(&self, manifest: &Manifest) -> Time {
        self.intervals
            .first()
            .map_or(manifest.clock.start_ns, |i| i.start_ns)
    }

    pub(super) fn between_intervals(&self) -> Duration {
        let pairs = self.intervals.windows(2);
        // While the recording was paused they ran.
        let gaps = pairs.map(|pair| match pair[0].holds {
            0 | 1 => (pair[1].start_ns - pair[0].end_ns).min(pair[0].held_ns).0,
            // It ran between several holds, and one interval follows the other.
            _ => pair[0].held_ns.0,
        });
        Duration(gaps.fold(0, u64::saturating_add))
    }

    /// How long nothing was recorded between two intervals.
    pub(super) fn paused(&self) -> Duration {
        paused(&self.intervals)
    }

    /// How many intervals are longer than a length.
    pub(crate) fn longer_than(&self, length: Duration) -> u64 {
        let longer = |i: &&IntervalRow| i.end_ns - i.start_ns > length;
        self.intervals.iter().filter(longer).count() as u64
    }

    /// Of many, without the last one: that ends with the recording, and may be short.
    pub(super) fn shortest_interval(&self) -> Duration {
        let whole = match self.intervals.as_slice() {
            [whole @ .., _] if whole.len() > 1 => whole,
            all => all,
        };
        let lengths = whole.iter().map(|i| i.end_ns - i.start_ns);
        lengths.min().unwrap_or_default()
    }

    pub(super) fn end(&self, manifest: &Manifest) -> Time {
        self.intervals
            .last()
            .map_or(manifest.clock.end_ns, |i| i.end_ns)
    }
}

/// The last part of a path.
fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether a call stack begins in a library, below functions of the C library and of what stands in front of it.
fn is_librarys(row: &SiteRow, programs: &HashSet<&str>) -> bool {
    let modules = row.frames.iter().filter_map(|f| f.module.as_deref());
    let mut own = modules
        .map(base_name)
        .filter(|name| c_library(name).is_none() && !is_recorders(name));
    own.next().is_some_and(|name| !programs.contains(name))
}
