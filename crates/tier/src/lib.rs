//! Tiers of memory on paper: what policies would make of a recorded program.
//!
//! ```text
//! trace ──read──► Stream ──replay──► Outcome of each policy ──► Simulation
//!                        └─curves──► slow touches against memory
//! ```
//!
//! [`read`] takes the touches of a trace into memory once, in a few bytes each. [`simulate`] replays them under each policy and draws
//! the curves. Nothing here asks anything of the machine.

pub mod curves;
mod error;
pub mod fit;
pub mod frames;
mod given_back;
pub mod knapsack;
mod lists;
mod model;
mod names;
mod objects;
mod plan;
pub mod policies;
mod read;
mod replay;
mod simulate;
mod simulation;
mod spec;
pub mod stream;
#[cfg(test)]
mod testing;
mod verified;

use varve_analyse::format;
use varve_model::Bytes;
use varve_trace::Trace;

pub use error::TierError;
pub use model::{Basis, Happened, Model};
pub use names::PolicyName;
pub use objects::{Worth, place, place_with_spill, worth};
pub use plan::{
    Expected, MAX_PLAN_BYTES, PLAN_SCHEMA, Part, Place, Plan, PlanError, PlanOptions, Program,
    SiteFrame, plan,
};
pub use read::{Read, Touched, read};
pub use replay::{Outcome, replay};
pub use simulate::{SimulateOptions, basis};
pub use simulation::{About, Best, CurvePoint, ObjectLoss, PolicyResult, SCHEMA, Simulation};
pub use spec::{MAX_TIERS, MOVE_NS, SpecError, Tier, Tiers};
pub use verified::{VERIFY_SCHEMA, Verified, VerifiedChange, VerifiedPlace, VerifiedRun};

use crate::stream::Stream;

/// Replays a trace under policies. Where `on` is given, objects are planned on `trace` and all is replayed on `on`. `room` is the
/// memory that it may take; `progress` hears the share of the work that is done, 0 to 1.
///
/// # Errors
/// A table that cannot be read, no touches, more than there is room for, or tiers that do not hold the program.
pub fn simulate(
    trace: &Trace,
    on: Option<&Trace>,
    tiers: &Tiers,
    options: &SimulateOptions,
    room: Bytes,
    progress: &(dyn Fn(f64) + Sync),
) -> Result<Simulation, TierError> {
    let (stream, read_of) = read(trace, room, &mut |share| progress(share * 0.3))?;
    let other = match on {
        Some(on) => Some((
            on,
            read(on, room, &mut |share| progress(0.3 + share * 0.1))?,
        )),
        None => None,
    };
    let (on_trace, (replayed, read_on)) = match &other {
        Some((trace, (stream, read))) => (*trace, (stream, read)),
        None => (trace, (&stream, &read_of)),
    };
    let (plan_basis, on_basis) = (
        basis(&stream, read_of.samples_are_time),
        basis(replayed, read_on.samples_are_time),
    );
    let curve = simulate::curve(replayed, tiers);
    let results = simulate::policies(
        (&stream, plan_basis),
        (replayed, on_basis),
        tiers,
        options,
        &|share| progress(0.5 + share * 0.5),
    )?;
    Ok(Simulation {
        schema: SCHEMA,
        trace: about(on_trace, replayed, read_on),
        planned_on: on.map(|_| about(trace, &stream, &read_of)),
        tiers: tiers.clone(),
        rests_on: on_basis,
        notes: notes(on_trace, replayed, read_on, on_basis),
        policies: results,
        curve,
    })
}

fn about(trace: &Trace, stream: &Stream, read: &Read) -> About {
    About {
        command: trace.manifest.target.command.clone(),
        complete: trace.manifest.completeness.complete,
        duration_ns: stream.length(),
        intervals: stream.intervals().len() as u64,
        touches: stream.touches,
        first_touches: stream.intervals().iter().map(|i| i.fresh).sum(),
        pages: stream.pages,
        peak_pages: stream.peak_pages,
        samples: read.samples,
    }
}

/// What a reader should know.
fn notes(trace: &Trace, stream: &Stream, read: &Read, basis: Basis) -> Vec<String> {
    let mut notes = Vec::new();
    notes.push(match basis {
        Basis::Touches => "Times are modelled from touches alone: each stands for one access to each of a page's 64 lines, or an equal part of its interval's time where that is less.".to_owned(),
        Basis::Samples => format!(
            "Times are modelled from {} sampled accesses; which pages are where follows from touches.",
            format::count(read.samples - read.samples_elsewhere)
        ),
    });
    if !trace.manifest.has_all_pages() {
        notes.push("The trace is not complete: touches may be missing.".to_owned());
    }
    if read.touched.possibly_others > 0 {
        notes.push(format!(
            "{} touches that others may have made are left out.",
            format::count(read.touched.possibly_others)
        ));
    }
    if read.touched.stray > 0 {
        notes.push(format!(
            "{} out of the order of intervals are left out.",
            format::counted(read.touched.stray, "run")
        ));
    }
    if !read.touched.knows_given_back {
        notes.push("There are too many mappings to follow what is given back: all memory counts as kept to the end.".to_owned());
    }
    if !stream.knows_writes {
        notes.push(
            "Reads and writes are not told apart in this trace: all count as reads.".to_owned(),
        );
    }
    notes
}
