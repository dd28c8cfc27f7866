//! From addresses to objects, sites and symbols.
//!
//! Everything here but [`finish`] works on plain records in memory; it reads ELF files, debug files and sources,
//! never the trace. [`finish`] runs at the end of a recording and takes the trace through the stages:
//!
//! 1. [`StaticsReader`] names what lies in mapped executables and libraries, [`mapping_objects`] the mappings themselves.
//! 2. [`Unwinder`] turns registers and stack copies into call stacks, for processes without the preload library.
//! 3. [`symbolize`] turns call stacks into functions, files and lines.
//! 4. [`Namer`] gives each allocation site the name that a person would.
//! 5. Births and deaths become lives, as they are read.
//! 6. [`Owners`] tells which of all these objects a touched page belongs to.
//!
//! No file that it reads is trusted: broken, truncated and hostile ones cost their own names, never the report.

mod demangle;
mod dwarf;
mod finish;
mod finish_trace;
mod functions;
mod image;
mod input;
mod interpreter;
mod layout;
mod lives;
mod locals;
mod names;
mod note;
mod owners;
mod plumbing;
mod radix;
mod sampled;
mod source;
mod statics;
mod status;
mod symbolize;
mod unwind;
mod variables;

/// The name of memory that the dynamic loader maps for itself and for libraries, which nobody of the program's asked for.
pub const LOADERS: &str = "mapping of the dynamic loader";

pub use finish::{Finished, finish};
pub use finish_trace::finish_trace;
pub use functions::FunctionBounds;
pub use image::Locator;
pub use input::{BuildId, Mapping};
pub use interpreter::loads_libraries;
pub use names::{Asked, Namer, author, stack_name, static_name};
pub use note::read_build_id;
pub use owners::{Layer, Owners, Share, Span, SpanIndex, owners_at};
pub use radix::ChunkIndex;
pub use statics::{StaticObject, Statics, StaticsReader, mapping_objects};
pub use status::{DebugInfo, ModuleReport, ModuleStatus, Unusable};
pub use symbolize::{AddressSpaces, Frame, Stack, Symbolized, symbolize};
pub use unwind::{Snapshot, Unwinder};
