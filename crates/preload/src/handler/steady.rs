//! Which mappings are filled as far as they will be.

use super::memory;
use super::ranges::Range;

/// Mappings that are remembered; with more, some take longer to count as steady.
const MAX: usize = 4096;
/// Boundaries at which nothing may have been added.
const CALM: u64 = 20;

/// What is known of a mapping.
#[derive(Clone, Copy)]
#[repr(C)]
struct Known {
    start: u64,
    pages: u64,
    /// Boundaries since a page was added.
    calm: u64,
}

/// Bytes of what is known.
pub(super) const BYTES: usize = MAX * size_of::<Known>();

/// Mappings and how full they were at the last boundary.
pub(super) struct Steady {
    known: &'static mut [Known],
}

impl Steady {
    pub(super) fn new() -> Option<Steady> {
        let memory = memory::take(BYTES)?;
        // SAFETY: fresh zeroed memory of that size, page-aligned, which stays; zeroes are valid.
        let known = unsafe { std::slice::from_raw_parts_mut(memory.cast().as_ptr(), MAX) };
        Some(Steady { known })
    }

    /// Where this memory lies.
    pub(super) fn memory(&self) -> Range {
        let start = self.known.as_ptr() as u64;
        Range {
            start,
            end: start + size_of_val(self.known) as u64,
        }
    }

    /// Whether a mapping that has so many pages now, of `room`, is as full as it will be, as far as one can know: nearly
    /// full, or nothing came for a while.
    pub(super) fn is(&mut self, range: Range, pages: u64, room: u64) -> bool {
        if pages == 0 || pages * 10 >= room * 9 {
            return pages > 0;
        }
        let index = (range.start >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52;
        let Some(known) = self.known.get_mut(index as usize) else {
            return false;
        };
        let calm = if known.start == range.start && known.pages == pages {
            known.calm + 1
        } else {
            0
        };
        *known = Known {
            start: range.start,
            pages,
            calm,
        };
        calm >= CALM
    }
}
