//! The allocators that are present on a machine, as libraries to preload.

use std::path::{Path, PathBuf};

use crate::commands::Failure;
use crate::libraries;

/// An allocator: its name, its files and where one gets it.
pub(super) struct Known {
    pub(super) name: &'static str,
    files: &'static [&'static str],
    /// What to do to have it, for a person.
    pub(super) source: &'static str,
    /// The library that is built with this program, where there is one.
    built: Option<&'static str>,
}

/// What is known beside glibc's.
pub(super) const KNOWN: [Known; 7] = [
    Known {
        name: "jemalloc",
        files: &["libjemalloc.so.2", "libjemalloc.so"],
        source: "apt-get install libjemalloc2",
        built: None,
    },
    Known {
        name: "tcmalloc",
        files: &[
            "libtcmalloc_minimal.so.4",
            "libtcmalloc.so.4",
            "libtcmalloc_minimal.so",
        ],
        source: "apt-get install libtcmalloc-minimal4",
        built: None,
    },
    Known {
        name: "mimalloc",
        files: &[
            "libmimalloc.so.3",
            "libmimalloc.so.2",
            "libmimalloc.so.2.0",
            "libmimalloc.so",
        ],
        source: "apt-get install libmimalloc2.0",
        built: None,
    },
    Known {
        name: "tbb",
        files: &["libtbbmalloc_proxy.so.2"],
        source: "apt-get install libtbbmalloc2",
        built: None,
    },
    Known {
        name: "scudo",
        files: &[
            "libclang_rt.scudo_standalone-x86_64.so",
            "libclang_rt.scudo_standalone.so",
        ],
        source: "apt-get install libclang-rt-NN-dev, NN as in `clang --version`",
        built: None,
    },
    Known {
        name: "snmalloc",
        files: &["libsnmallocshim.so"],
        source: "`make build` builds it beside this program",
        built: Some("libvarve_snmalloc.so"),
    },
    Known {
        name: "rpmalloc",
        files: &["librpmallocwrap.so", "librpmalloc.so"],
        source: "no package has it, give the path of one that you built",
        built: None,
    },
];

impl Known {
    /// Where it is on this machine, or beside this program.
    ///
    /// # Errors
    /// Where others could have put something else in its place.
    pub(super) fn find(&self) -> Result<Option<PathBuf>, Failure> {
        let folders = folders();
        let places = self.files.iter();
        let mut places = places.flat_map(|file| folders.iter().map(move |f| f.join(file)));
        match (places.find(|path| path.is_file()), self.built) {
            (None, Some(built)) => libraries::allocator(built),
            (found, _) => Ok(found),
        }
    }
}

/// The folders of libraries, and those of the compilers' own.
fn folders() -> Vec<PathBuf> {
    let architecture = std::env::consts::ARCH;
    let mut folders: Vec<PathBuf> = ["/usr/local/lib", "/usr/lib64", "/usr/lib"]
        .iter()
        .map(PathBuf::from)
        .collect();
    folders.insert(1, format!("/usr/lib/{architecture}-linux-gnu").into());
    let versions = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries.map(|e| e.path()).collect();
        found.sort();
        found.reverse();
        found
    };
    for compiler in versions(Path::new("/usr/lib")) {
        let name = compiler.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("llvm-") {
            for version in versions(&compiler.join("lib/clang")) {
                folders.push(version.join("lib/linux"));
                folders.push(version.join(format!("lib/{architecture}-unknown-linux-gnu")));
            }
        }
    }
    folders
}

/// The library that a person means by a name or a path; none for the program's own allocator.
///
/// # Errors
/// Where there is no such library.
pub(super) fn resolve(text: &str) -> Result<Option<PathBuf>, Failure> {
    if matches!(text, "own" | "glibc") {
        return Ok(None);
    }
    let path = match KNOWN.iter().find(|known| known.name == text) {
        Some(known) => known.find()?.ok_or_else(|| {
            Failure::new(
                format!(
                    "{text} is not on this machine: none of {} was found",
                    known.files.join(", ")
                ),
                Some(known.source),
            )
        })?,
        None if text.contains('/') => PathBuf::from(text),
        None => {
            let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
            return Err(Failure::new(
                format!("no allocator is called `{text}`"),
                Some(format!(
                    "known are {}, or the path of a library",
                    names.join(", ")
                )),
            ));
        }
    };
    if !path.is_file() {
        return Err(Failure::new(
            format!("{} is no file", path.display()),
            Some("give the path of a shared library that has malloc and free"),
        ));
    }
    let path = path.canonicalize().unwrap_or(path);
    let reachable = varve_record::reachable_library(&path);
    reachable.map(Some).map_err(|why| {
        Failure::new(
            format!("{} cannot be preloaded: {why}", path.display()),
            Some("put it into a folder that everybody can read, without spaces or colons in its path"),
        )
    })
}
