//! `varve fit`: how little memory a program needs, and what it costs.

mod machine;
mod probe;
mod rounds;
mod sample;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Instant;

use clap::Args;
use varve_model::{Bytes, Duration};
use varve_sys::{Signals, wait_measured};
use varve_tier::fit::{
    FIT_SCHEMA, Fit, FitPoint, PagePrices, Unlimited, fit, least_memory, limit_files,
};
use varve_tier::{PlanOptions, Tier, Tiers, plan};
use varve_trace::Trace;
use varve_ui::Progress;

pub(crate) use self::probe::{FitProbe, run as run_probe};

use self::machine::{Ended, Machine};
use super::Failure;
use super::new_file::write_with_mode;
use super::open::open;
use super::scratch::Scratch;
use super::{catch_signals, report};
use crate::values::{MostGrowth, Size};

#[derive(Debug, Args)]
#[command(override_usage = "varve fit [OPTIONS] -- <COMMAND>...")]
#[command(after_help = "\
The program runs several times: without a limit, recorded, and under limits of its memory, by turns. What it prints is dropped;
standard input is empty. It takes root, cgroups that limit memory, and swap.

Exit code: 0 the limit holds what was asked for, 1 it does not, 2 that could not be judged, 3 the program failed by itself.

Examples:
  varve fit -- ./solver input.dat
  varve fit --slowdown 10% --zram 4GiB -- ./solver input.dat
  varve fit --memory 2GiB --write limits -- ./solver input.dat")]
pub(crate) struct FitArguments {
    /// How much longer the program may take
    #[arg(
        long,
        value_name = "SHARE",
        default_value = "5%",
        conflicts_with = "memory"
    )]
    pub(crate) slowdown: MostGrowth,

    /// Try this limit, instead of the least that keeps the slowdown
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,

    /// Make a swap device of compressed memory, of this size before compression, and remove it afterwards
    #[arg(long, value_name = "SIZE")]
    pub(crate) zram: Option<Size>,

    /// Rounds in which the program runs in each way
    #[arg(short = 'n', long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) rounds: u32,

    /// Exit code with which the program ends when it does not fail
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub(crate) expect_exit: i32,

    /// Write the limit into this folder, for systemd, Kubernetes and cgroups
    #[arg(long, value_name = "FOLDER")]
    pub(crate) write: Option<PathBuf>,

    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required = true)]
    pub(crate) command: Vec<OsString>,
}

/// All holds.
const HOLDS: u8 = 0;
/// The limit does not hold what was asked for.
const BROKEN: u8 = 1;
/// It could not be judged.
const NOT_JUDGED: u8 = 2;
/// The program failed by itself.
const FAILED: u8 = 3;

/// Points of the curve.
const POINTS: u64 = 16;
/// Smaller limits than this share of the peak are not looked at.
const LEAST: u64 = 8;
/// The shortest interval that a recording has.
const SHORTEST: Duration = Duration(10_000_000);
/// Intervals that a recording has about.
const INTERVALS: u64 = 2000;

pub(crate) fn run(arguments: &FitArguments) -> Result<ExitCode, Failure> {
    let done = find(arguments).map_err(|failure| match failure.code {
        1 => Failure {
            code: NOT_JUDGED,
            ..failure
        },
        _ => failure,
    });
    let found = done?;
    report::show(&found, arguments.json, |width, color| {
        varve_report::terminal::fit::render(&found, width, color)
    })?;
    if let (Some(limit), Some(folder)) = (found.limit, &arguments.write) {
        write(folder, limit, found.unlimited.peak)?;
    }
    Ok(ExitCode::from(match found.holds {
        Some(true) => HOLDS,
        Some(false) => BROKEN,
        None => NOT_JUDGED,
    }))
}

/// The whole loop.
fn find(arguments: &FitArguments) -> Result<Fit, Failure> {
    let mut signals = catch_signals()?;
    let scratch = Scratch::new("fit", "set TMPDIR to a folder with room")?;
    let mut machine = Machine::prepare(arguments.zram.map(|s| s.0))?;
    let progress = Progress::new("Fitting");
    let mut notes = Vec::new();

    let mut sampler = sample::Sampler::default();
    let first = machine.run(
        &arguments.command,
        None,
        &mut signals,
        None,
        Some(&mut sampler),
    )?;
    ended_well(arguments, &first)?;
    let unlimited = Unlimited {
        wall_ns: first.wall,
        parallel: (first.cpu.0 as f64 / first.wall.0.max(1) as f64).max(1.0),
        peak: first.peak,
        fixed: first.kernel,
    };
    if unlimited.peak.0 < MIN_PEAK {
        return Err(Failure::new(
            format!(
                "the program needs {} at most: too little for a limit to save anything",
                varve_analyse::format::bytes(unlimited.peak)
            ),
            Some("give it a larger input"),
        ));
    }
    machine.must_hold(unlimited.peak)?;
    progress.set(0.1);

    let interval = Duration(SHORTEST.0.max(unlimited.wall_ns.0 / INTERVALS));
    let folder = scratch.path().join("fit.varve");
    let trace = record(arguments, &folder, interval, &mut signals)?;
    progress.set(0.3);
    let prices = probe::prices(&mut machine, sampler.pages(), &mut signals)?;
    progress.set(0.4);

    let (stream, _) = varve_tier::read(&trace, super::tier::room(), &mut |_| ())?;
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let draw = |memories: &[Bytes]| fit(&stream, &unlimited, &prices, memories, threads, &|_| ());
    let peak = unlimited.peak.0;
    let step = |n: u64| Bytes(peak * n / POINTS);
    let all: Vec<Bytes> = (POINTS / LEAST..=POINTS + 1).map(step).collect();
    let mut curve = draw(&all);
    let slowdown = match arguments.memory {
        Some(_) => None,
        None => Some(arguments.slowdown.0),
    };
    let limit = match (arguments.memory, slowdown) {
        (Some(size), _) => {
            add(&mut curve, draw(&[size.0]));
            Some(size.0)
        }
        (None, share) => refined(&mut curve, share.unwrap_or(0.0), &draw, |p| p.planned),
    };
    let kernel_needs = slowdown.and_then(|share| refined(&mut curve, share, &draw, |p| p.kernel));
    progress.set(0.5);

    let planned = match limit {
        Some(limit) => plan_file(&trace, limit, &prices, scratch.path())?,
        None => None,
    };
    let can_apply = crate::arguments::has_command(&["tier", "apply"]);
    if limit.is_some() && !can_apply {
        notes.push("This varve has no `tier apply`: the plan was not applied, and runs under the limit are the kernel's alone.".to_owned());
    }
    let mut rounds = rounds::Rounds::new(arguments, &curve, &first);
    if let Some(limit) = limit {
        rounds.add_kernel(limit);
        if let Some(plan) = planned.filter(|_| can_apply) {
            rounds.add_planned(limit, plan);
        }
        if let Some(needs) = kernel_needs.filter(|needs| *needs != limit) {
            rounds.add_kernel(needs);
        }
    }
    let runs = rounds.run(&mut machine, &mut signals, &|share| {
        progress.set(0.5 + share * 0.5);
    })?;
    drop(progress);
    if !trace.manifest.has_all_pages() {
        notes.push(
            "The trace is not complete: pages may be needed that it does not show.".to_owned(),
        );
    }
    if let Some(limit) = limit
        && curve.iter().any(|p| p.memory == limit && p.is_bound())
    {
        notes.push("At this limit more is touched within an interval of the recording than fits: pages may be needed more than once in one, so that predicted times are the least to be expected.".to_owned());
    }
    let mut found = Fit {
        schema: FIT_SCHEMA,
        command: words(&arguments.command),
        complete: trace.manifest.completeness.complete,
        interval_ns: interval,
        unlimited,
        swap: machine.swap_name(),
        prices,
        sampled_pages: sampler.pages().len() as u64,
        asked_slowdown: slowdown,
        curve,
        limit,
        kernel_needs,
        runs,
        holds: None,
        notes,
    };
    found.holds = judged(&found, arguments);
    Ok(found)
}

/// Less than this is not worth a limit.
const MIN_PEAK: u64 = 4 << 20;

/// Whether what was asked for holds; None where nothing was measured.
fn judged(found: &Fit, arguments: &FitArguments) -> Option<bool> {
    if found.limit.is_none() {
        return Some(false);
    }
    if arguments.rounds == 0 {
        return None;
    }
    let slowdown = found.best().and_then(|r| r.slowdown);
    Some(match found.asked_slowdown {
        Some(asked) => slowdown.is_some_and(|s| s <= asked),
        // A size was given: what it takes is said, and it holds where the program ends.
        None => slowdown.is_some(),
    })
}

fn words(command: &[OsString]) -> Vec<String> {
    let words = command.iter().map(|w| w.to_string_lossy().into_owned());
    words.collect()
}

/// A program that fails by itself is not fitted.
fn ended_well(arguments: &FitArguments, ended: &Ended) -> Result<(), Failure> {
    if ended.code == arguments.expect_exit {
        return Ok(());
    }
    Err(Failure {
        what: format!(
            "without any limit the program ended with exit code {}, not {}",
            ended.code, arguments.expect_exit
        ),
        hint: Some("fit runs that end by themselves; --expect-exit says how they end".to_owned()),
        code: FAILED,
    })
}

fn add(curve: &mut Vec<FitPoint>, points: Vec<FitPoint>) {
    curve.extend(points);
    curve.sort_by_key(|p| p.memory);
    curve.dedup_by_key(|p| p.memory);
}

/// The least memory that keeps a slowdown, between the points of the curve too, which get the points that were looked at.
fn refined(
    curve: &mut Vec<FitPoint>,
    slowdown: f64,
    draw: &dyn Fn(&[Bytes]) -> Vec<FitPoint>,
    of: fn(&FitPoint) -> varve_tier::fit::Predicted,
) -> Option<Bytes> {
    for _ in 0..3 {
        let good = least_memory(curve, slowdown, of)?;
        let below = curve.iter().filter(|p| p.memory < good).map(|p| p.memory);
        let Some(bad) = below.max() else { break };
        let middle = Bytes(good.0.midpoint(bad.0));
        add(curve, draw(&[middle]));
    }
    least_memory(curve, slowdown, of)
}

/// Records one run, by this program itself.
fn record(
    arguments: &FitArguments,
    folder: &Path,
    interval: Duration,
    signals: &mut Signals,
) -> Result<Trace, Failure> {
    let cannot = |e: std::io::Error| Failure::new(format!("cannot record: {e}"), None::<String>);
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command
        .args(["record", "--force", "--interval"])
        .arg(format!("{}ms", interval.0.div_ceil(1_000_000)))
        .arg("--output")
        .arg(folder)
        .arg("--")
        .args(&arguments.command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let child = signals.spawn(&mut command).map_err(cannot)?;
    let used = wait_measured(&child, Instant::now(), signals).map_err(cannot)?;
    if let Some(signal) = used.interrupted {
        return Err(Failure::interrupted(signal, "nothing was fitted"));
    }
    open(folder).map_err(|failure| Failure {
        what: format!("the program could not be recorded: {}", failure.what),
        hint: Some("`varve doctor` says what this machine can record".to_owned()),
        code: NOT_JUDGED,
    })
}

/// Plans objects for a limit, into a file; none where the trace has nothing to plan.
fn plan_file(
    trace: &Trace,
    limit: Bytes,
    prices: &PagePrices,
    folder: &Path,
) -> Result<Option<PathBuf>, Failure> {
    let price = (prices.read_ns + prices.write_ns).max(100.0) as u64;
    let tiers: Result<Vec<Tier>, _> = [
        format!("fast={},80ns", limit.0),
        format!("swap=inf,{price}ns,move={price}ns"),
    ]
    .iter()
    .map(|text| text.parse::<Tier>())
    .collect();
    let tiers = tiers
        .and_then(Tiers::new)
        .map_err(varve_tier::TierError::from)?;
    let options = PlanOptions::default();
    let made = plan(trace, &tiers, &options, super::tier::room(), &mut |_| ())?;
    if made.places.is_empty() {
        return Ok(None);
    }
    let path = folder.join("plan.toml");
    std::fs::write(&path, made.to_toml()).map_err(|e| {
        Failure::new(
            format!("cannot write {}: {e}", path.display()),
            Some("set TMPDIR to a folder with room"),
        )
    })?;
    Ok(Some(path))
}

/// Writes the limit as others take it.
fn write(folder: &Path, limit: Bytes, peak: Bytes) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(|e| {
        Failure::new(
            format!("cannot make {}: {e}", folder.display()),
            Some("name a folder that you may write to"),
        )
    })?;
    for (name, text) in limit_files(limit, peak) {
        write_with_mode(0o644, &folder.join(name), |out| {
            std::io::Write::write_all(out, text.as_bytes())
                .map_err(|e| Failure::new(format!("cannot write {name}: {e}"), None::<String>))
        })?;
    }
    Ok(())
}
