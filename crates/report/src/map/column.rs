//! One time bin of the map: the touches of its intervals, gathered by address bin.

use varve_model::{PageRange, Pid, Time};
use varve_objects::{Owners, Span};

use super::grid::Lane;
use super::lanes::Seat;
use super::page_set::PageSet;

/// Pages of a chunk of [`Owners`].
const CHUNK: u64 = 512;
/// Pieces of runs that are worked on together: see the fold of `varve-analyse`.
const PIECES: usize = 512;

/// What was gathered of a time bin.
pub(super) struct Column {
    /// Address bins that were touched.
    pub(super) parts: Vec<Part>,
    /// Sum over intervals of touched pages that no object holds.
    pub(super) unowned: u64,
}

/// An address bin of a lane.
pub(super) struct Part {
    pub(super) lane: u32,
    pub(super) row: u32,
    /// Sum over intervals of pages touched.
    pub(super) sum: u32,
    /// Distinct pages touched.
    pub(super) distinct: u32,
    /// Sum over intervals of pages that others may have touched.
    pub(super) possibly: u32,
}

#[derive(Clone, Copy, Default)]
struct Now {
    sum: u32,
    distinct: u32,
    possibly: u32,
}

/// The lane of what is on no map.
const NO_LANE: u32 = u32::MAX;

/// Where the pages of an object go.
#[derive(Clone, Copy, Default)]
struct Target {
    /// Added to the number of a page it gives its place in the lane; it may wrap.
    offset: u64,
    lane: u32,
}

/// The address bins of a lane.
#[derive(Clone, Copy, Default)]
struct Rows {
    /// The first of them.
    begin: u32,
    /// How many pages one has, as a power of two.
    shift: u32,
}

/// Pages of a chunk up to `end` with the same targets.
struct Cell {
    end: u16,
    count: u16,
    /// Where they begin in [`Chunk::targets`], if there are several.
    from: u32,
    /// The first of them, at hand: few cells have more.
    first: Target,
}

/// What is known of the owners of a chunk. There may be one for each touched page.
#[derive(Default)]
struct Chunk {
    /// The version of [`Owners`]; none has zero.
    version: u32,
    /// The target of all of its pages, where `cells` is none; its lane is [`NO_LANE`] where they have none.
    whole: Target,
    cells: Option<Box<Cells>>,
}

/// The owners of a chunk with several.
struct Cells {
    cells: Vec<Cell>,
    targets: Vec<Target>,
}

/// The part of a run in one chunk.
struct Piece {
    position: u32,
    count: u32,
    first: u64,
    /// Others may have touched it.
    possibly: bool,
}

/// Gathers time bins, one after the other, in the order of time; bins may be left out.
pub(super) struct Filler<'a> {
    owners: Owners<'a>,
    /// Of each lane.
    rows: Vec<Rows>,
    /// Of each span; none where it is not on the map.
    targets: Vec<Option<Target>>,
    chunks: Vec<Chunk>,
    pieces: Vec<Piece>,
    /// The address bins of all lanes.
    now: Vec<Now>,
    /// How many address bins each lane has.
    bins: Vec<usize>,
    seen: PageSet,
    unowned: u64,
}

impl<'a> Filler<'a> {
    /// `seats` are those of the spans.
    pub(super) fn new(lanes: &[Lane], seats: &[Option<Seat>], spans: &'a [Span]) -> Filler<'a> {
        let bins: Vec<usize> = lanes.iter().map(|l| l.address_bins).collect();
        let begins: Vec<usize> = bins
            .iter()
            .scan(0, |sum, bins| Some(std::mem::replace(sum, *sum + bins)))
            .collect();
        let target = |seat: &Seat| Target {
            offset: seat.offset(),
            lane: seat.lane,
        };
        let rows = lanes.iter().zip(&begins).map(|(lane, begin)| Rows {
            // Lanes have at most some 12 million bins together.
            begin: *begin as u32,
            shift: lane.page_shift,
        });
        Filler {
            rows: rows.collect(),
            owners: Owners::new(spans),
            targets: seats.iter().map(|s| s.as_ref().map(target)).collect(),
            chunks: Vec::new(),
            pieces: Vec::with_capacity(PIECES),
            now: vec![Now::default(); bins.iter().sum()],
            seen: PageSet::new(bins.len()),
            bins,
            unowned: 0,
        }
    }

    /// Begins an interval; times are since the start of the trace.
    pub(super) fn begin(&mut self, start: Time, end: Time) {
        self.work();
        self.owners.advance(start, end);
    }

    /// Adds a run of pages touched in the interval that has begun, or that others may have touched.
    pub(super) fn touch(&mut self, pid: Pid, run: PageRange, possibly: bool) {
        let (mut at, end) = (run.first.0, run.end().0);
        while at < end {
            let number = at / CHUNK;
            let stop = end.min((number + 1) * CHUNK);
            match self.owners.chunk_at(pid, number) {
                None if possibly => (),
                None => self.unowned += stop - at,
                Some((position, version)) => {
                    if self
                        .chunks
                        .get(position)
                        .is_none_or(|c| c.version != version)
                    {
                        self.learn(position, version);
                    }
                    self.pieces.push(Piece {
                        position: position as u32,
                        count: (stop - at) as u32,
                        first: at,
                        possibly,
                    });
                    if self.pieces.len() == PIECES {
                        self.work();
                    }
                }
            }
            at = stop;
        }
    }

    /// Takes over the owners of a chunk.
    #[cold]
    fn learn(&mut self, position: usize, version: u32) {
        if self.chunks.len() <= position {
            self.chunks.resize_with(position + 1, Chunk::default);
        }
        let (chunk, targets) = (&mut self.chunks[position], &self.targets);
        chunk.version = version;
        let old = chunk.cells.take().map(|old| *old);
        let mut known = old.unwrap_or_else(|| Cells {
            cells: Vec::new(),
            targets: Vec::new(),
        });
        known.cells.clear();
        known.targets.clear();
        self.owners.of_chunk(position, |end, shares| {
            let from = known.targets.len();
            let of = shares
                .iter()
                .filter_map(|share| targets[share.object.0 as usize]);
            known.targets.extend(of);
            if known.targets.len() > from + 1 {
                merge(&mut known.targets, from);
            }
            known.cells.push(Cell {
                end,
                // `Owners` names no more.
                count: (known.targets.len() - from) as u16,
                from: from as u32,
                first: known.targets.get(from).copied().unwrap_or_default(),
            });
            if known.targets.len() == from + 1 {
                known.targets.truncate(from);
            }
        });
        match known.cells[..] {
            [
                Cell {
                    end,
                    count: count @ 0..=1,
                    first,
                    ..
                },
            ] if u64::from(end) == CHUNK => {
                let lane = if count == 1 { first.lane } else { NO_LANE };
                chunk.whole = Target { lane, ..first };
            }
            _ => chunk.cells = Some(Box::new(known)),
        }
    }

    /// Enters the pieces that were gathered.
    fn work(&mut self) {
        let Filler {
            chunks,
            pieces,
            now,
            seen,
            unowned,
            rows,
            ..
        } = self;
        for piece in pieces.drain(..) {
            let chunk = &chunks[piece.position as usize];
            let base = piece.first / CHUNK * CHUNK;
            let (mut at, end) = (piece.first, piece.first + u64::from(piece.count));
            let Some(known) = &chunk.cells else {
                match (chunk.whole.lane, piece.possibly) {
                    (NO_LANE, true) => (),
                    (NO_LANE, false) => *unowned += end - at,
                    (_, true) => add_possibly(now, rows, &chunk.whole, at, end),
                    (_, false) => add(now, rows, seen, &chunk.whole, at, end),
                }
                continue;
            };
            let before = |c: &&Cell| base + u64::from(c.end) <= at;
            let start = match known.cells.len() {
                ..16 => known.cells.iter().take_while(before).count(),
                _ => known.cells.partition_point(|c| before(&c)),
            };
            for cell in &known.cells[start..] {
                if at >= end {
                    break;
                }
                let stop = end.min(base + u64::from(cell.end));
                match cell.count {
                    0 if piece.possibly => (),
                    0 => *unowned += stop - at,
                    1 if piece.possibly => add_possibly(now, rows, &cell.first, at, stop),
                    1 => add(now, rows, seen, &cell.first, at, stop),
                    count => {
                        let targets = &known.targets[cell.from as usize..];
                        for target in &targets[..usize::from(count)] {
                            if piece.possibly {
                                add_possibly(now, rows, target, at, stop);
                            } else {
                                add(now, rows, seen, target, at, stop);
                            }
                        }
                    }
                }
                at = stop;
            }
        }
    }

    /// Ends a time bin.
    pub(super) fn take(&mut self) -> Column {
        self.work();
        self.seen.clear();
        let mut parts = Vec::new();
        let mut rest = &mut self.now[..];
        for (lane, &bins) in (0..).zip(&self.bins) {
            let (own, others) = rest.split_at_mut(bins);
            rest = others;
            let used = |now: &Now| now.sum | now.possibly > 0;
            for (row, now) in (0..).zip(own).filter(|(_, now)| used(now)) {
                let Now {
                    sum,
                    distinct,
                    possibly,
                } = std::mem::take(now);
                parts.push(Part {
                    lane,
                    row,
                    sum,
                    distinct,
                    possibly,
                });
            }
        }
        Column {
            parts,
            unowned: std::mem::take(&mut self.unowned),
        }
    }
}

/// Objects of one lane that lie on a page have it in one place: from `from` on each target stays once.
fn merge(targets: &mut Vec<Target>, from: usize) {
    let tail = &mut targets[from..];
    tail.sort_unstable_by_key(|t| (t.lane, t.offset));
    let mut kept = 1;
    for i in 1..tail.len() {
        let is_new = (tail[i].lane, tail[i].offset) != (tail[kept - 1].lane, tail[kept - 1].offset);
        if is_new {
            tail[kept] = tail[i];
            kept += 1;
        }
    }
    targets.truncate(from + kept);
}

#[inline]
fn add(now: &mut [Now], rows: &[Rows], seen: &mut PageSet, target: &Target, first: u64, end: u64) {
    let Rows { begin, shift } = rows[target.lane as usize];
    let mut at = first.wrapping_add(target.offset);
    let end = end.wrapping_add(target.offset);
    while at < end {
        let row = at >> shift;
        let stop = end.min((row + 1) << shift);
        let now = &mut now[begin as usize + row as usize];
        now.sum = now.sum.saturating_add((stop - at) as u32);
        now.distinct += seen.add(target.lane, at, stop);
        at = stop;
    }
}

#[inline]
fn add_possibly(now: &mut [Now], rows: &[Rows], target: &Target, first: u64, end: u64) {
    let Rows { begin, shift } = rows[target.lane as usize];
    let mut at = first.wrapping_add(target.offset);
    let end = end.wrapping_add(target.offset);
    while at < end {
        let row = at >> shift;
        let stop = end.min((row + 1) << shift);
        let now = &mut now[begin as usize + row as usize];
        now.possibly = now.possibly.saturating_add((stop - at) as u32);
        at = stop;
    }
}
