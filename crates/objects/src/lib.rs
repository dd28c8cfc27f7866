//! Who owns an address when.
//!
//! Works on rows and numbers alone: whoever reads a trace asks here for owners without any knowledge of executables or
//! debug information. [`Owners`] sweeps over time and says which objects each page belongs to; [`owners_at`] answers for
//! single bytes; [`Deaths`] makes whole lives of births and deaths, as a stream.

mod layer;
mod lives;
mod owners;
mod points;
mod radix;
mod span;

/// The name of memory that the dynamic loader maps for itself and for libraries, which nobody of the program's asked for.
pub const LOADERS: &str = "mapping of the dynamic loader";

/// The name of all memory that the recorder has in the target.
pub const RECORDERS: &str = "recorder's memory";

pub use layer::Layer;
pub use lives::Deaths;
pub use owners::Owners;
pub use points::owners_at;
pub use radix::ChunkIndex;
pub use span::{Share, Span, SpanIndex};
