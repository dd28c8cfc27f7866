//! Samples that the processor takes by itself: address, latency and memory level of single accesses.
//!
//! The events are opened for whatever runs on each CPU, as the clock's are, so that threads and children need no events of
//! their own; what is not the target's is dropped when it is read.

mod device;
mod plan;
mod reader;

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use varve_model::{Address, Bytes, Cpu, Pid, Resolved, SampleMode, SampleSource, Time};
use varve_perf::Attr;
use varve_sys::{PerfEvent, PerfEventKind, PerfRing};
use varve_trace::SamplesNote;
use varve_trace::tables::SampleRow;

use super::USER_END;
use crate::RecordError;
use crate::state::processes::Processes;
use crate::state::stacks::Stacks;
use plan::{Planned, plan};
use reader::{Aux, Reader, Taken};

/// Where the kernel lists what counts events.
const DEVICES: &str = "/sys/bus/event_source/devices";
/// What is there when nothing is said of the CPUs of a device.
const ONLINE: &str = "/sys/devices/system/cpu/online";
/// The ring of a CPU: hundreds of samples with their call chains, some times what comes between two looks.
const RING: Bytes = Bytes(512 << 10);
/// The buffer of SPE, whose records have some 50 bytes.
const AUX: Bytes = Bytes(1 << 20);

/// Sources in the order in which they are looked for.
const SOURCES: [SampleSource; 3] = [SampleSource::Pebs, SampleSource::Ibs, SampleSource::Spe];

/// What people call a source, and what sysfs has where it is there.
fn known_as(source: SampleSource) -> (&'static str, &'static str) {
    match source {
        SampleSource::Pebs => ("Intel PEBS", "cpu/events/mem-loads"),
        SampleSource::Ibs => ("AMD IBS", "ibs_op"),
        SampleSource::Spe => ("Arm SPE", "arm_spe_0"),
        // No processor takes those.
        _ => ("such samples", ""),
    }
}

/// Which of the three sources sysfs names, and what it calls their events.
pub(crate) fn standing() -> String {
    let words = SOURCES.map(|source| {
        let (name, _) = known_as(source);
        let events = plan(Path::new(DEVICES), source, 1);
        match (events.is_empty(), refusal(source)) {
            (true, _) => format!("no {name}"),
            (false, Some(why)) => format!("{name}, but {why}"),
            (false, None) => {
                let events: Vec<&str> = events.iter().map(|e| e.name.as_str()).collect();
                format!(
                    "{name} ({}; --samples {})",
                    events.join(", "),
                    source.as_str()
                )
            }
        }
    });
    words.join("; ")
}

/// The first source that works here.
pub(crate) fn found() -> Option<SampleSource> {
    SOURCES.into_iter().find(|s| refusal(*s).is_none())
}

/// Why samples of this source cannot be taken here, in one sentence; none where they can.
pub fn refusal(source: SampleSource) -> Option<String> {
    let (name, sign) = known_as(source);
    let events = plan(Path::new(DEVICES), source, 1);
    let Some(first) = events.first() else {
        return Some(format!(
            "this machine has no {name}: there is no {DEVICES}/{sign}"
        ));
    };
    let cpu = cpus(first).first().copied()?;
    match open(first, cpu) {
        Ok(_) => None,
        Err(error) => Some(format!(
            "the kernel refuses the event {} of {name}: {error}",
            first.name
        )),
    }
}

/// The CPUs of an event.
fn cpus(event: &Planned) -> Vec<Cpu> {
    let online = || {
        let text = std::fs::read_to_string(ONLINE).unwrap_or_default();
        let ranges = device::ranges(text.trim()).unwrap_or_default();
        ranges.into_iter().flatten().map(Cpu).collect()
    };
    event.cpus.clone().unwrap_or_else(online)
}

/// The events of one CPU that were opened for one that was planned: its leader first, if it has one.
fn open(event: &Planned, cpu: Cpu) -> io::Result<(Vec<PerfEvent>, PerfEventKind)> {
    let leader = match &event.leader {
        Some(kind) => Some(PerfEvent::open(kind, cpu, None)?),
        None => None,
    };
    let mut refused = None;
    for kind in weaker(event.kind) {
        match PerfEvent::open(&kind, cpu, leader.as_ref()) {
            Ok(opened) => return Ok((leader.into_iter().chain([opened]).collect(), kind)),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| io::Error::other("nothing to open")))
}

/// An event, and what to ask for where the kernel or the PMU does not know all of it: the latency alone instead of three
/// of them (Linux before 5.12), less precision.
fn weaker(kind: PerfEventKind) -> Vec<PerfEventKind> {
    use varve_perf::sample_bit::{WEIGHT, WEIGHT_STRUCT};
    let mut all = Vec::new();
    let lowest = kind.precise.min(1);
    for precise in (lowest..=kind.precise).rev() {
        all.push(PerfEventKind { precise, ..kind });
        if kind.sample & WEIGHT_STRUCT != 0 {
            let sample = kind.sample & !WEIGHT_STRUCT | WEIGHT;
            all.push(PerfEventKind {
                precise,
                sample,
                ..kind
            });
        }
    }
    all
}

/// An event at work on a CPU.
struct Opened {
    ring: PerfRing,
    attr: Attr,
    aux: Option<Aux>,
    _events: Vec<PerfEvent>,
}

/// Takes hardware samples and turns them into rows.
pub(crate) struct HardwareSampler {
    reader: Reader,
    opened: Vec<Opened>,
    bytes: Vec<u8>,
    waiting: Vec<Taken>,
    pub(crate) note: SamplesNote,
    pub(crate) rows: Vec<SampleRow>,
}

impl HardwareSampler {
    /// Opens the events of a source on every CPU that has them, and starts them.
    pub(super) fn start(source: SampleSource, rate: u32) -> Result<Self, RecordError> {
        let (_, sign) = known_as(source);
        let mut opened = Vec::new();
        for event in plan(Path::new(DEVICES), source, rate) {
            for cpu in cpus(&event) {
                let one = Self::open(&event, cpu);
                opened.push(one.map_err(RecordError::system("open an event of the processor"))?);
            }
        }
        if opened.is_empty() {
            let missing = io::Error::other(format!("there is no {DEVICES}/{sign}"));
            return Err(RecordError::system("find an event of the processor")(
                missing,
            ));
        }
        Ok(HardwareSampler {
            reader: Reader::new(source),
            opened,
            bytes: Vec::new(),
            waiting: Vec::new(),
            note: SamplesNote::new(source, rate),
            rows: Vec::new(),
        })
    }

    fn open(event: &Planned, cpu: Cpu) -> io::Result<Opened> {
        let (events, kind) = open(event, cpu)?;
        let last = events.last().ok_or_else(|| io::Error::other("no event"))?;
        let ring = PerfRing::map(last.as_fd(), RING, event.aux.then_some(AUX))?;
        if let Some(first) = events.first() {
            first.enable()?;
        }
        let aux = event
            .aux
            .then(|| Aux::new(cpu, ring.ticks_to_nanoseconds()));
        Ok(Opened {
            ring,
            attr: Attr::of(kind.sample),
            aux,
            _events: events,
        })
    }

    /// Takes what has come. It is kept until [`HardwareSampler::resolve`].
    pub(super) fn collect(&mut self) {
        for opened in &mut self.opened {
            self.bytes.clear();
            opened.ring.read(&mut self.bytes);
            let Opened {
                ring, attr, aux, ..
            } = opened;
            let mut read_aux = |offset: u64, length: Bytes, into: &mut Vec<u8>| {
                ring.read_aux(offset, length, into)
            };
            self.reader.take(
                &self.bytes,
                attr,
                aux.as_mut(),
                &mut read_aux,
                &mut self.waiting,
            );
        }
        self.note.dropped = self.reader.dropped;
    }

    /// Turns what was taken into rows; what is not of a recorded process is dropped.
    pub(super) fn resolve(&mut self, processes: &Processes, sites: &mut Stacks) {
        let mut born: HashMap<Pid, Option<Time>> = HashMap::new();
        for taken in std::mem::take(&mut self.waiting) {
            let owner = processes.owner_of_memory(taken.pid);
            let process = || processes.all.get(&owner).map(|p| p.row.born_ns);
            // Before its own program began, a process is the recorder's copy.
            let is_recorded = born
                .entry(owner)
                .or_insert_with(process)
                .is_some_and(|born| taken.time >= born);
            if is_recorded {
                self.row(owner, taken, sites);
            }
        }
        self.rows.sort_by_key(|row| row.time_ns);
    }

    fn row(&mut self, pid: Pid, taken: Taken, sites: &mut Stacks) {
        self.note.taken += 1;
        let address = taken.address.filter(|a| taken.user && a.0 < USER_END);
        match (taken.user, address) {
            (false, _) => self.note.in_calls += 1,
            (true, Some(_)) => self.note.hardware += 1,
            (true, None) => self.note.undecoded += 1,
        }
        let ip = taken.frames.first().copied();
        let known = address.is_some();
        let site = match taken.frames.is_empty() {
            true => None,
            false => sites.site(pid, taken.time, taken.frames, false),
        };
        self.rows.push(SampleRow {
            time_ns: taken.time,
            pid,
            tid: Some(taken.tid),
            cpu: taken.cpu,
            ip,
            address,
            bytes: taken.bytes.filter(|_| known),
            write: taken.write.filter(|_| known),
            object: None,
            source: self.reader.source,
            latency_cycles: taken.latency_cycles.filter(|_| known),
            level: taken.level.filter(|_| known),
            resolved: known.then_some(Resolved::Hardware),
            mode: Some(if taken.user {
                SampleMode::User
            } else {
                SampleMode::Call
            }),
            // One in so many accesses, and not a time.
            weight_ns: None,
            event: None,
            period: None,
            site,
        });
    }
}

/// The user's part of an address of a call chain.
fn is_user(address: &Address) -> bool {
    address.0 < USER_END
}
