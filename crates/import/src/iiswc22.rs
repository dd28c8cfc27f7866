//! The tables of the IISWC 2022 artifact "Performance Characterization of AutoNUMA Memory Tiering on Graph Analytics": accesses
//! (`memory_trace`), mappings with call stacks (`mmap_trace`) and their ends (`munmap_trace`). They have no line of names.
//!
//! Times of mappings were printed as `%ld.%ld` of seconds and nanoseconds, without leading zeros: `12.345` is 12 s and
//! **345 ns**. They are mended here. Times of accesses come from perf and are decimal fractions.

use std::io::BufRead;

use varve_model::{Address, Bytes, ObjectKind, Pid, SampleSource, Tid, Time};
use varve_trace::tables::SampleRow;

use crate::error::Trouble;
use crate::lines::{Lines, fields, text};
use crate::numbers::{decimal, hexadecimal, seconds, seconds_and_nanoseconds};
use crate::objects::Birth;
use crate::perf_script::latency;
use crate::sink::{Sink, frame, sample};
use varve_perf::level_of_text;

/// The process: the tables do not say it.
const PID: Pid = Pid(0);

/// Something that happened to a mapping.
pub(crate) struct Event {
    at: u64,
    address: u64,
    bytes: u64,
    /// The call stack, innermost first; none for an end.
    mapped: Option<Vec<u64>>,
}

/// Whether a line is one of the table of accesses.
pub(crate) fn is_access(line: &[u8]) -> bool {
    access(line).is_ok()
}

/// Whether a line is one of the tables of mappings.
pub(crate) fn is_event(line: &[u8]) -> bool {
    event(line).is_ok()
}

/// Reads mappings, or their ends, or both, as they come.
pub(crate) fn read_events(
    input: impl BufRead,
    events: &mut Vec<Event>,
    sink: &mut Sink<'_>,
) -> Result<(), Trouble> {
    let mut lines = Lines::new(input);
    while let Some((number, line)) = lines.next()? {
        if !line.trim_ascii().is_empty() {
            events.push(event(line).map_err(|message| Trouble::line(number, message))?);
        }
    }
    let last = events.last().map_or(0, |event| event.at);
    sink.cut(lines.is_cut(), Time(last));
    Ok(())
}

/// Makes objects of what happened to mappings.
pub(crate) fn apply(mut events: Vec<Event>, sink: &mut Sink<'_>) {
    events.sort_by_key(|event| event.at);
    for event in events {
        let (address, bytes, at) = (Address(event.address), Bytes(event.bytes), Time(event.at));
        sink.process(PID, at);
        let Some(stack) = event.mapped else {
            sink.objects.unmap(PID, address, bytes, at);
            continue;
        };
        let name = match stack.first() {
            Some(caller) => format!("mmap from {caller:#x}"),
            None => "mmap, unknown caller".to_owned(),
        };
        let frames: Vec<_> = stack.iter().map(|a| frame(*a, None, None)).collect();
        let site = sink.site(frames);
        sink.objects.map(Birth {
            pid: PID,
            kind: ObjectKind::Mapping,
            name,
            address,
            bytes,
            born: at,
            site,
            tid: None,
            mapping: None,
        });
    }
}

/// `12.345,mmap, 8192, 0x7f0000000000,77,0x55d0:0x55e0:8192` or `13.5,munmap,0x7f0000000000,8192`.
fn event(line: &[u8]) -> Result<Event, &'static str> {
    let row: Vec<&[u8]> = fields(line).collect();
    let what = *row.get(1).ok_or("it has one field only")?;
    let at = seconds_and_nanoseconds(row[0]).ok_or("its time is not seconds and nanoseconds")?;
    let address = |at: usize| {
        let field = row.get(at).filter(|f| f.starts_with(b"0x"));
        field
            .and_then(|f| hexadecimal(f))
            .ok_or("its address is not hexadecimal")
    };
    let size = |at: usize| {
        let field = row.get(at).and_then(|f| decimal(f));
        field.ok_or("its size is no number")
    };
    match (what, row.len()) {
        (b"mmap", 5..) => Ok(Event {
            at,
            bytes: size(2)?,
            address: address(3)?,
            mapped: Some(stack(row.get(5).copied().unwrap_or_default())),
        }),
        (b"munmap", 4) => Ok(Event {
            at,
            address: address(2)?,
            bytes: size(3)?,
            mapped: None,
        }),
        _ => Err("it is neither an mmap of six fields nor a munmap of four"),
    }
}

/// Addresses joined by colons, and the size at the end.
fn stack(text: &[u8]) -> Vec<u64> {
    let mut parts: Vec<&[u8]> = text.split(|b| *b == b':').collect();
    parts.pop();
    let address = |part: &&[u8]| hexadecimal(part.strip_prefix(b"+").unwrap_or(part));
    parts.iter().filter_map(address).collect()
}

pub(crate) fn read_accesses(input: impl BufRead, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    let mut lines = Lines::new(input);
    let mut last = Time(0);
    while let Some((number, line)) = lines.next()? {
        if !line.trim_ascii().is_empty() {
            let row = access(line).map_err(|message| Trouble::line(number, message))?;
            last = row.time_ns;
            sink.sample(row)?;
        }
    }
    sink.cut(lines.is_cut(), last);
    Ok(())
}

/// `100.000123,0x7f0000001000,Ram_hit,77,412,0x1234000,TLB_hit,r`; stores, and older tables, have the weight before the thread
/// and no physical address.
fn access(line: &[u8]) -> Result<SampleRow, String> {
    // The names of TLB states may hold blanks, and no commas.
    let row: Vec<&[u8]> = fields(line).collect();
    let (tid, weight) = match row.len() {
        8 => (3, 4),
        7 => (4, 3),
        other => {
            return Err(format!(
                "it has {other} fields; an access has eight, or seven"
            ));
        }
    };
    let time = seconds(row[0]).ok_or("its time is not seconds")?;
    let address = Some(row[1]).filter(|f| f.starts_with(b"0x"));
    let address = address
        .and_then(hexadecimal)
        .ok_or("its address is not hexadecimal")?;
    let number =
        |at: usize| decimal(row[at]).ok_or_else(|| format!("{} is no number", text(row[at])));
    let write = match row[row.len() - 1] {
        b"r" => false,
        b"w" => true,
        other => return Err(format!("{} is neither r nor w", text(other))),
    };
    let tid = u32::try_from(number(tid)?).map_err(|_| "its thread is too large")?;
    Ok(SampleRow {
        pid: PID,
        tid: Some(Tid(tid)),
        address: Some(address).filter(|a| *a != 0).map(Address),
        write: Some(write),
        latency_cycles: latency(Some(number(weight)?)),
        level: level_of_text(row[2]),
        ..sample(time, SampleSource::Iiswc22)
    })
}
