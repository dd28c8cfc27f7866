//! What this machine can do, mechanism by mechanism.

mod hold;
mod kernel;
mod leftovers;
mod libraries;
mod machine;
mod privileges;

use std::path::PathBuf;

use serde::Serialize;
use varve_bpf::ATOMIC_CLEARING;

pub(crate) use self::kernel::split_hint;
use self::kernel::{programs, trapping, write_protection};
pub use self::libraries::examine_exact;
use self::libraries::{debug_servers, preloading, rings};
use crate::leftovers::{clean_leftovers, find_leftovers};

/// How a mechanism stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It works here.
    Available,
    /// It does not, and nothing can be recorded without it.
    Required,
    /// It does not, and no recording is complete without it.
    Promised,
    /// It does not; recordings lack what it gives, or get it another way.
    Missing,
    /// A fact that a reader of traces should know.
    Note,
}

/// One mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub purpose: String,
    /// How it stands.
    pub standing: Standing,
    /// How that was found, or why it is so.
    pub detail: String,
    /// How to enable it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What a person who asks for no details is shown of it.
    #[serde(skip)]
    pub brief: Brief,
}

/// What is shown of a mechanism to a person who asks for no details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Brief {
    /// What it is good for, where it works, in a few words; all of it where it does not.
    Feature(&'static str),
    /// Nothing where it works, all of it where it does not.
    Missing,
    /// All of it.
    Always,
    /// Nothing: it is a detail, or part of another one.
    Never,
}

impl Check {
    fn new(
        name: &str,
        purpose: &str,
        result: Result<String, (String, &str)>,
        needed: Standing,
    ) -> Check {
        let (standing, detail, hint) = match result {
            Ok(detail) => (Standing::Available, detail, None),
            Err((detail, hint)) => (needed, detail, (!hint.is_empty()).then(|| hint.to_owned())),
        };
        Check {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            standing,
            detail,
            hint,
            brief: Brief::Missing,
        }
    }

    /// What it is good for.
    fn feature(mut self, words: &'static str) -> Check {
        self.brief = Brief::Feature(words);
        self
    }

    fn note(name: &str, purpose: &str, detail: String) -> Check {
        Check {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            standing: Standing::Note,
            detail,
            hint: None,
            brief: Brief::Never,
        }
    }
}

/// What to do about what dead recorders left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// List it.
    List,
    /// Remove what is theirs without doubt, and list the rest.
    Clean,
}

/// Tries every mechanism and leaves nothing behind. `preload` is the preload library, if it was found, or why it is not
/// to be used.
pub fn examine(preload: Result<Option<PathBuf>, String>, choice: Leftovers) -> Vec<Check> {
    let left = match choice {
        Leftovers::List => find_leftovers(),
        Leftovers::Clean => clean_leftovers(),
    };
    let ptrace = hold::holding_by_ptrace();
    let mut checks = privileges::privileges();
    let cgroup = hold::holding(ptrace.standing);
    let programs = programs();
    let mut known = programs.iter();
    let atomic = known.any(|c| c.name == ATOMIC_CLEARING && c.standing == Standing::Available);
    checks.extend([
        hold::clearing(),
        hold::in_use(atomic, &cgroup, &ptrace),
        cgroup,
        ptrace,
    ]);
    checks.extend(programs);
    checks.push(write_protection());
    checks.push(trapping());
    checks.push(preloading(preload));
    checks.push(rings());
    checks.push(debug_servers());
    checks.extend([
        machine::ageing(),
        machine::reclaim(),
        machine::huge_pages(),
        leftovers::leftovers(&left, choice),
    ]);
    checks
}

/// Whether nothing that a recording needs is missing.
pub fn can_record(checks: &[Check]) -> bool {
    checks.iter().all(|c| c.standing != Standing::Required)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_does_not_keep_from_recording() {
        assert!(can_record(&[preloading(Ok(None))]));
        let needed = Check::new("x", "y", Err(("z".into(), "")), Standing::Required);
        assert!(!can_record(&[needed]));
    }
}
