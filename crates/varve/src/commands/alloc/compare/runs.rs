//! Runs of the program: as it is, and recorded.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use regex::Regex;
use varve_alloc::Judged;
use varve_alloc::compare::{Compared, Run};
use varve_sys::{Signals, Used};
use varve_trace::Trace;
use varve_ui::Progress;

use super::input::Input;
use super::{Compare, Failure};

/// The exit code of `varve alloc record` where nothing could be recorded.
const NOT_RECORDED: i32 = 125;
/// Of what a run printed to its standard error at most so many bytes are looked at, the last ones.
const MAX_TEXT: u64 = 64 << 10;
/// Exit codes from here on say that a shell or a signal ended the program, or that it did not run.
const NOT_ITS_OWN: i32 = 126;

/// The library first, then what the caller preloads.
fn preload(library: &str) -> OsString {
    let mut list = OsString::from(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|o| !o.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

/// Why a run gives no figures.
pub(super) enum Ended {
    Badly(Failure),
    /// Somebody wants all of it to end.
    Interrupted(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Ended {
        Ended::Badly(failure)
    }
}

/// Runs the program, one time after the other.
pub(super) struct Runner<'a> {
    pub(super) arguments: &'a Compare,
    pub(super) signals: Signals,
    pub(super) input: Input,
    /// How the program ended with its own allocator: with others it is to end so too, where no list of exit codes is given.
    pub(super) expected: Option<i32>,
}

impl Runner<'_> {
    /// What a child used, to its end.
    fn wait(&mut self, child: &Child, began: Instant) -> Result<Used, Ended> {
        let used = varve_sys::wait_measured(child, began, &mut self.signals);
        let used =
            used.map_err(|e| Failure::new(format!("cannot wait for a run: {e}"), None::<String>))?;
        match used.interrupted {
            None => Ok(used),
            Some(signal) => Err(Ended::Interrupted(Failure::interrupted(
                signal,
                "the comparison is not complete, and nothing of it is kept",
            ))),
        }
    }

    /// The program, as it was given.
    fn command(&self) -> Result<(Command, String), Failure> {
        let words = self.arguments.command.split_first();
        let (program, words) =
            words.ok_or_else(|| Failure::new("there is no command", None::<String>))?;
        let mut command = Command::new(program);
        command.args(words);
        Ok((command, program.to_string_lossy().into_owned()))
    }

    /// Leaves out what the loader does not load into the program. It is asked for what it would load, and the program itself does not run.
    pub(super) fn check_loaded(&mut self, all: &mut [Compared]) -> Result<(), Failure> {
        for of in all.iter_mut().filter(|of| of.failed.is_none()) {
            let Some(library) = of.library.clone() else {
                continue;
            };
            match self.would_load(&library) {
                Ok(why) => of.failed = why,
                Err(Ended::Interrupted(failure)) => return Err(failure),
                // Its runs will show what is wrong.
                Err(Ended::Badly(_)) => {}
            }
        }
        Ok(())
    }

    /// Why the loader does not load a library into the program; none where it does.
    fn would_load(&mut self, library: &str) -> Result<Option<String>, Ended> {
        let cannot = |e| Failure::new(format!("cannot ask the loader: {e}"), None::<String>);
        let (mut command, _) = self.command()?;
        let errors = tempfile::tempfile().map_err(cannot)?;
        command
            .env("LD_TRACE_LOADED_OBJECTS", "1")
            .env("LD_PRELOAD", preload(library))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().map_err(cannot)?);
        let (_, loaded) = self.output(&mut command).map_err(|e| match e {
            Ran::Not(e) => Ended::Badly(cannot(e)),
            Ran::Ended(ended) => ended,
        })?;
        if loaded.contains(library) {
            return Ok(None);
        }
        let said = text_of(errors);
        Ok(Some(
            match said.lines().find_map(|l| loaders_reason(l, library)) {
                Some(reason) => format!("it cannot be loaded: {reason}"),
                None => match said.lines().rfind(|line| !line.trim().is_empty()) {
                    Some(last) => format!("the loader does not load it: {}", last.trim()),
                    None => "the loader does not load it into the program".to_owned(),
                },
            },
        ))
    }

    /// Runs a command to its end; what it prints to a pipe is read.
    fn output(&mut self, command: &mut Command) -> Result<(Used, String), Ran> {
        let began = Instant::now();
        let mut child = self.signals.spawn(command).map_err(Ran::Not)?;
        let output = child.stdout.take();
        let reader = output.map(|mut output| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = output.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let used = self.wait(&child, began).map_err(Ran::Ended)?;
        let text = reader.and_then(|r| r.join().ok()).unwrap_or_default();
        Ok((used, text))
    }

    /// One run as it is.
    pub(super) fn once(&mut self, of: &mut Compared) -> Result<Run, Ended> {
        let (mut command, shown) = self.command()?;
        command.stdin(self.input.of_run()?).stderr(Stdio::null());
        if let Some(library) = &of.library {
            command.env("LD_PRELOAD", preload(library));
        }
        command.stdout(match self.arguments.metric {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        });
        let (used, text) = self.output(&mut command).map_err(|e| match e {
            Ran::Not(e) => Ended::Badly(Failure::new(
                format!("cannot run {shown}: {e}"),
                Some("give the path of a program that runs by itself"),
            )),
            Ran::Ended(ended) => ended,
        })?;
        of.exit_codes.insert(used.code);
        if let Some(why) = self.refused(used.code, of.library.is_none()) {
            let what = match of.library {
                Some(_) => why,
                None => format!("{shown} {why}"),
            };
            let codes = match self.expected.filter(|expected| *expected != used.code) {
                Some(expected) => format!("{expected},{}", used.code),
                None => used.code.to_string(),
            };
            return Err(Ended::Badly(Failure::new(
                what,
                Some(format!(
                    "compare runs that end by themselves, or allow it: `--allow-exit {codes}`"
                )),
            )));
        }
        let metric = match &self.arguments.metric {
            None => None,
            Some(pattern) => Some(figure(pattern, &text)?),
        };
        Ok(Run {
            wall_ns: used.wall,
            cpu_ns: used.cpu,
            peak_bytes: used.peak,
            mean_bytes: used.mean,
            faults: used.faults,
            metric,
            exit_code: used.code,
        })
    }

    /// Why a run may not end with that exit code, as the end of a sentence about the program.
    fn refused(&mut self, code: i32, is_own: bool) -> Option<String> {
        if let Some(allowed) = &self.arguments.allow_exit {
            let refused = !allowed.has(code);
            return refused.then(|| {
                format!("ended with exit code {code}, which `--allow-exit` does not list")
            });
        }
        let expected = match (code >= NOT_ITS_OWN, self.expected) {
            (true, None) => return Some(format!("ended with exit code {code}")),
            (true, Some(expected)) => expected,
            (false, _) => *self.expected.get_or_insert(code),
        };
        let others = match is_own {
            true => format!("and with {expected} before"),
            false => format!("{expected} with the program's own"),
        };
        (expected != code).then(|| format!("ended with exit code {code}, {others}"))
    }

    /// Records one more run of each, by this program itself.
    pub(super) fn record(&mut self, folder: &Path, all: &mut [Compared]) -> Result<(), Failure> {
        let progress = Progress::new("Recording");
        let count = all.len();
        for (i, of) in all.iter_mut().enumerate() {
            if of.failed.is_none() {
                match self.recorded(of, folder) {
                    Ok(Some(Judged::Counted(judgement))) => of.judgement = Some(*judgement),
                    Ok(Some(Judged::Uncounted(run))) => {
                        let why: Vec<&str> = run.trace.why_uncounted().collect();
                        of.unrecorded = Some(why.join(" "));
                    }
                    Ok(None) => {}
                    Err(Ended::Interrupted(failure)) => return Err(failure),
                    // What a run cannot say is missing in the table.
                    Err(Ended::Badly(failure)) => of.unrecorded = Some(failure.what),
                }
                if let Some(judgement) = &of.judgement
                    && of.library.is_none()
                    && !judgement.trace.allocator.is_empty()
                {
                    of.name.clone_from(&judgement.trace.allocator);
                }
            }
            progress.set((i + 1) as f64 / count as f64);
        }
        Ok(())
    }

    fn recorded(&mut self, of: &mut Compared, folder: &Path) -> Result<Option<Judged>, Ended> {
        let failed = |e| {
            Failure::new(
                format!("cannot run this program again: {e}"),
                None::<String>,
            )
        };
        let place = folder.join("run.varve");
        let errors = tempfile::tempfile_in(folder).map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["alloc", "record", "--pages", "off", "--force", "--output"])
            .arg(&place);
        if let Some(library) = &of.library {
            command.args(["--allocator", library]);
        }
        command.arg("--").args(&self.arguments.command);
        command
            .stdin(self.input.of_run()?)
            .stdout(Stdio::null())
            .stderr(errors.try_clone().map_err(failed)?);
        // That of the last one is not this one's.
        let _ = std::fs::remove_dir_all(&place);
        let (used, _) = self.output(&mut command).map_err(|e| match e {
            Ran::Not(e) => Ended::Badly(failed(e)),
            Ran::Ended(ended) => ended,
        })?;
        let trace = Trace::open(&place).map_err(|e| {
            // With another code these are the program's words.
            let said = match used.code {
                NOT_RECORDED => text_of(errors),
                _ => String::new(),
            };
            let said = said.lines().rev().find_map(|l| l.strip_prefix("error: "));
            Failure::new(
                said.map_or_else(|| e.to_string(), str::to_owned),
                None::<String>,
            )
        })?;
        if let Some(code) = trace.manifest.target.exit_code {
            of.exit_codes.insert(code);
            if let Some(why) = self.refused(code, of.library.is_none()) {
                return Err(Failure::new(why, None::<String>).into());
            }
        }
        // Without pages there are no samples to be asked.
        let judged = varve_alloc::judge(&trace, None).map_err(Failure::from)?;
        if let Some((judged, library)) = judged.as_ref().zip(of.library.as_ref()) {
            let found = varve_alloc::exchange(&trace, judged, library);
            let found = found.map_err(Failure::from)?;
            (of.failed, of.unreached) = (found.without_effect, found.unreached);
        }
        Ok(judged)
    }
}

/// Why there is no output.
enum Ran {
    /// It could not be started.
    Not(std::io::Error),
    Ended(Ended),
}

/// Why the loader drops a library, by what it says of it.
fn loaders_reason<'a>(line: &'a str, library: &str) -> Option<&'a str> {
    let (_, text) = line.split_once("ld.so: ")?;
    let (_, reason) = text.split_once(library)?.1.split_once('(')?;
    reason.split_once(')').map(|(reason, _)| reason)
}

/// What was written to a file, of much its end.
fn text_of(mut file: File) -> String {
    let mut bytes = Vec::new();
    let length = file.metadata().map_or(0, |about| about.len());
    let start = SeekFrom::Start(length.saturating_sub(MAX_TEXT));
    let read = file
        .seek(start)
        .and_then(|_| file.take(MAX_TEXT).read_to_end(&mut bytes));
    match read {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

/// The figure in what the program printed.
fn figure(pattern: &Regex, text: &str) -> Result<f64, Failure> {
    let last = pattern.captures_iter(text).last();
    let found = last.and_then(|c| c.get(1).or_else(|| c.get(0)).map(|m| m.as_str().to_owned()));
    let number = found.as_deref().map(|t| t.trim().replace(',', ""));
    number.and_then(|n| n.parse().ok()).ok_or_else(|| {
        Failure::new(
            format!("the program printed no number that `{pattern}` matches"),
            Some("put the number in a group, such as --metric '([0-9.]+) requests per second'"),
        )
    })
}
