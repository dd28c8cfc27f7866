use std::io;
use std::path::PathBuf;

/// Why a trace could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The folder holds no manifest.
    #[error("{path} is not a Varve trace: it has no manifest.json")]
    NotATrace {
        /// The folder that was to be read.
        path: PathBuf,
    },
    /// The manifest is not one.
    #[error("the manifest {path} is damaged: {source}")]
    BadManifest {
        /// The manifest file.
        path: PathBuf,
        /// What the parser said, with line and column.
        source: serde_json::Error,
    },
    /// The trace comes from a newer Varve.
    #[error("{path} has trace format version {found}; this varve reads up to version {known}")]
    TooNew {
        /// The trace folder.
        path: PathBuf,
        /// The version in its manifest.
        found: u32,
        /// The newest version known here.
        known: u32,
    },
    /// A table cannot be decoded.
    #[error("the table {path} is damaged: {message}")]
    BadTable {
        /// The Parquet file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The output folder is there already.
    #[error("{path} exists already and is not an earlier trace that may be replaced")]
    Exists {
        /// The output folder.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl TraceError {
    pub(crate) fn io(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| TraceError::Io {
            action,
            path,
            source,
        }
    }

    pub(crate) fn table(path: impl Into<PathBuf>, message: impl ToString) -> Self {
        let message = message.to_string();
        TraceError::BadTable {
            path: path.into(),
            message,
        }
    }

    /// Whether the disk is full.
    pub fn is_disk_full(&self) -> bool {
        match self {
            TraceError::Io { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                )
            }
            _ => false,
        }
    }

    /// What a person can do about it, where something can be done.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            TraceError::NotATrace { .. } => {
                Some("give the folder that `varve record` wrote, such as NAME.varve")
            }
            TraceError::Io {
                action: "open",
                source,
                ..
            } if source.kind() == io::ErrorKind::NotFound => {
                Some("give the folder that `varve record` wrote, such as NAME.varve")
            }
            TraceError::BadManifest { .. } | TraceError::BadTable { .. } => {
                Some("if the folder is a copy, copy it again; else record again")
            }
            TraceError::TooNew { .. } => Some("read it with the varve that recorded it, or newer"),
            TraceError::Exists { .. } => Some("choose another folder with -o, or remove it first"),
            e if e.is_disk_full() => {
                Some("free some space, or write the trace to another disk with -o")
            }
            TraceError::Io { source, .. }
                if matches!(
                    source.kind(),
                    io::ErrorKind::ReadOnlyFilesystem
                        | io::ErrorKind::PermissionDenied
                        | io::ErrorKind::NotADirectory
                ) =>
            {
                Some("choose another folder with -o, where you may write")
            }
            _ => None,
        }
    }
}
