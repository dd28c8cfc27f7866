//! What became of a plan.

use serde::Serialize;

/// What the `schema` of a report says.
pub const APPLY_SCHEMA: &str = "varve-tier-apply/1";

/// What became of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ApplyReport {
    /// [`APPLY_SCHEMA`].
    pub schema: &'static str,
    /// The exit code of the command, or 128 and the signal.
    pub exit_code: i32,
    /// From its start to its end, nanoseconds.
    pub duration_ns: u64,
    /// The limit of memory, bytes; null where there is none.
    pub memory_bytes: Option<u64>,
    /// How often the kernel had to make room within the limit.
    pub times_at_limit: u64,
    /// Processes that the kernel killed for want of memory.
    pub killed_for_memory: u64,
    /// Pages that were paged out from outside.
    pub pages_paged_out: u64,
    /// Processes that placed their objects.
    pub processes: u64,
    /// Objects that were looked at: those from the smallest size on.
    pub objects_looked_at: u64,
    /// Call stacks of such objects that belong to no place.
    pub stacks_without_place: u64,
    /// Objects whose call stack could not be had, that nobody said the place of in time, or that there was no room to list.
    pub objects_lost: u64,
    /// Whether places were known by names, as the program is of another build than the plan's.
    pub other_build: bool,
    /// The places.
    pub places: Vec<AppliedPlace>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// What became of a place.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AppliedPlace {
    /// As the plan calls it.
    pub name: String,
    /// What the objects are.
    pub kind: String,
    /// Its tier.
    pub tier: String,
    /// What was done: `keep`, `yield`, `node N`.
    pub action: String,
    /// How it was known: `offset`, `line`, `function`, `name`; null where nothing of it came.
    pub matched: Option<&'static str>,
    /// Objects that came.
    pub objects: u64,
    /// Of these, those that could not be placed.
    pub failed: u64,
    /// Bytes that were placed at one time, at most.
    pub peak_bytes: u64,
}
