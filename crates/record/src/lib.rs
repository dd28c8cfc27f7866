//! The recorder: backends behind one trait, one loop, one trace writer.
//!
//! [`record`] is the one entry: it starts or joins the target, lets a [`Backend`] close one interval
//! after the other, and writes what the backend, the kernel's events and the preload library tell
//! into a trace.

mod agents;
mod auto;
mod backend;
mod build_ids;
mod channel;
mod doctor;
mod error;
mod exact;
mod exact_rows;
mod heap;
mod hold;
mod intake;
mod interrupts;
mod kernel_objects;
mod leftovers;
mod lives;
mod manifest;
mod marker;
mod options;
mod output;
mod preflight;
mod preload;
mod ranges;
mod reclaim;
mod rights;
mod run_folder;
mod runs;
mod salvage;
mod samples;
mod scan;
mod session;
mod sources;
mod stacks;
mod target;
mod trap_budget;
mod trap_source;
mod trapped;
mod traps;
mod turns;
mod watchdog;
mod world;
mod write_source;
mod writes;

pub use backend::{Backend, Boundary, Harvest};
pub use doctor::{Check, Leftovers, Standing, can_record, examine, examine_exact};
pub use error::RecordError;
pub use exact::{ExactOptions, record_exact};
pub use hold::HoldChoice;
pub use interrupts::{Interruptible, Tell, interruptible};
pub use leftovers::{Leftover, LeftoverKind, clean_leftovers, find_leftovers};
pub use options::{
    Ablation, RecordOptions, SamplesChoice, TargetChoice, TrapsChoice, WritesChoice,
};
pub use preflight::gains_rights;
pub use preload::reachable_library;
pub use rights::settle_for_finish;
pub use salvage::{read_counts, recover_counts};
pub use samples::hardware::refusal;
pub use session::{Summary, Waiting, record};
pub use watchdog::{Order, watch};
