//! DAMON's records: damo's JSON, plain or compressed with zlib, and the text of `perf script`. (A `perf.data` of its tracepoint
//! is read by `perf_data`.)
//!
//! DAMON looks at one page of each region, so that a region with accesses stands for pages of which most were never looked
//! at. Regions with accesses become touches of all of their pages; what is said of other regions is dropped.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, BufRead, Read};

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use varve_model::{Address, Bytes, PageRange, Pid, Time, TouchSource};

use crate::error::{Damage, Place, Trouble};
use crate::lines::{Lines, text};
use crate::numbers::decimal;
use crate::perf_line::head;
use crate::sink::Sink;

/// A region that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// In how many looks it had been accessed.
    pub(crate) accesses: u64,
}

/// What DAMON says at one time of one target.
#[derive(Debug, Default)]
struct Snapshot {
    target: u64,
    /// Unknown where the source gives ends only.
    start: Option<u64>,
    end: u64,
    /// Those with accesses.
    regions: Vec<Region>,
}

/// Regions as they come from a tracepoint: one event each, with the number of regions of its snapshot.
#[derive(Default)]
pub(crate) struct Regions {
    snapshots: Vec<Snapshot>,
    /// The open snapshot of each target, by position, and how many regions it lacks.
    open: HashMap<u64, (usize, u64)>,
    any: bool,
}

impl Regions {
    pub(crate) fn is_empty(&self) -> bool {
        !self.any
    }

    /// A region of a snapshot of `of` regions.
    pub(crate) fn add(&mut self, time: u64, target: u64, of: u64, region: Region) {
        self.any = true;
        let next = self.snapshots.len();
        let (position, left) = self.open.remove(&target).unwrap_or((next, of));
        if position == next {
            self.snapshots.push(Snapshot {
                target,
                ..Snapshot::default()
            });
        }
        let snapshot = &mut self.snapshots[position];
        snapshot.end = snapshot.end.max(time);
        if region.accesses > 0 && region.start < region.end {
            snapshot.regions.push(region);
        }
        if left > 1 {
            self.open.insert(target, (position, left - 1));
        }
    }

    /// Writes what was gathered.
    pub(crate) fn finish(mut self, sink: &mut Sink<'_>) -> Result<(), Trouble> {
        // The first of a target began where its length, that of the next one, says.
        let mut last: HashMap<u64, u64> = HashMap::new();
        let mut first: Vec<usize> = Vec::new();
        for (position, snapshot) in self.snapshots.iter_mut().enumerate() {
            snapshot.start = snapshot.start.or(last.get(&snapshot.target).copied());
            if snapshot.start.is_none() {
                first.push(position);
            }
            last.insert(snapshot.target, snapshot.end);
        }
        for position in first {
            let (target, end) = (
                self.snapshots[position].target,
                self.snapshots[position].end,
            );
            let next = self.snapshots[position + 1..]
                .iter()
                .find(|s| s.target == target);
            let length = next.map_or(0, |next| next.end.saturating_sub(end));
            self.snapshots[position].start = Some(end.saturating_sub(length));
        }
        write(self.snapshots, sink)
    }
}

/// Writes intervals and touches. Snapshots of several targets at about the same time share an interval.
fn write(mut snapshots: Vec<Snapshot>, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    if snapshots.is_empty() {
        return Err(Trouble::Nothing("it has no snapshots".to_owned()));
    }
    snapshots.sort_by_key(|s| (s.end, s.target));
    let mut pids: HashMap<u64, Pid> = HashMap::new();
    let mut at = 0;
    while at < snapshots.len() {
        let mut end = at + 1;
        // Another target whose snapshot began before this one ended.
        while let Some(next) = snapshots.get(end)
            && next.start.unwrap_or(next.end) < snapshots[at].end
            && snapshots[at..end].iter().all(|s| s.target != next.target)
        {
            end += 1;
        }
        let together = &snapshots[at..end];
        let stop = together.iter().map(|s| s.end).max().unwrap_or_default();
        let start = together
            .iter()
            .filter_map(|s| s.start)
            .min()
            .unwrap_or(stop);
        let interval = sink.interval(Time(start), Time(stop));
        for snapshot in together {
            let known = pids.len() as u32;
            let pid = *pids.entry(snapshot.target).or_insert_with(|| {
                let pid = process(snapshot.target, known);
                sink.process(pid, Time(start));
                sink.describe(pid, format!("DAMON target {:#x}", snapshot.target));
                pid
            });
            let mut regions = snapshot.regions.clone();
            regions.sort_by_key(|r| r.start);
            for region in regions {
                let bytes = Bytes(region.end - region.start);
                let pages = PageRange::of_bytes(Address(region.start), bytes);
                sink.touch(interval, pid, pages, None, TouchSource::Damon)?;
            }
        }
        at = end;
    }
    Ok(())
}

/// Older kernels print the address of their own target structure, newer ones a small number.
fn process(target: u64, known: u32) -> Pid {
    match u32::try_from(target) {
        Ok(target) if target <= i32::MAX as u32 => Pid(target),
        _ => Pid(known),
    }
}

/// The text of `perf script`.
pub(crate) fn read_text(input: impl BufRead, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    let mut lines = Lines::new(input);
    let mut regions = Regions::default();
    while let Some((number, line)) = lines.next()? {
        let Some((time, words)) = event(line) else {
            continue;
        };
        let bad = || Trouble::line(number, "its fields are not those of damon_aggregated");
        let (target, of, region) = fields(words).ok_or_else(bad)?;
        regions.add(time, target, of, region);
    }
    sink.cut(lines.is_cut(), Time(0));
    if regions.is_empty() {
        return Err(Trouble::Nothing(
            "it has no event damon_aggregated".to_owned(),
        ));
    }
    regions.finish(sink)
}

/// The time and the words of an event `damon_aggregated`; none for other lines.
pub(crate) fn event(line: &[u8]) -> Option<(u64, &[u8])> {
    let head = head(line)?;
    let rest = head.rest.strip_prefix(b"damon:").unwrap_or(head.rest);
    Some((head.time, rest.strip_prefix(b"damon_aggregated:")?))
}

/// `target_id=0 nr_regions=17 140731667070976-140731668037632: 0 3`; the last number, the age, came later.
fn fields(text: &[u8]) -> Option<(u64, u64, Region)> {
    let mut words = text
        .split(u8::is_ascii_whitespace)
        .filter(|w| !w.is_empty());
    let target = decimal(words.next()?.strip_prefix(b"target_id=")?)?;
    let of = decimal(words.next()?.strip_prefix(b"nr_regions=")?)?;
    let range = words.next()?.strip_suffix(b":")?;
    let dash = memchr::memchr(b'-', range)?;
    let region = Region {
        start: decimal(&range[..dash])?,
        end: decimal(&range[dash + 1..])?,
        accesses: decimal(words.next()?)?,
    };
    Some((target, of, region))
}

/// damo's JSON.
pub(crate) fn read_json(input: impl Read, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    #[derive(Deserialize)]
    struct Record {
        target_id: Option<Number>,
        snapshots: Vec<JsonSnapshot>,
    }
    #[derive(Deserialize)]
    struct JsonSnapshot {
        start_time: Number,
        end_time: Number,
        regions: Active,
    }
    let records: Vec<Record> = serde_json::from_reader(input).map_err(|e| match e.classify() {
        serde_json::error::Category::Io => Trouble::from(io::Error::from(e)),
        _ => Trouble::Damaged(
            Place::Line(e.line() as u64),
            format!("it is not one of damo's records: {e}"),
        ),
    })?;
    let mut snapshots = Vec::new();
    for (position, record) in records.into_iter().enumerate() {
        let target = record.target_id.map_or(position as u64, |id| id.0);
        snapshots.extend(record.snapshots.into_iter().map(|s| Snapshot {
            target,
            start: Some(s.start_time.0.min(s.end_time.0)),
            end: s.end_time.0,
            regions: s.regions.0,
        }));
    }
    write(snapshots, sink)
}

/// A number, or one in a text, with commas between its digits. damo marks what is made up with -1, which is read as 0.
struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Of;
        impl Visitor<'_> for Of {
            type Value = Number;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or one in a text")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Number, E> {
                Ok(Number(u64::try_from(number).unwrap_or(0)))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<Number, E> {
                match number.is_finite() {
                    // Saturates.
                    true => Ok(Number(number as u64)),
                    false => Err(E::custom("a number that is none")),
                }
            }

            fn visit_str<E: Error>(self, words: &str) -> Result<Number, E> {
                let digits: Vec<u8> = words.bytes().filter(|b| *b != b',').collect();
                let whole = digits.split(|b| *b == b'.').next().unwrap_or_default();
                match decimal(whole.strip_prefix(b"-").map_or(whole, |_| b"0")) {
                    Some(number) => Ok(Number(number)),
                    None => Err(E::custom(format_args!(
                        "{:?} is no number",
                        text(words.as_bytes())
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Of)
    }
}

/// The regions that have accesses; others are dropped as they are read.
struct Active(Vec<Region>);

impl<'de> Deserialize<'de> for Active {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Accesses {
            samples: Number,
        }
        #[derive(Deserialize)]
        struct JsonRegion {
            start: Number,
            end: Number,
            nr_accesses: Accesses,
        }
        struct Of;
        impl<'de> Visitor<'de> for Of {
            type Value = Active;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("regions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Active, A::Error> {
                let mut active = Vec::new();
                while let Some(region) = list.next_element::<JsonRegion>()? {
                    let region = Region {
                        start: region.start.0,
                        end: region.end.0,
                        accesses: region.nr_accesses.samples.0,
                    };
                    if region.accesses > 0 && region.start < region.end {
                        active.push(region);
                    }
                }
                Ok(Active(active))
            }
        }
        deserializer.deserialize_seq(Of)
    }
}

/// What is compressed with zlib, unpacked. Errors say at which byte of what is compressed.
pub(crate) fn unpacked(input: impl Read) -> impl Read {
    io::BufReader::new(Unpacked(flate2::read::ZlibDecoder::new(input)))
}

struct Unpacked<R>(flate2::read::ZlibDecoder<R>);

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData
            | io::ErrorKind::InvalidInput
            | io::ErrorKind::UnexpectedEof => {
                let message = format!("its zlib stream is damaged: {error}");
                Damage::at(self.0.total_in(), message).into()
            }
            _ => error,
        })
    }
}
