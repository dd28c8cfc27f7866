//! Executables and libraries of which not all is known, and what helps.

use serde::Serialize;
use varve_trace::{Lacks, ModuleNote};

use crate::format::counted;

/// Files of which the same is not known, for the same reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UnknownFiles {
    /// What is not known of them.
    pub lacks: Lacks,
    /// Why.
    pub why: String,
    /// What to do about it.
    pub hint: String,
    /// Their paths, in the order in which they were found.
    pub files: Vec<String>,
    /// The packages that have installed them on the recording's machine, each once; those of files that no package has are missing.
    pub packages: Vec<String>,
}

impl UnknownFiles {
    /// What is not known, in a few words.
    pub const fn what(&self) -> &'static str {
        match self.lacks {
            Lacks::Lines => "no lines of code",
            Lacks::LocalNames => "exported names only, no lines of code",
            Lacks::Names => "no names",
        }
    }

    /// What to do, with the packages that have what is missing where they are known. Debian's debug packages have the names of the packages
    /// of which they are, with `-dbgsym`; that of the C library ends in `-dbg`.
    pub fn advice(&self) -> String {
        const ITS: &str = "install its debug package";
        let Some(rest) = self.hint.strip_prefix(ITS) else {
            return self.hint.clone();
        };
        let debug = |package: &String| match package.as_str() {
            "libc6" => "libc6-dbg".to_owned(),
            other => format!("{other}-dbgsym"),
        };
        let packages: Vec<String> = self.packages.iter().map(debug).collect();
        match packages.len() {
            0 if self.files.len() > 1 => format!("install their debug packages{rest}"),
            0 => self.hint.clone(),
            _ => format!("install {}{rest}", packages.join(" ")),
        }
    }

    /// All of it in a sentence, with this many files at most.
    pub fn sentence(&self, most: usize) -> String {
        let (what, why, advice) = (self.what(), &self.why, self.advice());
        if let [path] = &self.files[..] {
            return format!("{path}: {what}: {why}; {advice}.");
        }
        let mut files = self.files[..self.files.len().min(most)].join(", ");
        let more = self.files.len().saturating_sub(most);
        if more > 0 {
            files += &format!(" and {}", counted(more as u64, "other"));
        }
        let count = counted(self.files.len() as u64, "file");
        format!("{count}: {what}: {why}; {advice}: {files}.")
    }
}

/// The files of a trace, those of which the least is known first.
pub(crate) fn unknown_files(notes: &[ModuleNote]) -> Vec<UnknownFiles> {
    let mut all: Vec<UnknownFiles> = Vec::new();
    for note in notes {
        let same = |of: &UnknownFiles| {
            of.lacks == note.lacks && of.why == note.why && of.hint == note.hint
        };
        let at = match all.iter().position(same) {
            Some(at) => at,
            None => {
                all.push(UnknownFiles {
                    lacks: note.lacks,
                    why: note.why.clone(),
                    hint: note.hint.clone(),
                    files: Vec::new(),
                    packages: Vec::new(),
                });
                all.len() - 1
            }
        };
        let of = &mut all[at];
        of.files.push(note.path.clone());
        let package = note.package.as_ref();
        let new = package.filter(|p| !of.packages.contains(p)).cloned();
        of.packages.extend(new);
    }
    all.sort_by_key(|of| match of.lacks {
        Lacks::Names => 0,
        Lacks::LocalNames => 1,
        Lacks::Lines => 2,
    });
    all
}

/// What is not known of files, in a few words.
pub(crate) fn topics(all: &[UnknownFiles]) -> Vec<String> {
    let kinds = [
        (Lacks::Names, "all names in", "not readable"),
        (
            Lacks::LocalNames,
            "local names and lines in",
            "no debug information",
        ),
        (Lacks::Lines, "lines in", "no debug information"),
    ];
    let files = |kind: Lacks| {
        let of = all.iter().filter(|of| of.lacks == kind);
        of.flat_map(|of| &of.files).collect::<Vec<_>>()
    };
    let topic = |(kind, what, why): (Lacks, &str, &str)| match files(kind)[..] {
        [] => None,
        [only] => {
            let name = only.rsplit('/').next().unwrap_or(only);
            Some(format!("{what} {name} ({why})"))
        }
        ref more => Some(format!(
            "{what} {} ({why})",
            counted(more.len() as u64, "file")
        )),
    };
    kinds.into_iter().filter_map(topic).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(path: &str, lacks: Lacks, package: Option<&str>) -> ModuleNote {
        ModuleNote {
            path: path.to_owned(),
            lacks,
            why: "stripped".to_owned(),
            hint: "install its debug package, or ask".to_owned(),
            package: package.map(str::to_owned),
        }
    }

    #[test]
    fn files_that_lack_the_same_stand_together() {
        let notes = [
            note("/usr/bin/make", Lacks::Lines, None),
            note("/usr/lib/liba.so", Lacks::LocalNames, Some("liba1")),
            note("/usr/lib/libc.so.6", Lacks::LocalNames, Some("libc6")),
            note("/usr/lib/libb.so", Lacks::LocalNames, Some("liba1")),
        ];
        let all = unknown_files(&notes);
        assert_eq!(
            all[0].sentence(2),
            "3 files: exported names only, no lines of code: stripped; install liba1-dbgsym libc6-dbg, or ask: /usr/lib/liba.so, \
             /usr/lib/libc.so.6 and 1 other."
        );
        assert_eq!(
            all[1].sentence(2),
            "/usr/bin/make: no lines of code: stripped; install its debug package, or ask."
        );
        assert_eq!(
            topics(&all),
            [
                "local names and lines in 3 files (no debug information)",
                "lines in make (no debug information)"
            ]
        );
    }
}
