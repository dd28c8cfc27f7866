//! The recorder: backends behind one trait, one loop, one trace writer.
//!
//! [`record`] is the one entry: it starts or joins the target, lets a [`Backend`] close one interval
//! after the other, and writes what the backend, the kernel's events and the preload library tell
//! into a trace.

mod agents;
mod auto;
mod backend;
mod build_ids;
mod doctor;
mod error;
mod exact;
mod exact_rows;
mod guardian;
mod heap;
mod hold;
mod intake;
mod kernel_objects;
mod lives;
mod manifest;
mod options;
mod output;
mod preflight;
mod ranges;
mod reclaim;
mod runs;
mod salvage;
mod samples;
mod scan;
mod session;
mod stacks;
mod stale;
mod target;
mod trap_budget;
mod trap_source;
mod traps;
mod turns;
mod world;
mod write_source;
mod writes;

pub use backend::{Backend, Boundary, Harvest};
pub use doctor::{Check, Standing, can_record, examine, examine_exact};
pub use error::RecordError;
pub use exact::{ExactOptions, record_exact};
pub use guardian::{guard, parse_order};
pub use hold::HoldChoice;
pub use options::{
    Ablation, RecordOptions, SamplesChoice, TargetChoice, TrapsChoice, WritesChoice,
};
pub use preflight::gains_rights;
pub use salvage::recover;
pub use samples::hardware::refusal;
pub use session::{Summary, record};
pub use stale::clean_stale;
