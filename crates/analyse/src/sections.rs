//! The sections of a report, by name, and what each holds.

pub(crate) mod counts;
pub(crate) mod footprint;
pub(crate) mod objects;
pub(crate) mod overview;
pub(crate) mod phases;
pub(crate) mod processes;
pub(crate) mod recording;
pub(crate) mod samples;
pub(crate) mod sharing;
pub(crate) mod threads;
pub(crate) mod unknown;
pub(crate) mod unknown_files;

use std::str::FromStr;

/// A part of a report that can be shown by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// The first screen.
    Overview,
    /// What was recorded and what that cost.
    Recording,
    /// How much memory was used.
    Footprint,
    /// The working set over time.
    WorkingSet,
    /// The phases that the program names.
    Phases,
    /// Objects, hottest and coldest first.
    Objects,
    /// Processes.
    Processes,
    /// Threads and their first touches.
    Threads,
    /// Samples of accesses.
    Samples,
    /// Counted accesses.
    Counts,
    /// Who uses what.
    Sharing,
    /// What stands out, with the evidence.
    Findings,
    /// What is not known.
    Unknown,
}

impl Section {
    /// All, in the order of a report.
    pub const ALL: [Section; 13] = [
        Section::Overview,
        Section::Recording,
        Section::Footprint,
        Section::WorkingSet,
        Section::Phases,
        Section::Objects,
        Section::Processes,
        Section::Threads,
        Section::Samples,
        Section::Counts,
        Section::Sharing,
        Section::Findings,
        Section::Unknown,
    ];

    /// Its name, what it says, and the fields of the JSON that are its.
    const fn facts(self) -> (&'static str, &'static str, &'static [&'static str]) {
        match self {
            Section::Overview => ("overview", "the first screen", &["overview"]),
            Section::Recording => (
                "recording",
                "what was recorded, whether all of it, and what that cost",
                &["trace", "overhead", "object_sources"],
            ),
            Section::Footprint => (
                "footprint",
                "how much memory was touched, and how often",
                &[
                    "footprint",
                    "reuse",
                    "sources",
                    "writes",
                    "unowned",
                    "shared",
                    "own_memory",
                ],
            ),
            Section::WorkingSet => (
                "working-set",
                "the memory used in each interval",
                &["working_set"],
            ),
            Section::Phases => (
                "phases",
                "the phases that the program names, and the memory used in each",
                &["phases"],
            ),
            Section::Objects => (
                "objects",
                "objects, hottest and coldest first",
                &["objects", "omitted", "groups", "tail"],
            ),
            Section::Processes => ("processes", "each process", &["processes"]),
            Section::Threads => ("threads", "which thread touched pages first", &["threads"]),
            Section::Samples => (
                "samples",
                "where the time of accesses goes: objects and lines of code",
                &["samples"],
            ),
            Section::Counts => ("counts", "counted accesses", &["counts", "exact"]),
            Section::Sharing => (
                "sharing",
                "which threads use which objects, and which parts of them",
                &["sharing"],
            ),
            Section::Findings => (
                "findings",
                "what stands out, with the evidence and what to do",
                &["findings"],
            ),
            Section::Unknown => (
                "unknown",
                "what this trace cannot say",
                &["unknown", "unknown_files", "contradictions"],
            ),
        }
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// What it says, in a line.
    pub const fn about(self) -> &'static str {
        self.facts().1
    }

    /// The fields of `varve report --json` that are its.
    pub const fn fields(self) -> &'static [&'static str] {
        self.facts().2
    }
}

impl Section {
    /// The names of all sections and what they are about, for people.
    pub fn help() -> String {
        format!("The sections are:{}\n", list())
    }
}

impl FromStr for Section {
    type Err = String;

    fn from_str(name: &str) -> Result<Section, String> {
        let found = Section::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| format!("there is no section `{name}`; the sections are:{}", list()))
    }
}

/// What there is: a line of each section, each after a line's end.
fn list() -> String {
    let lines = Section::ALL.map(|s| format!("\n  {:<12}{}", s.name(), s.about()));
    lines.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_wrong_ones_answered() {
        for section in Section::ALL {
            assert_eq!(section.name().parse(), Ok(section));
        }
        let wrong = "object".parse::<Section>().unwrap_err();
        assert!(wrong.contains("no section `object`") && wrong.contains("\n  objects "));
    }
}
