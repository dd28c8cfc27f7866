//! Samples of Mitos, as it and MemAxes keep them: comma-separated values with a line of names.
//!
//! There are two generations. The older one, of the files that come with MemAxes, has the time as a hexadecimal counter and the
//! data source as the encoding of the PEBS record, hexadecimal in some files and decimal in others: where no value of a file has
//! a letter it is decimal. The newer one, since Mitos writes its own, has addresses, threads, nanoseconds and the kernel's
//! `perf_mem_data_src`, or its fields in words.

use std::collections::HashMap;
use std::io::{BufRead, Seek};

use varve_model::{
    Address, Bytes, Capability, Cpu, MemoryLevel, ObjectId, ObjectKind, Pid, SampleSource, SiteId,
    Tid, Time,
};
use varve_trace::ClockUnit;
use varve_trace::tables::{Frame, SampleRow};

use crate::error::Trouble;
use crate::lines::{Lines, fields, text};
use crate::numbers::{decimal, either, hexadecimal};
use crate::perf_script::latency;
use crate::sink::{Sink, sample};
use varve_perf::{DataSource, level_of_text};

/// Names that every generation has.
const COMMON: [&[u8]; 5] = [b"source", b"line", b"variable", b"time", b"latency"];

/// Whether a line is the names of such a file.
pub(crate) fn is_header(line: &[u8]) -> bool {
    let has = |name: &[u8]| fields(line).any(|field| field == name);
    let is_in_words = has(b"level") && has(b"op_type");
    COMMON.iter().all(|name| has(name)) && (has(b"dataSource") || has(b"data_src") || is_in_words)
}

/// Where a column stands.
struct Columns(HashMap<Vec<u8>, usize>);

impl Columns {
    fn of<'a>(&self, row: &[&'a [u8]], name: &str) -> Option<&'a [u8]> {
        let field = row.get(*self.0.get(name.as_bytes())?)?;
        Some(*field).filter(|f| !f.is_empty() && *f != b"??")
    }
}

/// Where a sample says what answered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// `perf_mem_data_src`.
    Kernel,
    /// Its fields in words.
    Words,
    /// The encoding of PEBS.
    Hexadecimal,
    Decimal,
}

/// Whether a file's older data sources have letters.
fn has_letters(mut input: impl BufRead + Seek, column: usize) -> Result<bool, Trouble> {
    let mut lines = Lines::new(&mut input);
    lines.next()?;
    let mut found = false;
    while !found && let Some((_, line)) = lines.next()? {
        let field = fields(line).nth(column).unwrap_or_default();
        found = field.iter().any(u8::is_ascii_alphabetic);
    }
    input.rewind()?;
    Ok(found)
}

pub(crate) fn read(mut input: impl BufRead + Seek, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    let header = match Lines::new(&mut input).next()? {
        Some((_, line)) if is_header(line) => line.to_vec(),
        _ => return Err(Trouble::line(1, "it has not the names of Mitos' columns")),
    };
    let names: Vec<Vec<u8>> = fields(&header).map(<[u8]>::to_vec).collect();
    let width = names.len();
    let columns = Columns(names.into_iter().zip(0..).collect());
    input.rewind()?;
    let source = match columns.0.get(&b"dataSource"[..]) {
        _ if columns.0.contains_key(&b"data_src"[..]) => Source::Kernel,
        None => Source::Words,
        Some(column) if has_letters(&mut input, *column)? => Source::Hexadecimal,
        Some(_) => Source::Decimal,
    };
    let mut lines = Lines::new(input);
    lines.next()?;
    let is_newer = matches!(source, Source::Kernel | Source::Words);
    if !is_newer {
        sink.traits.unit = ClockUnit::Ticks;
    }
    sink.traits.lacks.push(Capability::Places);
    let mut reader = Reader {
        columns,
        source,
        is_newer,
        objects: HashMap::new(),
        sites: HashMap::new(),
    };
    let (mut samples, mut last) = (0u64, Time(0));
    while let Some((number, line)) = lines.next()? {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let fields: Vec<&[u8]> = fields(line).collect();
        if fields.len() != width {
            let message = format!("it has {} fields, the first line has {width}", fields.len());
            return Err(Trouble::line(number, message));
        }
        let sample = reader
            .row(&fields, sink)
            .map_err(|m| Trouble::line(number, m))?;
        last = sample.time_ns;
        sink.sample(sample)?;
        samples += 1;
    }
    sink.cut(lines.is_cut(), last);
    match samples {
        0 => Err(Trouble::Nothing(
            "it has names of columns and no rows".to_owned(),
        )),
        _ => Ok(()),
    }
}

struct Reader {
    columns: Columns,
    source: Source,
    is_newer: bool,
    objects: HashMap<(Pid, Vec<u8>), ObjectId>,
    sites: HashMap<Vec<u8>, Option<SiteId>>,
}

impl Reader {
    fn row(&mut self, row: &[&[u8]], sink: &mut Sink<'_>) -> Result<SampleRow, String> {
        let columns = &self.columns;
        // A number that is there must be one.
        let number = |name: &str, parse: fn(&[u8]) -> Option<u64>| match columns.of(row, name) {
            None => Ok(None),
            Some(field) => match parse(field) {
                Some(number) => Ok(Some(number)),
                None => Err(format!("its `{name}` is no number: {}", text(field))),
            },
        };
        let narrow = |name: &str| -> Result<Option<u32>, String> {
            number(name, decimal)?
                .map(|n| u32::try_from(n).map_err(|_| format!("its `{name}` is too large: {n}")))
                .transpose()
        };
        let time = number("time", if self.is_newer { decimal } else { hexadecimal })?;
        let time = time.ok_or("it has no `time`")?;
        let of_code = |code| DataSource {
            write: None,
            level: pebs(code),
        };
        let source = match self.source {
            Source::Kernel => number("data_src", either)?.map(DataSource::from_bits),
            Source::Words => Some(in_words(columns, row)),
            Source::Hexadecimal => number("dataSource", hexadecimal)?.map(of_code),
            Source::Decimal => number("dataSource", decimal)?.map(of_code),
        }
        .unwrap_or_default();
        let pid = Pid(narrow("pid")?.unwrap_or(0));
        let line = narrow("line")?.filter(|line| *line > 0);
        let found = SampleRow {
            pid,
            tid: narrow("tid")?.map(Tid),
            cpu: narrow("cpu")?.map(Cpu),
            ip: number("ip", either)?.map(Address),
            address: number("addr", either)?.filter(|a| *a != 0).map(Address),
            bytes: number("bytes", decimal)?.filter(|b| *b != 0).map(Bytes),
            write: source.write,
            latency_cycles: latency(number("latency", decimal)?),
            level: source.level,
            ..sample(time, SampleSource::Mitos)
        };
        let file = columns.of(row, "source");
        let variable = columns.of(row, "variable");
        Ok(SampleRow {
            object: variable.map(|name| self.object(pid, name, time, sink)),
            site: self.site(file, line, found.ip, sink),
            ..found
        })
    }

    fn object(&mut self, pid: Pid, name: &[u8], time: u64, sink: &mut Sink<'_>) -> ObjectId {
        let key = (pid, name.to_vec());
        *self.objects.entry(key).or_insert_with(|| {
            sink.objects
                .named(pid, &text(name), ObjectKind::Heap, Time(time))
        })
    }

    fn site(
        &mut self,
        file: Option<&[u8]>,
        line: Option<u32>,
        ip: Option<Address>,
        sink: &mut Sink<'_>,
    ) -> Option<SiteId> {
        let file = file?;
        let mut key = file.to_vec();
        key.extend_from_slice(&line.unwrap_or(0).to_le_bytes());
        key.extend_from_slice(&ip.unwrap_or_default().0.to_le_bytes());
        *self.sites.entry(key).or_insert_with(|| {
            sink.site(vec![Frame {
                file: Some(text(file)),
                line,
                address: ip.unwrap_or_default(),
                ..Frame::default()
            }])
        })
    }
}

/// The data source in words: `L1`, `Hit`, `Load`.
fn in_words(columns: &Columns, row: &[&[u8]]) -> DataSource {
    let of = |name: &str| columns.of(row, name).unwrap_or_default();
    let level = [of("level"), of("hit_type")].join(&b' ');
    DataSource {
        write: match of("op_type") {
            b"Load" => Some(false),
            b"Store" => Some(true),
            _ => None,
        },
        level: level_of_text(&level),
    }
}

/// The data source of a PEBS record of load latency (Intel's manual, volume 3, "Load Latency Performance Monitoring
/// Facility"): bits 0 to 3.
fn pebs(code: u64) -> Option<MemoryLevel> {
    use MemoryLevel::*;
    Some(match code & 0xf {
        0x1 => L1,
        0x2 => FillBuffer,
        0x3 => L2,
        0x4 => L3,
        // From the cache of another core.
        0x5 | 0x6 => RemoteCache,
        0xa | 0xc => LocalDram,
        0xb | 0xd => RemoteDram,
        0xe => Io,
        0xf => Uncached,
        // A miss whose source is not known, or reserved.
        _ => return None,
    })
}
