//! Which format a file is in, by what it holds, never by its name.

use std::fmt;
use std::io::Read;
use std::str::FromStr;

use crate::{counts, damon, iiswc22, lackey, mitos, perf_data, perf_line};

/// A tool's formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `perf.data`, of `perf mem record` or of any event with addresses; also of DAMON's tracepoint.
    PerfData,
    /// The text of `perf script`.
    PerfScript,
    /// Samples of Mitos and MemAxes.
    Mitos,
    /// The tables of the IISWC 2022 artifact.
    Iiswc22,
    /// damo's records.
    Damon,
    /// Valgrind's lackey.
    Lackey,
    /// Moca's traces.
    Moca,
    /// TABARNAC's tables.
    Tabarnac,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 8] = [
        Format::PerfData,
        Format::PerfScript,
        Format::Mitos,
        Format::Iiswc22,
        Format::Damon,
        Format::Lackey,
        Format::Moca,
        Format::Tabarnac,
    ];

    /// The word on the command line and in a trace's manifest.
    pub const fn as_str(self) -> &'static str {
        match self {
            Format::PerfData => "perf-data",
            Format::PerfScript => "perf-script",
            Format::Mitos => "mitos",
            Format::Iiswc22 => "iiswc22",
            Format::Damon => "damon",
            Format::Lackey => "lackey",
            Format::Moca => "moca",
            Format::Tabarnac => "tabarnac",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Format::ALL.into_iter().find(|f| f.as_str() == word);
        found.ok_or_else(|| {
            let words: Vec<&str> = Format::ALL.iter().map(|f| f.as_str()).collect();
            format!("one of {}", words.join(", "))
        })
    }
}

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
    pub(crate) const fn format(self) -> Format {
        match self {
            Content::PerfData => Format::PerfData,
            Content::PerfScript => Format::PerfScript,
            Content::Mitos => Format::Mitos,
            Content::Iiswc22Accesses | Content::Iiswc22Events => Format::Iiswc22,
            Content::DamonZlib | Content::DamonJson | Content::DamonText => Format::Damon,
            Content::Lackey => Format::Lackey,
            Content::Moca | Content::MocaStructs => Format::Moca,
            Content::Tabarnac | Content::TabarnacStructs | Content::TabarnacStacks => {
                Format::Tabarnac
            }
        }
    }

    /// What a file of this format is taken for where its content does not tell.
    const fn usual(format: Format) -> Content {
        match format {
            Format::PerfData => Content::PerfData,
            Format::PerfScript => Content::PerfScript,
            Format::Mitos => Content::Mitos,
            Format::Iiswc22 => Content::Iiswc22Accesses,
            Format::Damon => Content::DamonJson,
            Format::Lackey => Content::Lackey,
            Format::Moca => Content::Moca,
            Format::Tabarnac => Content::Tabarnac,
        }
    }
}

/// How much of a file is looked at.
pub(crate) const HEAD: usize = 1 << 16;
/// How many of its lines.
const LINES: usize = 1000;

/// What a file holds, by its first bytes; the message says what it looks like where it is not known.
pub(crate) fn detect(head: &[u8], forced: Option<Format>) -> Result<Content, String> {
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
    // A zlib stream: the method, the window, and a checksum of the two.
    if let [0x78, flags, ..] = head
        && (0x7800 + u32::from(*flags)) % 31 == 0
    {
        let mut text = Vec::new();
        // The head of a stream ends in the middle of it.
        let _ = flate2::read::ZlibDecoder::new(head)
            .take(HEAD as u64)
            .read_to_end(&mut text);
        return match is_damo(&text) {
            true => Ok(Content::DamonZlib),
            false => {
                Err("it is compressed, and what is in it is not one of damo's records".to_owned())
            }
        };
    }
    if head.contains(&0) {
        return Err("it is binary, and does not begin like a perf.data".to_owned());
    }
    if head.trim_ascii_start().starts_with(b"[") {
        return match is_damo(head) {
            true => Ok(Content::DamonJson),
            false => Err("it is not one of damo's records, though it may be JSON".to_owned()),
        };
    }
    by_lines(head)
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
    let mut records = lines.iter().filter(|line| !line.starts_with(b"#"));
    if records.next().is_some_and(|line| is_perf_script(line)) {
        return Ok(Content::PerfScript);
    }
    let start = String::from_utf8_lossy(&first[..first.len().min(60)]).into_owned();
    Err(format!("it begins with {start:?}"))
}

/// A line with a time, and a record or an event behind it.
fn is_perf_script(line: &[u8]) -> bool {
    perf_line::head(line).is_some_and(|head| {
        head.rest.starts_with(b"PERF_RECORD_")
            || perf_line::body(head.rest).is_ok_and(|body| {
                !body.event.is_empty() || body.address.is_some() || body.ip.is_some()
            })
    })
}
