//! `varve alloc compare`.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Args;
use regex::Regex;
use varve_alloc::compare::{Compared, Run, compare};
use varve_trace::Trace;
use varve_ui::Progress;

use super::Failure;
use super::allocators::{KNOWN, resolve};
use crate::commands::report;

#[derive(Debug, Args)]
#[command(override_usage = "varve alloc compare [OPTIONS] -- <COMMAND>...")]
#[command(after_help = "\
The program runs as it is, under one allocator after the other in each round. One more run of each is recorded, to say why \
some are slower. What the program prints to standard output is read for --metric, and dropped else; standard input is empty.")]
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

pub(super) fn run(arguments: &Compare) -> Result<ExitCode, Failure> {
    let mut all = candidates(arguments)?;
    let runs = arguments.rounds as usize * all.len();
    let progress = Progress::new("Comparing");
    let mut done = 0;
    for round in 0..arguments.rounds as usize {
        for turn in 0..all.len() {
            // Each allocator comes at each place, so that what changes while time passes meets all.
            let at = (turn + round) % all.len();
            if all[at].failed.is_none() {
                match once(arguments, all[at].library.as_deref()) {
                    Ok(run) => all[at].runs.push(run),
                    Err(failure) if all[at].library.is_none() => return Err(failure),
                    Err(failure) => all[at].failed = Some(failure.what),
                }
            }
            done += 1;
            progress.set(done as f64 / runs.max(1) as f64);
        }
    }
    drop(progress);
    if !arguments.no_record {
        record(arguments, &mut all)?;
    }
    let command = arguments
        .command
        .iter()
        .map(|w| w.to_string_lossy().into_owned());
    let found = compare(command.collect(), arguments.rounds, all);
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
        for known in KNOWN.iter().filter(|known| known.find().is_some()) {
            all.push(of(known.name, resolve(known.name)?));
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
    if all.len() == 1 {
        return Err(Failure::new(
            "there is no allocator on this machine to compare with",
            Some(
                "install some: apt-get install libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0 libtbbmalloc2",
            ),
        ));
    }
    Ok(all)
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

/// One run as it is.
fn once(arguments: &Compare, library: Option<&str>) -> Result<Run, Failure> {
    let (program, words) = arguments
        .command
        .split_first()
        .ok_or_else(|| Failure::new("there is no command", None::<String>))?;
    let mut command = Command::new(program);
    command
        .args(words)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    if let Some(library) = library {
        command.env("LD_PRELOAD", preload(library));
    }
    command.stdout(match arguments.metric {
        Some(_) => Stdio::piped(),
        None => Stdio::null(),
    });
    let shown = program.to_string_lossy().into_owned();
    let problem = |what: &str, error: &std::io::Error| {
        Failure::new(
            format!("cannot {what} {shown}: {error}"),
            Some("give the path of a program that runs by itself"),
        )
    };
    let began = Instant::now();
    let mut child = command.spawn().map_err(|e| problem("run", &e))?;
    let output = child.stdout.take();
    let reader = output.map(|mut output| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = output.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    });
    let used = varve_sys::wait_measured(&child, began).map_err(|e| problem("wait for", &e))?;
    let text = reader.and_then(|r| r.join().ok()).unwrap_or_default();
    if used.code != 0 {
        return Err(Failure::new(
            format!(
                "{shown} ended with exit code {} where it was to be measured",
                used.code
            ),
            Some("compare runs that end by themselves and succeed"),
        ));
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
        metric,
    })
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

/// Records one more run of each, by this program itself.
fn record(arguments: &Compare, all: &mut [Compared]) -> Result<(), Failure> {
    let folder = tempfile_folder()?;
    let progress = Progress::new("Recording");
    let count = all.len();
    for (i, of) in all.iter_mut().enumerate() {
        if of.failed.is_none() {
            of.judgement = recorded(arguments, of.library.as_deref(), &folder);
            if let Some(judgement) = &of.judgement
                && of.library.is_none()
            {
                of.name.clone_from(&judgement.trace.allocator);
            }
        }
        progress.set((i + 1) as f64 / count as f64);
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

fn tempfile_folder() -> Result<PathBuf, Failure> {
    let name = format!("varve-compare-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir(&folder).map_err(|e| {
        Failure::new(
            format!("cannot make {}: {e}", folder.display()),
            Some("set TMPDIR to a folder with room"),
        )
    })?;
    Ok(folder)
}

fn recorded(
    arguments: &Compare,
    library: Option<&str>,
    folder: &Path,
) -> Option<varve_alloc::Judgement> {
    let trace = folder.join("run.varve");
    let mut command = Command::new(std::env::current_exe().ok()?);
    command
        .args(["alloc", "record", "--pages", "off", "--force", "--output"])
        .arg(&trace);
    if let Some(library) = library {
        command.args(["--allocator", library]);
    }
    command.arg("--").args(&arguments.command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().ok()?;
    varve_alloc::judge(&Trace::open(&trace).ok()?).ok()?
}
