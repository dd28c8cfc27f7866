use std::fmt;
use std::io;
use std::path::PathBuf;

use varve_trace::TraceError;

/// Where in a file something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of text, from 1.
    Line(u64),
    /// A byte, from 0.
    Byte(u64),
    /// No place in particular.
    Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, ", line {line}"),
            Place::Byte(byte) => write!(f, ", byte {byte}"),
            Place::Whole => Ok(()),
        }
    }
}

/// Why files could not be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The content is of no known format.
    #[error("{path} is in no format that is known here: {why}")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        why: String,
    },
    /// The files do not belong together.
    #[error(
        "{first} is {first_format}, {second} is {second_format}: one trace comes from one tool"
    )]
    Mixed {
        /// The first file.
        first: PathBuf,
        /// Its format.
        first_format: &'static str,
        /// A file of another format.
        second: PathBuf,
        /// That format.
        second_format: &'static str,
    },
    /// The file cannot be what it seems to be.
    #[error("{path}{place}: {message}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where.
        place: Place,
        /// What is wrong.
        message: String,
    },
    /// The file is of a known format, and holds nothing that can be imported.
    #[error("{path} holds no memory accesses: {why}")]
    Nothing {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        why: String,
    },
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The trace cannot be written.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl ImportError {
    /// What a person can do about it, where something can be done.
    pub fn hint(&self) -> Option<String> {
        match self {
            ImportError::Unknown { .. } => Some(
                "`varve import --help` lists the formats; --format forces one".to_owned(),
            ),
            ImportError::Mixed { .. } => Some("import them one after the other".to_owned()),
            ImportError::Damaged { .. } => Some(
                "if the file is a copy, copy it again; if it is of another format, name that with --format"
                    .to_owned(),
            ),
            ImportError::Nothing { .. } => Some(
                "`perf mem record` records memory accesses; `perf record -d` adds addresses to other events"
                    .to_owned(),
            ),
            ImportError::Io { .. } => None,
            ImportError::Trace(error) => error.hint().map(str::to_owned),
        }
    }
}

/// What a reader of one format says; the file's name is added outside.
#[derive(Debug)]
pub(crate) enum Trouble {
    Damaged(Place, String),
    Nothing(String),
    Io(io::Error),
    Trace(TraceError),
    /// In another file of the same recording.
    In(PathBuf, Box<Trouble>),
}

impl Trouble {
    pub(crate) fn line(line: u64, message: impl Into<String>) -> Trouble {
        Trouble::Damaged(Place::Line(line), message.into())
    }

    pub(crate) fn byte(byte: u64, message: impl Into<String>) -> Trouble {
        Trouble::Damaged(Place::Byte(byte), message.into())
    }

    pub(crate) fn of(self, path: PathBuf) -> ImportError {
        match self {
            Trouble::Damaged(place, message) => ImportError::Damaged {
                path,
                place,
                message,
            },
            Trouble::Nothing(why) => ImportError::Nothing { path, why },
            Trouble::Io(source) => ImportError::Io { path, source },
            Trouble::Trace(error) => ImportError::Trace(error),
            Trouble::In(path, trouble) => trouble.of(path),
        }
    }
}

impl From<TraceError> for Trouble {
    fn from(error: TraceError) -> Trouble {
        Trouble::Trace(error)
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        match error.downcast::<Damage>() {
            Ok(damage) => Trouble::byte(damage.byte, damage.message),
            Err(error) => Trouble::Io(error),
        }
    }
}

/// Damage that is found while bytes are read, on its way through an [`io::Error`].
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Damage {
    byte: u64,
    message: String,
}

impl Damage {
    pub(crate) fn at(byte: u64, message: String) -> Damage {
        Damage { byte, message }
    }
}

impl From<Damage> for io::Error {
    fn from(damage: Damage) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, damage)
    }
}
