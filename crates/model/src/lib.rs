//! The vocabulary of Varve: typed quantities that every other crate shares.
//!
//! Each type names one quantity and its unit, so that a page number is never added to an address
//! and a duration is never taken for a moment.

mod files;
mod kinds;
mod losses;
mod quantities;
mod visible;

pub use files::{CLibrary, c_library, is_recorders, is_recorders_work};
pub use kinds::{
    Backend, Capability, ImportFormat, MemoryLevel, ObjectKind, Resolved, SampleMode, SampleSource,
    TouchSource, UnknownKind,
};
pub use losses::{Loss, LossPart};
pub use quantities::{
    Address, Bytes, Cpu, Duration, Interval, ObjectId, PAGE_BYTES, Page, PageRange, Pages, Pid,
    SiteId, Tid, Time,
};
pub use visible::{visible, visible_json};
