//! Where pages lie while they are aside, and where pages of a forked child have gone.

pub(super) use varve_agent_ring::shadow::{MIDDLE, TOP, home_of as back, shadow_of as aside};

use super::ranges::Range;

pub(super) fn range_of(start: u64, bytes: u64) -> Range {
    Range {
        start,
        end: start.saturating_add(bytes),
    }
}

/// The parts of a range whose places aside are each in one piece.
pub(super) fn halves(range: Range) -> [Range; 2] {
    let low = Range {
        start: 0,
        end: MIDDLE,
    };
    let high = Range {
        start: MIDDLE,
        end: TOP,
    };
    [range.common(low), range.common(high)]
}

/// Changes to a child's memory that are remembered at most.
const MAX_CHANGES: usize = 64;
/// What a forked child did to its memory since the fork.
#[derive(Clone)]
pub(super) struct Changes {
    list: [(Range, Option<u64>); MAX_CHANGES],
    count: usize,
}

impl Default for Changes {
    fn default() -> Self {
        Changes {
            list: [(Range { start: 0, end: 0 }, None); MAX_CHANGES],
            count: 0,
        }
    }
}

impl Changes {
    /// A range went, or moved to an address.
    pub(super) fn note(&mut self, range: Range, to: Option<u64>) {
        if let Some(place) = self.list.get_mut(self.count) {
            *place = (range, to);
        }
        self.count = (self.count + 1).min(MAX_CHANGES + 1);
    }

    /// Whether all were remembered.
    fn is_whole(&self) -> bool {
        self.count <= MAX_CHANGES
    }

    /// Where the page is now that was here at the fork, if it still is and one can tell.
    pub(super) fn now(&self, page: u64) -> Option<u64> {
        if !self.is_whole() {
            return None;
        }
        let mut at = page;
        for (range, to) in self.list.iter().take(self.count) {
            if range.start <= at && at < range.end {
                at = (*to)? + (at - range.start);
            }
        }
        Some(at)
    }
}
