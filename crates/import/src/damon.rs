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
use varve_model::{Address, Bytes, Loss, PageRange, Pid, Time, TouchSource};

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

/// A region as an event of a tracepoint tells of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) time: u64,
    pub(crate) target: u64,
    /// Of how many regions its snapshot is.
    pub(crate) of: u64,
    pub(crate) region: Region,
    /// The scheme that is about to be applied; none of an event of the aggregation itself.
    pub(crate) scheme: Option<u64>,
    /// damo ends a single snapshot with another that has no regions, so that the length of the first is known.
    pub(crate) is_end: bool,
}

/// What DAMON says at one time of one target.
#[derive(Debug, Default)]
struct Snapshot {
    target: u64,
    /// Unknown where the source gives ends only.
    start: Option<u64>,
    /// When its first event was.
    begin: u64,
    end: u64,
    /// Whether all of its events are there. Of others only the end is of use.
    is_whole: bool,
    /// What only says when the snapshot before ended.
    is_end: bool,
    /// Those with accesses.
    regions: Vec<Region>,
}

/// A snapshot of which not all events have come.
struct Open {
    position: usize,
    of: u64,
    left: u64,
    /// Where its last region ended: they come by address.
    last: u64,
}

/// Regions as they come from a tracepoint: one event each, with the number of regions of its snapshot. Events are lost where the
/// reader was too slow: one that misses leaves its own snapshot incomplete and no other.
#[derive(Default)]
pub(crate) struct Regions {
    snapshots: Vec<Snapshot>,
    /// By target.
    open: HashMap<u64, Open>,
    /// The scheme whose events are read of each target: each tells of all regions.
    schemes: HashMap<u64, Option<u64>>,
    any: bool,
}

impl Regions {
    pub(crate) fn is_empty(&self) -> bool {
        !self.any
    }

    pub(crate) fn add(&mut self, event: Event) {
        self.any = true;
        let Event { target, region, .. } = event;
        if *self.schemes.entry(target).or_insert(event.scheme) != event.scheme {
            return;
        }
        let goes_on = |open: &Open| open.of == event.of && open.last <= region.start;
        let open = self.open.remove(&target).filter(goes_on);
        let mut open = open.unwrap_or_else(|| {
            self.snapshots.push(Snapshot {
                target,
                begin: event.time,
                is_end: event.is_end,
                ..Snapshot::default()
            });
            Open {
                position: self.snapshots.len() - 1,
                of: event.of,
                left: event.of,
                last: 0,
            }
        });
        let snapshot = &mut self.snapshots[open.position];
        snapshot.end = snapshot.end.max(event.time);
        if region.accesses > 0 && region.start < region.end {
            snapshot.regions.push(region);
        }
        (open.left, open.last) = (open.left.saturating_sub(1), region.end);
        snapshot.is_whole = open.left == 0;
        if open.left > 0 {
            self.open.insert(target, open);
        }
    }

    /// Events of one snapshot come at once. What lasted longer than the time between two is made of several of which events are
    /// missing.
    fn part_long_ones(&mut self) {
        let mut between: HashMap<u64, u64> = HashMap::new();
        let mut ends: HashMap<u64, u64> = HashMap::new();
        for snapshot in &self.snapshots {
            if let Some(end) = ends.insert(snapshot.target, snapshot.end) {
                let gap = snapshot.begin.saturating_sub(end);
                let least = between.entry(snapshot.target).or_insert(gap);
                *least = gap.min(*least);
            }
        }
        for snapshot in &mut self.snapshots {
            let gap = between.get(&snapshot.target);
            let is_long = gap.is_some_and(|gap| snapshot.end - snapshot.begin > *gap);
            snapshot.is_whole &= !is_long;
        }
    }

    /// How long snapshots of a target are, for the first, of which only the end is known; 0 where no two follow each other.
    fn length(&self, target: u64) -> u64 {
        let all = self.snapshots.iter().filter(|s| s.target == target);
        let mut pairs = all.clone().zip(all.skip(1));
        let pair = pairs.find(|(a, b)| a.is_whole && b.is_whole);
        pair.map_or(0, |(a, b)| b.end.saturating_sub(a.end))
    }

    /// Writes what was gathered.
    pub(crate) fn finish(mut self, sink: &mut Sink<'_>) -> Result<(), Trouble> {
        self.part_long_ones();
        let mut last: HashMap<u64, u64> = HashMap::new();
        for position in 0..self.snapshots.len() {
            let Snapshot { target, end, .. } = self.snapshots[position];
            let start = last.insert(target, end);
            let first = || end.saturating_sub(self.length(target));
            self.snapshots[position].start = Some(start.unwrap_or_else(first));
        }
        let is_lost = |s: &&Snapshot| !s.is_whole && !s.is_end;
        let lost = self.snapshots.iter().filter(is_lost).count() as u64;
        if lost > 0 {
            let at = self.snapshots.iter().find(is_lost).map_or(0, |s| s.end);
            sink.lost(Loss::LostSnapshots.as_str(), lost, Time(at));
        }
        self.snapshots.retain(|s| s.is_whole && !s.is_end);
        if self.snapshots.is_empty() {
            let why = "events of each of its snapshots are missing";
            return Err(Trouble::Nothing(why.to_owned()));
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
    let mut last = Time(0);
    while let Some((number, line)) = lines.next()? {
        let Some((time, name, words)) = event(line) else {
            continue;
        };
        let bad = || {
            Trouble::line(
                number,
                format!("its fields are not those of {}", text(name)),
            )
        };
        last = Time(time);
        regions.add(fields(time, words).ok_or_else(bad)?);
    }
    sink.cut(lines.is_cut(), last);
    if regions.is_empty() {
        return Err(Trouble::Nothing(
            "it has no event damon_aggregated or damos_before_apply".to_owned(),
        ));
    }
    regions.finish(sink)
}

/// The tracepoints that tell of regions: at the end of each aggregation, and before a scheme is applied.
pub(crate) const AGGREGATED: &str = "damon_aggregated";
pub(crate) const BEFORE_APPLY: &str = "damos_before_apply";

/// The time, the name and the words of one of these events; none for other lines.
pub(crate) fn event(line: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let head = head(line)?;
    let rest = head.rest.strip_prefix(b"damon:").unwrap_or(head.rest);
    let colon = memchr::memchr(b':', rest)?;
    let name = &rest[..colon];
    let is_known = [AGGREGATED, BEFORE_APPLY]
        .iter()
        .any(|known| known.as_bytes() == name);
    is_known.then_some((head.time, name, &rest[colon + 1..]))
}

/// `target_id=0 nr_regions=17 140731667070976-140731668037632: 0 3`, or `ctx_idx=0 scheme_idx=0 target_idx=0 nr_regions=17` and so
/// on; the last number, the age, came later. damo writes `None` for a target that it does not know, and -1 for accesses where there
/// is nothing.
fn fields(time: u64, text: &[u8]) -> Option<Event> {
    let (mut target, mut of, mut scheme, mut context) = (None, None, None, 0);
    let mut words = text
        .split(u8::is_ascii_whitespace)
        .filter(|w| !w.is_empty());
    let range = loop {
        let word = words.next()?;
        let Some(equals) = memchr::memchr(b'=', word) else {
            break word;
        };
        let value = &word[equals + 1..];
        match &word[..equals] {
            b"target_id" if value == b"None" => target = Some(0),
            b"target_id" | b"target_idx" => target = Some(decimal(value)?),
            b"nr_regions" => of = Some(decimal(value)?),
            b"scheme_idx" => scheme = Some(decimal(value)?),
            b"ctx_idx" => context = decimal(value)?,
            _ => (),
        }
    };
    let range = range.strip_suffix(b":")?;
    let dash = memchr::memchr(b'-', range)?;
    let accesses = words.next()?;
    let is_end = accesses == b"-1";
    Some(Event {
        time,
        target: of_context(context, target?),
        of: of?,
        region: Region {
            start: decimal(&range[..dash])?,
            end: decimal(&range[dash + 1..])?,
            accesses: if is_end { 0 } else { decimal(accesses)? },
        },
        scheme,
        is_end,
    })
}

/// A target of one of several contexts, which number theirs from 0 on.
pub(crate) fn of_context(context: u64, target: u64) -> u64 {
    target.saturating_add(context.saturating_mul(1 << 16))
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
            is_whole: true,
            ..Snapshot::default()
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

/// Whether a share, as a number or as `25 %`, is above zero.
struct Share(bool);

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(f64),
            Words(String),
        }
        let is_digit = |byte: u8| (b'1'..=b'9').contains(&byte);
        Ok(Share(match Form::deserialize(deserializer)? {
            Form::Number(share) => share > 0.0,
            Form::Words(words) => !words.starts_with('-') && words.bytes().any(is_digit),
        }))
    }
}

/// The regions that have accesses; others are dropped as they are read.
struct Active(Vec<Region>);

impl<'de> Deserialize<'de> for Active {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Accesses {
            samples: Option<Number>,
            percent: Option<Share>,
        }
        impl Accesses {
            /// Their number, or 1 where only their share is known and is not zero.
            fn number(self) -> u64 {
                let share = self.percent.map_or(0, |share| u64::from(share.0));
                self.samples.map_or(share, |samples| samples.0)
            }
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
                        accesses: region.nr_accesses.number(),
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
