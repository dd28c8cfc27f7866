use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};
use ts_rs::TS;

/// Bytes of a base page. Varve's traces count in 4 KiB pages on every architecture; a larger
/// hardware page is a run of them that says its own size.
pub const PAGE_BYTES: u64 = 4096;

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, TS,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

quantity! {
    /// A virtual address of a process, in bytes.
    Address(u64)
}
quantity! {
    /// A page number: virtual address >> 12.
    Page(u64)
}
quantity! {
    /// A number of 4 KiB pages.
    Pages(u64)
}
quantity! {
    /// A number of bytes.
    Bytes(u64)
}
quantity! {
    /// A moment: `CLOCK_MONOTONIC`, nanoseconds.
    Time(u64)
}
quantity! {
    /// A length of time, nanoseconds.
    Duration(u64)
}
quantity! {
    /// The number of a recording interval, from 0.
    Interval(u32)
}
quantity! {
    /// A process (thread group) id, as the recorder's pid namespace sees it.
    Pid(u32)
}
quantity! {
    /// A thread id, as the recorder's pid namespace sees it.
    Tid(u32)
}
quantity! {
    /// A logical CPU number.
    Cpu(u32)
}
quantity! {
    /// A call site: one distinct call stack of a trace.
    SiteId(u32)
}
quantity! {
    /// An object of a trace: one life of one piece of memory.
    ObjectId(u64)
}

impl Address {
    /// The page that holds this address.
    pub const fn page(self) -> Page {
        Page(self.0 / PAGE_BYTES)
    }
}

impl Page {
    /// The first address of this page.
    pub const fn address(self) -> Address {
        Address(self.0 * PAGE_BYTES)
    }
}

impl Pages {
    /// The size of this many pages.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0 * PAGE_BYTES)
    }
}

impl Bytes {
    /// How many pages it takes to hold this many bytes, rounded up.
    pub const fn pages(self) -> Pages {
        Pages(self.0.div_ceil(PAGE_BYTES))
    }
}

impl Add<Bytes> for Address {
    type Output = Address;

    fn add(self, bytes: Bytes) -> Address {
        Address(self.0.saturating_add(bytes.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, length: Duration) -> Time {
        Time(self.0.saturating_add(length.0))
    }
}

/// The time from `rhs` to `self`; zero where `rhs` is later.
impl Sub for Time {
    type Output = Duration;

    fn sub(self, rhs: Time) -> Duration {
        Duration(self.0.saturating_sub(rhs.0))
    }
}

/// What is left of `self`; zero where `rhs` is longer.
impl Sub for Duration {
    type Output = Duration;

    fn sub(self, rhs: Duration) -> Duration {
        Duration(self.0.saturating_sub(rhs.0))
    }
}

impl Add for Duration {
    type Output = Duration;

    fn add(self, rhs: Duration) -> Duration {
        Duration(self.0.saturating_add(rhs.0))
    }
}

impl Duration {
    /// As seconds, for people and for rates.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

macro_rules! plain_display {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

plain_display!(Page, Pages, Interval, Pid, Tid, Cpu, SiteId, ObjectId);

/// A run of consecutive pages, never empty in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRange {
    /// The first page.
    pub first: Page,
    /// How many pages.
    pub count: Pages,
}

impl PageRange {
    /// The pages that a byte range overlaps; an empty byte range overlaps none.
    pub const fn of_bytes(start: Address, bytes: Bytes) -> PageRange {
        if bytes.0 == 0 {
            return PageRange {
                first: start.page(),
                count: Pages(0),
            };
        }
        let last = start.0.saturating_add(bytes.0 - 1) / PAGE_BYTES;
        PageRange {
            first: start.page(),
            count: Pages(last - start.page().0 + 1),
        }
    }

    /// One past the last page.
    pub const fn end(self) -> Page {
        Page(self.first.0.saturating_add(self.count.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_range_covers_every_page_that_it_overlaps() {
        let range = PageRange::of_bytes(Address(4095), Bytes(2));
        assert_eq!((range.first, range.count), (Page(0), Pages(2)));
        assert_eq!(PageRange::of_bytes(Address(4096), Bytes(0)).count, Pages(0));
        assert_eq!(
            PageRange::of_bytes(Address(4096), Bytes(4096)).end(),
            Page(2)
        );
    }

    #[test]
    fn time_never_runs_backwards() {
        assert_eq!(Time(3) - Time(5), Duration(0));
    }
}
