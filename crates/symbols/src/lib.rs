//! What executables, libraries and debug files say: names, call stacks, static data.
//!
//! Everything here works on plain records in memory; it reads ELF files, debug files and sources, never the trace.
//!
//! - [`StaticsReader`] names what lies in mapped executables and libraries, [`mapping_objects`] the mappings themselves.
//! - [`Unwinder`] turns registers and stack copies into call stacks, for processes without the preload library.
//! - [`symbolize`] turns call stacks into functions, files and lines.
//! - [`defined_functions`] finds functions of a file by name.
//! - [`read_perf_map`] and [`read_jitdump`] read what runtimes say of the code that they generate.
//! - [`Namer`] gives each allocation site the name that a person would.
//!
//! No file that it reads is trusted: broken, truncated and hostile ones cost their own names, never the report.

mod arenas;
mod debug_server;
mod defined;
mod demangle;
mod dwarf;
mod families;
mod functions;
mod generated;
mod image;
mod input;
mod interpreter;
mod layout;
mod locals;
mod names;
mod note;
mod open_files;
mod plumbing;
mod source;
mod statics;
mod status;
mod symbolize;
mod unwind;
mod variables;

pub use debug_server::{DebugServer, NoClient};
pub use defined::{
    CodeReader, DefinedFunction, DefinedFunctions, Stretch, defined_functions, is_go, is_sanitized,
};
pub use functions::FunctionBounds;
pub use generated::{GeneratedFunction, in_its_language, read_jitdump, read_perf_map};
pub use image::{Keep, Locator, is_build};
pub use input::{BuildId, Mapping, is_memory};
pub use interpreter::{OtherLoader, is_loader, loads_libraries, names_gnu_loader, other_loader};
pub use names::{Asked, Namer, is_loaders, of_file, short_place, stack_name, static_name};
pub use note::read_build_id;
pub use open_files::OpenFiles;
pub use statics::{Place, StaticObject, Statics, StaticsReader, mapping_objects};
pub use status::{DebugInfo, ModuleReport, ModuleStatus, Unusable};
pub use symbolize::{AddressSpaces, Frame, Stack, Symbolized, symbolize};
pub use unwind::{Snapshot, Unwinder};
pub use varve_sys::FileIdentity;
