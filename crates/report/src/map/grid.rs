//! The cells of the map: one pass over touches and first touches in the order of time, in memory that
//! depends on the cells and the touched pages, not on the length of the trace.

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Interval, Page, PageRange, Pages, Pid, Time};
use varve_objects::{Owners, Span};

use super::column::{Column, Filler};
use super::lanes::{Holds, Placement, Seat, Site, divide, plan};
use super::page_set::PageSet;

/// Time bins at most: about four screens of pixels.
const TIME_BINS: usize = 6000;
/// Cells at most, all lanes together, before the page is fitted to its size.
const CELLS: u64 = 12 << 20;
/// The first-touch column says this where a bin was never touched or its thread is not known.
pub(crate) const NONE: u16 = u16::MAX;

/// A stretch of a lane: pages that follow each other in a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, TS)]
pub struct Segment {
    /// The process; of memory that several map, the first that had it.
    pub pid: Pid,
    /// Its first page, counted within the lane.
    pub lane_page: u64,
    /// Its first page in the address space.
    pub page: Page,
    /// How many pages.
    pub pages: u64,
}

/// One lane of the map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// What it holds.
    pub holds: Holds,
    /// The name of its group, or what it is instead.
    pub title: String,
    /// How many objects it holds.
    pub objects: u64,
    /// When the first of them came to be, since the start of the trace, and when the last ceased; none: it lived to the end.
    pub lived: (Time, Option<Time>),
    /// Its pages.
    pub pages: u64,
    /// Its stretches, from top to bottom.
    pub segments: Vec<Segment>,
    pub(crate) page_shift: u32,
    pub(crate) address_bins: usize,
    /// Sum over intervals of pages touched, per cell: `[address bin][time bin]`.
    pub(crate) sums: Vec<u32>,
    /// Distinct pages touched, per cell.
    pub(crate) distinct: Vec<u32>,
    /// Sum over intervals of pages that others may have touched, per cell; empty where there are none.
    pub(crate) possibly: Vec<u32>,
    /// The time bin of the first touch, per address bin.
    pub(crate) first_time: Vec<u16>,
    /// First touches per thread, per address bin.
    pub(crate) first_threads: Vec<Vec<(u16, u32)>>,
}

impl Lane {
    /// Sum over intervals of the pages touched.
    pub fn page_touches(&self) -> u64 {
        self.sums.iter().map(|&sum| u64::from(sum)).sum()
    }

    pub(super) fn new(holds: Holds, title: String, objects: u64) -> Lane {
        Lane {
            holds,
            title,
            objects,
            lived: (Time(u64::MAX), Some(Time(0))),
            pages: 0,
            segments: Vec::new(),
            page_shift: 0,
            address_bins: 0,
            sums: Vec::new(),
            distinct: Vec::new(),
            possibly: Vec::new(),
            first_time: Vec::new(),
            first_threads: Vec::new(),
        }
    }

    /// How many pages an address bin holds; the last may hold fewer.
    pub(crate) fn bin_pages(&self, bin: usize) -> u64 {
        let per = 1_u64 << self.page_shift;
        self.pages.saturating_sub(bin as u64 * per).min(per)
    }
}

/// The lanes of the map and their cells.
#[derive(Clone, Debug, Default)]
pub struct Grids {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) time_bins: usize,
    pub(crate) per_bin: usize,
    /// Sum over intervals of touched pages that no object holds.
    pub unowned: u64,
}

/// The pass over a trace that fills the cells.
pub struct GridPass<'a> {
    grids: Grids,
    /// Of each placement.
    places: Vec<Option<Seat>>,
    /// Of each span.
    seats: Vec<Option<Seat>>,
    owners: Owners<'a>,
    bin: usize,
    filler: Filler<'a>,
    faulted: PageSet,
}

impl<'a> GridPass<'a> {
    /// Empty cells for these objects of these groups over this many intervals. `spans` are the parts of the objects, and `of`
    /// says whose each is, by the position of its placement, which has pages.
    pub fn new(
        placements: &[Placement],
        sites: &[Site],
        (spans, of): (&'a [Span], &[u32]),
        intervals: usize,
    ) -> GridPass<'a> {
        let per_bin = intervals.div_ceil(TIME_BINS).max(1);
        let time_bins = intervals.div_ceil(per_bin);
        let (mut lanes, places) = plan(placements, sites);
        let seats: Vec<Option<Seat>> = of.iter().map(|&i| places[i as usize]).collect();
        let budget = (CELLS / time_bins.max(1) as u64).max(lanes.len() as u64);
        divide(&mut lanes, budget);
        for lane in &mut lanes {
            lane.sums = vec![0; lane.address_bins * time_bins];
            lane.distinct = vec![0; lane.address_bins * time_bins];
            lane.first_time = vec![NONE; lane.address_bins];
            lane.first_threads = vec![Vec::new(); lane.address_bins];
        }
        GridPass {
            faulted: PageSet::new(lanes.len()),
            filler: Filler::new(&lanes, &seats, spans),
            places,
            grids: Grids {
                lanes,
                time_bins,
                per_bin,
                unowned: 0,
            },
            seats,
            owners: Owners::new(spans),
            bin: 0,
        }
    }

    /// The time bin of an interval.
    pub(super) fn bin_of(&self, interval: Interval) -> usize {
        let last = self.grids.time_bins.saturating_sub(1);
        (interval.0 as usize / self.grids.per_bin).min(last)
    }

    /// One more that fills time bins, to be given to [`GridPass::put`].
    pub(super) fn filler(&self, spans: &'a [Span]) -> Filler<'a> {
        Filler::new(&self.grids.lanes, &self.seats, spans)
    }

    /// Begins an interval; they come in order. Times are since the start of the trace.
    pub fn begin(&mut self, interval: Interval, start: Time, end: Time) {
        let bin = self.bin_of(interval);
        if bin != self.bin {
            self.close();
            self.bin = bin;
        }
        self.advance(start, end);
        self.filler.begin(start, end);
    }

    /// Goes on to an interval whose touches others fill in: for first touches.
    pub(super) fn advance(&mut self, start: Time, end: Time) {
        self.owners.advance(start, end);
    }

    /// Ends the time bin: what was gathered goes to its cells.
    fn close(&mut self) {
        let column = self.filler.take();
        self.put(self.bin, &column);
    }

    /// Enters what was gathered of a time bin.
    pub(super) fn put(&mut self, bin: usize, column: &Column) {
        let width = self.grids.time_bins;
        self.grids.unowned += column.unowned;
        for part in &column.parts {
            let lane = &mut self.grids.lanes[part.lane as usize];
            let row = part.row as usize;
            let cell = row * width + bin;
            lane.sums[cell] = lane.sums[cell].saturating_add(part.sum);
            lane.distinct[cell] += part.distinct;
            if part.possibly > 0 {
                let cells = lane.sums.len();
                lane.possibly.resize(cells, 0);
                lane.possibly[cell] = lane.possibly[cell].saturating_add(part.possibly);
            }
            if part.sum > 0 {
                lane.first_time[row] = lane.first_time[row].min(bin as u16);
            }
        }
    }

    /// Adds a run of pages touched in the interval that has begun. The runs of one interval must not
    /// name a page twice.
    pub fn touch(&mut self, pid: Pid, run: PageRange) {
        self.filler.touch(pid, run, false);
    }

    /// Notes which thread touched a page first; later notes for the same page and object count for
    /// nothing. `thread` is an index into the threads of the report.
    pub fn first_touch(&mut self, pid: Pid, page: Page, thread: u16) {
        let GridPass {
            grids,
            seats,
            owners,
            faulted,
            ..
        } = self;
        let run = PageRange {
            first: page,
            count: Pages(1),
        };
        owners.owners(pid, run, |_, shares| {
            for share in shares {
                let Some(seat) = seats[share.object.0 as usize] else {
                    continue;
                };
                let at = seat.lane_page(page);
                if faulted.add(seat.lane, at, at + 1) == 0 {
                    continue;
                }
                let lane = &mut grids.lanes[seat.lane as usize];
                let threads = &mut lane.first_threads[(at >> lane.page_shift) as usize];
                match threads.iter_mut().find(|(t, _)| *t == thread) {
                    Some((_, count)) => *count += 1,
                    None => threads.push((thread, 1)),
                }
            }
        });
    }

    /// The lane of a placement, by position, and the place of its first page there.
    pub(super) fn place(&self, placement: usize) -> Option<(u32, u64)> {
        let seat = self.places.get(placement).copied().flatten();
        seat.map(|seat| (seat.lane, seat.begins))
    }

    /// The map, when every interval was seen.
    pub fn finish(mut self) -> Grids {
        self.close();
        self.grids
    }
}

impl Grids {
    /// The lanes, hottest first.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Halves the resolution in address of every lane that has more than one bin; exact, because bins
    /// share no page. Returns false when there is nothing left to halve.
    pub(crate) fn coarsen(&mut self) -> bool {
        let mut any = false;
        let width = self.time_bins;
        for lane in self.lanes.iter_mut().filter(|l| l.address_bins > 1) {
            any = true;
            let bins = lane.address_bins.div_ceil(2);
            for values in [&mut lane.sums, &mut lane.distinct, &mut lane.possibly] {
                if values.is_empty() {
                    continue;
                }
                for bin in 0..bins {
                    for x in 0..width {
                        let below = values.get((2 * bin + 1) * width + x).copied().unwrap_or(0);
                        values[bin * width + x] = values[2 * bin * width + x].saturating_add(below);
                    }
                }
                values.truncate(bins * width);
            }
            lane.first_time = lane
                .first_time
                .chunks(2)
                .map(|c| c.iter().copied().min().unwrap_or(NONE))
                .collect();
            let merged = lane.first_threads.chunks_mut(2).map(|pair| {
                let mut all: Vec<(u16, u32)> = Vec::new();
                for (thread, count) in pair.iter_mut().flat_map(std::mem::take) {
                    match all.iter_mut().find(|(t, _)| *t == thread) {
                        Some((_, sum)) => *sum += count,
                        None => all.push((thread, count)),
                    }
                }
                all
            });
            lane.first_threads = merged.collect();
            lane.address_bins = bins;
            lane.page_shift += 1;
        }
        any
    }
}
