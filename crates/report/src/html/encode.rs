//! From a report to the bytes of the page, fitted to its size.

use std::io::Write;

use base64::Engine;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use varve_model::Bytes;

use super::payload::{self, Bins, Column, Payload, Thread};
use super::{HtmlError, HtmlReport};
use crate::map::{Holds, Lane, Map, NONE};

/// A page is never larger, whatever the trace.
pub const MAX_PAGE_BYTES: Bytes = Bytes(5_000_000);
const TEMPLATE: &str = include_str!(env!("VARVE_REPORT_TEMPLATE"));
const PLACE: &str = "@@VARVE_PAYLOAD@@";

/// How large a page became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HtmlSize {
    /// The page.
    pub page: Bytes,
    /// Its data before compression.
    pub data: Bytes,
    /// How often the map was coarsened in address to fit.
    pub coarsened: u32,
}

/// Writes the page. A map that would make it too large is coarsened in address first.
pub fn write_html(mut report: HtmlReport, out: &mut impl Write) -> Result<HtmlSize, HtmlError> {
    let (head, tail) = TEMPLATE.split_once(PLACE).ok_or(HtmlError::Template)?;
    // Base64 makes four bytes of three.
    let room = (MAX_PAGE_BYTES.0 as usize).saturating_sub(head.len() + tail.len()) / 4 * 3;
    let mut coarsened = 0;
    loop {
        let data = encode(&report)?;
        // Packing is the slowest step: what is far too large is not packed to the end to find out.
        let expected = expected(&data, room)?;
        if expected > room + room / 20 && report.map.grids.coarsen() {
            coarsened += 1;
            if expected / 5 * 2 > room {
                coarsened += u32::from(report.map.grids.coarsen());
            }
            continue;
        }
        let packed = match pack(&data, room)? {
            Packed::Whole(packed) => packed,
            Packed::TooLarge { fitted } => {
                // Half the cells take about half the room, hardly less.
                let halvings = if fitted * 5 < data.len() { 2 } else { 1 };
                let before = coarsened;
                for _ in 0..halvings {
                    coarsened += u32::from(report.map.grids.coarsen());
                }
                if coarsened > before {
                    continue;
                }
                match pack(&data, usize::MAX)? {
                    Packed::Whole(packed) => packed,
                    Packed::TooLarge { .. } => continue,
                }
            }
        };
        let text = base64::engine::general_purpose::STANDARD.encode(packed);
        let page = Bytes((head.len() + text.len() + tail.len()) as u64);
        out.write_all(head.as_bytes())?;
        out.write_all(text.as_bytes())?;
        out.write_all(tail.as_bytes())?;
        return Ok(HtmlSize {
            page,
            data: Bytes(data.len() as u64),
            coarsened,
        });
    }
}

enum Packed {
    Whole(Vec<u8>),
    /// It takes more room than there is; so many bytes fitted.
    TooLarge {
        fitted: usize,
    },
}

/// About how large the data will be: from a sixteenth of it, if it is large.
fn expected(data: &[u8], room: usize) -> std::io::Result<usize> {
    const PIECE: usize = 1 << 15;
    const EVERY: usize = 16;
    if data.len() <= 2 * room {
        return Ok(0);
    }
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::new(6));
    let mut taken = 0;
    for piece in data.chunks(PIECE).step_by(EVERY) {
        zlib.write_all(piece)?;
        taken += piece.len();
    }
    let packed = zlib.finish()?.len();
    Ok((packed as f64 * data.len() as f64 / taken.max(1) as f64) as usize)
}

/// Compresses, and gives up as soon as the result is larger than `room`.
fn pack(data: &[u8], room: usize) -> std::io::Result<Packed> {
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::new(6));
    let mut fitted = 0;
    for piece in data.chunks(1 << 16) {
        zlib.write_all(piece)?;
        if zlib.get_ref().len() > room {
            return Ok(Packed::TooLarge { fitted });
        }
        fitted += piece.len();
    }
    let packed = zlib.finish()?;
    Ok(match packed.len() > room {
        true => Packed::TooLarge { fitted },
        false => Packed::Whole(packed),
    })
}

#[derive(Default)]
pub(super) struct Columns(Vec<u8>);

impl Columns {
    pub(super) fn bytes(&mut self, values: impl Iterator<Item = u8>) -> Column {
        let offset = self.0.len();
        self.0.extend(values);
        Column {
            offset,
            count: self.0.len() - offset,
        }
    }

    fn words(&mut self, values: impl Iterator<Item = u16>) -> Column {
        let offset = self.0.len();
        values.for_each(|v| self.0.extend(v.to_le_bytes()));
        Column {
            offset,
            count: (self.0.len() - offset) / 2,
        }
    }

    /// Differences between neighbours, the first from zero, as 32-bit numbers.
    fn deltas(&mut self, values: impl Iterator<Item = u64>) -> Column {
        let offset = self.0.len();
        let mut before = 0_i64;
        for value in values {
            // What does not fit is made up for by the next: the sum stays right.
            let delta = (value as i64 - before).clamp(i32::MIN.into(), i32::MAX.into());
            before += delta;
            self.0.extend((delta as i32).to_le_bytes());
        }
        Column {
            offset,
            count: (self.0.len() - offset) / 4,
        }
    }
}

fn encode(report: &HtmlReport) -> Result<Vec<u8>, HtmlError> {
    let mut columns = Columns::default();
    let map = &report.map;
    let lanes = map.grids.lanes.iter();
    let lanes = lanes
        .map(|lane| lane_head(map, lane, &mut columns))
        .collect();
    let mut unknown = report.unknown.clone();
    if map.grids.unowned > 0 {
        unknown.push(format!("{} page touches fell on no known object; they are in the working set but not in the map.", map.grids.unowned));
    }
    let threads = map.threads.iter().map(|t| Thread {
        pid: t.pid,
        tid: t.tid,
        name: t.name.clone(),
    });
    let head = Payload {
        generator: format!("varve {}", env!("CARGO_PKG_VERSION")),
        trace: &report.trace,
        overhead: &report.overhead,
        footprint: &report.footprint,
        samples: report.samples.as_ref(),
        counts: report.counts.as_ref(),
        sharing: report.sharing.as_ref(),
        alloc: report.alloc.as_ref(),
        opens: report.opens,
        unknown,
        bins: Bins {
            count: map.grids.time_bins,
            intervals_per_bin: map.grids.per_bin,
        },
        // Microseconds: 32 bits of nanoseconds are too few for an interval of minutes.
        interval_edges: columns.deltas(map.edges.iter().map(|t| t.0 / 1000)),
        working_set: columns.deltas(map.working_set.iter().map(|p| p.0)),
        resident: map
            .resident
            .as_ref()
            .map(|r| columns.deltas(r.iter().map(|p| p.0))),
        phases: &report.phases,
        omitted_phases: report.omitted_phases,
        processes: &report.processes,
        threads: threads.collect(),
        lanes,
        groups: &report.groups,
        objects: &report.objects,
        omitted_groups: report.omitted_groups,
        findings: &report.findings,
    };
    Ok(joined(&serde_json::to_vec(&head)?, &columns))
}

/// The length of the JSON, the JSON, and the columns.
fn joined(json: &[u8], columns: &Columns) -> Vec<u8> {
    let mut out = Vec::with_capacity(4 + json.len() + columns.0.len());
    out.extend(u32::try_from(json.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend(json);
    out.extend(&columns.0);
    out
}

/// Writes a page with this data, however large it is.
pub(super) fn write_packed(
    json: &[u8],
    columns: &Columns,
    out: &mut impl Write,
) -> Result<(), HtmlError> {
    let (head, tail) = TEMPLATE.split_once(PLACE).ok_or(HtmlError::Template)?;
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::new(6));
    zlib.write_all(&joined(json, columns))?;
    let text = base64::engine::general_purpose::STANDARD.encode(zlib.finish()?);
    for part in [head, &text, tail] {
        out.write_all(part.as_bytes())?;
    }
    Ok(())
}

fn lane_head<'a>(map: &Map, lane: &'a Lane, columns: &mut Columns) -> payload::Lane<'a> {
    let width = map.grids.time_bins.max(1);
    let share = |(cell, &sum): (usize, &u32)| {
        // Most cells are empty.
        if sum == 0 {
            return 0;
        }
        let (bin, x) = (cell / width, cell % width);
        root_share(u64::from(sum), lane.bin_pages(bin) * map.intervals_of(x))
    };
    let heat = lane.sums.iter().enumerate().map(share);
    let possibly = lane.possibly.iter().enumerate().map(share);
    let per = 1_u64 << lane.page_shift;
    let coverage = lane.distinct.iter().map(|&pages| {
        let pages = u64::from(pages);
        let scaled = if per <= 255 {
            pages
        } else {
            (pages * 255).div_ceil(per)
        };
        scaled.min(255) as u8
    });
    let thread = |threads: &Vec<(u16, u32)>| {
        threads
            .iter()
            .max_by_key(|(_, n)| *n)
            .map_or(NONE, |(t, _)| *t)
    };
    let (group, kind) = match lane.holds {
        Holds::Group(group) => (Some(group), None),
        Holds::Rest(kind) => (None, Some(kind)),
        Holds::Untouched => (None, None),
    };
    payload::Lane {
        title: &lane.title,
        group,
        kind,
        objects: lane.objects,
        pages: lane.pages,
        pages_per_bin: per,
        address_bins: lane.address_bins,
        segments: &lane.segments,
        heat: columns.bytes(heat),
        coverage: columns.bytes(coverage),
        possibly: (!lane.possibly.is_empty()).then(|| columns.bytes(possibly)),
        first_thread: columns.words(lane.first_threads.iter().map(thread)),
        first_time: columns.words(lane.first_time.iter().copied()),
    }
}

/// The square root of `part / whole` on 0..=255: fine where it is cold. Never 0 where anything was touched.
pub(super) fn root_share(part: u64, whole: u64) -> u8 {
    if part == 0 {
        return 0;
    }
    let root = (part as f64 / whole.max(1) as f64).min(1.0).sqrt();
    ((root * 255.0).round() as u8).max(1)
}
