//! Which object gets a lane of its own, and how finely each lane is divided.

use std::collections::HashMap;

use varve_model::{Address, Bytes, ObjectKind, Page, PageRange, Pid, Time};
use varve_objects::{Layer, Span};

use super::grid::{Lane, Segment};

/// Objects with lanes of their own; the rest share one lane per kind.
const OWN_LANES: usize = 96;
/// An object smaller than this shares a lane when there are more objects than lanes.
const SMALL_PAGES: u64 = 4;

/// Objects of one name with lanes of their own, when there are more objects than lanes: a site that
/// allocates again and again must not fill the map.
const MAX_NAMESAKES: usize = 2;

/// Where and when an object lived: what the map needs to know of it.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Its index in the table of the page; None where the table leaves it out.
    pub object: Option<u32>,
    /// Its name, for the lane.
    pub name: String,
    /// What it is.
    pub kind: ObjectKind,
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
    /// How important it is: the sum over intervals of its pages touched, where known.
    pub weight: u64,
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

    pub(super) fn range(&self) -> PageRange {
        PageRange::of_bytes(self.place.1, self.bytes)
    }
}

/// The lane of a placement, and where in it its pages begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    pub(super) lane: u32,
    begins: u64,
    first: Page,
}

impl Seat {
    /// What is added to the number of a page of the placement to get its place in the lane; it may wrap.
    pub(super) fn offset(self) -> u64 {
        self.begins.wrapping_sub(self.first.0)
    }

    /// Where a page of the placement stands in the lane.
    pub(super) fn lane_page(self, page: Page) -> u64 {
        self.begins + page.0.saturating_sub(self.first.0)
    }
}

/// Lanes without cells yet, and the seat of every placement.
pub(super) fn plan(placements: &[Placement]) -> (Vec<Lane>, Vec<Seat>) {
    let mut order: Vec<usize> = (0..placements.len()).collect();
    let pages = |i: usize| placements[i].range().count.0;
    // An object that the program made counts by its size too, so that memory that is never touched has
    // its lane; what the kernel and the files hold does not.
    let size = |i: usize| match placements[i].layer > Layer::SEGMENT {
        true => pages(i),
        false => 0,
    };
    order.sort_by_key(|&i| {
        std::cmp::Reverse((placements[i].weight.saturating_add(size(i)), pages(i)))
    });
    let crowded = placements.len() > OWN_LANES;
    let mut lanes = Vec::new();
    let mut seats: Vec<Seat> = placements
        .iter()
        .map(|p| Seat {
            lane: 0,
            begins: 0,
            first: p.range().first,
        })
        .collect();
    let mut shared = Vec::new();
    let mut namesakes: HashMap<&str, usize> = HashMap::new();
    for &i in &order {
        if pages(i) == 0 {
            continue;
        }
        let alike = namesakes.entry(placements[i].name.as_str()).or_default();
        *alike += 1;
        let many = crowded && *alike > MAX_NAMESAKES;
        if many || lanes.len() >= OWN_LANES || (crowded && pages(i) < SMALL_PAGES) {
            shared.push(i);
            continue;
        }
        seats[i].lane = index(lanes.len());
        lanes.push(Lane::new(placements[i].name.clone(), false));
        let lane = lanes.len() - 1;
        seat(&mut lanes[lane], &placements[i], &mut seats[i]);
    }
    for &kind in ObjectKind::ALL {
        let mut members: Vec<usize> = shared
            .iter()
            .copied()
            .filter(|&i| placements[i].kind == kind)
            .collect();
        if members.is_empty() {
            continue;
        }
        // What the table leaves out comes last and is one segment: the page cannot name it.
        members.sort_by_key(|&i| {
            (
                placements[i].object.is_none(),
                placements[i].pid,
                placements[i].address,
                placements[i].born,
            )
        });
        let plural = if members.len() == 1 {
            "object"
        } else {
            "objects"
        };
        let mut lane = Lane::new(format!("{} small {kind} {plural}", members.len()), true);
        for i in members {
            seats[i].lane = index(lanes.len());
            seat(&mut lane, &placements[i], &mut seats[i]);
        }
        lanes.push(lane);
    }
    (lanes, seats)
}

fn index(lane: usize) -> u32 {
    u32::try_from(lane).unwrap_or(u32::MAX)
}

fn seat(lane: &mut Lane, placement: &Placement, seat: &mut Seat) {
    let range = placement.range();
    seat.begins = lane.pages;
    match (placement.object, lane.segments.last_mut()) {
        (None, Some(last)) if last.object.is_none() => last.pages += range.count.0,
        (object, _) => lane.segments.push(Segment {
            object,
            lane_page: lane.pages,
            page: object.map(|_| placement.address.page()),
            pages: range.count.0,
        }),
    }
    lane.pages += range.count.0;
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
        let shift = shift_for(lane, low);
        lane.page_shift = shift;
        lane.address_bins = usize::try_from(bins(lane, shift)).unwrap_or(usize::MAX);
    }
}
