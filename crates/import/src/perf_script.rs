//! The text of `perf script`, of recordings of `perf mem` and of any event with addresses.

use std::collections::HashMap;
use std::io::BufRead;

use varve_model::{Address, Cpu, Loss, Pid, SampleSource, SiteId, Tid, Time};
use varve_trace::tables::{Frame, MappingRow, SampleRow};

use crate::error::Trouble;
use crate::lines::{Lines, text};
use crate::numbers::{decimal, hexadecimal};
use crate::perf_code::{Maps, Placed};
use crate::perf_line::{AMBIGUOUS, Alone, Body, Head, body, chain_frame, head};
use crate::perf_symbol::Symbolized;
use crate::sink::{Sink, plain_mapping, sample};
use varve_perf::DataSource;

/// Call stacks that are remembered by their text.
const REMEMBERED: usize = 1 << 16;

/// What is known of the file so far.
struct Reader<'a, 'b> {
    sink: &'a mut Sink<'b>,
    /// Which process a thread belongs to, as records of tasks say.
    process_of: HashMap<u32, u32>,
    /// The only process with mappings, while there is only one.
    only: Option<u32>,
    several: bool,
    /// Where code is mapped, as far as the text says.
    maps: Maps,
    /// A sample whose call chain may follow in lines of its own, and whether an address was printed, be it 0.
    waiting: Option<(SampleRow, bool)>,
    /// Lines that belong to the one before may follow.
    open: Open,
    /// What the only number behind a data source was before.
    alone: Option<Alone>,
    /// The text of that chain.
    chain: Vec<u8>,
    sites: HashMap<Vec<u8>, SiteId>,
    seen: u64,
    samples: u64,
    /// When the record before was.
    last: Time,
}

/// What the line before may go on in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Nothing,
    /// A frame or a sample: its line in the source (`-F +srcline`), or the text of that.
    Code,
    Namespaces,
}

pub(crate) fn read(input: impl BufRead, sink: &mut Sink<'_>) -> Result<(), Trouble> {
    let mut reader = Reader {
        sink,
        process_of: HashMap::new(),
        only: None,
        several: false,
        maps: Maps::default(),
        waiting: None,
        open: Open::Nothing,
        alone: None,
        chain: Vec::new(),
        sites: HashMap::new(),
        seen: 0,
        samples: 0,
        last: Time(0),
    };
    let mut lines = Lines::new(input);
    while let Some((number, line)) = lines.next()? {
        reader.line(number, line)?;
    }
    reader.end_chain()?;
    reader.sink.cut(lines.is_cut(), reader.last);
    let why = match (reader.seen, reader.samples) {
        (0, _) if lines.is_cut() => "it has no sample but in a last line that was cut",
        (0, _) => "it has no samples",
        (_, 0) => {
            "its samples have neither address nor instruction; what a tracepoint prints of itself is none"
        }
        _ => return Ok(()),
    };
    Err(Trouble::Nothing(why.to_owned()))
}

/// What perf says of itself among the lines, where both of its outputs went into one file.
pub(crate) fn is_notice(line: &[u8]) -> bool {
    lost_chunks(line).is_some() || line.starts_with(b"Check IO/CPU overload")
}

/// `Processed 4096 events and lost 3 chunks!`: how many pieces of the recording were lost, each with an unknown number of records.
fn lost_chunks(line: &[u8]) -> Option<u64> {
    let rest = line.trim_ascii().strip_prefix(b"Processed ")?;
    let at = memchr::memmem::find(rest, b" events and lost ")?;
    let rest = &rest[at + b" events and lost ".len()..];
    decimal(rest.strip_suffix(b" chunks!")?)
}

impl Reader<'_, '_> {
    fn line(&mut self, number: u64, line: &[u8]) -> Result<(), Trouble> {
        if line.trim_ascii().is_empty() || line.starts_with(b"#") {
            return self.end_chain();
        }
        if is_notice(line) {
            let chunks = lost_chunks(line).unwrap_or(0);
            if chunks > 0 {
                self.sink
                    .lost(Loss::PerfLostChunks.as_str(), chunks, self.last);
            }
            return Ok(());
        }
        let Some(head) = head(line) else {
            return self
                .belongs(line)
                .map_err(|what| Trouble::line(number, what));
        };
        self.end_chain()?;
        self.open = Open::Nothing;
        self.last = Time(head.time);
        if let Some(record) = head.rest.strip_prefix(b"PERF_RECORD_") {
            self.record(record, Time(head.time));
            return Ok(());
        }
        self.open = Open::Code;
        let body = body(head.rest).map_err(|message| Trouble::line(number, message))?;
        if let Some(alone) = body.alone
            && *self.alone.get_or_insert(alone) != alone
        {
            return Err(Trouble::line(number, AMBIGUOUS));
        }
        self.sample(&head, &body)
    }

    /// A line that has no time: it belongs to the one before, or is wrong.
    fn belongs(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let is_indented = line[0].is_ascii_whitespace();
        if self.waiting.is_some() && is_indented && chain_frame(line).is_some() {
            self.chain.extend_from_slice(line.trim_ascii());
            self.chain.push(b'\n');
            return Ok(());
        }
        match self.open {
            Open::Namespaces if line.starts_with(b"\t\t") => {
                if line.trim_ascii_end().ends_with(b"]") {
                    self.open = Open::Nothing;
                }
                Ok(())
            }
            Open::Code if line.starts_with(b"  ") || line.starts_with(b"|") => Ok(()),
            _ if is_indented => Err("it is neither a frame of a call chain nor a line with a time"),
            _ => Err("it has no time; print one with `perf script -F +time`"),
        }
    }

    fn sample(&mut self, head: &Head<'_>, body: &Body<'_>) -> Result<(), Trouble> {
        self.seen += 1;
        let source = DataSource::from_text(body.data_source);
        let is_event = |word: &str| memchr::memmem::find(body.event, word.as_bytes()).is_some();
        let by_event = match () {
            () if is_event("mem-loads") => Some(false),
            () if is_event("mem-stores") => Some(true),
            () => None,
        };
        let pid = self.pid(head.pid, head.tid);
        let mut row = SampleRow {
            pid: Pid(pid),
            tid: head.tid.map(Tid),
            cpu: head.cpu.map(Cpu),
            // perf prints 0 where the hardware gave no address, and where it gave no latency.
            address: body.address.filter(|a| *a != 0).map(Address),
            write: source.write.or(by_event),
            latency_cycles: latency(body.weight),
            level: source.level,
            event: Some(text(body.event)),
            period: body.period,
            ..sample(head.time, SampleSource::PerfMem)
        };
        if let Some(tid) = head.tid
            && !head.command.is_empty()
        {
            self.name(pid, tid, head.command, Time(head.time));
        }
        match body.ip {
            Some(ip) => {
                row.ip = Some(Address(ip.address));
                row.site = self.site(pid, ip);
                self.samples += 1;
                self.sink.sample(row)?;
            }
            None => self.waiting = Some((row, body.address.is_some())),
        }
        Ok(())
    }

    /// Names a thread, without making a text of a name that is known.
    fn name(&mut self, pid: u32, tid: u32, name: &[u8], at: Time) {
        match std::str::from_utf8(name) {
            Ok(name) => self.sink.names(Pid(pid), Tid(tid), name, at),
            Err(_) => self.sink.names(Pid(pid), Tid(tid), &text(name), at),
        }
    }

    /// The process of a thread: printed, or known from records, or the only one there is.
    fn pid(&self, pid: Option<u32>, tid: Option<u32>) -> u32 {
        let recorded = || tid.and_then(|tid| self.process_of.get(&tid).copied());
        pid.or_else(recorded)
            .or(self.only.filter(|_| !self.several))
            .unwrap_or(0)
    }

    /// The site of an instruction that stands in its sample's line, where perf prints it as it was.
    fn site(&mut self, pid: u32, ip: Symbolized<'_>) -> Option<SiteId> {
        if ip.symbol.is_empty() {
            return None;
        }
        let mut key = std::mem::take(&mut self.chain);
        key.clear();
        key.extend_from_slice(&self.maps.state(pid));
        key.extend_from_slice(&ip.address.to_le_bytes());
        key.extend_from_slice(ip.symbol);
        let site = match self.sites.get(&key) {
            Some(site) => Some(*site),
            None => {
                let frame = self.maps.placed(pid, ip, false).frame;
                self.remember(&key, vec![frame])
            }
        };
        key.clear();
        self.chain = key;
        site
    }

    fn remember(&mut self, key: &[u8], frames: Vec<Frame>) -> Option<SiteId> {
        let site = self.sink.site(frames);
        if let (Some(site), true) = (site, self.sites.len() < REMEMBERED) {
            self.sites.insert(key.to_vec(), site);
        }
        site
    }

    /// Hands on the sample whose call chain has ended.
    fn end_chain(&mut self) -> Result<(), Trouble> {
        let Some((mut row, has_address)) = self.waiting.take() else {
            return Ok(());
        };
        let chain = std::mem::take(&mut self.chain);
        let pid = row.pid.0;
        let lines = || chain.split(|b| *b == b'\n').filter_map(chain_frame);
        let placed = |frame| -> Placed { self.maps.placed(pid, frame, true) };
        row.ip = lines().next().map(placed).and_then(|first| first.address);
        let key = [&self.maps.state(pid)[..], &chain].concat();
        row.site = match self.sites.get(&key) {
            Some(site) => Some(*site),
            None => {
                let frames = lines().map(placed).map(|placed| placed.frame).collect();
                self.remember(&key, frames)
            }
        };
        let has_code = !chain.is_empty();
        self.chain = chain;
        self.chain.clear();
        // What has neither says nothing of memory.
        if has_address || has_code {
            self.samples += 1;
            self.sink.sample(row)?;
        }
        Ok(())
    }

    /// A record that is no sample. Those that say nothing of memory are passed over.
    fn record(&mut self, record: &[u8], at: Time) {
        if let Some(rest) = record
            .strip_prefix(b"MMAP2")
            .or(record.strip_prefix(b"MMAP"))
        {
            if let Some((pid, mapping)) = mapping(rest, at) {
                self.only.get_or_insert(pid);
                self.several |= self.only != Some(pid);
                self.maps.add(&mapping);
                self.sink.mapping(mapping);
            }
        } else if let Some(rest) = record.strip_prefix(b"COMM") {
            let (is_exec, rest) = match rest.strip_prefix(b" exec") {
                Some(rest) => (true, rest),
                None => (false, rest),
            };
            let rest = rest.strip_prefix(b":").unwrap_or(rest).trim_ascii();
            let colon = memchr::memrchr(b':', rest);
            if let Some((pid, tid)) = colon.and_then(|at| pair(&rest[at + 1..], b'/')) {
                self.process_of.insert(tid, pid);
                if is_exec {
                    self.maps.exec(pid);
                    self.sink.execs(Pid(pid), at);
                }
                let name = text(&rest[..colon.unwrap_or(0)]);
                self.sink.names(Pid(pid), Tid(tid), &name, at);
            }
        } else if let Some(rest) = record.strip_prefix(b"FORK(") {
            let mut parts = rest.split(|b| matches!(b, b'(' | b')'));
            let child = parts.next().and_then(|p| pair(p, b':'));
            let parent = parts.nth(1).and_then(|p| pair(p, b':'));
            if let (Some((pid, tid)), Some((parent, by))) = (child, parent) {
                self.process_of.insert(tid, pid);
                let (by, child) = ((Pid(parent), Tid(by)), (Pid(pid), Tid(tid)));
                // perf dates what ran before at 0.
                let before = at == Time(0);
                if !before {
                    self.maps.fork(parent, pid);
                }
                self.sink.forks(by, child, at, before);
            }
        } else if let Some(rest) = record.strip_prefix(b"EXIT(") {
            let inside = rest.split(|b| *b == b')').next().unwrap_or_default();
            if let Some((pid, tid)) = pair(inside, b':') {
                self.sink.exits(Pid(pid), Tid(tid), at);
                self.process_of.remove(&tid);
            }
        } else if record.starts_with(b"NAMESPACES") {
            self.open = Open::Namespaces;
        } else if let Some(rest) = record.strip_prefix(b"LOST") {
            let count = rest.split(|b| b.is_ascii_whitespace()).find_map(decimal);
            self.sink
                .lost(Loss::PerfLost.as_str(), count.unwrap_or(1), at);
        }
    }
}

/// A weight as a latency: 0 says that there is none.
pub(crate) fn latency(weight: Option<u64>) -> Option<u32> {
    let weight = weight.filter(|w| *w != 0)?;
    Some(u32::try_from(weight).unwrap_or(u32::MAX))
}

fn pair(text: &[u8], between: u8) -> Option<(u32, u32)> {
    let at = memchr::memchr(between, text)?;
    let number = |digits: &[u8]| u32::try_from(decimal(digits.trim_ascii())?).ok();
    Some((number(&text[..at])?, number(&text[at + 1..])?))
}

/// ` 10741/10741: [0x55e963ab5000(0x4000) @ 0x2000 fe:00 247849 0]: r-xp /usr/bin/true`. The kernel's own mappings, of
/// process -1, are none.
fn mapping(text_: &[u8], at: Time) -> Option<(u32, MappingRow)> {
    let open = memchr::memchr(b'[', text_)?;
    let (pid, _) = pair(text_[..open].trim_ascii().strip_suffix(b":")?, b'/')?;
    let rest = &text_[open + 1..];
    let close = memchr::memmem::find(rest, b"]: ")?;
    let (inside, after) = (&rest[..close], &rest[close + 3..]);
    let mut words = inside.split(|b| *b == b' ');
    let place = words.next()?.strip_suffix(b")")?;
    let paren = memchr::memchr(b'(', place)?;
    let (address, bytes) = (
        hexadecimal(&place[..paren])?,
        hexadecimal(&place[paren + 1..])?,
    );
    let offset = words.nth(1).and_then(hexadecimal).unwrap_or(0);
    let (mut device, mut inode, mut build_id) = (None, 0, None);
    match words.next() {
        Some(id) if id.starts_with(b"<") => {
            build_id = id
                .strip_prefix(b"<")
                .and_then(|id| id.strip_suffix(b">"))
                .map(text);
        }
        Some(dev) => {
            device = Some(text(dev));
            inode = words.next().and_then(decimal).unwrap_or(0);
        }
        None => (),
    }
    let space = memchr::memchr(b' ', after);
    let (perms, path) = after.split_at(space.unwrap_or(after.len()));
    let plain = plain_mapping(Pid(pid), address, bytes, text(path.trim_ascii()), at);
    let perms = match perms.len() {
        4 => text(perms),
        // Version 1 of the record distinguishes code from data only.
        _ if perms == b"x" => "--x-".to_owned(),
        _ => plain.perms.clone(),
    };
    let row = MappingRow {
        perms,
        offset,
        device: device.unwrap_or_else(|| plain.device.clone()),
        inode,
        build_id,
        ..plain
    };
    Some((pid, row))
}
