//! Whether a plan held, as `varve tier verify` found.

use serde::Serialize;

/// What the `schema` of a result says.
pub const VERIFY_SCHEMA: &str = "varve-tier-verify/1";

/// Whether a plan held.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verified {
    /// [`VERIFY_SCHEMA`].
    pub schema: &'static str,
    /// The places, as the plan has them.
    pub places: Vec<VerifiedPlace>,
    /// Pages where they should be, of all looks and all places that have a say in it; null where there are none.
    pub share_right: Option<f64>,
    /// Runs as planned, in their order.
    pub planned: Vec<VerifiedRun>,
    /// Runs without, under the same limit.
    pub unplanned: Vec<VerifiedRun>,
    /// The medians compared; null where there are no runs.
    pub change: Option<VerifiedChange>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// Where the pages of a place were.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VerifiedPlace {
    /// As the plan calls it.
    pub name: String,
    /// What the objects are.
    pub kind: String,
    /// Its tier.
    pub tier: String,
    /// Looks at which some of it was there.
    pub looks: u64,
    /// Pages that were there at one time, at most.
    pub peak_pages: u64,
    /// The share of pages in memory or on the tier's node, the mean of all looks; null where nothing was seen.
    pub share_near: Option<f64>,
    /// The least of all looks.
    pub least_share_near: Option<f64>,
    /// The share that is where the plan says, the mean; null for what may be anywhere: what yields.
    pub share_right: Option<f64>,
}

/// A run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifiedRun {
    /// Run time, nanoseconds.
    pub wall_ns: u64,
    /// Page faults that had to wait for a device: touches of pages that were in swap or in a file.
    pub major_faults: u64,
    /// Its exit code.
    pub exit_code: i32,
}

/// Planned against unplanned, medians.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct VerifiedChange {
    /// Planned run time over that without.
    pub wall: f64,
    /// Planned major faults over those without; null where there were none.
    pub major_faults: Option<f64>,
}
