//! Which objects share a lane, where in it their pages stand, and how finely each lane is divided.

use varve_model::{Address, Bytes, ObjectKind, Page, PageRange, Pid, Time};
use varve_objects::{Layer, Span};

use super::grid::{Lane, Segment};

/// Groups with lanes of their own; the rest share one lane per kind.
const OWN_LANES: usize = 96;

/// What a lane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The objects of a group, by its position among the groups.
    Group(u32),
    /// Touched objects of a kind that have no lane of their own.
    Rest(ObjectKind),
    /// All objects that nobody touched.
    Untouched,
}

/// Objects of one name, kind and site: what the map needs to know of them.
#[derive(Clone, Debug)]
pub struct Site {
    /// Their name.
    pub name: String,
    /// What they are.
    pub kind: ObjectKind,
    /// How many.
    pub objects: u64,
    /// The sum over intervals of their pages touched; none where that is not known.
    pub touches: Option<u64>,
    /// The same of pages that others may have touched.
    pub possibly: Option<u64>,
}

/// Where and when an object lived: what the map needs to know of it.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Its group, by position.
    pub site: u32,
    /// Its process.
    pub pid: Pid,
    /// How far inside others it lies.
    pub layer: Layer,
    /// Its first byte.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// Where it lies for those who touch it: its process and first byte, unless several processes map it.
    pub place: (Pid, Address),
    /// When it came to be, since the start of the trace.
    pub born: Time,
    /// When it ceased; None where it lived to the end.
    pub died: Option<Time>,
}

impl Placement {
    /// The same, for the sweep that finds the owners of pages.
    pub fn span(&self) -> Span {
        Span {
            pid: self.place.0,
            layer: self.layer,
            address: self.place.1,
            bytes: self.bytes,
            born: self.born,
            died: self.died.unwrap_or(Span::FOREVER),
        }
    }

    fn range(&self) -> PageRange {
        PageRange::of_bytes(self.place.1, self.bytes)
    }
}

/// The lane of a placement, and where in it its pages begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) lane: u32,
    pub(super) begins: u64,
    first: Page,
}

impl Seat {
    /// What is added to the number of a page of the placement to get its place in the lane; it may wrap. Placements of one
    /// lane that lie on one page have the same.
    pub(super) fn offset(self) -> u64 {
        self.begins.wrapping_sub(self.first.0)
    }

    /// Where a page of the placement stands in the lane.
    pub(super) fn lane_page(self, page: Page) -> u64 {
        self.begins + page.0.saturating_sub(self.first.0)
    }
}

/// Lanes without cells yet, hottest first, and the seat of every placement that has pages.
pub(super) fn plan(placements: &[Placement], sites: &[Site]) -> (Vec<Lane>, Vec<Option<Seat>>) {
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); sites.len()];
    for (i, placement) in (0..).zip(placements) {
        let of = members.get_mut(placement.site as usize);
        of.filter(|_| placement.range().count.0 > 0)
            .into_iter()
            .for_each(|of| of.push(i));
    }
    let mut order: Vec<usize> = (0..sites.len())
        .filter(|&s| !members[s].is_empty())
        .collect();
    let heat = |s: usize| (sites[s].touches, sites[s].possibly);
    order.sort_by_key(|&s| std::cmp::Reverse(heat(s)));
    let untouched = order.split_off(order.partition_point(|&s| heat(s) > (Some(0), Some(0))));
    // What others alone may have touched has no lane of its own: a page full of libraries would hide the program.
    let own = order.partition_point(|&s| sites[s].touches > Some(0));
    let rest = order.split_off(own.min(OWN_LANES));
    let own = order.into_iter().map(|s| (Holds::Group(s as u32), vec![s]));
    let rest = ObjectKind::ALL.iter().map(|&kind| {
        let of = rest.iter().copied().filter(|&s| sites[s].kind == kind);
        (Holds::Rest(kind), of.collect())
    });
    let all = own.chain(rest).chain([(Holds::Untouched, untouched)]);
    let mut seats = vec![None; placements.len()];
    let mut lanes: Vec<Lane> = Vec::new();
    for (holds, of) in all.filter(|(_, of)| !of.is_empty()) {
        let objects = of.iter().map(|&s| sites[s].objects).sum();
        let mut lane = Lane::new(holds, title(holds, objects, &sites[of[0]]), objects);
        let mut here: Vec<u32> = of
            .iter()
            .flat_map(|&s| members[s].iter().copied())
            .collect();
        let number = u32::try_from(lanes.len()).unwrap_or(u32::MAX);
        seat(&mut lane, number, &mut here, placements, &mut seats);
        lanes.push(lane);
    }
    (lanes, seats)
}

fn title(holds: Holds, objects: u64, first: &Site) -> String {
    let s = if objects == 1 { "" } else { "s" };
    match holds {
        Holds::Group(_) => first.name.clone(),
        Holds::Rest(kind) => format!("other {kind} objects"),
        Holds::Untouched => {
            let count = varve_analyse::format::count(objects);
            match first.touches {
                Some(_) => format!("{count} object{s} without touches"),
                None => format!("{count} object{s} of unknown touches"),
            }
        }
    }
}

/// Gives the placements their seats in a lane, by address: each page of memory has one place in it, however many objects lay
/// on it at once or one after the other.
fn seat(
    lane: &mut Lane,
    number: u32,
    members: &mut [u32],
    placements: &[Placement],
    seats: &mut [Option<Seat>],
) {
    let of = |i: u32| &placements[i as usize];
    members.sort_by_key(|&i| (of(i).place, of(i).pid, of(i).born));
    // The stretch that grows: its space, its first page, and the page behind its last.
    let mut open: Option<(Pid, u64, u64)> = None;
    for &i in &*members {
        let (placement, range) = (of(i), of(i).range());
        let (born, died) = lane.lived;
        let last = died.zip(placement.died).map(|(a, b)| a.max(b));
        lane.lived = (born.min(placement.born), last);
        let (first, end) = (range.first.0, range.end().0);
        let is_in = open.is_some_and(|(space, _, top)| space == placement.place.0 && first < top);
        if !is_in {
            lane.segments.push(Segment {
                pid: placement.pid,
                lane_page: lane.pages,
                page: placement.address.page(),
                pages: 0,
            });
            open = Some((placement.place.0, first, first));
        }
        let (Some((_, base, top)), Some(segment)) = (&mut open, lane.segments.last_mut()) else {
            continue;
        };
        seats[i as usize] = Some(Seat {
            lane: number,
            begins: segment.lane_page + (first - *base),
            first: range.first,
        });
        if end > *top {
            lane.pages += end - *top;
            segment.pages += end - *top;
            *top = end;
        }
    }
    join(&mut lane.segments);
}

/// Makes one of stretches that follow each other in the lane and in memory.
fn join(segments: &mut Vec<Segment>) {
    segments.dedup_by(|next, before| {
        let follows = next.pid == before.pid && next.page.0 == before.page.0 + before.pages;
        if follows {
            before.pages += next.pages;
        }
        follows
    });
}

/// Divides the lanes into at most about `budget` address bins, more for larger lanes but far from in
/// proportion, a power of two of pages each.
pub(super) fn divide(lanes: &mut [Lane], budget: u64) {
    let bins = |lane: &Lane, shift: u32| lane.pages.div_ceil(1 << shift);
    let shift_for = |lane: &Lane, scale: f64| {
        let wanted = (scale * (lane.pages as f64).sqrt()).max(1.0);
        (0..62)
            .find(|&s| (bins(lane, s) as f64) <= wanted)
            .unwrap_or(62)
    };
    let (mut low, mut high) = (0.0_f64, 4096.0_f64);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        let total: u64 = lanes.iter().map(|l| bins(l, shift_for(l, middle))).sum();
        if total <= budget {
            low = middle;
        } else {
            high = middle;
        }
    }
    for lane in lanes {
        let shift = match lane.holds {
            // There is nothing to see in it.
            Holds::Untouched => 62,
            _ => shift_for(lane, low),
        };
        lane.page_shift = shift;
        lane.address_bins = usize::try_from(bins(lane, shift)).unwrap_or(usize::MAX);
    }
}
