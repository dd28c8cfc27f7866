//! The page of a difference: what both sides have, and their maps over one another.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;

use serde::Serialize;
use ts_rs::TS;
use varve_compare::{Diff, Figure, FindingChange, Measure, Row, Side};
use varve_model::{Duration, Time, visible};

use super::HtmlError;
use super::encode::{Columns, root_share, write_packed};
use super::payload::Column;
use crate::map::{Lane, Map};
use crate::text::command_line;

/// Rows of each table; what is beyond is counted.
const ROWS: usize = 400;
/// Rows of the map, those with most page touches first.
const LANES: usize = 64;
/// How finely the map of a side is divided in time, and each of its rows in addresses.
const COLUMNS: usize = 480;
const ADDRESS_BINS: usize = 32;

/// All that the page of a difference shows.
#[derive(Serialize, TS)]
pub(super) struct DiffPage {
    /// Which varve wrote the page.
    generator: String,
    a: DiffSide,
    b: DiffSide,
    /// What is known of chance, in a sentence.
    noise: String,
    /// Whether both sides have several runs.
    noise_known: bool,
    /// What is unlike in the recordings, a sentence each.
    notes: Vec<String>,
    /// What a person calls the figures.
    titles: BTreeMap<&'static str, &'static str>,
    program: Vec<Figure>,
    objects: DiffList,
    functions: DiffList,
    lines: DiffList,
    findings: Vec<FindingChange>,
    /// Figures and findings that are not the same on both sides.
    differences: u64,
    /// The maps of the first run of each side.
    map: DiffMap,
}

/// A side.
#[derive(Serialize, TS)]
struct DiffSide {
    /// The trace, or the first and the last of several.
    traces: String,
    command: String,
    runs: usize,
    /// Of the first run.
    duration_ns: Duration,
    /// Whether all runs are complete.
    complete: bool,
}

/// Rows of a table: what changed most is first.
#[derive(Serialize, TS)]
struct DiffList {
    /// Figures of single runs are left out.
    rows: Vec<Row>,
    /// Rows that are left out.
    omitted: usize,
}

/// Two maps over one another.
#[derive(Serialize, TS)]
struct DiffMap {
    /// Into how many parts the time of each side is divided.
    columns: usize,
    a_duration_ns: Duration,
    b_duration_ns: Duration,
    lanes: Vec<DiffLane>,
}

/// The objects of a row on both sides.
#[derive(Serialize, TS)]
struct DiffLane {
    /// Which row of the objects.
    row: usize,
    a: Option<DiffCells>,
    b: Option<DiffCells>,
}

/// What was touched of them on one side.
#[derive(Serialize, TS)]
struct DiffCells {
    pages: u64,
    address_bins: usize,
    /// The square root of the share of pages touched in the intervals, 0 to 255: `[address bin][column]`.
    heat: Column,
}

/// Writes the page of a difference, with the maps of the first run of A and of B.
///
/// # Errors
/// What cannot be written.
pub fn write_diff(diff: &Diff, maps: [&Map; 2], out: &mut impl Write) -> Result<(), HtmlError> {
    let mut columns = Columns::default();
    let page = DiffPage {
        generator: format!("varve {}", env!("CARGO_PKG_VERSION")),
        a: side(&diff.a),
        b: side(&diff.b),
        noise: diff.noise.statement.clone(),
        noise_known: diff.noise.known,
        notes: diff.notes.iter().map(|n| visible(n).into_owned()).collect(),
        titles: Measure::ALL
            .iter()
            .map(|m| (m.as_str(), m.title()))
            .collect(),
        program: diff.program.iter().map(without_runs).collect(),
        objects: list(&diff.objects),
        functions: list(&diff.functions),
        lines: list(&diff.lines),
        findings: diff.findings.clone(),
        differences: diff.differences,
        map: map(diff, maps, &mut columns),
    };
    write_packed(&serde_json::to_vec(&page)?, &columns, out)
}

fn side(of: &Side) -> DiffSide {
    let path = |at: Option<&varve_compare::Recording>| {
        let path = at.map(|run| run.trace.display().to_string());
        visible(&path.unwrap_or_default()).into_owned()
    };
    let first = of.runs.first();
    let traces = match of.runs.len() {
        1 => path(first),
        n => format!("{n} runs, {} to {}", path(first), path(of.runs.last())),
    };
    DiffSide {
        traces,
        command: first.map_or(String::new(), |run| {
            visible(&command_line(&run.command)).into_owned()
        }),
        runs: of.runs.len(),
        duration_ns: first.map_or(Duration(0), |run| run.duration_ns),
        complete: of.runs.iter().all(|run| run.complete),
    }
}

fn without_runs(of: &Figure) -> Figure {
    let mut figure = of.clone();
    figure.a.runs.clear();
    figure.b.runs.clear();
    figure
}

fn list(rows: &[Row]) -> DiffList {
    let shown = rows.iter().take(ROWS).map(|row| Row {
        a: row.a.as_deref().map(|n| visible(n).into_owned()),
        b: row.b.as_deref().map(|n| visible(n).into_owned()),
        figures: row.figures.iter().map(without_runs).collect(),
        ..row.clone()
    });
    DiffList {
        rows: shown.collect(),
        omitted: rows.len().saturating_sub(ROWS),
    }
}

fn map(diff: &Diff, maps: [&Map; 2], columns: &mut Columns) -> DiffMap {
    let touches = |row: &Row| {
        let figure = row.figure(Measure::PageTouches);
        let of = |v: Option<f64>| v.unwrap_or(0.0);
        figure.map_or(0.0, |f| of(f.a.median).max(of(f.b.median)))
    };
    let lanes_of = |row: &Row, side: usize| -> Vec<&Lane> {
        let groups = row.groups[side].iter();
        let lanes = groups.filter_map(|g| maps[side].lane_of(*g as usize));
        lanes
            .map(|at| &maps[side].grids.lanes[at as usize])
            .collect()
    };
    let mut found: Vec<(usize, [Vec<&Lane>; 2])> = diff
        .objects
        .iter()
        .take(ROWS)
        .enumerate()
        .map(|(at, row)| (at, [0, 1].map(|side| lanes_of(row, side))))
        .filter(|(_, sides)| sides.iter().any(|lanes| !lanes.is_empty()))
        .collect();
    found.sort_by(|(x, _), (y, _)| {
        touches(&diff.objects[*y]).total_cmp(&touches(&diff.objects[*x]))
    });
    found.truncate(LANES);
    let times = maps.map(Columned::of);
    let lanes = found.into_iter().map(|(row, sides)| {
        let [a, b] = [0, 1].map(|side| cells(&times[side], &sides[side], columns));
        DiffLane { row, a, b }
    });
    DiffMap {
        lanes: lanes.collect(),
        columns: COLUMNS,
        a_duration_ns: times[0].duration,
        b_duration_ns: times[1].duration,
    }
}

/// The time of a map, divided into columns.
struct Columned<'a> {
    map: &'a Map,
    duration: Duration,
    /// The time bins that each column overlaps.
    bins: Vec<Range<usize>>,
}

impl Columned<'_> {
    fn of(map: &Map) -> Columned<'_> {
        let edges = map.bin_edges();
        let start = edges.first().copied().unwrap_or_default();
        let end = edges.last().copied().unwrap_or_default();
        let duration = end - start;
        let at = |column: usize| {
            let share = duration.0 as u128 * column as u128 / COLUMNS as u128;
            Time(start.0 + share as u64)
        };
        let bins = (0..COLUMNS).map(|column| {
            let first = edges.partition_point(|e| *e <= at(column)).max(1) - 1;
            let last = edges.partition_point(|e| *e < at(column + 1));
            let all = map.grids.time_bins;
            first.min(all)..last.clamp((first + 1).min(all), all)
        });
        Columned {
            map,
            duration,
            bins: bins.collect(),
        }
    }
}

fn cells(time: &Columned<'_>, lanes: &[&Lane], columns: &mut Columns) -> Option<DiffCells> {
    let all: Vec<(&Lane, usize)> = lanes
        .iter()
        .flat_map(|lane| (0..lane.address_bins).map(|bin| (*lane, bin)))
        .collect();
    if all.is_empty() {
        return None;
    }
    let width = time.map.grids.time_bins;
    let chunks = all.chunks(all.len().div_ceil(ADDRESS_BINS));
    let address_bins = chunks.len();
    let share = |rows: &[(&Lane, usize)], bins: &Range<usize>| {
        let (mut touched, mut possible) = (0, 0);
        for (lane, row) in rows {
            for bin in bins.clone() {
                touched += u64::from(lane.sums[row * width + bin]);
                possible += lane.bin_pages(*row) * time.map.intervals_of(bin);
            }
        }
        root_share(touched, possible)
    };
    let share = &share;
    let heat = chunks.flat_map(|rows| time.bins.iter().map(move |bins| share(rows, bins)));
    Some(DiffCells {
        pages: lanes.iter().map(|lane| lane.pages).sum(),
        address_bins,
        heat: columns.bytes(heat),
    })
}
