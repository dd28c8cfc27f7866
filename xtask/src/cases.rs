//! Which cases of the truth suites run under other kernels.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result, text_of};

/// The cases that `make test` runs under each kernel, by suite and exact name; the same ones at every commit.
///
/// What they have in common is that the recorder does something else where the kernel is another one: reading and clearing
/// accessed bits (6.12 has PAGEMAP_SCAN, 6.1 has not), the hooks at which pages vanish, are forked or move, iteration over
/// mappings in the kernel, soft-dirty bits or userfaultfd for writes, and pages that are moved away so that accesses trap.
/// What is worked out from a trace, and what only repeats a mechanism, is the same under every kernel and is tested on the
/// host. One negative control shows that a missing hook is noticed there too.
///
/// An emulated processor is ten to thirty times slower. Most of a case is the beginning and the end of its recording there: workloads that
/// are recorded with the same options share one (`one by one`).
const CHOSEN: &[(&str, &[&str])] = &[
    (
        "oracles",
        &[
            "one by one @50 ms",
            "vanish --vanish exact",
            "readonly --hold cgroup",
            "threads --hold ptrace",
        ],
    ),
    ("controls", &["mremap without vanish"]),
    ("writes", &["writeonly", "cow_fork"]),
    ("fault", &["hot64", "mremap"]),
];

/// Which cases are wanted.
pub(crate) enum Wanted {
    /// Those that `make test` runs.
    Chosen,
    /// Every one.
    All,
    /// These: `CASE`, or `SUITE CASE` where several suites have one of that name.
    Named(Vec<String>),
}

/// One case of one suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) suite: String,
    pub(crate) executable: PathBuf,
    pub(crate) name: String,
}

impl Case {
    /// How the output names it, under a kernel.
    pub(crate) fn label(&self, kernel: &str) -> String {
        format!("{} '{}' on {kernel}", self.suite, self.name)
    }
}

/// The wanted cases of the suites' executables.
///
/// # Errors
/// Where one is wanted that no suite has.
pub(crate) fn choose(suites: &[(String, PathBuf)], wanted: &Wanted) -> Result<Vec<Case>> {
    let mut all = Vec::new();
    for (suite, executable) in suites {
        all.extend(list(executable)?.into_iter().map(|name| Case {
            suite: suite.clone(),
            executable: executable.clone(),
            name,
        }));
    }
    pick(all, wanted)
}

/// What an executable says that its cases are.
fn list(executable: &Path) -> Result<Vec<String>> {
    let text = text_of(Command::new(executable).arg("--list"))?;
    let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

fn pick(all: Vec<Case>, wanted: &Wanted) -> Result<Vec<Case>> {
    let names: Vec<String> = match wanted {
        Wanted::All => return Ok(all),
        Wanted::Chosen => CHOSEN
            .iter()
            .flat_map(|(suite, cases)| cases.iter().map(move |case| format!("{suite} {case}")))
            .collect(),
        Wanted::Named(names) => names.clone(),
    };
    let mut picked = Vec::new();
    for name in &names {
        let is_named = |c: &&Case| c.name == *name || format!("{} {}", c.suite, c.name) == *name;
        let found: Vec<&Case> = all.iter().filter(is_named).collect();
        if found.is_empty() {
            // A case that was renamed must not be left out in silence.
            return Err(Error::hinted(
                format!("no truth suite has a case `{name}`"),
                "names are exact; each executable of tests/truth lists its cases with --list",
            ));
        }
        picked.extend(found.into_iter().cloned());
    }
    Ok(picked)
}

#[cfg(test)]
mod tests {
    use super::{Case, Wanted, pick};

    fn cases() -> Vec<Case> {
        let case = |suite: &str, name: &str| Case {
            suite: suite.to_owned(),
            executable: suite.into(),
            name: name.to_owned(),
        };
        vec![
            case("oracles", "vanish"),
            case("oracles", "vanish --hold cgroup"),
            case("writes", "vanish"),
        ]
    }

    fn names(wanted: &[&str]) -> crate::error::Result<Vec<Case>> {
        let wanted = wanted.iter().map(|&name| name.to_owned()).collect();
        pick(cases(), &Wanted::Named(wanted))
    }

    #[test]
    fn names_are_exact() {
        assert_eq!(names(&["vanish"]).expect("two").len(), 2);
        assert_eq!(names(&["writes vanish"]).expect("one"), cases()[2..]);
        assert_eq!(
            names(&["vanish --hold cgroup"]).expect("one"),
            cases()[1..2]
        );
        assert!(names(&["vani"]).is_err());
        assert!(names(&["vanish", "gone"]).is_err());
        assert_eq!(pick(cases(), &Wanted::All).expect("all").len(), 3);
    }
}
