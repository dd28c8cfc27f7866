//! What samples of accesses say: by object, by place in the code, by thread and by level of memory.
//!
//! One pass over the table, in memory that depends on the objects, threads and places that occur, not on the samples.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use varve_model::{Address, MemoryLevel, ObjectId, ObjectKind, Pid, SampleSource, SiteId, Tid};
use varve_trace::tables::{ObjectRow, SampleRow};
use varve_trace::{Trace, TraceError};

/// Rows of each list; what is beyond is counted.
const MOST: usize = 1000;

/// What the samples say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SampleUse {
    /// What a sample stands for, a sentence.
    pub weight: String,
    /// All samples.
    #[serde(flatten)]
    pub all: Sampled,
    /// Those with an address.
    pub with_address: u64,
    /// Those in a known object.
    pub with_object: u64,
    /// By source, in the order of the sources' words.
    pub sources: Vec<SourceShare>,
    /// By level, nearest first; samples without a level are in none.
    pub levels: Vec<LevelShare>,
    /// By object, most samples first.
    pub objects: Vec<ObjectSamples>,
    /// By place in the code, most samples first.
    pub places: Vec<PlaceSamples>,
    /// By thread, most samples first.
    pub threads: Vec<ThreadSamples>,
    /// Rows that the lists leave out, by list.
    pub omitted: OmittedSamples,
}

/// Some samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Sampled {
    /// How many.
    pub samples: u64,
    /// Reads among them; null where no sample tells.
    pub reads: Option<u64>,
    /// Writes among them; null where no sample tells.
    pub writes: Option<u64>,
    /// Latencies; null where no sample tells.
    pub latency_cycles: Option<Latency>,
}

/// How latencies are spread, in CPU cycles. Above 1024 they are exact to a thousandth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SourceShare {
    /// The source.
    pub source: SampleSource,
    /// How many.
    pub samples: u64,
}

/// Samples that one level answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LevelShare {
    /// The level.
    pub level: MemoryLevel,
    /// How many.
    pub samples: u64,
    /// Their latencies; null where none is told.
    pub latency_cycles: Option<Latency>,
}

/// Samples in an object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ObjectSamples {
    /// Its number.
    pub object: ObjectId,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: ObjectKind,
    /// Its process.
    pub pid: Pid,
    /// The samples.
    #[serde(flatten)]
    pub sampled: Sampled,
    /// Threads among them, most samples first; empty where no sample tells.
    pub threads: Vec<ThreadCount>,
}

/// A thread's part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ThreadCount {
    /// The thread.
    pub tid: Tid,
    /// How many samples.
    pub samples: u64,
}

/// Samples of a place in the code.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlaceSamples {
    /// The place in words, or the address.
    pub place: String,
    /// The instruction, where one is told.
    pub ip: Option<Address>,
    /// The samples.
    #[serde(flatten)]
    pub sampled: Sampled,
}

/// Samples of a thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OmittedSamples {
    /// Objects.
    pub objects: u64,
    /// Places.
    pub places: u64,
    /// Threads.
    pub threads: u64,
}

/// Counts while they grow.
#[derive(Clone, Debug, Default)]
struct Tally {
    samples: u64,
    reads: u64,
    writes: u64,
    latencies: BTreeMap<u32, u64>,
}

impl Tally {
    fn add(&mut self, row: &SampleRow) {
        self.samples += 1;
        match row.write {
            Some(true) => self.writes += 1,
            Some(false) => self.reads += 1,
            None => (),
        }
        if let Some(cycles) = row.latency_cycles {
            *self.latencies.entry(rounded(cycles)).or_default() += 1;
        }
    }

    fn done(&self) -> Sampled {
        let told = self.reads + self.writes > 0;
        Sampled {
            samples: self.samples,
            reads: told.then_some(self.reads),
            writes: told.then_some(self.writes),
            latency_cycles: self.latency(),
        }
    }

    fn latency(&self) -> Option<Latency> {
        let samples: u64 = self.latencies.values().sum();
        let (max, _) = self.latencies.last_key_value()?;
        let at = |share: f64| {
            let rank = ((samples as f64 * share).ceil() as u64).max(1);
            let mut sum = 0;
            let mut all = self.latencies.iter();
            all.find(|(_, count)| {
                sum += **count;
                sum >= rank
            })
            .map_or(*max, |(cycles, _)| *cycles)
        };
        Some(Latency {
            samples,
            median: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: *max,
        })
    }
}

/// Ten significant bits.
fn rounded(cycles: u32) -> u32 {
    let spare = (32 - cycles.leading_zeros()).saturating_sub(10);
    cycles >> spare << spare
}

#[derive(Default)]
struct ObjectTally {
    tally: Tally,
    threads: HashMap<Tid, u64>,
}

/// Reads the table; none where it has no rows.
pub(crate) fn read(
    trace: &Trace,
    objects: &[ObjectRow],
    sites: &HashMap<SiteId, String>,
    names: &HashMap<(Pid, Tid), String>,
) -> Result<Option<SampleUse>, TraceError> {
    let mut all = Tally::default();
    let (mut with_address, mut with_object) = (0, 0);
    let mut sources = [0u64; SampleSource::ALL.len()];
    let mut levels: Vec<Tally> = vec![Tally::default(); MemoryLevel::ALL.len()];
    let mut by_object: HashMap<ObjectId, ObjectTally> = HashMap::new();
    let mut by_place: HashMap<(Option<SiteId>, Option<Address>), Tally> = HashMap::new();
    let mut by_thread: HashMap<(Pid, Tid), Tally> = HashMap::new();
    for rows in trace.batches::<SampleRow>()? {
        for row in rows? {
            all.add(&row);
            sources[row.source as usize] += 1;
            with_address += u64::from(row.address.is_some());
            if let Some(level) = row.level {
                levels[level as usize].add(&row);
            }
            if let Some(object) = row.object {
                with_object += 1;
                let of = by_object.entry(object).or_default();
                of.tally.add(&row);
                if let Some(tid) = row.tid {
                    *of.threads.entry(tid).or_default() += 1;
                }
            }
            if row.site.is_some() || row.ip.is_some() {
                by_place.entry((row.site, row.ip)).or_default().add(&row);
            }
            if let Some(tid) = row.tid {
                by_thread.entry((row.pid, tid)).or_default().add(&row);
            }
        }
    }
    if all.samples == 0 {
        return Ok(None);
    }
    let rows: HashMap<ObjectId, &ObjectRow> = objects.iter().map(|o| (o.object, o)).collect();
    let mut of_objects: Vec<ObjectSamples> = by_object
        .into_iter()
        .filter_map(|(object, of)| {
            let row = rows.get(&object)?;
            let mut threads: Vec<ThreadCount> = of
                .threads
                .into_iter()
                .map(|(tid, samples)| ThreadCount { tid, samples })
                .collect();
            threads.sort_by_key(|t| (Reverse(t.samples), t.tid));
            Some(ObjectSamples {
                object,
                name: row.name.clone(),
                kind: row.kind,
                pid: row.pid,
                sampled: of.tally.done(),
                threads,
            })
        })
        .collect();
    of_objects.sort_by_key(|o| (Reverse(o.sampled.samples), o.object));
    let mut of_places: Vec<PlaceSamples> = by_place
        .into_iter()
        .map(|((site, ip), tally)| PlaceSamples {
            place: site
                .and_then(|s| sites.get(&s).filter(|l| !l.is_empty()).cloned())
                .or(ip.map(|ip| ip.to_string()))
                .unwrap_or_default(),
            ip,
            sampled: tally.done(),
        })
        .collect();
    of_places.sort_by(|a, b| {
        let key = |p: &PlaceSamples| (Reverse(p.sampled.samples), p.ip);
        key(a).cmp(&key(b)).then_with(|| a.place.cmp(&b.place))
    });
    let mut of_threads: Vec<ThreadSamples> = by_thread
        .into_iter()
        .map(|((pid, tid), tally)| ThreadSamples {
            pid,
            tid,
            name: names.get(&(pid, tid)).cloned().unwrap_or_default(),
            sampled: tally.done(),
        })
        .collect();
    of_threads.sort_by_key(|t| (Reverse(t.sampled.samples), t.pid, t.tid));
    let omitted = OmittedSamples {
        objects: cut(&mut of_objects),
        places: cut(&mut of_places),
        threads: cut(&mut of_threads),
    };
    Ok(Some(SampleUse {
        weight: weight(&sources).to_owned(),
        all: all.done(),
        with_address,
        with_object,
        sources: SampleSource::ALL
            .iter()
            .zip(sources)
            .filter(|(_, samples)| *samples > 0)
            .map(|(&source, samples)| SourceShare { source, samples })
            .collect(),
        levels: MemoryLevel::ALL
            .iter()
            .zip(&levels)
            .filter(|(_, tally)| tally.samples > 0)
            .map(|(&level, tally)| LevelShare {
                level,
                samples: tally.samples,
                latency_cycles: tally.latency(),
            })
            .collect(),
        objects: of_objects,
        places: of_places,
        threads: of_threads,
        omitted,
    }))
}

fn cut<T>(list: &mut Vec<T>) -> u64 {
    let beyond = list.len().saturating_sub(MOST);
    list.truncate(MOST);
    beyond as u64
}

/// What one sample stands for.
fn weight(sources: &[u64]) -> &'static str {
    let most = SampleSource::ALL
        .iter()
        .zip(sources)
        .max_by_key(|(_, n)| **n);
    match most.map(|(source, _)| *source) {
        Some(SampleSource::CpuClock) => {
            "A sample stands for time spent waiting at an access, not for a number of accesses."
        }
        Some(SampleSource::Lackey) => "Each access is counted once.",
        Some(SampleSource::Moca | SampleSource::Fault) => {
            "A sample is the first access to a page in an interval."
        }
        _ => {
            "A sample stands for as many accesses as the recording tool's period says; loads may have been sampled from a latency on only."
        }
    }
}
