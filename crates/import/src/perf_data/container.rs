//! The container of a `perf.data`: what is said of the events, and the records one after the other.
//!
//! It has two forms. A file has a header that says where everything lies. What was written to a pipe (`-o -`) is a
//! series of records from its beginning to its end; what a file's header says stands in records of its own there. In either form
//! records may be compressed (`-z`).
//!
//! The container is read here and not by a library because the ones that there are drop the two fields that matter, weight and
//! data source, and cannot say at which byte a file is damaged.

use std::collections::HashMap;
use std::io::{BufRead, Read, Seek, SeekFrom};
use std::path::PathBuf;

use varve_perf::{Attr, Bytes as Cursor};
use zstd::stream::raw::{Decoder, Operation};

use super::is_magic;
use crate::error::Trouble;

const HEADER_ATTR: u32 = 64;
const HEADER_TRACING_DATA: u32 = 66;
const HEADER_BUILD_ID: u32 = 67;
const AUXTRACE: u32 = 71;
const HEADER_FEATURE: u32 = 80;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

/// Features that have a record type of their own in a pipe.
const TRACING_DATA: u32 = 1;
const BUILD_ID: u32 = 2;

/// The type, the flags and the size of a record.
const HEAD: usize = 8;
/// The size of the header of a pipe, which is all that it holds beside the magic.
const PIPE_HEADER: u64 = 16;
/// The most bytes of a section beside the data that are read: a real one has some megabytes.
const MAX_OF_SECTION: u64 = 64 << 20;
/// The most that the records in one compressed record may be long. They are at most 64 KiB when they are compressed; perf
/// takes what one CPU's buffer held, some megabytes at most.
const MAX_OF_COMPRESSED: usize = 64 << 20;

#[derive(Clone, Copy, Debug)]
struct Section {
    offset: u64,
    size: u64,
}

impl Section {
    fn end(self) -> Option<u64> {
        self.offset.checked_add(self.size)
    }
}

/// Where the content of a feature is.
enum Feature {
    InFile(Section),
    InRecords(Vec<u8>),
}

pub(super) struct File<R> {
    source: Source<R>,
    /// Files of records alone, of the same recording.
    parts: Vec<(PathBuf, Source<R>)>,
    pub(super) events: Events,
    /// By bit.
    features: HashMap<u32, Feature>,
}

/// The events of a file: one at least.
#[derive(Default)]
pub(super) struct Events {
    /// Whether numbers begin with the byte of most weight.
    pub(super) big: bool,
    attrs: Vec<Attr>,
    by_id: HashMap<u64, usize>,
}

impl Events {
    /// All of them.
    pub(super) fn all(&self) -> &[Attr] {
        &self.attrs
    }

    /// The position of the event that a sample belongs to.
    pub(super) fn of(&self, sample: &[u8]) -> usize {
        self.position(|first| first.id_of_sample(sample, self.big))
    }

    /// The event that wrote a record which is no sample. What perf adds by itself has the number 0 and the form of the first.
    pub(super) fn of_record(&self, record: &[u8]) -> &Attr {
        &self.attrs[self.position(|first| first.id_of_record(record, self.big))]
    }

    fn position(&self, id: impl Fn(&Attr) -> Option<u64>) -> usize {
        match self.attrs.len() {
            1 => 0,
            _ => id(&self.attrs[0])
                .and_then(|id| self.by_id.get(&id).copied())
                .unwrap_or(0),
        }
    }

    fn add(&mut self, attr: Attr, ids: &[u8]) {
        let mut cursor = Cursor::new(ids, self.big);
        while let Some(id) = cursor.u64() {
            self.by_id.insert(id, self.attrs.len());
        }
        self.attrs.push(attr);
    }

    fn require(&self, at: u64) -> Result<(), Trouble> {
        match self.attrs.is_empty() {
            true => Err(Trouble::byte(at, "it describes no events")),
            false => Ok(()),
        }
    }
}

impl<R: BufRead + Seek> File<R> {
    /// Reads what is said of the events and of the machine.
    pub(super) fn open(mut input: R, parts: Vec<(PathBuf, R)>) -> Result<File<R>, Trouble> {
        let length = input.seek(SeekFrom::End(0))?;
        input.seek(SeekFrom::Start(0))?;
        let mut head = Vec::new();
        (&mut input).take(104).read_to_end(&mut head)?;
        if !is_magic(&head) {
            return Err(Trouble::byte(0, "it does not begin like a perf.data"));
        }
        let big = head[0] == b'2';
        let short = || Trouble::byte(head.len() as u64, "it ends within its header");
        let mut cursor = Cursor::new(&head[8..], big);
        let size = cursor.u64().ok_or_else(short)?;
        let mut all_parts = Vec::new();
        for (path, mut input) in parts {
            let size = input.seek(SeekFrom::End(0))?;
            let source = Source {
                input,
                length: size,
                big,
                data: Section { offset: 0, size },
                is_unfinished: false,
            };
            all_parts.push((path, source));
        }
        let mut file = File {
            parts: all_parts,
            source: Source {
                input,
                length,
                big,
                data: Section {
                    offset: PIPE_HEADER,
                    size: length.saturating_sub(PIPE_HEADER),
                },
                is_unfinished: false,
            },
            events: Events {
                big,
                ..Events::default()
            },
            features: HashMap::new(),
        };
        if size == PIPE_HEADER {
            file.read_descriptions()?;
            return Ok(file);
        }
        let attr_size = cursor.u64().ok_or_else(short)?;
        let mut section = || {
            Some(Section {
                offset: cursor.u64()?,
                size: cursor.u64()?,
            })
        };
        let attrs = section().ok_or_else(short)?;
        let mut data = section().ok_or_else(short)?;
        section().ok_or_else(short)?;
        let mut bits = Vec::new();
        for _ in 0..4 {
            bits.push(cursor.u64().ok_or_else(short)?);
        }
        if !(80..=4096).contains(&attr_size) {
            let message = format!("events of {attr_size} bytes are not known");
            return Err(Trouble::byte(16, message));
        }
        file.read_attrs(attrs, attr_size)?;
        // A recording that was cut short has a data section of no size: everything to the end is data.
        if data.size == 0 && data.offset < length {
            data.size = length - data.offset;
            file.source.data = data;
            file.source.is_unfinished = true;
            return Ok(file);
        }
        file.source.data = data;
        let Some(after) = data.end().filter(|end| *end <= length) else {
            let message = format!("its data of {} bytes reaches beyond its end", data.size);
            return Err(Trouble::byte(data.offset, message));
        };
        file.read_features(after, &bits)?;
        Ok(file)
    }

    /// Whether perf was ended before it could say how many records there are: what it had not written yet is missing, and the last
    /// record may be cut.
    pub(super) fn is_unfinished(&self) -> bool {
        self.source.is_unfinished
    }

    /// The content of a feature, where the file has it.
    pub(super) fn feature(&mut self, bit: u32) -> Result<Option<Vec<u8>>, Trouble> {
        match self.features.get(&bit) {
            Some(Feature::InFile(section)) => self.source.bytes(*section).map(Some),
            Some(Feature::InRecords(bytes)) => Ok(Some(bytes.clone())),
            None => Ok(None),
        }
    }

    fn read_attrs(&mut self, section: Section, attr_size: u64) -> Result<(), Trouble> {
        let big = self.events.big;
        let bytes = self.source.bytes(section)?;
        for (position, entry) in bytes.chunks_exact(attr_size as usize).enumerate() {
            let at = section.offset + position as u64 * attr_size;
            let bad = || Trouble::byte(at, "an event's description is cut short");
            let (attr, ids) = entry.split_at(entry.len() - 16);
            let attr = Attr::read(attr, big).ok_or_else(bad)?;
            let mut cursor = Cursor::new(ids, big);
            let ids = Section {
                offset: cursor.u64().ok_or_else(bad)?,
                size: cursor.u64().ok_or_else(bad)?,
            };
            let ids = self.source.bytes(ids)?;
            self.events.add(attr, &ids);
        }
        self.events.require(section.offset)
    }

    fn read_features(&mut self, after: u64, bits: &[u64]) -> Result<(), Trouble> {
        let set: Vec<u32> = (0..256)
            .filter(|bit| bits[*bit as usize / 64] >> (bit % 64) & 1 == 1)
            .collect();
        let table = Section {
            offset: after,
            size: set.len() as u64 * 16,
        };
        let bytes = self.source.bytes(table)?;
        let mut cursor = Cursor::new(&bytes, self.events.big);
        for bit in set {
            if let (Some(offset), Some(size)) = (cursor.u64(), cursor.u64()) {
                let section = Section { offset, size };
                self.features.insert(bit, Feature::InFile(section));
            }
        }
        Ok(())
    }

    /// Gathers the records of a pipe that say what a file's header would.
    fn read_descriptions(&mut self) -> Result<(), Trouble> {
        let (events, big) = (&mut self.events, self.source.big);
        let mut features = HashMap::<u32, Vec<u8>>::new();
        let mut kept = 0;
        self.source.records(|record| {
            let bad = || Trouble::byte(record.at, "a record about the events is cut short");
            let (bit, content) = match record.kind {
                HEADER_ATTR => {
                    let (attr, ids) = description(record.body, big).ok_or_else(bad)?;
                    events.add(attr, ids);
                    (None, record.body)
                }
                HEADER_TRACING_DATA => (Some(TRACING_DATA), record.data),
                HEADER_BUILD_ID => (Some(BUILD_ID), record.body),
                HEADER_FEATURE => {
                    let mut cursor = Cursor::new(record.body, big);
                    let bit = cursor.u64().ok_or_else(bad)?;
                    (u32::try_from(bit).ok(), &record.body[8..])
                }
                _ => return Ok(()),
            };
            kept += content.len() as u64;
            if kept > MAX_OF_SECTION {
                return Err(Trouble::byte(
                    record.at,
                    "it says more of itself than can be",
                ));
            }
            if let Some(bit) = bit {
                let feature = features.entry(bit).or_default();
                if bit == BUILD_ID {
                    // They stand in a file with their heads.
                    feature.extend_from_slice(record.head);
                }
                feature.extend_from_slice(content);
            }
            Ok(())
        })?;
        let features = features.into_iter();
        self.features = features
            .map(|(bit, bytes)| (bit, Feature::InRecords(bytes)))
            .collect();
        self.events.require(PIPE_HEADER)
    }

    /// Calls `each` for every record: its type, its flags, its body, and the byte where it begins, or where the
    /// compressed record begins that it was in.
    pub(super) fn records(
        &mut self,
        mut each: impl FnMut(&Events, u32, u16, &[u8], u64) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        self.source.unpacked(&self.events, &mut each)?;
        for (path, source) in &mut self.parts {
            let read = source.unpacked(&self.events, &mut each);
            read.map_err(|trouble| Trouble::In(path.clone(), Box::new(trouble)))?;
        }
        Ok(())
    }
}

/// What a record of a pipe says of an event, and its numbers.
fn description(body: &[u8], big: bool) -> Option<(Attr, &[u8])> {
    /// The first version's (`PERF_ATTR_SIZE_VER0`).
    const MIN_SIZE: usize = 64;
    // Its second word says how long it is.
    let size = Cursor::new(body.get(4..)?, big).u32()? as usize;
    let (attr, ids) = body.split_at_checked(size.max(MIN_SIZE))?;
    Some((Attr::read(attr, big)?, ids))
}

/// Bytes behind their number; padding may follow.
fn sized(body: &[u8], big: bool) -> Option<&[u8]> {
    let mut cursor = Cursor::new(body, big);
    let size = cursor.u64()?;
    cursor.take(usize::try_from(size).ok()?)
}

/// The bytes of a file, and where its records are.
struct Source<R> {
    input: R,
    length: u64,
    big: bool,
    data: Section,
    /// The header does not say where the records end.
    is_unfinished: bool,
}

/// A record as it stands in a file.
struct Record<'a> {
    head: &'a [u8],
    kind: u32,
    misc: u16,
    body: &'a [u8],
    /// What follows a record of formats of tracepoints.
    data: &'a [u8],
    at: u64,
}

impl<R: BufRead + Seek> Source<R> {
    fn bytes(&mut self, section: Section) -> Result<Vec<u8>, Trouble> {
        let fits = section.end().is_some_and(|end| end <= self.length);
        if !fits || section.size > MAX_OF_SECTION {
            let message = format!("a section of {} bytes does not fit the file", section.size);
            return Err(Trouble::byte(section.offset, message));
        }
        self.input.seek(SeekFrom::Start(section.offset))?;
        let mut bytes = vec![0; section.size as usize];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Calls `each` for every record as [`File::records`] does.
    fn unpacked(
        &mut self,
        events: &Events,
        each: &mut impl FnMut(&Events, u32, u16, &[u8], u64) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let (big, length) = (self.big, self.length);
        let mut unpacker: Option<Unpacker> = None;
        self.records(|record| {
            let packed = match record.kind {
                COMPRESSED => record.body,
                COMPRESSED2 => sized(record.body, big)
                    .ok_or_else(|| Trouble::byte(record.at, "a record is cut short"))?,
                kind => return each(events, kind, record.misc, record.body, record.at),
            };
            let unpacker = match &mut unpacker {
                Some(unpacker) => unpacker,
                none => none.insert(Unpacker::new(big)?),
            };
            unpacker.unpack(packed, record.at, &mut |kind, misc, body| {
                each(events, kind, misc, body, record.at)
            })
        })?;
        match unpacker {
            Some(unpacker) if !self.is_unfinished => unpacker.end(length),
            _ => Ok(()),
        }
    }

    fn records(
        &mut self,
        mut each: impl FnMut(Record<'_>) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let end = self.data.offset + self.data.size;
        let mut at = self.data.offset;
        self.input.seek(SeekFrom::Start(at))?;
        let mut body = Vec::new();
        while at < end {
            let cut = || Trouble::byte(at, "it ends within a record");
            let mut head = [0; HEAD];
            if end - at < HEAD as u64 {
                return if self.is_unfinished {
                    Ok(())
                } else {
                    Err(cut())
                };
            }
            self.input.read_exact(&mut head)?;
            // A file system may have made room that was never written to.
            if self.is_unfinished && head == [0; HEAD] {
                return Ok(());
            }
            let (kind, misc, size) = parts(&head, self.big, at)?;
            if end - at < size as u64 {
                return if self.is_unfinished {
                    Ok(())
                } else {
                    Err(cut())
                };
            }
            body.resize(size - HEAD, 0);
            self.input.read_exact(&mut body)?;
            let begin = at;
            at += size as u64;
            // What follows without being a part of the record's own size.
            let mut cursor = Cursor::new(&body, self.big);
            let more = match kind {
                AUXTRACE => cursor.u64().unwrap_or(0),
                HEADER_TRACING_DATA => u64::from(cursor.u32().unwrap_or(0)),
                _ => 0,
            };
            if end - at < more && self.is_unfinished {
                return Ok(());
            }
            if end - at < more {
                let what = "it ends within the data that follow a record";
                return Err(Trouble::byte(begin, what));
            }
            let behind = Section {
                offset: at,
                size: more,
            };
            let data = match kind {
                HEADER_TRACING_DATA => self.bytes(behind)?,
                _ => Vec::new(),
            };
            at += more;
            if more > 0 {
                self.input.seek(SeekFrom::Start(at))?;
            }
            each(Record {
                head: &head,
                kind,
                misc,
                body: &body,
                data: &data,
                at: begin,
            })?;
        }
        Ok(())
    }
}

/// The type, the flags and the size of a record, the bytes of its head among them.
fn parts(head: &[u8], big: bool, at: u64) -> Result<(u32, u16, usize), Trouble> {
    let mut cursor = Cursor::new(head, big);
    let found = (cursor.u32(), cursor.u16(), cursor.u16());
    let (Some(kind), Some(misc), Some(size)) = found else {
        return Err(Trouble::byte(at, "it ends within a record"));
    };
    let size = usize::from(size);
    if size < HEAD {
        let message = format!("a record of {size} bytes cannot be");
        return Err(Trouble::byte(at, message));
    }
    Ok((kind, misc, size))
}

/// Called with a record's type, flags and body.
type Each<'a> = &'a mut dyn FnMut(u32, u16, &[u8]) -> Result<(), Trouble>;

/// Takes compressed records apart. All of a file's are one stream, cut anywhere.
struct Unpacker {
    stream: Decoder<'static>,
    big: bool,
    /// What has been decompressed and is not a whole record yet.
    rest: Vec<u8>,
    piece: Vec<u8>,
}

impl Unpacker {
    fn new(big: bool) -> Result<Unpacker, Trouble> {
        Ok(Unpacker {
            stream: Decoder::new()?,
            big,
            rest: Vec::new(),
            piece: vec![0; 1 << 16],
        })
    }

    fn unpack(&mut self, mut packed: &[u8], at: u64, each: Each<'_>) -> Result<(), Trouble> {
        let mut made = 0;
        loop {
            let done = self.stream.run_on_buffers(packed, &mut self.piece);
            let done = done.map_err(|_| Trouble::byte(at, "its compressed records are damaged"))?;
            packed = &packed[done.bytes_read..];
            made += done.bytes_written;
            if made > MAX_OF_COMPRESSED {
                let what = "a compressed record holds more than can be";
                return Err(Trouble::byte(at, what));
            }
            self.rest
                .extend_from_slice(&self.piece[..done.bytes_written]);
            self.whole_records(at, each)?;
            // Where the room was filled there may be more to come of the same bytes.
            if done.bytes_written == self.piece.len() {
                continue;
            }
            if packed.is_empty() {
                return Ok(());
            }
            if done.bytes_read == 0 {
                return Err(Trouble::byte(at, "its compressed records are damaged"));
            }
        }
    }

    fn whole_records(&mut self, at: u64, each: Each<'_>) -> Result<(), Trouble> {
        let mut from = 0;
        while let Some(head) = self.rest.get(from..from + HEAD) {
            let (kind, misc, size) = parts(head, self.big, at)?;
            let Some(body) = self.rest.get(from + HEAD..from + size) else {
                break;
            };
            each(kind, misc, body)?;
            from += size;
        }
        self.rest.drain(..from);
        Ok(())
    }

    fn end(self, length: u64) -> Result<(), Trouble> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(Trouble::byte(length, "it ends within a compressed record")),
        }
    }
}
