//! The standard input of runs: the same bytes for each.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::event::{PollFd, PollFlags};
use varve_model::Bytes;

use super::Failure;

/// What each run reads.
pub(super) enum Input {
    Nothing,
    /// A file, from this byte on.
    File {
        file: File,
        start: u64,
        state: State,
    },
}

/// What changes when a file is written to: its length, and when that was (seconds, nanoseconds).
type State = (u64, i64, i64);

fn state_of(file: &File) -> std::io::Result<State> {
    let about = file.metadata()?;
    Ok((about.len(), about.mtime(), about.mtime_nsec()))
}

/// More is not kept of what comes from a pipe.
const MAX_KEPT: u64 = 1 << 30;

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
        // Files of the kernel have no length, or that of a page, and say something else each time.
        let is_stored = kind.is_file() && about.len() > 0 && !is_of_kernel(&input);
        if kind.is_block_device() || is_stored {
            let start = input.stream_position().map_err(unread)?;
            if let Ok(file) = File::open(link(&input)) {
                let state = state_of(&file).map_err(unread)?;
                return Ok(Input::File { file, start, state });
            }
            // The caller opened it with rights that this process has not. Its place stays where it is.
            let mut at = start;
            return kept(&mut |buffer| {
                let read = input.read_at(buffer, at)?;
                at += read as u64;
                Ok(read)
            });
        }
        if kind.is_fifo() || kind.is_socket() {
            varve_ui::note(
                "standard input is read to its end first, so that each run gets the same (`< /dev/null`: an empty one)",
            );
        }
        kept(&mut |buffer| match input.read(buffer) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let mut ready = [PollFd::new(&input, PollFlags::IN)];
                rustix::event::poll(&mut ready, None)?;
                Err(ErrorKind::Interrupted.into())
            }
            read => read,
        })
    }

    /// How much there is to read.
    pub(super) fn bytes(&self) -> Bytes {
        match self {
            Input::Nothing => Bytes(0),
            Input::File { file, start, .. } => {
                let mut file = file;
                let end = file.seek(SeekFrom::End(0)).unwrap_or(0);
                Bytes(end.saturating_sub(*start))
            }
        }
    }

    /// For one run: nothing that it does moves the place at which another begins.
    pub(super) fn of_run(&self) -> Result<Stdio, Failure> {
        let Input::File { file, start, state } = self else {
            return Ok(Stdio::null());
        };
        if state_of(file).map_err(unread)? != *state {
            return Err(Failure::new(
                "standard input has changed, so that this run would read something else than the first",
                Some("give a copy that stays as it is"),
            ));
        }
        let mut own = File::open(link(file)).map_err(unread)?;
        own.seek(SeekFrom::Start(*start)).map_err(unread)?;
        Ok(own.into())
    }
}

/// What leads to an open file, whether or not it has a name still.
fn link(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Whether a file's content is made when it is read, whatever length it says (`/sys`).
fn is_of_kernel(file: &File) -> bool {
    /// `SYSFS_MAGIC` of include/uapi/linux/magic.h.
    const SYSFS: i64 = 0x6265_6572;
    rustix::fs::fstatfs(file).is_ok_and(|of| of.f_type == SYSFS)
}

/// Reads to the end, into a file without a name.
fn kept(read: &mut dyn FnMut(&mut [u8]) -> std::io::Result<usize>) -> Result<Input, Failure> {
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
    let (mut buffer, mut bytes) = (vec![0; 1 << 18], 0);
    loop {
        match read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                bytes += n as u64;
                if bytes > MAX_KEPT {
                    return Err(Failure::new(
                        "more than 1 GiB came from standard input, which may have no end",
                        Some("give a file: `< FILE`"),
                    ));
                }
                file.write_all(&buffer[..n]).map_err(cannot)?;
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(unread(e)),
        }
    }
    let state = state_of(&file).map_err(cannot)?;
    Ok(Input::File {
        file,
        start: 0,
        state,
    })
}

fn unread(error: std::io::Error) -> Failure {
    Failure::new(
        format!("cannot read standard input: {error}"),
        Some("give a file or a pipe, or /dev/null for an empty one"),
    )
}
