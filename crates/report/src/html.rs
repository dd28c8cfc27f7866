//! The offline HTML page: a template, built from `web/`, with the data of one trace inside.
//!
//! The data is `zlib(u32 length of the JSON, JSON, columns)` as base64. The JSON is what `payload.rs` says; its large arrays
//! stand in the columns, little-endian, and the JSON holds their offsets. `web/src/payload.ts` reads it, with types that are
//! made of these.

mod alloc;
mod diff;
mod encode;
mod payload;
mod source;

pub use alloc::{AllocPage, View};
pub use diff::write_diff;
pub use encode::{HtmlSize, MAX_PAGE_BYTES, write_html};
pub use payload::{
    Finding, Footprint, Frame, GroupRow, Object, Overhead, PhaseBand, Stack, TraceSummary, types,
};
pub use source::from_trace;

use varve_analyse::{CountUse, ProcessUse, SampleUse, SharingUse};

use crate::map::Map;

/// Why a page could not be written.
#[derive(Debug, thiserror::Error)]
pub enum HtmlError {
    /// Writing failed.
    #[error("cannot write the HTML report: {0}")]
    Io(#[from] std::io::Error),
    /// The data does not become JSON.
    #[error("cannot encode the data of the HTML report")]
    Json(#[from] serde_json::Error),
    /// The template is not the one that this version expects.
    #[error("the built page has no place for the data; rebuild it with `make -C web`")]
    Template,
}

/// Everything the page shows. Moments are nanoseconds since the start of the trace.
#[derive(Clone, Debug, Default)]
pub struct HtmlReport {
    /// What samples say, where there are any.
    pub samples: Option<SampleUse>,
    /// What exact counts say, where there are any.
    pub counts: Option<CountUse>,
    /// Who shares what, where threads are known.
    pub sharing: Option<SharingUse>,
    /// What was recorded, and how well.
    pub trace: TraceSummary,
    /// What recording cost.
    pub overhead: Overhead,
    /// What is said of the allocator, where operations were recorded.
    pub alloc: Option<AllocPage>,
    /// What is shown first.
    pub opens: View,
    /// How much memory was touched.
    pub footprint: Footprint,
    /// What this trace does not say, a sentence each.
    pub unknown: Vec<String>,
    /// The phases and events that the program named, in the order in which they came first.
    pub phases: Vec<PhaseBand>,
    /// Those that the list leaves out.
    pub omitted_phases: u64,
    /// The processes.
    pub processes: Vec<ProcessUse>,
    /// The objects by name, kind and site.
    pub groups: Vec<GroupRow>,
    /// The objects of them that are listed.
    pub objects: Vec<Object>,
    /// Groups that the list leaves out.
    pub omitted_groups: u64,
    /// The findings.
    pub findings: Vec<Finding>,
    /// The map.
    pub map: Map,
}
