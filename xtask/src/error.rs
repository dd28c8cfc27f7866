//! What can go wrong in a chore, as sentences.

use std::path::Path;
use std::process::{Command, Output};

/// A chore's failure: a sentence that names what failed and on what, and sometimes a hint.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A system call or file operation failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// The infinitive that completes "cannot ...".
        doing: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A program that a chore relies on failed.
    #[error("`{command}` failed ({status})\n{output}")]
    Command {
        /// Program and arguments.
        command: String,
        /// How it ended.
        status: String,
        /// What it printed on stderr, or stdout if that is empty.
        output: String,
    },
    /// Anything else.
    #[error("{what}")]
    Failed {
        /// The whole sentence.
        what: String,
        /// What the user may do about it.
        hint: Option<String>,
    },
}

/// The result of every chore.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failure without a hint.
    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Error::Failed {
            what: what.into(),
            hint: None,
        }
    }

    /// A failure with a hint.
    pub(crate) fn hinted(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Error::Failed {
            what: what.into(),
            hint: Some(hint.into()),
        }
    }
}

/// Completes an I/O error with what was being done.
pub(crate) trait Doing<T> {
    /// `doing` completes the sentence "cannot ...".
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io {
            doing: doing(),
            source,
        })
    }
}

/// Program and arguments as one would type them, for messages.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Runs a command to its end; anything but success is an error that carries what it printed.
pub(crate) fn run(command: &mut Command) -> Result<Output> {
    let output = command
        .output()
        .doing(|| format!("start `{}`", shown(command)))?;
    if output.status.success() {
        return Ok(output);
    }
    let text = if output.stderr.is_empty() {
        &output.stdout
    } else {
        &output.stderr
    };
    Err(Error::Command {
        command: shown(command),
        status: output.status.to_string(),
        output: String::from_utf8_lossy(text).trim_end().to_owned(),
    })
}

/// As [`run`], giving what it printed on stdout.
pub(crate) fn text_of(command: &mut Command) -> Result<String> {
    Ok(String::from_utf8_lossy(&run(command)?.stdout).into_owned())
}

/// Creates a folder and its parents.
pub(crate) fn make_dir(path: &Path) -> Result<()> {
    std::fs::create_dir_all(path).doing(|| format!("create the folder {}", path.display()))
}

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).doing(|| format!("read {}", path.display()))
}

/// Writes a whole file.
pub(crate) fn write(path: &Path, data: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, data).doing(|| format!("write {}", path.display()))
}
