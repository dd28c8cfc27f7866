//! Plans: a file that says which objects belong to which tier, and why. A person may read and change it.

mod file;
mod make;

pub use file::{MAX_PLAN_BYTES, PlanError};
pub use make::{PlanOptions, plan};

use serde::{Deserialize, Serialize};

use crate::error::TierError;
use crate::spec::{Tier, Tiers};

/// What the `schema` of a plan says.
pub const PLAN_SCHEMA: &str = "varve-tier-plan/1";

/// A plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`PLAN_SCHEMA`].
    pub schema: String,
    /// The program for which it is.
    pub program: Program,
    /// What it was expected to give when it was made; modelled.
    pub expected: Expected,
    /// The tiers, as `--tier` takes them, the fastest first.
    pub tiers: Vec<String>,
    /// The tier of all memory that is not named.
    pub default: String,
    /// What is named.
    #[serde(default, rename = "place")]
    pub places: Vec<Place>,
}

/// The program of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The command line that was recorded.
    pub command: Vec<String>,
    /// Its executable.
    #[serde(default)]
    pub executable: String,
    /// The executable's build id, hexadecimal; empty where it is not known.
    #[serde(default)]
    pub build_id: String,
}

/// What a plan was expected to give.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    /// How objects were chosen.
    pub policy: String,
    /// The share of touches that find their page in a slower tier.
    pub slow_share: f64,
    /// The same where pages are placed by first touch.
    pub slow_share_of_first_touch: f64,
    /// Run time over that with all memory in the fastest tier; modelled.
    pub modelled_slowdown: f64,
    /// The same where pages are placed by first touch.
    pub modelled_slowdown_of_first_touch: f64,
}

/// Objects that belong to a tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The tier.
    pub tier: String,
    /// Why.
    #[serde(default)]
    pub why: String,
    /// What the objects are: `heap`, `static`, `stack`, `mapping` or `file`.
    pub kind: String,
    /// As reports call them. Of static data, stacks and files this is what they are found by.
    pub name: String,
    /// The largest size of all of them together at one time, bytes.
    #[serde(default)]
    pub peak_bytes: u64,
    /// Touched pages that lived at one time, at most.
    #[serde(default)]
    pub peak_pages: u64,
    /// The build id of the file in which static data lies, hexadecimal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: String,
    /// The part of each object that belongs to the tier, in bytes from its beginning; without it, all of it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
    /// Where the objects are allocated: the call stack, innermost first, inlined calls included.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "frame")]
    pub frames: Vec<SiteFrame>,
}

/// A part of an object, bytes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// The first byte.
    pub from: u64,
    /// One past the last.
    pub to: u64,
}

/// A call of a stack. In the same build it is known by its offset; in another by function, file and line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteFrame {
    /// The function.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub function: String,
    /// The source file.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// The line in it; 0 where it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u32,
    /// The executable or library.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// The module's build id, hexadecimal.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub build_id: String,
    /// Where the instruction lies in the module's file.
    #[serde(default, skip_serializing_if = "is_zero_offset")]
    pub offset: u64,
}

fn is_zero(line: &u32) -> bool {
    *line == 0
}

fn is_zero_offset(offset: &u64) -> bool {
    *offset == 0
}

impl Plan {
    /// The tiers.
    ///
    /// # Errors
    /// What is no tier, or tiers that make no sense together.
    pub fn resolve_tiers(&self) -> Result<Tiers, TierError> {
        let tiers: Result<Vec<Tier>, _> = self.tiers.iter().map(|t| t.parse()).collect();
        Ok(Tiers::new(tiers?)?)
    }
}
