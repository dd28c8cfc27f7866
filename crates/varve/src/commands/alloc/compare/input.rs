//! The standard input of runs: the same bytes for each.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::process::Stdio;

use varve_model::Bytes;

use super::Failure;

/// What each run reads.
pub(super) enum Input {
    Nothing,
    /// A file, from this byte on.
    File {
        file: File,
        start: u64,
    },
}

/// The device `/dev/null`.
const NULL: (u32, u32) = (1, 3);

impl Input {
    /// The standard input of this program, which is read to its end where it is no file. Call before signals are caught: they end the reading.
    pub(super) fn new() -> Result<Input, Failure> {
        let stdin = std::io::stdin();
        let input = rustix::io::fcntl_dupfd_cloexec(&stdin, 3).map_err(|e| unread(e.into()))?;
        let mut input = File::from(input);
        let about = input.metadata().map_err(unread)?;
        let kind = about.file_type();
        if kind.is_char_device() {
            if stdin.is_terminal() {
                varve_ui::note("standard input is a terminal: each run gets an empty one");
                return Ok(Input::Nothing);
            }
            if (
                rustix::fs::major(about.rdev()),
                rustix::fs::minor(about.rdev()),
            ) == NULL
            {
                return Ok(Input::Nothing);
            }
            return Err(Failure::new(
                "standard input is a device, which has no end that each run could reach",
                Some("give a file, a pipe or /dev/null"),
            ));
        }
        // Files of the kernel have no length, and say something else each time.
        if kind.is_block_device() || (kind.is_file() && about.len() > 0) {
            let start = input.stream_position().map_err(unread)?;
            if let Ok(file) = File::open(link(&input)) {
                return Ok(Input::File { file, start });
            }
        }
        if kind.is_fifo() || kind.is_socket() {
            varve_ui::note(
                "standard input is read to its end first, so that each run gets the same (`< /dev/null`: an empty one)",
            );
        }
        kept(&mut input)
    }

    /// How much there is to read.
    pub(super) fn bytes(&self) -> Bytes {
        match self {
            Input::Nothing => Bytes(0),
            Input::File { file, start } => {
                let mut file = file;
                let end = file.seek(SeekFrom::End(0)).unwrap_or(0);
                Bytes(end.saturating_sub(*start))
            }
        }
    }

    /// For one run: nothing that it does moves the place at which another begins.
    pub(super) fn of_run(&self) -> Result<Stdio, Failure> {
        let Input::File { file, start } = self else {
            return Ok(Stdio::null());
        };
        let mut own = File::open(link(file)).map_err(unread)?;
        own.seek(SeekFrom::Start(*start)).map_err(unread)?;
        Ok(own.into())
    }
}

/// What leads to an open file, whether or not it has a name still.
fn link(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Reads to the end, into a file without a name.
fn kept(input: &mut File) -> Result<Input, Failure> {
    let folder = std::env::temp_dir();
    let cannot = |error: std::io::Error| {
        Failure::new(
            format!(
                "cannot keep standard input in {}: {error}",
                folder.display()
            ),
            Some("set TMPDIR to a folder with room"),
        )
    };
    let mut file = tempfile::tempfile_in(&folder).map_err(cannot)?;
    let mut buffer = vec![0; 1 << 18];
    loop {
        match input.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => file.write_all(&buffer[..n]).map_err(cannot)?,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(unread(e)),
        }
    }
    Ok(Input::File { file, start: 0 })
}

fn unread(error: std::io::Error) -> Failure {
    Failure::new(
        format!("cannot read standard input: {error}"),
        Some("give a file or a pipe, or /dev/null for an empty one"),
    )
}
