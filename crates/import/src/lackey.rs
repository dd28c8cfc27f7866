//! Valgrind's lackey, `valgrind --tool=lackey --trace-mem=yes`: every access of a program, as ` L 1ffeffe7e8,8`.

use std::io::BufRead;

use varve_model::{Address, Bytes, PageRange, Pid, SampleSource, Time, TouchSource};
use varve_trace::ClockUnit;
use varve_trace::tables::SampleRow;

use crate::error::Trouble;
use crate::lines::Lines;
use crate::numbers::{decimal, hexadecimal};
use crate::pages::PageSet;
use crate::sink::{Sink, sample};

/// Data accesses of an interval. The record has no clock: time counts accesses.
const INTERVAL: u64 = 100_000;

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Instruction,
    Access {
        reads: bool,
        writes: bool,
        address: u64,
        bytes: u64,
    },
    /// Valgrind's own words, and the program's.
    Other,
}

/// Reads a line; the message says what is wrong with one that begins like an access.
pub(crate) fn line(line: &[u8]) -> Result<Line, &'static str> {
    let (kind, rest) = match line {
        [b'I', b' ', b' ', rest @ ..] => (b'I', rest),
        [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] => (*kind, rest),
        _ => return Ok(Line::Other),
    };
    let rest = rest.trim_ascii_end();
    let comma = memchr::memchr(b',', rest).ok_or("it has an address without a size")?;
    let address = hexadecimal(&rest[..comma]).ok_or("its address is not hexadecimal")?;
    let bytes = decimal(&rest[comma + 1..]).filter(|b| (1..=4096).contains(b));
    let bytes = bytes.ok_or("its size is not one that an access has")?;
    Ok(match kind {
        b'I' => Line::Instruction,
        kind => Line::Access {
            reads: kind != b'S',
            writes: kind != b'L',
            address,
            bytes,
        },
    })
}

pub(crate) fn read(input: impl BufRead, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    sink.traits.unit = ClockUnit::Accesses;
    let mut lines = Lines::new(input);
    let pid = Pid(0);
    let mut pages = PageSet::default();
    let (mut now, mut began) = (0, 0);
    while let Some((number, text)) = lines.next()? {
        let (reads, writes, address, bytes) =
            match line(text).map_err(|message| Trouble::line(number, message))? {
                Line::Access {
                    reads,
                    writes,
                    address,
                    bytes,
                } => (reads, writes, address, bytes),
                Line::Instruction | Line::Other => continue,
            };
        // A modification is a read and a write.
        for is_write in [false, true] {
            if !(if is_write { writes } else { reads }) {
                continue;
            }
            sink.sample(SampleRow {
                pid,
                address: Some(Address(address)),
                bytes: Some(Bytes(bytes)),
                write: Some(is_write),
                ..sample(now, SampleSource::Lackey)
            })?;
            now += 1;
        }
        pages.add(PageRange::of_bytes(Address(address), Bytes(bytes)), writes);
        if now - began >= INTERVAL {
            pages.flush(sink, pid, (Time(began), Time(now)), TouchSource::Imported)?;
            began = now;
        }
    }
    sink.cut(lines.is_cut(), Time(now));
    if now == 0 {
        let why = "it has no lines of `--trace-mem=yes`";
        return Err(Trouble::Nothing(why.to_owned()));
    }
    if now > began {
        pages.flush(sink, pid, (Time(began), Time(now)), TouchSource::Imported)?;
    }
    Ok(())
}
