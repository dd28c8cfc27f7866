//! What can go wrong with a ring, seen from the recorder.

use std::io;
use std::path::PathBuf;

/// A ring that cannot be opened or no longer makes sense.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The file could not be opened, read or written.
    #[error("cannot use the ring {path}: {source}")]
    Io {
        /// The ring file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file is not a ring of this version.
    #[error("{path} is not a ring that this version reads: {reason}")]
    NotARing {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: &'static str,
    },
    /// The watched program wrote over its ring. What was read before stays valid, the rest is lost.
    #[error("the ring {path} was overwritten by the watched program at byte {position}: {reason}")]
    Damaged {
        /// The ring file.
        path: PathBuf,
        /// Bytes since the ring was made.
        position: u64,
        /// What does not fit.
        reason: &'static str,
    },
}
