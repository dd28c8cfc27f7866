//! The traces that are judged: given ones, or those of a command that is recorded.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use varve_compare::Check as Checked;
use varve_sys::{Directory, Signals, wait_measured};
use varve_trace::Trace;
use varve_ui::Progress;

use super::Check;
use crate::commands::scratch::Scratch;
use crate::commands::{Failure, catch_signals};

/// Of recordings where nobody says another.
const INTERVAL: &str = "50ms";
/// Bytes at the end of what a failed program said that are shown.
const MAX_SHOWN: u64 = 2 << 10;

/// Traces, and where they lie.
pub(super) struct Recorded {
    pub(super) traces: Vec<PathBuf>,
    /// What they are called where their files go with this command: `run 1`.
    pub(super) names: Option<Vec<PathBuf>>,
    /// What is removed in the end.
    _scratch: Option<Scratch>,
}

impl Recorded {
    pub(super) fn of(arguments: &Check) -> Result<Recorded, Failure> {
        if arguments.command.is_empty() {
            let without = match (arguments.runs, &arguments.keep) {
                (Some(_), _) => "-n",
                (None, Some(_)) => "--keep",
                (None, None) if arguments.interval.is_some() => "--interval",
                _ => "",
            };
            if !without.is_empty() {
                return Err(Failure::new(
                    format!("{without} is for a command that is recorded, and traces are given"),
                    Some("leave it out, or give a command behind `--`"),
                ));
            }
            return Ok(Recorded {
                traces: arguments.traces.clone(),
                names: None,
                _scratch: None,
            });
        }
        const HINT: &str = "name a folder that you may write to with --keep, or set TMPDIR";
        let (folder, scratch) = match &arguments.keep {
            Some(folder) => {
                std::fs::create_dir_all(folder).map_err(|e| {
                    Failure::new(format!("cannot make {}: {e}", folder.display()), Some(HINT))
                })?;
                (folder.clone(), None)
            }
            None => {
                let scratch = Scratch::new("check", HINT)?;
                (scratch.path().to_owned(), Some(scratch))
            }
        };
        let mut traces = Vec::new();
        let mut signals = catch_signals()?;
        let progress = Progress::new("Recording");
        let count = arguments.runs.unwrap_or(1);
        for run in 1..=count {
            let trace = folder.join(format!("run-{run}.varve"));
            record(arguments, &trace, &mut signals)?;
            traces.push(trace);
            progress.set(f64::from(run) / f64::from(count));
        }
        let name = |run| PathBuf::from(format!("run {run}"));
        Ok(Recorded {
            traces,
            names: scratch.as_ref().map(|_| (1..=count).map(name).collect()),
            _scratch: scratch,
        })
    }

    /// Prints what programs that failed said last.
    pub(super) fn show_failures(&self, found: &Checked) {
        for failed in &found.failed {
            let names = self.names.as_ref().unwrap_or(&self.traces);
            let at = names
                .iter()
                .position(|t| t.display().to_string() == failed.trace);
            let path = at.and_then(|at| self.traces.get(at));
            if let Some(text) = path
                .map(|trace| said(&log_of(trace)))
                .filter(|t| !t.is_empty())
            {
                varve_ui::note(format!(
                    "what it said last: {}",
                    varve_model::visible(&text)
                ));
            }
        }
        if self.names.is_some() && !found.failed.is_empty() {
            varve_ui::hint("`--keep FOLDER` keeps the traces and what the program printed");
        }
    }
}

/// What a recorder and its program say.
fn log_of(trace: &Path) -> PathBuf {
    trace.with_extension("log")
}

/// What a program prints is its owner's alone. The folder may be somebody else's, who has put a link there.
fn new_log(log: &Path) -> std::io::Result<File> {
    let folder = Directory::passage(log.parent().unwrap_or(Path::new(".")))?;
    let name = log.file_name().ok_or(ErrorKind::IsADirectory)?;
    match folder.remove_file(name) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    folder.create(name, 0o600)
}

/// The end of a file, in one line.
fn said(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(MAX_SHOWN)))?;
        let mut bytes = Vec::new();
        file.take(MAX_SHOWN).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with("varve: ")).collect();
    lines.join(" / ").trim().to_owned()
}

/// Records one run, by this program itself.
fn record(arguments: &Check, trace: &Path, signals: &mut Signals) -> Result<(), Failure> {
    let cannot = |e: std::io::Error| Failure::new(format!("cannot record: {e}"), None::<String>);
    let log = log_of(trace);
    let out = new_log(&log).map_err(|e| {
        Failure::new(
            format!("cannot write {}: {e}", log.display()),
            Some("remove it, or keep the traces in another folder"),
        )
    })?;
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command
        .args([
            "record",
            "--force",
            "--interval",
            arguments.interval.as_deref().unwrap_or(INTERVAL),
            "--output",
        ])
        .arg(trace)
        .arg("--")
        .args(&arguments.command);
    command
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(cannot)?)
        .stderr(out);
    let child = signals.spawn(&mut command).map_err(cannot)?;
    let used = wait_measured(&child, Instant::now(), signals).map_err(cannot)?;
    if let Some(signal) = used.interrupted {
        let what = "not all runs were recorded, and nothing was checked";
        return Err(Failure::interrupted(signal, what));
    }
    // What ran was recorded; how it ended is in its trace.
    let ended = Trace::open(trace).map(|t| t.manifest.target.exit_code);
    match ended {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(Failure::new(
            "the recording ended before the program did",
            Some(whole(&log)),
        )),
        Err(_) => Err(Failure::new(
            "the program could not be recorded",
            Some(whole(&log)),
        )),
    }
}

/// All that the recorder said.
fn whole(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(5).collect();
    let said: Vec<&str> = lines.into_iter().rev().collect();
    match said.is_empty() {
        true => "it said nothing: it was killed, or its files were removed".to_owned(),
        false => format!("it said: {}", varve_model::visible(&said.join(" / "))),
    }
}
