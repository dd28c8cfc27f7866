//! What can go wrong in a benchmark, as sentences.

use std::io;
use std::path::{Path, PathBuf};

use varve_trace::TraceError;

/// A benchmark's failure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file or process could not be used.
    #[error("cannot {action} {path}: {source}")]
    Io {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A trace could not be written or read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Anything else: the whole sentence.
    #[error("{0}")]
    Failed(String),
}

/// The result of every benchmark.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::Io {
            action,
            path,
            source,
        }
    }
}
