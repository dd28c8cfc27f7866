//! Tools that count accesses of pages: Moca and TABARNAC.

use std::collections::BTreeMap;
use std::io::BufRead;

use varve_model::{
    Address, Bytes, Capability, Interval, ObjectKind, PAGE_BYTES, Page, PageRange, Pages, Pid, Tid,
    Time, TouchSource,
};
use varve_objects::Layer;
use varve_trace::ClockUnit;
use varve_trace::tables::CountRow;

use crate::error::Trouble;
use crate::lines::{Lines, fields, text};
use crate::numbers::{decimal, either, hexadecimal};
use crate::objects::Birth;
use crate::sink::Sink;

/// The process: neither tool says it.
const PID: Pid = Pid(0);

/// The names of Moca's columns, of the module and of the script that merges its files.
const MOCA: [&str; 2] = [
    "@Virt,@Phy,Nreads,Nwrites,CPUMask,Start,End,TaskId",
    "VirtualAddr,PhysicalAddr,R,W,CPUMask,StartTime,EndTime,Task",
];

/// A line without its blanks.
fn squeezed(line: &[u8]) -> Vec<u8> {
    line.iter()
        .copied()
        .filter(|b| !b.is_ascii_whitespace())
        .collect()
}

pub(crate) fn is_moca(line: &[u8]) -> bool {
    MOCA.iter().any(|names| names.as_bytes() == squeezed(line))
}

/// `name,addr,size,backtrace`.
pub(crate) fn is_moca_structs(line: &[u8]) -> bool {
    squeezed(line) == b"name,addr,size,backtrace"
}

/// `addr,firstacc,type,T0,T1,...`; older files have no `firstacc`.
pub(crate) fn is_tabarnac(line: &[u8]) -> bool {
    let line = squeezed(line);
    let rest = line.strip_prefix(b"addr,").unwrap_or_default();
    rest.strip_prefix(b"firstacc,")
        .unwrap_or(rest)
        .starts_with(b"type,T0")
}

/// `name,start,sz`.
pub(crate) fn is_tabarnac_structs(line: &[u8]) -> bool {
    squeezed(line) == b"name,start,sz"
}

/// `tid,stackmax,sz`.
pub(crate) fn is_tabarnac_stacks(line: &[u8]) -> bool {
    squeezed(line) == b"tid,stackmax,sz"
}

/// One of the rows of Moca.
struct Entry {
    page: u64,
    reads: u64,
    writes: u64,
    tid: u32,
    start: u64,
    end: u64,
}

fn moca_row(line: &[u8]) -> Result<Entry, String> {
    let row: Vec<&[u8]> = fields(line).collect();
    if row.len() != 8 {
        return Err(format!(
            "it has {} fields; Moca's rows have eight",
            row.len()
        ));
    }
    let number =
        |at: usize| decimal(row[at]).ok_or_else(|| format!("{} is no number", text(row[at])));
    let address = hexadecimal(row[0]).ok_or_else(|| format!("{} is no address", text(row[0])))?;
    let (start, end) = (number(5)?, number(6)?);
    if start > end {
        return Err("it ends before it starts".to_owned());
    }
    Ok(Entry {
        page: Address(address).page().0,
        reads: number(2)?,
        writes: number(3)?,
        tid: u32::try_from(number(7)?).map_err(|_| "its task is too large")?,
        start,
        end,
    })
}

/// Moca's accesses. Its rows come by task, not by time, and its intervals are those between its own clock's ticks: a row
/// counts in the interval in which its chunk ended.
pub(crate) fn read_moca(input: impl BufRead, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    sink.traits.unit = ClockUnit::Ticks;
    let mut lines = Lines::new(input);
    let mut by_end: BTreeMap<u64, (u64, Vec<CountRow>)> = BTreeMap::new();
    while let Some((number, line)) = lines.next()? {
        if line.trim_ascii().is_empty() || is_moca(line) {
            continue;
        }
        let entry = moca_row(line).map_err(|message| Trouble::line(number, message))?;
        let (start, rows) = by_end.entry(entry.end).or_insert((entry.start, Vec::new()));
        *start = (*start).min(entry.start);
        rows.push(CountRow {
            interval: Interval(0),
            pid: PID,
            tid: Some(Tid(entry.tid)),
            page: Page(entry.page),
            reads: entry.reads,
            writes: entry.writes,
            first: None,
        });
    }
    let end = by_end.last_key_value().map_or(0, |(end, _)| *end);
    sink.cut(lines.is_cut(), Time(end));
    if by_end.is_empty() {
        return Err(Trouble::Nothing("it has no rows".to_owned()));
    }
    let mut last = 0;
    for (end, (start, mut rows)) in by_end {
        let interval = sink.interval(Time(start.max(last)), Time(end));
        last = end;
        for row in &mut rows {
            row.interval = interval;
        }
        write(rows, sink)?;
    }
    Ok(())
}

/// Counts of an interval, and the touches that follow from them.
fn write(mut rows: Vec<CountRow>, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    rows.sort_by_key(|row| (row.page, row.tid));
    for of_page in rows.chunk_by(|a, b| a.page == b.page) {
        let pages = PageRange {
            first: of_page[0].page,
            count: Pages(1),
        };
        let written = of_page.iter().any(|row| row.writes > 0);
        let touched = of_page.iter().any(|row| row.reads > 0 || row.writes > 0);
        if touched {
            sink.touch(
                of_page[0].interval,
                PID,
                pages,
                Some(written),
                TouchSource::Imported,
            )?;
        }
    }
    for row in rows {
        sink.count(row)?;
    }
    Ok(())
}

/// TABARNAC's counts of the whole run, or of one of its intervals.
pub(crate) fn read_tabarnac(input: impl BufRead, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    sink.traits.unit = ClockUnit::Ticks;
    let mut lines = Lines::new(input);
    let has_first = match lines.next()? {
        Some((_, line)) if is_tabarnac(line) => fields(line).any(|f| f == b"firstacc"),
        _ => {
            return Err(Trouble::line(
                1,
                "it has not the names of TABARNAC's columns",
            ));
        }
    };
    let before = 2 + usize::from(has_first);
    // The files of its intervals come in the order in which they are named.
    let position = sink.intervals() as u64;
    let interval = sink.interval(Time(position), Time(position + 1));
    // By page and thread: reads, writes, whether it was first.
    let mut counts: BTreeMap<(u64, u32), (u64, u64, Option<bool>)> = BTreeMap::new();
    while let Some((number, line)) = lines.next()? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let bad = |message: String| Trouble::line(number, message);
        let row: Vec<&[u8]> = fields(line).collect();
        if row.len() <= before {
            return Err(bad(format!("it has {} fields and no count", row.len())));
        }
        let value = |at: usize| {
            decimal(row[at]).ok_or_else(|| bad(format!("{} is no number", text(row[at]))))
        };
        let page = value(0)?;
        if page > u64::MAX / PAGE_BYTES {
            return Err(bad(format!("{page} is no page number")));
        }
        let first = if has_first { Some(value(1)?) } else { None };
        let is_write = match row[before - 1] {
            b"R" | b"r" => false,
            b"W" | b"w" => true,
            other => return Err(bad(format!("{} is neither R nor W", text(other)))),
        };
        for at in before..row.len() {
            let (count, thread) = (value(at)?, (at - before) as u32);
            let is_first = first.map(|first| first == u64::from(thread));
            if count == 0 {
                continue;
            }
            let entry = counts.entry((page, thread)).or_insert((0, 0, is_first));
            let sum = if is_write { &mut entry.1 } else { &mut entry.0 };
            *sum = sum.saturating_add(count);
        }
    }
    sink.cut(lines.is_cut(), Time(position + 1));
    let rows = counts
        .into_iter()
        .map(|((page, thread), (reads, writes, first))| CountRow {
            interval,
            pid: PID,
            tid: Some(Tid(thread)),
            page: Page(page),
            reads,
            writes,
            first,
        });
    write(rows.collect(), sink)
}

/// Data structures: Moca's (`name,addr,size,backtrace`) and TABARNAC's (`name,start,sz`).
pub(crate) fn read_structs(input: impl BufRead, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    let mut lines = Lines::new(input);
    lines.next()?;
    sink.traits.lacks.push(Capability::Lives);
    while let Some((number, line)) = lines.next()? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let row: Vec<&[u8]> = fields(line).collect();
        let bad = |what: &str| Trouble::line(number, what.to_owned());
        let [name, start, size, ..] = row[..] else {
            return Err(bad("it has less than three fields"));
        };
        let start = either(start).ok_or_else(|| bad("its address is no number"))?;
        let size = either(size).ok_or_else(|| bad("its size is no number"))?;
        object(text(name), start, size, None, sink);
    }
    sink.cut(lines.is_cut(), Time(0));
    Ok(())
}

/// TABARNAC's stacks: the page of each stack's end, and its size.
pub(crate) fn read_stacks(input: impl BufRead, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    let mut lines = Lines::new(input);
    lines.next()?;
    sink.traits.lacks.push(Capability::Lives);
    while let Some((number, line)) = lines.next()? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let numbers: Option<Vec<u64>> = fields(line).map(decimal).collect();
        let Some([tid, top, size]) = numbers.as_deref() else {
            return Err(Trouble::line(number, "it is not three numbers"));
        };
        // The page of the stack pointer at the thread's start is the last one.
        let end = top.saturating_add(1).saturating_mul(PAGE_BYTES);
        let thread =
            u32::try_from(*tid).map_err(|_| Trouble::line(number, "its thread is too large"))?;
        let start = end.saturating_sub(*size);
        object(
            format!("stack of thread {tid}"),
            start,
            end - start,
            Some(thread),
            sink,
        );
    }
    sink.cut(lines.is_cut(), Time(0));
    Ok(())
}

fn object(name: String, start: u64, bytes: u64, stack_of: Option<u32>, sink: &mut Sink<'_>) {
    let kind = match stack_of {
        Some(_) => ObjectKind::Stack,
        // Neither tool distinguishes static data from heap.
        None => ObjectKind::Heap,
    };
    let birth = Birth {
        pid: PID,
        kind,
        name,
        address: Address(start),
        bytes: Bytes(bytes.min(u64::MAX - start)),
        born: Time(0),
        site: None,
        tid: stack_of.map(Tid),
        mapping: None,
    };
    sink.objects.add(birth, Layer::of(kind, false));
}
