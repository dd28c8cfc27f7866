//! How much of each cell of the map was touched.

use varve_analyse::{Analysis, Memory, Moment, ObjectUse, Run, Sweep, intervals, sweep};
use varve_model::{PageRange, Time};
use varve_objects::Span;
use varve_trace::tables::FaultRow;
use varve_trace::{Trace, TraceError};

use super::draw::Layout;

/// An object's lane of cells.
pub(super) struct Lane {
    pid: u32,
    first: u64,
    end: u64,
    born: Time,
    died: Time,
    rows: usize,
    /// Pages touched, summed over intervals: `[row][column]`.
    cells: Vec<f32>,
    /// Whether others may have touched a page; empty where none did.
    possibly: Vec<bool>,
}

impl Lane {
    /// `place` is where the object lies in memory.
    fn new(object: &ObjectUse, place: Option<&Span>, rows: usize, columns: usize) -> Lane {
        let place = place.map_or((object.pid, object.address, object.bytes), |p| {
            (p.pid, p.address, p.bytes)
        });
        let range = PageRange::of_bytes(place.1, place.2);
        Lane {
            pid: place.0.0,
            first: range.first.0,
            end: range.end().0,
            born: object.born_ns,
            died: object.died_ns.unwrap_or(Time(u64::MAX)),
            rows,
            cells: vec![0.0; rows * columns],
            possibly: Vec::new(),
        }
    }

    /// Spreads a run over the rows that it overlaps, in proportion.
    fn add(&mut self, first: u64, end: u64, column: usize, columns: usize) {
        let scale = self.rows as f64 / (self.end - self.first) as f64;
        let from = (first - self.first) as f64 * scale;
        let to = (end - self.first) as f64 * scale;
        let last = (to.ceil() as usize).min(self.rows);
        for row in from as usize..last {
            let part = to.min((row + 1) as f64) - from.max(row as f64);
            self.cells[row * columns + column] += (part / scale) as f32;
        }
    }

    /// Marks the rows that a run overlaps.
    fn add_possibly(&mut self, first: u64, end: u64, column: usize, columns: usize) {
        self.possibly.resize(self.cells.len(), false);
        let scale = self.rows as f64 / (self.end - self.first) as f64;
        let from = (first - self.first) as f64 * scale;
        let to = (end - self.first) as f64 * scale;
        for row in from as usize..(to.ceil() as usize).min(self.rows) {
            self.possibly[row * columns + column] = true;
        }
    }
}

/// The cells of all lanes.
pub(super) struct Map {
    lanes: Vec<Lane>,
    columns: usize,
    /// Intervals that fall into each column.
    intervals: Vec<f32>,
}

impl Map {
    /// The share of pages touched per interval in a cell, 0 to 1.
    pub(super) fn share(&self, lane: usize, row: usize, column: usize) -> f64 {
        let lane = &self.lanes[lane];
        let pages = (lane.end - lane.first) as f32 / lane.rows as f32;
        let all = pages * self.intervals[column].max(1.0);
        f64::from(lane.cells[row * self.columns + column] / all).min(1.0)
    }

    /// Whether others may have touched pages of a cell.
    pub(super) fn possibly(&self, lane: usize, row: usize, column: usize) -> bool {
        let cells = &self.lanes[lane].possibly;
        cells.get(row * self.columns + column).copied() == Some(true)
    }

    /// Whether they may have anywhere.
    pub(super) fn any_possibly(&self) -> bool {
        self.lanes.iter().any(|lane| !lane.possibly.is_empty())
    }

    /// The columns in which the lane's object lived.
    pub(super) fn lived(&self, lane: usize) -> (Time, Time) {
        (self.lanes[lane].born, self.lanes[lane].died)
    }
}

pub(super) fn fill(
    trace: &Trace,
    analysis: &Analysis,
    layout: &Layout,
    progress: &mut dyn FnMut(f64),
) -> Result<Map, TraceError> {
    let columns = layout.columns;
    let (mut memory, all) = Memory::read(trace)?;
    let lanes = layout.lanes.iter().map(|l| {
        let object = &analysis.objects[l.object];
        let position = all.position(object.object);
        let place = position.and_then(|p| all.places.get(p as usize));
        Lane::new(object, place, l.rows, columns)
    });
    let mut map = Map {
        lanes: lanes.collect(),
        columns,
        intervals: vec![0.0; columns],
    };
    // An interval's pages go to the column of its middle; a long interval fills those that it spans.
    let spans: Vec<(usize, usize)> = analysis
        .working_set
        .iter()
        .map(|w| layout.span(analysis, w.start_ns, w.end_ns))
        .collect();
    for &(from, to) in &spans {
        map.intervals[from..=to].iter_mut().for_each(|n| *n += 1.0);
    }
    let intervals = intervals(trace)?;
    let mut painting = Painting {
        map: &mut map,
        spans,
        memory: &mut memory,
        distinct: Vec::new(),
        now: None,
        living: Vec::new(),
    };
    sweep(trace, &intervals, &mut painting, progress)?;
    Ok(map)
}

/// What the picture hears of a sweep.
struct Painting<'a> {
    map: &'a mut Map,
    /// The columns of each interval.
    spans: Vec<(usize, usize)>,
    memory: &'a mut Memory,
    /// What was touched, each page of memory once.
    distinct: Vec<Run>,
    now: Option<Moment>,
    /// The lanes whose objects live in this interval.
    living: Vec<usize>,
}

impl Sweep for Painting<'_> {
    fn begin(&mut self, now: Moment) {
        if self.now == Some(now) {
            return;
        }
        self.now = Some(now);
        self.living.clear();
        let lanes = self.map.lanes.iter().enumerate();
        let lives = |l: &Lane| l.born < now.to && now.from < l.died;
        self.living
            .extend(lanes.filter(|(_, l)| lives(l)).map(|(i, _)| i));
    }

    fn touched(&mut self, position: Option<usize>, runs: &[Run]) {
        self.each(position, runs, Lane::add);
    }

    fn possibly(&mut self, position: Option<usize>, runs: &[Run]) {
        self.each(position, runs, Lane::add_possibly);
    }

    fn fault(&mut self, _: &FaultRow) {}
}

/// Enters pages from the first to the one behind the last in a column, of so many.
type Add = fn(&mut Lane, u64, u64, usize, usize);

impl Painting<'_> {
    /// Enters the parts of runs that lie in lanes.
    fn each(&mut self, position: Option<usize>, runs: &[Run], add: Add) {
        let Some(&(from, to)) = position.and_then(|p| self.spans.get(p)) else {
            return;
        };
        let columns = self.map.columns;
        if let Some(now) = self.now {
            self.memory.distinct(runs, now, &mut self.distinct);
        }
        for run in &self.distinct {
            for &number in &self.living {
                let lane = &mut self.map.lanes[number];
                let (first, end) = (run.first.0.max(lane.first), run.end.0.min(lane.end));
                if first < end && lane.pid == run.pid.0 {
                    for column in from..=to {
                        add(lane, first, end, column, columns);
                    }
                }
            }
        }
    }
}
