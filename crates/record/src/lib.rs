//! The recorder: one loop, many probes, one trace.
//!
//! [`record`] is the one entry: it starts or joins the target, and runs the loop until the target ends. Each way to
//! find out something of the target is a probe (`probes`); what they share is the state (`state`), which the kernel's
//! events keep up to date.

mod doctor;
mod error;
mod hold;
mod interrupts;
mod leftovers;
mod marker;
mod options;
mod probes;
mod recorder;
mod rests;
mod rights;
mod state;
mod target;

pub use doctor::{Brief, Check, Leftovers, Standing, can_record, examine, examine_exact};
pub use error::RecordError;
pub use hold::HoldChoice;
pub use hold::watchdog::{Order, Watchdog, watch};
pub use interrupts::{Interruptible, Tell, interruptible};
pub use leftovers::{Leftover, LeftoverKind, clean_leftovers, find_leftovers};
pub use options::{
    Ablation, CountsChoice, Live, OperationsChoice, RecordOptions, SamplesChoice, Show,
    TargetChoice, TrapsChoice, VanishChoice, WritesChoice,
};
pub use probes::counts::recovery::{read_counts, recover_counts};
pub use probes::operations::{OwnAllocator, own_allocator};
pub use probes::samples::hardware::refusal;
pub use recorder::{Summary, Waiting, record};
pub use rights::keep_for_finish;
pub use target::exchange::{FixedAllocator, WhyFixed, can_ask_loader, fixed_allocator};
pub use target::preflight::{gains_rights, why_not_loaded};
pub use target::preload::{listed_library, reachable_library};
pub use target::run_folder::RunFolder;
