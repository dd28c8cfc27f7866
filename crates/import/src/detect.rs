//! Which format a file is in, by what it holds, never by its name.

use std::io::Read;

use varve_model::ImportFormat;

use crate::lines::unmarked;
use crate::{counts, damon, iiswc22, lackey, mitos, perf_data, perf_line, perf_script};

/// What one file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    PerfData,
    PerfScript,
    Mitos,
    Iiswc22Accesses,
    Iiswc22Events,
    DamonZlib,
    DamonJson,
    DamonText,
    Lackey,
    Moca,
    MocaStructs,
    Tabarnac,
    TabarnacStructs,
    TabarnacStacks,
}

impl Content {
    pub(crate) const fn format(self) -> ImportFormat {
        match self {
            Content::PerfData => ImportFormat::PerfData,
            Content::PerfScript => ImportFormat::PerfScript,
            Content::Mitos => ImportFormat::Mitos,
            Content::Iiswc22Accesses | Content::Iiswc22Events => ImportFormat::Iiswc22,
            Content::DamonZlib | Content::DamonJson | Content::DamonText => ImportFormat::Damon,
            Content::Lackey => ImportFormat::Lackey,
            Content::Moca | Content::MocaStructs => ImportFormat::Moca,
            Content::Tabarnac | Content::TabarnacStructs | Content::TabarnacStacks => {
                ImportFormat::Tabarnac
            }
        }
    }

    /// What a file of this format is taken for where its content does not say.
    const fn usual(format: ImportFormat) -> Content {
        match format {
            ImportFormat::PerfData => Content::PerfData,
            ImportFormat::PerfScript => Content::PerfScript,
            ImportFormat::Mitos => Content::Mitos,
            ImportFormat::Iiswc22 => Content::Iiswc22Accesses,
            ImportFormat::Damon => Content::DamonJson,
            ImportFormat::Lackey => Content::Lackey,
            ImportFormat::Moca => Content::Moca,
            ImportFormat::Tabarnac => Content::Tabarnac,
        }
    }
}

/// How much of a file is looked at.
pub(crate) const HEAD: usize = 1 << 16;
/// How many of its lines.
const LINES: usize = 1000;

/// What a file holds, by its first bytes; the message says what it looks like where it is not known.
pub(crate) fn detect(head: &[u8], forced: Option<ImportFormat>) -> Result<Content, String> {
    match (by_content(head), forced) {
        (Ok(content), None) => Ok(content),
        (Ok(content), Some(format)) if content.format() == format => Ok(content),
        (_, Some(format)) => Ok(Content::usual(format)),
        (Err(why), None) => Err(why),
    }
}

fn by_content(head: &[u8]) -> Result<Content, String> {
    if head.is_empty() {
        return Err("it is empty".to_owned());
    }
    if perf_data::is_magic(head) {
        return Ok(Content::PerfData);
    }
    if let Some(text) = unpacked(head) {
        return match is_damo(&text) {
            true => Ok(Content::DamonZlib),
            false => {
                Err("it is compressed, and what is in it is not one of damo's records".to_owned())
            }
        };
    }
    if let Some(why) = packed(head) {
        return Err(why);
    }
    let head = unmarked(head);
    if head.contains(&0) {
        return Err("it is binary, and does not begin like a perf.data".to_owned());
    }
    if head.trim_ascii_start().starts_with(b"[") {
        // A thread's name may begin like JSON.
        return match is_damo(head) {
            true => Ok(Content::DamonJson),
            false => by_lines(head)
                .map_err(|_| "it is not one of damo's records, though it may be JSON".to_owned()),
        };
    }
    by_lines(head)
}

/// What the head of a zlib stream becomes; none where there is no such stream. A text that begins with `x` may have its first two
/// bytes, the method, the window, and a checksum of the two.
fn unpacked(head: &[u8]) -> Option<Vec<u8>> {
    let [0x78, flags, ..] = head else { return None };
    if !(0x7800 + u32::from(*flags)).is_multiple_of(31) {
        return None;
    }
    let mut text = Vec::new();
    // The head of a stream ends in the middle of it.
    let _ = flate2::read::ZlibDecoder::new(head)
        .take(HEAD as u64)
        .read_to_end(&mut text);
    Some(text).filter(|text| !text.is_empty())
}

/// What a file is that has to be made a text or a `perf.data` first.
fn packed(head: &[u8]) -> Option<String> {
    const PACKED: [(&[u8], &str, &str); 4] = [
        (b"\x1f\x8b", "gzip", "gunzip"),
        (b"\xfd7zXZ\0", "xz", "unxz"),
        (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
        (b"BZh", "bzip2", "bunzip2"),
    ];
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        let why = "it is a text in UTF-16: convert it with `iconv -f UTF-16 -t UTF-8`";
        return Some(why.to_owned());
    }
    let (_, name, tool) = PACKED.iter().find(|(magic, ..)| head.starts_with(magic))?;
    Some(format!(
        "it is compressed with {name}: unpack it with `{tool}`"
    ))
}

/// A list whose first record has what damo writes.
fn is_damo(text: &[u8]) -> bool {
    let has = |word: &str| memchr::memmem::find(text, word.as_bytes()).is_some();
    let text = text.trim_ascii_start();
    text.starts_with(b"[") && has("\"snapshots\"") && has("\"regions\"")
}

fn by_lines(head: &[u8]) -> Result<Content, String> {
    let is_cut = head.len() >= HEAD;
    let mut lines: Vec<&[u8]> = head.split(|b| *b == b'\n').collect();
    if is_cut && lines.len() > 1 {
        lines.pop();
    }
    let lines: Vec<&[u8]> = lines
        .into_iter()
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.trim_ascii().is_empty())
        .take(LINES)
        .collect();
    let Some(first) = lines.first() else {
        return Err("it is blank".to_owned());
    };
    type Is = fn(&[u8]) -> bool;
    let by_first: [(Is, Content); 8] = [
        (mitos::is_header, Content::Mitos),
        (counts::is_moca, Content::Moca),
        (counts::is_moca_structs, Content::MocaStructs),
        (counts::is_tabarnac, Content::Tabarnac),
        (counts::is_tabarnac_structs, Content::TabarnacStructs),
        (counts::is_tabarnac_stacks, Content::TabarnacStacks),
        (iiswc22::is_event, Content::Iiswc22Events),
        (iiswc22::is_access, Content::Iiswc22Accesses),
    ];
    if let Some((_, content)) = by_first.iter().find(|(is, _)| is(first)) {
        return Ok(*content);
    }
    if lines.iter().any(|line| damon::event(line).is_some()) {
        return Ok(Content::DamonText);
    }
    // Two lines that could be accesses may stand in any text; Valgrind's own words may stand before them.
    let accesses = lines
        .iter()
        .filter(|line| !matches!(lackey::line(line), Ok(lackey::Line::Other) | Err(_)))
        .count();
    let theirs = lines.iter().filter(|line| line.starts_with(b"==")).count();
    if accesses > 0 && accesses + theirs >= lines.len().div_ceil(2) {
        return Ok(Content::Lackey);
    }
    let is_record = |line: &&&[u8]| !line.starts_with(b"#") && !perf_script::is_notice(line);
    if let Some(record) = lines.iter().find(is_record) {
        if is_perf_script(record) {
            return Ok(Content::PerfScript);
        }
        if perf_line::is_timeless(record) {
            return Err(TIMELESS.to_owned());
        }
    }
    let start = String::from_utf8_lossy(&first[..first.len().min(60)]).into_owned();
    Err(format!("it begins with {start:?}"))
}

const TIMELESS: &str = "it looks like the text of `perf script`, without times: print them with `perf script -F +time`";

/// A line with a time, and a record or an event behind it.
fn is_perf_script(line: &[u8]) -> bool {
    perf_line::head(line).is_some_and(|head| {
        head.rest.starts_with(b"PERF_RECORD_")
            || !matches!(perf_line::body(head.rest), Err(perf_line::NO_EVENT))
    })
}
