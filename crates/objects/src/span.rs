//! Where and when objects are, and what part of a page is whose.

use varve_model::{Address, Bytes, PAGE_BYTES, Pid, Time};
use varve_trace::tables::ObjectRow;

use crate::layer::Layer;

/// Pages of a chunk, 2 MiB of address space.
pub(crate) const CHUNK_PAGES: u64 = 512;
const CHUNK_BYTES: u64 = CHUNK_PAGES * PAGE_BYTES;

/// The first byte of a chunk, and the one after its last.
pub(crate) fn bounds(number: u64) -> (u64, u64) {
    let base = number.saturating_mul(CHUNK_BYTES);
    (base, base.saturating_add(CHUNK_BYTES))
}

/// Where and when an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The process.
    pub pid: Pid,
    /// Which of several objects wins.
    pub layer: Layer,
    /// Its first byte.
    pub address: Address,
    /// Its size.
    pub bytes: Bytes,
    /// Its first moment.
    pub born: Time,
    /// The moment after its last; [`Span::FOREVER`] where it outlives the recording.
    pub died: Time,
}

impl Span {
    /// The death of what outlives the recording.
    pub const FOREVER: Time = Time(u64::MAX);

    /// Where and when an object of a trace is.
    pub fn of(row: &ObjectRow) -> Span {
        Span {
            pid: row.pid,
            layer: Layer::from_number(row.layer),
            address: row.address,
            bytes: row.bytes,
            born: row.born_ns,
            died: row.died_ns.unwrap_or(Span::FOREVER),
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.address.0.saturating_add(self.bytes.0)
    }

    /// The first and the last chunk that it lies in; it has a size.
    pub(crate) fn chunks(&self) -> (u64, u64) {
        let last = self.end().saturating_sub(1).max(self.address.0);
        (self.address.0 / CHUNK_BYTES, last / CHUNK_BYTES)
    }

    /// How many pages of a chunk it takes up, where these are more than two.
    pub(crate) fn wide_in(&self, number: u64) -> Option<u64> {
        let (base, top) = bounds(number);
        let (start, end) = (self.address.0.max(base), self.end().min(top));
        let pages = end.saturating_sub(start).div_ceil(PAGE_BYTES);
        (pages > 2).then_some(pages)
    }
}

/// The position of a span in the slice that was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanIndex(pub u32);

/// One object's part of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share {
    /// The object.
    pub object: SpanIndex,
    /// How many bytes of the page are its own.
    pub bytes: Bytes,
}
