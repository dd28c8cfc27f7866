use std::io;
use std::path::{Path, PathBuf};

use varve_trace::TraceError;

/// Why a case could not be judged.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// A file or folder.
    #[error("cannot {what} {path}: {source}")]
    File {
        /// The verb.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A program did not end in order.
    #[error("{command} {what}\n{output}")]
    Run {
        /// The command line.
        command: String,
        /// How it ended.
        what: String,
        /// The end of what it said.
        output: String,
    },
    /// A line of an oracle log.
    #[error("{path}:{line}: not a line of an oracle log: {text}")]
    Log {
        /// The log.
        path: PathBuf,
        /// The line's number.
        line: usize,
        /// The line.
        text: String,
    },
    /// The trace.
    #[error("the trace cannot be read: {0}")]
    Trace(#[from] TraceError),
    /// The `varve` to test is missing.
    #[error("there is no {0} to test; hint: `cargo build --release -p varve`, or set VARVE")]
    NoVarve(PathBuf),
    /// Anything else, as a sentence.
    #[error("{0}")]
    Other(String),
}

impl Problem {
    /// For `map_err` on what `std::fs` returns.
    pub fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Problem {
        let path = path.to_owned();
        move |source| Problem::File { what, path, source }
    }
}
