//! The trace: a folder of Parquet tables and a manifest, its writer and its reader.
//!
//! `NAME.varve/manifest.json` says what was recorded and how complete it is; each table is
//! `NAME.varve/TABLE.parquet`. While a recording runs, a table is a series of small whole Parquet
//! files, `parts/TABLE-000017.parquet`, each written under a temporary name and renamed into place, so that a recorder
//! killed at any moment loses at most what it had not flushed. [`TraceWriter::finish`] merges the
//! parts; [`Trace::open`] reads either form, and never writes.
//!
//! A folder is written through a [`TraceFolder`], which holds it by descriptor and locked, and reached by no other way: no
//! link in it is followed, and nothing is removed that the format does not name.
//!
//! The columns of each table are documented on its row type in [`tables`].

mod access;
mod cell;
mod check;
mod checksum;
mod columns;
mod completeness;
mod encoding;
mod error;
mod folder;
mod guard;
mod manifest;
mod merge;
mod place;
mod reader;
mod scratch;
mod selection;
mod table_file;
pub mod tables;
mod writer;

pub use access::Access;
pub use checksum::Checksum;
pub use columns::{TouchColumns, TouchUnit, WrittenColumn};
pub use error::TraceError;
pub use folder::TablePath;
pub use manifest::{
    Clock, ClockUnit, Completeness, FORMAT_VERSION, Features, IntervalChoice, Lacks,
    MACHINE_UNKNOWN, Machine, Manifest, ModuleNote, OperationsNote, Options, Overhead, ProbesNote,
    SamplesNote, State, Target, TrapsNote,
};
pub use merge::{MergeProgress, finish_tables, finish_tables_to};
pub use place::{Existing, Moved, Output, TraceFolder};
pub use reader::{Batches, Trace};
pub use scratch::{Destination, Scratch, ScratchWriter};
pub use selection::Selection;
pub use tables::{Row, Table};
pub use writer::{Append, TableWriter, TraceWriter, write_table, write_table_to};
