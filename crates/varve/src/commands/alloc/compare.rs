//! `varve alloc compare`.

mod input;

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Args;
use regex::Regex;
use varve_alloc::Judgement;
use varve_alloc::compare::{Compared, Run, compare};
use varve_record::WhyFixed;
use varve_sys::{Signals, Used};
use varve_trace::Trace;
use varve_ui::Progress;

use self::input::Input;
use super::Failure;
use super::allocators::{KNOWN, resolve};
use crate::commands::scratch::Scratch;
use crate::commands::{catch_signals, report};

#[derive(Debug, Args)]
#[command(override_usage = "varve alloc compare [OPTIONS] -- <COMMAND>...")]
#[command(after_help = "\
The program runs as it is, under one allocator after the other in each round. One more run of each is recorded, to say why \
some are slower. What the program prints to standard output is read for --metric, and dropped else.

Each run reads the same standard input: a file from the place where it stands, or all that comes from a pipe, which is read to its end before. Where that \
is a terminal the runs get an empty one.

A program that has its allocator in itself, as static and Go programs have, is refused.")]
pub(crate) struct Compare {
    /// How often the program runs under each allocator
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,

    /// Compare these alone, by name or path [default: all that are present]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) allocators: Vec<String>,

    /// A figure that the program prints: the last match counts, its first group where it has one
    #[arg(long, value_name = "REGEX", value_parser = Regex::new)]
    pub(crate) metric: Option<Regex>,

    /// Do not record a run of each
    #[arg(long)]
    pub(crate) no_record: bool,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required = true)]
    pub(crate) command: Vec<OsString>,
}

/// The place of the program's own allocator among all.
const OWN: usize = 0;
/// Exit codes from here on say that a shell or a signal ended the program, or that it did not run.
const NOT_ITS_OWN: i32 = 126;

pub(super) fn run(arguments: &Compare) -> Result<ExitCode, Failure> {
    check_exchange(&arguments.command)?;
    let mut all = candidates(arguments)?;
    let present = all.iter().filter(|one| one.failed.is_none()).count();
    let runs = arguments.rounds as usize * present;
    let input = Input::new()?;
    let input_bytes = input.bytes();
    let mut runner = Runner {
        arguments,
        signals: catch_signals()?,
        input,
        expected: None,
    };
    let progress = Progress::new("Comparing");
    let mut done = 0;
    for round in 0..arguments.rounds as usize {
        for turn in 0..all.len() {
            // Each allocator comes at each place, so that what changes while time passes meets all.
            let at = (turn + round) % all.len();
            if all[at].failed.is_none() {
                match runner.once(all[at].library.as_deref()) {
                    Ok(run) => all[at].runs.push(run),
                    Err(Ended::Badly(failure)) if at != OWN => all[at].failed = Some(failure.what),
                    Err(Ended::Badly(failure) | Ended::Interrupted(failure)) => {
                        return Err(failure);
                    }
                }
                done += 1;
                progress.set(done as f64 / runs.max(1) as f64);
            }
        }
    }
    drop(progress);
    if !arguments.no_record {
        let scratch = Scratch::new("compare", "set TMPDIR to a folder with room")?;
        runner.record(scratch.path(), &mut all)?;
    }
    let command = arguments
        .command
        .iter()
        .map(|w| w.to_string_lossy().into_owned());
    let found = compare(command.collect(), arguments.rounds, input_bytes, all);
    report::show(&found, arguments.json, |width, color| {
        varve_report::terminal::alloc_compare::render(&found, width, color)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The allocators to compare, the program's own first.
fn candidates(arguments: &Compare) -> Result<Vec<Compared>, Failure> {
    let of = |name: &str, library: Option<PathBuf>| Compared {
        name: name.to_owned(),
        library: library.map(|path| path.to_string_lossy().into_owned()),
        failed: None,
        runs: Vec::new(),
        wall: None,
        cpu: None,
        peak: None,
        mean: None,
        metric: None,
        why: Vec::new(),
        judgement: None,
    };
    let mut all = vec![of("own", None)];
    if arguments.allocators.is_empty() {
        for known in &KNOWN {
            all.push(match known.find()? {
                Some(path) => of(known.name, Some(path)),
                None => Compared {
                    failed: Some(format!(
                        "it is not on this machine (package: {})",
                        known.package
                    )),
                    ..of(known.name, None)
                },
            });
        }
    }
    for text in &arguments.allocators {
        if let Some(path) = resolve(text)? {
            let path_name = path.to_string_lossy().into_owned();
            let name = match text.contains('/') {
                true => varve_alloc::allocator_name(&path_name),
                false => text,
            };
            all.push(of(name, Some(path)));
        }
    }
    if all.iter().filter(|one| one.failed.is_none()).count() == 1 {
        return Err(Failure::new(
            "there is no allocator on this machine to compare with",
            Some(
                "install some: apt-get install libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0 libtbbmalloc2",
            ),
        ));
    }
    Ok(all)
}

/// Refuses a program whose allocator stays the same whatever is preloaded.
fn check_exchange(command: &[OsString]) -> Result<(), Failure> {
    let Some(fixed) = varve_record::fixed_allocator(command) else {
        return Ok(());
    };
    let program = fixed.program.display();
    let program = match &fixed.script {
        Some(script) => format!("{program}, which runs {},", script.display()),
        None => program.to_string(),
    };
    let hint = match fixed.why {
        WhyFixed::Static => "link it dynamically, with the C library's allocator",
        WhyFixed::Short | WhyFixed::Musl => "build it for 64 bits and the GNU C library",
        WhyFixed::Rights => "compare a copy without these bits and capabilities",
        WhyFixed::Sanitizer => "build it without the sanitizer",
        WhyFixed::Go | WhyFixed::Own(_) => {
            "`varve alloc record` says what its own allocator does, where that can be counted; `varve record` shows its memory"
        }
    };
    Err(Failure::new(
        format!(
            "{program} {}: no other allocator can be put in its place, and each run would measure the same one",
            fixed.why.in_words()
        ),
        Some(hint),
    ))
}

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
enum Ended {
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
struct Runner<'a> {
    arguments: &'a Compare,
    signals: Signals,
    input: Input,
    /// How the program ended with its own allocator: with others it is to end so too.
    expected: Option<i32>,
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

    /// One run as it is, which ends with the exit code that the first had.
    fn once(&mut self, library: Option<&str>) -> Result<Run, Ended> {
        let arguments = self.arguments;
        let (program, words) = arguments
            .command
            .split_first()
            .ok_or_else(|| Failure::new("there is no command", None::<String>))?;
        let mut command = Command::new(program);
        command
            .args(words)
            .stdin(self.input.of_run()?)
            .stderr(Stdio::null());
        if let Some(library) = library {
            command.env("LD_PRELOAD", preload(library));
        }
        command.stdout(match arguments.metric {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        });
        let shown = program.to_string_lossy().into_owned();
        let began = Instant::now();
        let mut child = self.signals.spawn(&mut command).map_err(|e| {
            Failure::new(
                format!("cannot run {shown}: {e}"),
                Some("give the path of a program that runs by itself"),
            )
        })?;
        let output = child.stdout.take();
        let reader = output.map(|mut output| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = output.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let used = self.wait(&child, began)?;
        let text = reader.and_then(|r| r.join().ok()).unwrap_or_default();
        let is_refused = used.code >= NOT_ITS_OWN;
        if is_refused || *self.expected.get_or_insert(used.code) != used.code {
            let what = match (is_refused, self.expected) {
                (false, Some(before)) => format!(", and with {before} before"),
                _ => String::new(),
            };
            return Err(Ended::Badly(Failure::new(
                format!("{shown} ended with exit code {}{what}", used.code),
                Some("compare runs that end by themselves, always in the same way"),
            )));
        }
        let metric = match &arguments.metric {
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
        })
    }

    /// Records one more run of each, by this program itself.
    fn record(&mut self, folder: &Path, all: &mut [Compared]) -> Result<(), Failure> {
        let progress = Progress::new("Recording");
        let count = all.len();
        for (i, of) in all.iter_mut().enumerate() {
            if of.failed.is_none() {
                of.judgement = match self.recorded(of.library.as_deref(), folder) {
                    Err(Ended::Interrupted(failure)) => return Err(failure),
                    // What a run cannot say is missing in the table.
                    Err(Ended::Badly(_)) => None,
                    Ok(judgement) => judgement,
                };
                if let Some(judgement) = &of.judgement
                    && of.library.is_none()
                {
                    of.name.clone_from(&judgement.trace.allocator);
                }
            }
            progress.set((i + 1) as f64 / count as f64);
        }
        Ok(())
    }

    fn recorded(
        &mut self,
        library: Option<&str>,
        folder: &Path,
    ) -> Result<Option<Judgement>, Ended> {
        let failed = |e| {
            Failure::new(
                format!("cannot run this program again: {e}"),
                None::<String>,
            )
        };
        let trace = folder.join("run.varve");
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command
            .args(["alloc", "record", "--pages", "off", "--force", "--output"])
            .arg(&trace);
        if let Some(library) = library {
            command.args(["--allocator", library]);
        }
        command.arg("--").args(&self.arguments.command);
        command
            .stdin(self.input.of_run()?)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let began = Instant::now();
        let child = self.signals.spawn(&mut command).map_err(failed)?;
        self.wait(&child, began)?;
        // Without pages there are no samples to be asked.
        let trace = Trace::open(&trace).ok();
        Ok(trace.and_then(|trace| varve_alloc::judge(&trace, None).ok()?))
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
