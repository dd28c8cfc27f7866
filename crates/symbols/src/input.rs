//! The plain records that attribution starts from.

use std::fmt;
use std::path::{Path, PathBuf};

use varve_model::{Address, Bytes, Pid, Time};
use varve_sys::FileIdentity;

/// The `NT_GNU_BUILD_ID` note of an ELF file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(pub Vec<u8>);

impl BuildId {
    /// From its hexadecimal form.
    pub fn from_hex(hex: &str) -> Option<Self> {
        if hex.is_empty() || !hex.len().is_multiple_of(2) || !hex.is_ascii() {
            return None;
        }
        (0..hex.len() / 2)
            .map(|index| u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok())
            .collect::<Option<Vec<u8>>>()
            .map(Self)
    }

    /// `xx/yyyy.debug`, its place below `.build-id`.
    pub(crate) fn path(&self) -> String {
        let hex = self.to_string();
        let (head, tail) = hex.split_at(hex.len().min(2));
        format!("{head}/{tail}.debug")
    }

    pub(crate) fn debug_path(&self, folder: &Path) -> Option<PathBuf> {
        (self.0.len() > 1).then(|| folder.join(".build-id").join(self.path()))
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// One mapping of a process, for as long as it stood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// The process.
    pub pid: Pid,
    /// Where it starts.
    pub address: Address,
    /// How long it is.
    pub bytes: Bytes,
    /// As in `/proc/PID/maps`: `r-xp`.
    pub perms: String,
    /// Where in the file it starts.
    pub offset: Bytes,
    /// The file, or `[heap]`, `[stack]`, `[vdso]` and their like, or nothing.
    pub path: String,
    /// What the file is called where that is not the end of its path: a program that was run through a link.
    pub called: Option<String>,
    /// Which file that was, where known.
    pub file: Option<FileIdentity>,
    /// The build id of the file, where known.
    pub build_id: Option<BuildId>,
    /// Since when it stood.
    pub from: Time,
    /// Until when; `None`: to the end.
    pub to: Option<Time>,
}

/// Whether a path of `/proc/PID/maps` stands for memory that no file of a file system is behind: anonymous, shared anonymous, memfds,
/// System V segments and POSIX shared memory. Code in it was generated, or loaded from where it cannot be read again.
pub fn is_memory(path: &str) -> bool {
    const BEGINNINGS: [&str; 6] = [
        "[anon:",
        "[anon_shmem:",
        "/memfd:",
        "/dev/zero",
        "/SYSV",
        "/dev/shm/",
    ];
    path.is_empty() || BEGINNINGS.iter().any(|start| path.starts_with(start))
}

impl Mapping {
    pub(crate) fn end(&self) -> u64 {
        self.address.0.saturating_add(self.bytes.0)
    }

    /// The base name of the module.
    pub(crate) fn module(&self) -> &str {
        self.called
            .as_deref()
            .unwrap_or_else(|| base_name(&self.path))
    }

    pub(crate) fn is_file(&self) -> bool {
        self.path.starts_with('/')
    }

    pub(crate) fn stands_at(&self, time: Time) -> bool {
        self.from <= time && self.to.is_none_or(|to| time < to)
    }
}

/// The path without the kernel's mark of an unlinked file, and whether it bore the mark.
pub(crate) fn undeleted(path: &str) -> (&str, bool) {
    match path.strip_suffix(" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    }
}

/// The last part of a path, without the kernel's mark of an unlinked file.
pub(crate) fn base_name(path: &str) -> &str {
    let (path, _) = undeleted(path);
    path.rsplit('/')
        .find(|part| !part.is_empty())
        .unwrap_or(path)
}
