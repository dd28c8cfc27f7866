//! What is known about each module, and what a person can do where something is missing.

use std::fmt;
use std::path::PathBuf;

use crate::input::BuildId;

/// A module of the recording and what could be read of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleReport {
    /// The path as mapped.
    pub path: String,
    /// What was found.
    pub status: ModuleStatus,
}

/// What could be read of one module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModuleStatus {
    /// The file was found, with this much debug information.
    Found(DebugInfo),
    /// The kernel's own module, the vDSO.
    Kernel,
    /// Neither symbols nor lines: the file itself is of no use.
    Unusable(Unusable),
}

/// Where names and lines come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DebugInfo {
    /// Names, files and lines, from the file itself.
    Inside,
    /// Names, files and lines, from this separate debug file.
    Separate(PathBuf),
    /// Names only: built without `-g`.
    SymbolsOnly,
    /// Names of functions only, from the packed symbol table in the file.
    Mini,
    /// Stripped, and no debug file was found: only exported names.
    Stripped {
        /// What to ask a debug file server for.
        build_id: Option<BuildId>,
    },
}

/// Why a file is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unusable {
    /// It cannot be read, with the reason.
    Unreadable(String),
    /// It is not an ELF file.
    NotElf,
    /// Another file now has that name.
    BuildIdMismatch {
        /// The one that ran.
        expected: BuildId,
        /// The one that is there now.
        found: Option<BuildId>,
    },
    /// The file was deleted while it ran, another has its name, and no build id proves that they are the same.
    Replaced,
}

impl ModuleStatus {
    /// Names of local functions and variables are known.
    pub fn has_names(&self) -> bool {
        match self {
            Self::Found(DebugInfo::Stripped { .. }) | Self::Unusable(_) => false,
            Self::Found(_) | Self::Kernel => true,
        }
    }

    /// Files and lines are known.
    pub fn has_lines(&self) -> bool {
        matches!(
            self,
            Self::Found(DebugInfo::Inside | DebugInfo::Separate(_))
        )
    }

    /// What to do about what is missing, if anything is.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Found(DebugInfo::Inside | DebugInfo::Separate(_)) | Self::Kernel => None,
            Self::Found(DebugInfo::SymbolsOnly) => {
                Some("rebuild with -g to see files and lines".to_owned())
            }
            Self::Found(DebugInfo::Mini | DebugInfo::Stripped { .. }) => {
                Some("install its debug package".to_owned())
            }
            Self::Unusable(Unusable::Unreadable(_)) => {
                Some("report on the machine of the recording, while the file is there".to_owned())
            }
            Self::Unusable(Unusable::NotElf) => None,
            Self::Unusable(Unusable::BuildIdMismatch { .. } | Unusable::Replaced) => {
                Some("the file was rebuilt or upgraded since; record again".to_owned())
            }
        }
    }
}

impl fmt::Display for ModuleStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found(DebugInfo::Inside) => write!(out, "names and lines"),
            Self::Found(DebugInfo::Separate(path)) => {
                write!(out, "names and lines from {}", path.display())
            }
            Self::Found(DebugInfo::SymbolsOnly) => write!(out, "names, no lines"),
            Self::Found(DebugInfo::Mini) => write!(out, "stripped, names of functions only"),
            Self::Found(DebugInfo::Stripped { .. }) => write!(out, "stripped, no debug file found"),
            Self::Kernel => write!(out, "provided by the kernel"),
            Self::Unusable(Unusable::Unreadable(reason)) if reason.is_empty() => {
                write!(out, "cannot be read")
            }
            Self::Unusable(Unusable::Unreadable(reason)) => write!(out, "cannot be read: {reason}"),
            Self::Unusable(Unusable::NotElf) => write!(out, "not an ELF file"),
            Self::Unusable(Unusable::BuildIdMismatch { .. }) => {
                write!(
                    out,
                    "another build than the one that ran (build id differs)"
                )
            }
            Self::Unusable(Unusable::Replaced) => write!(out, "deleted or replaced while it ran"),
        }
    }
}
