//! What the samples say: where the time of accesses goes, by object, line, thread and call chain.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use varve_model::{Address, Duration, ObjectId, Pid, SampleMode, SiteId, Tid};
use varve_trace::tables::{Frame, ObjectRow, SampleRow, SiteRow, ThreadRow};
use varve_trace::{SamplesNote, Trace, TraceError};

/// What the weight of a sample is, wherever it is shown.
pub const WEIGHT: &str = "time at the instruction, not a number of accesses";
/// Lines, and call chains, that are listed.
const MOST_LINES: usize = 200;
const MOST_CHAINS: usize = 5000;
/// Objects that are listed.
const MOST_OBJECTS: usize = 1000;
/// Steps between two samples that a stride is told from, at least.
const LEAST_STEPS: u64 = 16;

/// What the samples say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AccessTime {
    /// What a weight is, a sentence part.
    pub weight: &'static str,
    /// How they were taken and what became of them.
    #[serde(flatten)]
    pub note: SamplesNote,
    /// The time that all of them stand for.
    pub time_ns: Duration,
    /// That of samples whose access is known.
    pub access_ns: Duration,
    /// That of accesses that lie in no known object.
    pub unowned_ns: Duration,
    /// The objects, most time first.
    pub objects: Vec<ObjectTime>,
    /// The lines of code, most time first.
    pub lines: Vec<LineTime>,
    /// The threads, most time first.
    pub threads: Vec<ThreadTime>,
    /// Call chains, the outermost function first, separated by `;`: folded stacks for a flame graph of the time of
    /// accesses.
    pub flame: Vec<ChainTime>,
}

/// Time that went to the accesses of one object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectTime {
    /// Its number in the trace.
    pub object: ObjectId,
    /// Its name.
    pub name: String,
    /// All accesses.
    pub time_ns: Duration,
    /// Those that only read.
    pub read_ns: Duration,
    /// Those that write.
    pub write_ns: Duration,
    /// By thread, most first: a row of the matrix of threads and objects.
    pub threads: Vec<ThreadShareTime>,
    /// How the accesses of one instruction move; null where there are too few.
    pub steps: Option<Steps>,
}

/// A thread's part of the time of an object.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ThreadShareTime {
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// All its accesses.
    pub time_ns: Duration,
    /// Those that write.
    pub write_ns: Duration,
}

/// How the address of one instruction of one thread moves from one sample to the next, thousands of accesses later.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// Pairs of samples.
    pub count: u64,
    /// The largest number of bytes of which every step is a multiple: of a regular walk, its stride.
    pub stride_bytes: u64,
    /// The share of steps that went up, 0 to 1: near 1 or 0 for a walk, near a half for random accesses and for walks that
    /// begin anew between two samples.
    pub upward: f64,
}

/// Time at one line of code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineTime {
    /// The function.
    pub function: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The executable or library.
    pub module: Option<String>,
    /// All samples that stood there, the kernel's work on its behalf included.
    pub time_ns: Duration,
    /// Those whose access is known.
    pub access_ns: Duration,
}

/// Time of one thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadTime {
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// Its last name.
    pub name: String,
    /// All its samples.
    pub time_ns: Duration,
    /// Those whose access is known.
    pub access_ns: Duration,
    /// Those in system calls.
    pub call_ns: Duration,
}

/// Time of one call chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChainTime {
    /// Functions, the outermost first.
    pub stack: String,
    /// The time of its accesses.
    pub time_ns: Duration,
}

#[derive(Default)]
struct Times {
    all: u64,
    access: u64,
    call: u64,
    write: u64,
}

impl Times {
    fn add(&mut self, row: &SampleRow) {
        let weight = row.weight_ns.map_or(0, |w| w.0);
        self.all += weight;
        self.access += if row.address.is_some() { weight } else { 0 };
        self.call += if row.mode == Some(SampleMode::Call) {
            weight
        } else {
            0
        };
        self.write += if row.write == Some(true) { weight } else { 0 };
    }
}

#[derive(Default)]
struct Walk {
    count: u64,
    up: u64,
    divisor: u64,
}

#[derive(Default)]
struct Sums {
    whole: Times,
    unowned: u64,
    objects: HashMap<ObjectId, BTreeMap<(Pid, Tid), Times>>,
    sites: HashMap<SiteId, Times>,
    threads: BTreeMap<(Pid, Tid), Times>,
    /// Where an instruction of a thread was last seen in an object.
    last: HashMap<(ObjectId, Tid, Address), Address>,
    walks: HashMap<ObjectId, Walk>,
}

/// Reads the samples of a trace; none where it has none.
pub(crate) fn sum(
    trace: &Trace,
    objects: &[ObjectRow],
    threads: &[ThreadRow],
    own: impl Fn(usize) -> bool,
) -> Result<Option<AccessTime>, TraceError> {
    let Some(note) = trace.manifest.samples else {
        return Ok(None);
    };
    let mut sums = Sums::default();
    for rows in trace.batches::<SampleRow>()? {
        rows?.iter().for_each(|row| sums.add(row));
    }
    let frames = frames(trace, &sums.sites)?;
    let mut listed = Vec::new();
    for (at, row) in objects.iter().enumerate().filter(|(at, _)| !own(*at)) {
        if let Some(by_thread) = sums.objects.get(&row.object) {
            listed.push(object(&objects[at], by_thread, sums.walks.get(&row.object)));
        }
    }
    listed.sort_by_key(|o| (Reverse(o.time_ns), o.object));
    listed.truncate(MOST_OBJECTS);
    Ok(Some(AccessTime {
        weight: WEIGHT,
        note,
        time_ns: Duration(sums.whole.all),
        access_ns: Duration(sums.whole.access),
        unowned_ns: Duration(sums.unowned),
        objects: listed,
        lines: lines(&sums, &frames),
        threads: by_thread(&sums, threads),
        flame: flame(&sums, &frames),
    }))
}

impl Sums {
    fn add(&mut self, row: &SampleRow) {
        self.whole.add(row);
        // Clock samples always tell both.
        let (Some(tid), Some(ip)) = (row.tid, row.ip) else {
            return;
        };
        self.threads.entry((row.pid, tid)).or_default().add(row);
        if let Some(site) = row.site {
            self.sites.entry(site).or_default().add(row);
        }
        let Some(address) = row.address else { return };
        let Some(object) = row.object else {
            self.unowned += row.weight_ns.map_or(0, |w| w.0);
            return;
        };
        let of_object = self.objects.entry(object).or_default();
        of_object.entry((row.pid, tid)).or_default().add(row);
        if let Some(last) = self.last.insert((object, tid, ip), address)
            && last != address
        {
            let walk = self.walks.entry(object).or_default();
            walk.count += 1;
            walk.up += u64::from(address > last);
            walk.divisor = divisor(walk.divisor, address.0.abs_diff(last.0));
        }
    }
}

/// The greatest common divisor.
fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn object(
    row: &ObjectRow,
    by_thread: &BTreeMap<(Pid, Tid), Times>,
    walk: Option<&Walk>,
) -> ObjectTime {
    let mut threads: Vec<ThreadShareTime> = by_thread
        .iter()
        .map(|(&(pid, tid), times)| ThreadShareTime {
            pid,
            tid,
            time_ns: Duration(times.all),
            write_ns: Duration(times.write),
        })
        .collect();
    threads.sort_by_key(|t| (Reverse(t.time_ns), t.tid));
    let time: u64 = threads.iter().map(|t| t.time_ns.0).sum();
    let write: u64 = threads.iter().map(|t| t.write_ns.0).sum();
    ObjectTime {
        object: row.object,
        name: row.name.clone(),
        time_ns: Duration(time),
        read_ns: Duration(time - write),
        write_ns: Duration(write),
        threads,
        steps: walk.filter(|w| w.count >= LEAST_STEPS).map(|w| Steps {
            count: w.count,
            stride_bytes: w.divisor,
            upward: w.up as f64 / w.count as f64,
        }),
    }
}

/// The frames of the sites that samples have.
fn frames(
    trace: &Trace,
    wanted: &HashMap<SiteId, Times>,
) -> Result<HashMap<SiteId, Vec<Frame>>, TraceError> {
    let mut known = HashMap::new();
    for rows in trace.batches::<SiteRow>()? {
        let rows = rows?.into_iter();
        known.extend(
            rows.filter(|row| wanted.contains_key(&row.site))
                .map(|row| (row.site, row.frames)),
        );
    }
    Ok(known)
}

fn lines(sums: &Sums, frames: &HashMap<SiteId, Vec<Frame>>) -> Vec<LineTime> {
    type Key<'a> = (
        Option<&'a str>,
        Option<&'a str>,
        Option<u32>,
        Option<&'a str>,
    );
    let mut all: BTreeMap<Key<'_>, (u64, u64)> = BTreeMap::new();
    for (site, times) in &sums.sites {
        let frame = frames.get(site).and_then(|f| f.first());
        let key = frame.map_or((None, None, None, None), |f| {
            (
                f.function.as_deref(),
                f.file.as_deref(),
                f.line,
                f.module.as_deref(),
            )
        });
        let sum = all.entry(key).or_default();
        sum.0 += times.all;
        sum.1 += times.access;
    }
    let mut lines: Vec<LineTime> = all
        .into_iter()
        .map(
            |((function, file, line, module), (time, access))| LineTime {
                function: function.map(str::to_owned),
                file: file.map(str::to_owned),
                line,
                module: module.map(str::to_owned),
                time_ns: Duration(time),
                access_ns: Duration(access),
            },
        )
        .collect();
    lines.sort_by_key(|l| Reverse(l.time_ns));
    lines.truncate(MOST_LINES);
    lines
}

fn by_thread(sums: &Sums, rows: &[ThreadRow]) -> Vec<ThreadTime> {
    let names: HashMap<(Pid, Tid), &str> = rows
        .iter()
        .map(|t| ((t.pid, t.tid), t.name.as_str()))
        .collect();
    let mut threads: Vec<ThreadTime> = sums
        .threads
        .iter()
        .map(|(&(pid, tid), times)| ThreadTime {
            pid,
            tid,
            name: names
                .get(&(pid, tid))
                .map_or_else(String::new, |n| (*n).to_owned()),
            time_ns: Duration(times.all),
            access_ns: Duration(times.access),
            call_ns: Duration(times.call),
        })
        .collect();
    threads.sort_by_key(|t| (Reverse(t.time_ns), t.tid));
    threads
}

fn flame(sums: &Sums, frames: &HashMap<SiteId, Vec<Frame>>) -> Vec<ChainTime> {
    let mut chains: BTreeMap<String, u64> = BTreeMap::new();
    for (site, times) in sums.sites.iter().filter(|(_, t)| t.access > 0) {
        let Some(frames) = frames.get(site) else {
            continue;
        };
        let names: Vec<String> = frames.iter().rev().map(name).collect();
        *chains.entry(names.join(";")).or_default() += times.access;
    }
    let mut chains: Vec<ChainTime> = chains
        .into_iter()
        .map(|(stack, time)| ChainTime {
            stack,
            time_ns: Duration(time),
        })
        .collect();
    chains.sort_by_key(|c| Reverse(c.time_ns));
    chains.truncate(MOST_CHAINS);
    chains
}

/// A frame's name; what separates frames does not occur in it.
fn name(frame: &Frame) -> String {
    let name = frame.function.as_deref().or(frame.module.as_deref());
    name.unwrap_or("[unknown]").replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_their_greatest_common_divisor() {
        assert_eq!(divisor(0, 4160), 4160);
        assert_eq!(divisor(4160 * 3, 4160 * 7), 4160);
        assert_eq!(divisor(64, 72), 8);
    }
}
