//! `perf.data`: samples with addresses of any event, and DAMON's tracepoint.
//!
//! The file is read twice: the records of tasks and mappings first, since they are few and the records of several CPUs are
//! not in the order of time, then the samples as they come.
//!
//! The layout is that of `tools/perf/Documentation/perf.data-file-format.txt` and `include/uapi/linux/perf_event.h`.

mod container;

use std::collections::HashMap;
use std::io::{BufRead, Seek};
use std::path::PathBuf;

use varve_model::{Address, Bytes, Cpu, Loss, Pid, SampleSource, Tid, Time};
use varve_trace::tables::{MappingRow, SampleRow};
use varve_trace::{MACHINE_UNKNOWN, Machine};

use crate::damon::{self, Event, Region, Regions};
use crate::error::Trouble;
use crate::kernel::Kernel;
use crate::lines::text;
use crate::perf_script::latency;
use crate::sink::{Sink, plain_mapping, sample};
use crate::tracepoint::Tracepoint;
use container::File;
use varve_perf::{Attr, Body, Bytes as Cursor, DataSource, Trailer, hex};

const MMAP: u32 = 1;
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const LOST_SAMPLES: u32 = 13;

/// `PERF_RECORD_MISC_COMM_EXEC` and `PERF_RECORD_MISC_MMAP_BUILD_ID`.
const EXEC: u16 = 1 << 13;
const BUILD_ID: u16 = 1 << 14;
/// perf's mark of a `FORK` that tells of a process which ran before (`PERF_RECORD_MISC_FORK_EXEC`).
const SYNTHESIZED_FORK: u16 = 1 << 13;
/// `PERF_RECORD_MISC_MMAP_DATA`: nothing in the mapping can be executed.
const DATA: u16 = 1 << 13;

/// Values from here on mark contexts in call chains (`PERF_CONTEXT_MAX`).
const CONTEXT: u64 = -4095i64 as u64;

/// Whether a file begins like this.
pub(crate) fn is_magic(head: &[u8]) -> bool {
    head.starts_with(b"PERFILE2") || head.starts_with(b"2ELIFREP")
}

/// What a record of tasks or mappings says.
enum Task {
    Map(MappingRow),
    Kernel(Kernel),
    Comm {
        pid: u32,
        tid: u32,
        name: String,
        is_exec: bool,
    },
    Fork {
        parent: u32,
        pid: u32,
        tid: u32,
        /// The thread that made it.
        by: u32,
        /// Whether it ran before the recording.
        before: bool,
    },
    Exit {
        pid: u32,
        tid: u32,
    },
    Lost(u64),
}

/// Reads a recording: the file with the header, and those with more records, if there are any.
pub(crate) fn read<R: BufRead + Seek>(
    input: R,
    parts: Vec<(PathBuf, R)>,
    sink: &mut Sink<'_>,
) -> Result<(), Trouble> {
    let mut file = File::open(input, parts)?;
    sink.traits.machine = machine(&mut file)?;
    let build_ids = build_ids(&mut file)?;
    let names = event_names(&mut file)?;
    let formats = file.feature(1)?;
    let damon: Vec<Tracepoint> = [damon::AGGREGATED, damon::BEFORE_APPLY]
        .iter()
        .filter_map(|name| Tracepoint::find(formats.as_ref()?, name))
        .collect();
    tasks(&mut file, &build_ids, sink)?;
    let mut of_damon = Vec::new();
    let (mut seen, mut samples, mut last) = (0u64, 0u64, Time(0));
    file.records(|events, kind, _, body, at| {
        if kind != SAMPLE {
            return Ok(());
        }
        seen += 1;
        let (position, big) = (events.of(body), events.big);
        let attr = &events.all()[position];
        let cut = || Trouble::byte(at, "a sample is shorter than its event says");
        let found = attr.sample(body, big).ok_or_else(cut)?;
        last = last.max(Time(found.time.unwrap_or(0)));
        if let Some(raw) = found.raw
            && let Some(of) = damon.iter().find(|of| of.is(raw, big))
        {
            let bad = || Trouble::byte(at, "a record of DAMON lacks fields");
            let event = region(of, raw, big, found.time.unwrap_or(0)).ok_or_else(bad)?;
            of_damon.push(event);
            return Ok(());
        }
        if found.address.is_none() && found.ip.is_none() {
            return Ok(());
        }
        samples += 1;
        let row = SampleRow {
            event: names.get(position).cloned(),
            period: found.period.or(attr.fixed_period()),
            ..row(&found)
        };
        sink.sample_of(row, stack(&found))?;
        Ok(())
    })?;
    if file.is_unfinished() {
        sink.lost(Loss::CutFile.as_str(), 1, last);
    }
    if !of_damon.is_empty() {
        // Those of several CPUs are not in the order of time.
        of_damon.sort_by_key(|event: &Event| event.time);
        let mut regions = Regions::default();
        of_damon.into_iter().for_each(|event| regions.add(event));
        return regions.finish(sink);
    }
    match (seen, samples) {
        (0, _) => Err(Trouble::Nothing("it has no samples".to_owned())),
        (_, 0) => Err(Trouble::Nothing(
            "its samples have neither address nor instruction".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// A record of one of DAMON's tracepoints; none where it lacks fields.
fn region(of: &Tracepoint, raw: &[u8], big: bool, time: u64) -> Option<Event> {
    let field = |name: &str| of.field(raw, name, big);
    let context = field("context_idx").unwrap_or(0);
    let target = field("target_id").or_else(|| field("target_idx"))?;
    Some(Event {
        time,
        target: damon::of_context(context, target),
        of: field("nr_regions")?,
        region: Region {
            start: field("start")?,
            end: field("end")?,
            accesses: field("nr_accesses")?,
        },
        scheme: field("scheme_idx"),
        is_end: false,
    })
}

/// The call stack of a sample, innermost first; empty where its process or its instruction is not known.
fn stack(found: &Body<'_>) -> Vec<Address> {
    let (Some(_), Some(ip)) = (found.pid, found.ip) else {
        return Vec::new();
    };
    let chain = found.chain.clone().filter(|at| *at < CONTEXT);
    let mut frames: Vec<Address> = chain.map(Address).collect();
    // The chain begins with the instruction, but for skids; without one there is that alone.
    if frames.first() != Some(&Address(ip)) {
        frames.insert(0, Address(ip));
    }
    frames
}

fn row(found: &Body<'_>) -> SampleRow {
    let source = found
        .data_source
        .map(DataSource::from_bits)
        .unwrap_or_default();
    SampleRow {
        pid: Pid(found.pid.unwrap_or(0)),
        tid: found.tid.map(Tid),
        cpu: found.cpu.map(Cpu),
        ip: found.ip.map(Address),
        address: found.address.filter(|a| *a != 0).map(Address),
        write: source.write,
        latency_cycles: latency(found.weight),
        level: source.level,
        ..sample(found.time.unwrap_or(0), SampleSource::PerfMem)
    }
}

/// Reads and applies everything that is no sample, in the order of time.
fn tasks<R: BufRead + Seek>(
    file: &mut File<R>,
    build_ids: &HashMap<String, String>,
    sink: &mut Sink<'_>,
) -> Result<(), Trouble> {
    let mut tasks: Vec<(u64, Task)> = Vec::new();
    file.records(|events, kind, misc, body, at| {
        if !matches!(
            kind,
            MMAP | MMAP2 | COMM | FORK | EXIT | LOST | LOST_SAMPLES
        ) {
            return Ok(());
        }
        let trailer = events.of_record(body).trailer(body, events.big);
        let cut = || Trouble::byte(at, "a record is cut short");
        let task = task(events.big, kind, misc, body, &trailer).ok_or_else(cut)?;
        if let Some((time, task)) = task {
            tasks.push((time, task));
        }
        Ok(())
    })?;
    tasks.sort_by_key(|(time, _)| *time);
    for (time, task) in tasks {
        let at = Time(time);
        match task {
            Task::Map(mut mapping) => {
                mapping.from_ns = at;
                if mapping.build_id.is_none() {
                    mapping.build_id = build_ids.get(&mapping.path).cloned();
                }
                sink.mapping(mapping);
            }
            Task::Kernel(kernel) => {
                let build_id = build_ids.get(Kernel::MODULE).cloned();
                let build_id = kernel.build_id.or(build_id);
                sink.is_kernel_here = Kernel { build_id, ..kernel }.runs_here();
            }
            Task::Comm {
                pid,
                tid,
                name,
                is_exec,
            } => {
                if is_exec {
                    sink.execs(Pid(pid), at);
                }
                sink.names(Pid(pid), Tid(tid), &name, at);
            }
            Task::Fork {
                parent,
                by,
                pid,
                tid,
                before,
            } => sink.forks((Pid(parent), Tid(by)), (Pid(pid), Tid(tid)), at, before),
            Task::Exit { pid, tid } => sink.exits(Pid(pid), Tid(tid), at),
            Task::Lost(count) => sink.lost(Loss::PerfLost.as_str(), count, at),
        }
    }
    Ok(())
}

/// Reads a record; nothing where it speaks of the kernel, no record where it is cut short.
fn task(
    big: bool,
    kind: u32,
    misc: u16,
    body: &[u8],
    trailer: &Trailer,
) -> Option<Option<(u64, Task)>> {
    let mut cursor = Cursor::new(body, big);
    let time = trailer.time.unwrap_or(0);
    Some(Some(match kind {
        MMAP | MMAP2 => {
            let (pid, _tid) = (cursor.u32()?, cursor.u32()?);
            let (address, bytes, offset) = (cursor.u64()?, cursor.u64()?, cursor.u64()?);
            let (mut device, mut inode, mut build_id) = (None, 0, None);
            // The first version of the record distinguishes code from data only.
            let is_code = kind == MMAP && misc & DATA == 0;
            let mut perms = is_code.then(|| "--x-".to_owned());
            if kind == MMAP2 {
                if misc & BUILD_ID != 0 {
                    let id = cursor.take(24)?;
                    let length = usize::from(id[0]).min(20);
                    build_id = Some(hex(&id[4..4 + length]));
                } else {
                    device = Some(format!("{:02x}:{:02x}", cursor.u32()?, cursor.u32()?));
                    (inode, _) = (cursor.u64()?, cursor.u64()?);
                }
                let (protection, flags) = (cursor.u32()?, cursor.u32()?);
                perms = Some(permissions(protection, flags));
            }
            let path = text(cursor.text(trailer.bytes));
            if pid > i32::MAX as u32 {
                let kernel = Kernel::of_mapping(&path, offset);
                let kernel = kernel.map(|kernel| Task::Kernel(Kernel { build_id, ..kernel }));
                return Some(kernel.map(|kernel| (time, kernel)));
            }
            let plain = plain_mapping(Pid(pid), address, bytes, path, Time(time));
            let row = MappingRow {
                perms: perms.unwrap_or_else(|| plain.perms.clone()),
                offset,
                device: device.unwrap_or_else(|| plain.device.clone()),
                inode,
                build_id,
                ..plain
            };
            (time, Task::Map(row))
        }
        COMM => {
            let (pid, tid) = (cursor.u32()?, cursor.u32()?);
            let name = text(cursor.text(trailer.bytes));
            let is_exec = misc & EXEC != 0;
            (
                time,
                Task::Comm {
                    pid,
                    tid,
                    name,
                    is_exec,
                },
            )
        }
        FORK | EXIT => {
            let (pid, parent) = (cursor.u32()?, cursor.u32()?);
            let (tid, by) = (cursor.u32()?, cursor.u32()?);
            let time = cursor.u64()?;
            match kind {
                // Older ones of perf have no such flag, and the time 0.
                FORK => (
                    time,
                    Task::Fork {
                        parent,
                        by,
                        pid,
                        tid,
                        before: time == 0 || misc & SYNTHESIZED_FORK != 0,
                    },
                ),
                _ => (time, Task::Exit { pid, tid }),
            }
        }
        LOST => (
            time,
            Task::Lost({
                cursor.u64()?;
                cursor.u64()?
            }),
        ),
        _ => (time, Task::Lost(cursor.u64()?)),
    }))
}

fn permissions(protection: u32, flags: u32) -> String {
    let bit = |set: bool, sign: char| if set { sign } else { '-' };
    [
        bit(protection & 1 != 0, 'r'),
        bit(protection & 2 != 0, 'w'),
        bit(protection & 4 != 0, 'x'),
        if flags & 1 != 0 { 's' } else { 'p' },
    ]
    .iter()
    .collect()
}

/// The build ids of files that had samples, by path (feature `HEADER_BUILD_ID`).
fn build_ids<R: BufRead + Seek>(file: &mut File<R>) -> Result<HashMap<String, String>, Trouble> {
    let bytes = file.feature(2)?.unwrap_or_default();
    let mut found = HashMap::new();
    let mut rest = &bytes[..];
    while rest.len() >= 36 {
        let mut cursor = Cursor::new(rest, file.events.big);
        let (Some(_), Some(misc), Some(size)) = (cursor.u32(), cursor.u16(), cursor.u16()) else {
            break;
        };
        let size = usize::from(size);
        if !(36..=rest.len()).contains(&size) {
            break;
        }
        let id = &rest[12..36];
        // Since Linux 5.12 the length is given (PERF_RECORD_MISC_BUILD_ID_SIZE).
        let length = match misc & 1 << 15 != 0 {
            true => usize::from(id[20]).min(20),
            false => 20,
        };
        let path = rest[36..size].split(|b| *b == 0).next().unwrap_or_default();
        found.insert(text(path), hex(&id[..length]));
        rest = &rest[size..];
    }
    Ok(found)
}

/// What the events are called: as perf was asked for them, where the file says that (feature `HEADER_EVENT_DESC`).
fn event_names<R: BufRead + Seek>(file: &mut File<R>) -> Result<Vec<String>, Trouble> {
    let bytes = file.feature(12)?.unwrap_or_default();
    let events = &file.events;
    let told = described(&bytes, events.big).unwrap_or_default();
    Ok(match told.len() == events.all().len() {
        true => told,
        false => events.all().iter().map(Attr::event).collect(),
    })
}

/// The names of the events: their number, the size of an attribute, and of each the attribute, the number of its ids, the name, the ids.
fn described(bytes: &[u8], big: bool) -> Option<Vec<String>> {
    let mut cursor = Cursor::new(bytes, big);
    let (events, attr) = (cursor.u32()?, cursor.u32()?);
    let mut names = Vec::new();
    for _ in 0..events {
        cursor.take(attr as usize)?;
        let ids = cursor.u32()?;
        let length = cursor.u32()?;
        let name = cursor.take(length as usize)?;
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        names.push(text(name));
        cursor.take((ids as usize).checked_mul(8)?)?;
    }
    Some(names)
}

/// The machine, where the file says it.
fn machine<R: BufRead + Seek>(file: &mut File<R>) -> Result<Option<Machine>, Trouble> {
    let mut word = |bit: u32| -> Result<Option<String>, Trouble> {
        let Some(bytes) = file.feature(bit)? else {
            return Ok(None);
        };
        let words = bytes.get(4..).unwrap_or_default();
        let word = words.split(|b| *b == 0).next().unwrap_or_default();
        Ok(Some(text(word)).filter(|w| !w.is_empty()))
    };
    let (kernel, architecture, cpu) = (word(4)?, word(6)?, word(8)?);
    let mut number = |bit: u32, at: usize, wide: bool| -> Result<Option<u64>, Trouble> {
        let Some(bytes) = file.feature(bit)? else {
            return Ok(None);
        };
        let mut cursor = Cursor::new(bytes.get(at..).unwrap_or_default(), file.events.big);
        Ok(if wide {
            cursor.u64()
        } else {
            cursor.u32().map(u64::from)
        })
    };
    let (cpus, memory) = (number(7, 4, false)?, number(10, 0, true)?);
    if kernel.is_none() && cpu.is_none() {
        return Ok(None);
    }
    let unknown = || MACHINE_UNKNOWN.to_owned();
    Ok(Some(Machine {
        kernel: kernel.unwrap_or_else(unknown),
        architecture: architecture.unwrap_or_else(unknown),
        cpu: cpu.unwrap_or_else(unknown),
        cpus: cpus.map_or(0, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        memory_bytes: Bytes(memory.unwrap_or(0).saturating_mul(1024)),
        nodes: None,
    }))
}
