//! What samples of accesses say: by object, by line of code, by call chain, by thread and by level of memory.
//!
//! One pass over the table, in memory that depends on the objects, threads and places that occur, not on the samples.

mod callers;
mod code;
mod events;
mod tally;
mod words;

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;
use ts_rs::TS;
use varve_model::{
    Address, Duration, MemoryLevel, ObjectId, ObjectKind, Pid, SampleSource, SiteId, Tid,
};
use varve_trace::tables::{ObjectRow, SampleRow};
use varve_trace::{SamplesNote, Trace, TraceError};

pub use code::{ChainTime, LineTime};
use events::Events;
pub use events::{EventPlace, EventSamples};
use tally::Tally;
use words::{rate_in_words, weight};

use crate::assemble::Tables;

/// What the weight of a sample is where samples have a weight in time, wherever it is shown.
pub const WEIGHT: &str = "time at the instruction, not a number of accesses";
/// Below this share of the time at accesses, addresses that are gone are not mentioned.
const MIN_GONE: f64 = 0.05;
/// Rows of each list; what is beyond is counted.
const MAX: usize = 1000;
/// Steps between two samples that a stride is concluded from, at least.
const MIN_STEPS: u64 = 16;

/// What the samples say. Lists are in the order of time where samples have a weight in time, else of their number.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct SampleUse {
    /// What a sample stands for, a sentence.
    pub weight: String,
    /// How Varve took them and what became of them; null where another tool did.
    pub note: Option<SamplesNote>,
    /// At which rate they were taken and what chose it; null where another tool took them.
    pub rate: Option<String>,
    /// All samples.
    #[serde(flatten)]
    pub all: Sampled,
    /// The time of accesses that lie in no known object; null where samples have no weight in time.
    pub unowned_ns: Option<Duration>,
    /// Those with an address; a sample of an instruction with two accesses is two.
    pub with_address: u64,
    /// Those in a known object.
    pub with_object: u64,
    /// Accesses beyond these to the recorder's own memory in the target: their time is in the code, and in no object.
    pub own_accesses: u64,
    /// By source, in the order of the sources' words.
    pub sources: Vec<SourceShare>,
    /// By event, most samples first; empty where the source names none. The lists below are of all events together.
    pub events: Vec<EventSamples>,
    /// By level, nearest first; samples without a level are in none.
    pub levels: Vec<LevelShare>,
    /// By name, kind and site of objects; the recorder's own memory is not among them.
    pub objects: Vec<ObjectSamples>,
    /// By place in the code.
    pub places: Vec<PlaceSamples>,
    /// By line of code, where call stacks are known.
    pub lines: Vec<LineTime>,
    /// Call chains of the samples whose access is known, most first.
    pub flame: Vec<ChainTime>,
    /// By thread.
    pub threads: Vec<ThreadSamples>,
    /// Rows that the lists leave out, by list.
    pub omitted: OmittedSamples,
}

impl SampleUse {
    /// Samples that may be accesses: those of events of which none has an address are not.
    pub fn accesses(&self) -> u64 {
        let others = self.events.iter().filter(|e| e.with_address == 0);
        self.all.samples - others.map(|e| e.samples).sum::<u64>()
    }
}

/// Some samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct Sampled {
    /// How many.
    pub samples: u64,
    /// Reads among them; null where no sample says.
    pub reads: Option<u64>,
    /// Writes among them; null where no sample says.
    pub writes: Option<u64>,
    /// Latencies; null where no sample says.
    pub latency_cycles: Option<Latency>,
    /// The time that they stand for, time at the instruction; null where they have no weight in time.
    pub time_ns: Option<Duration>,
    /// That of samples whose access is known.
    pub access_ns: Option<Duration>,
    /// That of samples at accesses whose address is gone: the instruction replaced the register that it came from.
    pub overwritten_ns: Option<Duration>,
    /// That of accesses that write.
    pub write_ns: Option<Duration>,
    /// That of samples in system calls.
    pub call_ns: Option<Duration>,
}

impl Sampled {
    /// What lists are sorted by.
    fn rank(&self) -> Reverse<(Option<Duration>, u64)> {
        Reverse((self.time_ns, self.samples))
    }

    /// The share of the time at accesses whose address is gone, where it is so large that another object could be the hottest.
    pub fn gone(&self) -> Option<f64> {
        let (gone, of) = (self.overwritten_ns?, self.at_accesses()?);
        let share = gone.0 as f64 / of.0.max(1) as f64;
        (share >= MIN_GONE).then_some(share)
    }

    /// The time at accesses, whether their address is known or gone; none where samples have no weight in time.
    pub fn at_accesses(&self) -> Option<Duration> {
        let known = self.access_ns?;
        Some(known + self.overwritten_ns.unwrap_or_default())
    }
}

/// How latencies are spread, in CPU cycles. Above 1024 they are exact to a thousandth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct Latency {
    /// Samples with a latency.
    pub samples: u64,
    /// Half of them took no longer.
    pub median: u32,
    /// Nine of ten took no longer.
    pub p90: u32,
    /// 99 of 100 took no longer.
    pub p99: u32,
    /// The longest.
    pub max: u32,
}

/// Samples of one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct SourceShare {
    /// The source.
    pub source: SampleSource,
    /// How many.
    pub samples: u64,
}

/// Samples that one level answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, TS)]
pub struct LevelShare {
    /// The level.
    pub level: MemoryLevel,
    /// How many.
    pub samples: u64,
    /// Their latencies; null where none is known.
    pub latency_cycles: Option<Latency>,
}

/// Samples in the objects of one name, kind and site.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ObjectSamples {
    /// The number of the one that has the most.
    pub object: ObjectId,
    /// Their name.
    pub name: String,
    /// What they are.
    pub kind: ObjectKind,
    /// The process of that one.
    pub pid: Pid,
    /// How many objects have samples.
    pub objects: u64,
    /// The samples.
    #[serde(flatten)]
    pub sampled: Sampled,
    /// Threads among them, most first: a row of the matrix of threads and objects; empty where no sample says.
    pub threads: Vec<ThreadPart>,
    /// How the accesses of one instruction move; null where there are too few.
    pub steps: Option<Steps>,
}

/// A thread's part of the samples of an object.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ThreadPart {
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// The samples.
    #[serde(flatten)]
    pub sampled: Sampled,
}

/// How the address of one instruction of one thread moves from one sample to the next, thousands of accesses later.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, TS)]
pub struct Steps {
    /// Pairs of samples.
    pub count: u64,
    /// The largest number of bytes of which every step is a multiple: of a regular walk, its stride.
    pub stride_bytes: u64,
    /// The share of steps that went up, 0 to 1: near 1 or 0 for a walk, near a half for random accesses and for walks that
    /// begin anew between two samples.
    pub upward: f64,
}

/// Samples of a place in the code.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct PlaceSamples {
    /// The place in words, or the address.
    pub place: String,
    /// The instruction, where one is known.
    pub ip: Option<Address>,
    /// The samples.
    #[serde(flatten)]
    pub sampled: Sampled,
}

/// Samples of a thread.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ThreadSamples {
    /// Its process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// Its name; empty where unknown.
    pub name: String,
    /// The samples.
    #[serde(flatten)]
    pub sampled: Sampled,
}

/// How many rows the lists leave out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
pub struct OmittedSamples {
    /// Objects.
    pub objects: u64,
    /// Places.
    pub places: u64,
    /// Lines of code.
    pub lines: u64,
    /// Call chains.
    pub chains: u64,
    /// Threads.
    pub threads: u64,
}

#[derive(Default)]
struct ObjectTally {
    tally: Tally,
    threads: BTreeMap<(Pid, Tid), Tally>,
    walk: Walk,
}

#[derive(Default)]
struct Walk {
    count: u64,
    up: u64,
    divisor: u64,
}

impl Walk {
    fn step(&mut self, from: Address, to: Address) {
        self.count += 1;
        self.up += u64::from(to > from);
        self.divisor = divisor(self.divisor, to.0.abs_diff(from.0));
    }

    fn steps(&self) -> Option<Steps> {
        (self.count >= MIN_STEPS).then(|| Steps {
            count: self.count,
            stride_bytes: self.divisor,
            upward: self.up as f64 / self.count as f64,
        })
    }
}

/// The samples in objects of one site.
#[derive(Default)]
struct SiteTally<'a> {
    objects: u64,
    /// The object with the most samples.
    first: Option<(u64, &'a ObjectRow)>,
    of: ObjectTally,
}

impl<'a> SiteTally<'a> {
    fn add(&mut self, row: &'a ObjectRow, of: &ObjectTally) {
        self.objects += 1;
        let most = self.first.map_or(0, |(samples, _)| samples);
        if of.tally.samples > most {
            self.first = Some((of.tally.samples, row));
        }
        self.of.tally.merge(&of.tally);
        for (&thread, tally) in &of.threads {
            self.of.threads.entry(thread).or_default().merge(tally);
        }
        self.of.walk.count += of.walk.count;
        self.of.walk.up += of.walk.up;
        self.of.walk.divisor = divisor(self.of.walk.divisor, of.walk.divisor);
    }

    fn done(self) -> Option<ObjectSamples> {
        let (_, row) = self.first?;
        let part = |(&(pid, tid), tally): (&(Pid, Tid), &Tally)| ThreadPart {
            pid,
            tid,
            sampled: tally.done(),
        };
        let mut threads: Vec<ThreadPart> = self.of.threads.iter().map(part).collect();
        threads.sort_by_key(|t| (t.sampled.rank(), t.tid));
        Some(ObjectSamples {
            object: row.object,
            name: row.name.clone(),
            kind: row.kind,
            pid: row.pid,
            objects: self.objects,
            sampled: self.of.tally.done(),
            threads,
            steps: self.of.walk.steps(),
        })
    }
}

/// The greatest common divisor.
fn divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// What is gathered in the pass.
struct Sums {
    all: Tally,
    with_address: u64,
    with_object: u64,
    unowned: u64,
    sources: [u64; SampleSource::ALL.len()],
    events: Events,
    levels: Vec<Tally>,
    objects: HashMap<ObjectId, ObjectTally>,
    /// Where an instruction of a thread was last seen in an object.
    last: HashMap<(ObjectId, Tid, Address), Address>,
    places: HashMap<(Option<SiteId>, Option<Address>), Tally>,
    threads: HashMap<(Pid, Tid), Tally>,
}

impl Sums {
    fn new() -> Sums {
        Sums {
            all: Tally::default(),
            with_address: 0,
            with_object: 0,
            unowned: 0,
            sources: [0; SampleSource::ALL.len()],
            events: Events::default(),
            levels: vec![Tally::default(); MemoryLevel::ALL.len()],
            objects: HashMap::new(),
            last: HashMap::new(),
            places: HashMap::new(),
            threads: HashMap::new(),
        }
    }

    fn add(&mut self, row: &SampleRow) {
        self.all.add(row);
        self.sources[row.source as usize] += 1;
        self.events.add(row);
        self.with_address += u64::from(row.address.is_some());
        if let Some(level) = row.level {
            self.levels[level as usize].add(row);
        }
        if row.site.is_some() || row.ip.is_some() {
            self.places.entry((row.site, row.ip)).or_default().add(row);
        }
        if let Some(tid) = row.tid {
            self.threads.entry((row.pid, tid)).or_default().add(row);
        }
        let Some(object) = row.object else {
            if row.address.is_some() {
                self.unowned += row.weight_ns.map_or(0, |w| w.0);
            }
            return;
        };
        self.with_object += 1;
        let of = self.objects.entry(object).or_default();
        of.tally.add(row);
        let Some(tid) = row.tid else { return };
        of.threads.entry((row.pid, tid)).or_default().add(row);
        if let (Some(ip), Some(address)) = (row.ip, row.address)
            && let Some(last) = self.last.insert((object, tid, ip), address)
            && last != address
        {
            of.walk.step(last, address);
        }
    }
}

/// Reads the table; none where it has no rows. `own` says which objects are the recorder's; `home` has a row name the
/// object that several processes have as one, and its address there; `hear` is given every row.
pub(crate) fn read(
    trace: &Trace,
    tables: &Tables,
    own: impl Fn(usize) -> bool,
    mut home: impl FnMut(&mut SampleRow),
    mut hear: impl FnMut(&SampleRow),
) -> Result<Option<SampleUse>, TraceError> {
    let mut sums = Sums::new();
    let objects_of_own = tables.objects.iter().enumerate();
    let objects_of_own: HashSet<ObjectId> = objects_of_own
        .filter(|(at, _)| own(*at))
        .map(|(_, row)| row.object)
        .collect();
    let mut own_accesses = 0;
    for rows in trace.batches::<SampleRow>()? {
        for mut row in rows? {
            home(&mut row);
            if row.object.is_some_and(|o| objects_of_own.contains(&o)) {
                own_accesses += 1;
                (row.object, row.address, row.write) = (None, None, None);
            }
            sums.add(&row);
            hear(&row);
        }
    }
    if sums.all.samples == 0 {
        return Ok(None);
    }
    let mut objects = objects(&sums, tables);
    let mut places = places(&sums, &tables.sites);
    let mut threads = threads(&sums, tables);
    let code = code::read(trace, &sums.places)?;
    let omitted = OmittedSamples {
        objects: cut(&mut objects),
        places: cut(&mut places),
        lines: code.omitted_lines,
        chains: code.omitted_chains,
        threads: cut(&mut threads),
    };
    let all = sums.all.done();
    Ok(Some(SampleUse {
        weight: weight(&sums.sources, sums.with_address > 0).to_owned(),
        note: trace.manifest.samples,
        rate: trace.manifest.samples.as_ref().map(rate_in_words),
        unowned_ns: all.time_ns.map(|_| Duration(sums.unowned)),
        all,
        with_address: sums.with_address,
        with_object: sums.with_object,
        own_accesses,
        sources: SampleSource::ALL
            .iter()
            .zip(sums.sources)
            .filter(|(_, samples)| *samples > 0)
            .map(|(&source, samples)| SourceShare { source, samples })
            .collect(),
        events: sums.events.done(&tables.sites),
        levels: MemoryLevel::ALL
            .iter()
            .zip(&sums.levels)
            .filter(|(_, tally)| tally.samples > 0)
            .map(|(&level, tally)| LevelShare {
                level,
                samples: tally.samples,
                latency_cycles: tally.latency(),
            })
            .collect(),
        objects,
        places,
        lines: code.lines,
        flame: code.flame,
        threads,
        omitted,
    }))
}

/// By name, kind and site: a place that allocates again and again is one row.
fn objects(sums: &Sums, tables: &Tables) -> Vec<ObjectSamples> {
    let mut groups: HashMap<(&str, ObjectKind, Option<&str>), SiteTally<'_>> = HashMap::new();
    for row in &tables.objects {
        let Some(of) = sums.objects.get(&row.object) else {
            continue;
        };
        let key = (row.name.as_str(), row.kind, tables.site(row));
        groups.entry(key).or_default().add(row, of);
    }
    let mut list: Vec<ObjectSamples> = groups.into_values().filter_map(SiteTally::done).collect();
    list.sort_by_key(|o| (o.sampled.rank(), o.object));
    list
}

fn places(sums: &Sums, sites: &HashMap<SiteId, String>) -> Vec<PlaceSamples> {
    let label = |site: SiteId| sites.get(&site).filter(|l| !l.is_empty()).cloned();
    // An instruction is one place, whoever called its function.
    let mut by_place: HashMap<(String, Option<Address>), Tally> = HashMap::new();
    for (&(site, ip), tally) in &sums.places {
        let place = site.and_then(label).or(ip.map(|ip| ip.to_string()));
        let known = by_place.entry((place.unwrap_or_default(), ip)).or_default();
        known.merge(tally);
    }
    let mut list: Vec<PlaceSamples> = by_place
        .into_iter()
        .map(|((place, ip), tally)| PlaceSamples {
            place,
            ip,
            sampled: tally.done(),
        })
        .collect();
    list.sort_by(|a, b| {
        let key = |p: &PlaceSamples| (p.sampled.rank(), p.ip);
        key(a).cmp(&key(b)).then_with(|| a.place.cmp(&b.place))
    });
    list
}

fn threads(sums: &Sums, tables: &Tables) -> Vec<ThreadSamples> {
    let rows = tables.threads.iter();
    let names: HashMap<(Pid, Tid), &str> =
        rows.map(|t| ((t.pid, t.tid), t.name.as_str())).collect();
    let mut list: Vec<ThreadSamples> = sums
        .threads
        .iter()
        .map(|(&(pid, tid), tally)| ThreadSamples {
            pid,
            tid,
            name: names
                .get(&(pid, tid))
                .copied()
                .unwrap_or_default()
                .to_owned(),
            sampled: tally.done(),
        })
        .collect();
    list.sort_by_key(|t| (t.sampled.rank(), t.pid, t.tid));
    list
}

fn cut<T>(list: &mut Vec<T>) -> u64 {
    let beyond = list.len().saturating_sub(MAX);
    list.truncate(MAX);
    beyond as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instruction_is_one_place_however_it_was_called() {
        let row = |site, ip, cycles| SampleRow {
            time_ns: varve_model::Time(1),
            pid: Pid(1),
            tid: None,
            cpu: None,
            ip: Some(Address(ip)),
            address: Some(Address(64)),
            bytes: None,
            write: Some(true),
            object: None,
            source: varve_model::SampleSource::PerfMem,
            latency_cycles: Some(cycles),
            level: None,
            resolved: None,
            mode: None,
            weight_ns: None,
            event: None,
            period: None,
            site: Some(SiteId(site)),
        };
        let mut sums = Sums::new();
        for row in [
            row(1, 7, 10),
            row(2, 7, 30),
            row(2, 7, 20),
            row(3, 7, 1),
            row(1, 8, 1),
        ] {
            sums.add(&row);
        }
        let names = [(1, "a.c:1"), (2, "a.c:1"), (3, "b.c:1")];
        let names = names.map(|(site, name)| (SiteId(site), name.to_owned()));
        let places = places(&sums, &names.into());
        assert_eq!(places.len(), 3);
        let most = &places[0];
        assert_eq!((most.place.as_str(), most.ip), ("a.c:1", Some(Address(7))));
        assert_eq!((most.sampled.samples, most.sampled.writes), (3, Some(3)));
        let latency = most.sampled.latency_cycles.expect("latencies");
        assert_eq!((latency.samples, latency.median, latency.max), (3, 20, 30));
    }

    #[test]
    fn steps_have_their_greatest_common_divisor() {
        assert_eq!(divisor(0, 4160), 4160);
        assert_eq!(divisor(4160 * 3, 4160 * 7), 4160);
        assert_eq!(divisor(64, 72), 8);
    }
}
