use std::io;
use std::path::PathBuf;

use varve_model::Bytes;

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
    /// The output folder is an earlier trace.
    #[error("{path} exists already")]
    Exists {
        /// The output folder.
        path: PathBuf,
    },
    /// The output folder is there already, and is no trace.
    #[error("{path} exists already and is not a Varve trace")]
    NotOurs {
        /// The output folder.
        path: PathBuf,
    },
    /// The folder in which a trace is to be made is not there.
    #[error("cannot create {path}: there is no folder {parent}")]
    NoParent {
        /// The output folder.
        path: PathBuf,
        /// The folder above it.
        parent: PathBuf,
    },
    /// Something that Varve does not make stands where a file or folder of a trace stands.
    #[error("{path} is {what}: it is left alone, and nothing is read or written through it")]
    Foreign {
        /// Where it stands.
        path: PathBuf,
        /// What it is, with an article.
        what: &'static str,
    },
    /// The folder belongs to somebody else, who could change what is written there.
    #[error("{path} belongs to another user (id {owner}), who could change what is written there")]
    Owner {
        /// The folder.
        path: PathBuf,
        /// The user.
        owner: u32,
    },
    /// Another process writes to the trace.
    #[error("{path} is being written{}", by(*recorder))]
    Busy {
        /// The trace folder.
        path: PathBuf,
        /// The recorder, where its manifest names one.
        recorder: Option<u32>,
    },
    /// Another process reads the trace and would read half of it.
    #[error("{path} is being read by another process")]
    IsRead {
        /// The trace folder.
        path: PathBuf,
    },
    /// The folder is no more, or a file that was written in it.
    #[error("{path} was removed while it was written")]
    Gone {
        /// The trace folder or the file.
        path: PathBuf,
    },
    /// The touches or the objects of the trace take more memory than there is.
    #[error(
        "{path} lists so many pages or objects that their analysis takes more than the {} MiB of memory that it may have here",
        room.0 >> 20
    )]
    TooLarge {
        /// The trace folder.
        path: PathBuf,
        /// The memory that the analysis may have.
        room: Bytes,
    },
    /// A table that is read as a whole takes more memory than it may have.
    #[error(
        "the table {path} takes more than the {} MiB of memory that it may have here",
        room.0 >> 20
    )]
    TableTooLarge {
        /// The Parquet file.
        path: PathBuf,
        /// The memory that it may have.
        room: Bytes,
    },
    /// There is no room for what reading takes.
    #[error("cannot write temporary files in {folder}: {source}")]
    Scratch {
        /// The folder for temporary files.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
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

fn by(recorder: Option<u32>) -> String {
    recorder.map_or_else(String::new, |pid| format!(" by process {pid}"))
}

/// What is done to read a trace.
const READING: [&str; 3] = ["open", "read", "list"];

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
            // The folder above is open: it was removed since, or is the current directory, which was.
            TraceError::Io {
                action: "create",
                source,
                ..
            } if source.kind() == io::ErrorKind::NotFound => {
                Some("the folder that it was to lie in was removed: give another one with -o")
            }
            TraceError::BadManifest { .. } | TraceError::BadTable { .. } => {
                Some("if the folder is a copy, copy it again; else record again")
            }
            TraceError::TooNew { .. } => Some("read it with the varve that recorded it, or newer"),
            TraceError::Exists { .. } => {
                Some("`--force` replaces an earlier trace, and -o names another folder")
            }
            TraceError::NotOurs { .. } => Some("choose another folder with -o, or remove it first"),
            TraceError::Foreign { .. } => {
                Some("name the folder itself, or remove what stands there")
            }
            TraceError::NoParent { .. } => {
                Some("make that folder first (mkdir -p), or choose another one with -o")
            }
            TraceError::Owner { .. } => Some("choose a folder of your own with -o"),
            TraceError::Busy { .. } => {
                Some("wait until that has ended, or end a recording with `kill -INT`")
            }
            TraceError::IsRead { .. } => {
                Some("wait until that has ended; `lslocks` lists who reads")
            }
            TraceError::TooLarge { .. } => Some(
                "a smaller part takes less (--pid, --object, --from, --to); if the program cannot have used so much, the trace is damaged",
            ),
            TraceError::TableTooLarge { .. } => Some(
                "read it where more memory is free; if the program cannot have had so much to record, the trace is damaged",
            ),
            TraceError::Gone { .. } => Some("record again, to a folder that stays"),
            TraceError::Scratch { .. } => Some(
                "name another folder in TMPDIR; `varve recover` puts the trace in order once and for all",
            ),
            TraceError::Io { action, source, .. }
                if READING.contains(action) && source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Some(
                    "its owner and root can read it; `varve record --share` lets everybody read a trace",
                )
            }
            TraceError::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => Some(
                "files may not grow that large here: see `ulimit -f`, or choose another disk with -o",
            ),
            TraceError::Io { source, .. } if source.kind() == io::ErrorKind::InvalidInput => {
                Some("remove what stands there")
            }
            e if e.is_disk_full() => {
                Some("free some space, or write the trace to another disk with -o")
            }
            TraceError::Io { source, .. } if source.kind() == io::ErrorKind::FileTooLarge => {
                Some("raise the limit of the sizes of files: ulimit -f unlimited")
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
