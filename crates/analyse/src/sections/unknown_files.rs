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
    /// The debug packages that have what is missing, in the order in which their files were found; empty where no package is known, or
    /// another thing helps.
    pub needed: Vec<Needed>,
}

/// A debug package, and for which files it is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Needed {
    /// Its name.
    pub package: String,
    /// The paths of the files.
    pub files: Vec<String>,
}

/// What is to be done where a debug package helps begins so.
const ITS: &str = "install its debug package";
/// Packages that a sentence names.
pub const MAX_PACKAGES: usize = 3;

/// The debug package of a package. Debian's have the names of the packages of which they are, with `-dbgsym`; that of the C library ends
/// in `-dbg`.
fn debug_package(package: &str) -> String {
    match package {
        "libc6" => "libc6-dbg".to_owned(),
        other => format!("{other}-dbgsym"),
    }
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

    /// What to do, with the packages that have what is missing where they are known: three of them, and how many more.
    pub fn advice(&self) -> String {
        let Some(rest) = self.hint.strip_prefix(ITS) else {
            return self.hint.clone();
        };
        let shown = self.needed.iter().take(MAX_PACKAGES);
        let shown: Vec<&str> = shown.map(|needed| needed.package.as_str()).collect();
        match self.needed.len() {
            0 if self.files.len() > 1 => format!("install their debug packages{rest}"),
            0 => self.hint.clone(),
            1..=MAX_PACKAGES => format!("install {}{rest}", shown.join(" ")),
            all => format!(
                "install {} and {}{rest}",
                shown.join(" "),
                counted((all - MAX_PACKAGES) as u64, "other debug package")
            ),
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
                    needed: Vec::new(),
                });
                all.len() - 1
            }
        };
        let of = &mut all[at];
        of.files.push(note.path.clone());
        let package = note.package.as_ref();
        let new = package.filter(|p| !of.packages.contains(p)).cloned();
        of.packages.extend(new);
        let Some(package) = package.filter(|_| note.hint.starts_with(ITS)) else {
            continue;
        };
        let package = debug_package(package);
        match of.needed.iter_mut().find(|n| n.package == package) {
            Some(needed) => needed.files.push(note.path.clone()),
            None => of.needed.push(Needed {
                package,
                files: vec![note.path.clone()],
            }),
        }
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
        let files = |package: &str, files: &[&str]| Needed {
            package: package.to_owned(),
            files: files.iter().map(|f| (*f).to_owned()).collect(),
        };
        assert_eq!(
            all[0].needed,
            [
                files("liba1-dbgsym", &["/usr/lib/liba.so", "/usr/lib/libb.so"]),
                files("libc6-dbg", &["/usr/lib/libc.so.6"])
            ]
        );
        assert_eq!(all[1].needed, []);
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

    #[test]
    fn three_packages_are_named_and_the_others_counted() {
        let note = |n: u32| {
            note(
                &format!("/lib/lib{n}.so"),
                Lacks::Lines,
                Some(&format!("lib{n}")),
            )
        };
        let of = |count: u32| {
            let notes: Vec<ModuleNote> = (1..=count).map(note).collect();
            let found = unknown_files(&notes);
            (found[0].advice(), found[0].needed.len())
        };
        let three = "install lib1-dbgsym lib2-dbgsym lib3-dbgsym";
        assert_eq!(of(3), (format!("{three}, or ask"), 3));
        assert_eq!(
            of(4),
            (format!("{three} and 1 other debug package, or ask"), 4)
        );
        assert_eq!(
            of(9),
            (format!("{three} and 6 other debug packages, or ask"), 9)
        );
        // Where a package does not help none is named.
        let other = ModuleNote {
            hint: "build with -g".to_owned(),
            ..note(1)
        };
        assert_eq!(unknown_files(&[other])[0].needed, []);
    }
}
