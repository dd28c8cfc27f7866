//! Running a program, plain or under `varve record`, and noting what it cost and what else ran.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use varve_trace::Trace;
use varve_trace::tables::ProcessRow;

use crate::Common;
use crate::error::{Error, Result};
use crate::minimum;

/// Kernel clock ticks a second; Linux shows user programs 100 on every architecture.
const TICKS: f64 = 100.0;

/// A program to measure.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) threads: u32,
}

/// One run of it.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// From start to end of what was started, seconds: the program, or `varve record` as a whole.
    pub(crate) command_s: f64,
    /// From the program's birth to its death, seconds.
    pub(crate) life_s: f64,
    /// What the program itself says it took, seconds.
    pub(crate) own_s: Option<f64>,
    /// CPU time that others used meanwhile, as a share of one CPU.
    pub(crate) foreign_cpus: f64,
    /// CPU time that the hypervisor kept from this machine, as a share of one CPU.
    pub(crate) stolen_cpus: f64,
    /// Peak resident memory of what was started, sampled, bytes; only where asked for.
    pub(crate) peak_bytes: u64,
}

impl Outcome {
    /// The run of a reader of traces, as a measurement is kept.
    pub(crate) fn of_reader(&self) -> Value {
        json!({
            "command_s": self.command_s,
            "peak_mib": self.peak_bytes as f64 / 1_048_576.0,
            "foreign_cpus": self.foreign_cpus,
            "stolen_cpus": self.stolen_cpus,
        })
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "command_s": self.command_s,
            "life_s": self.life_s,
            "own_s": self.own_s,
            "foreign_cpus": self.foreign_cpus,
            "stolen_cpus": self.stolen_cpus,
        })
    }
}

/// Whether peak memory is sampled while it runs; that costs a little time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peak {
    Sampled,
    Ignored,
}

/// Runs the program alone.
pub(crate) fn plain(common: &Common, program: &Program) -> Result<Outcome> {
    let mut command = Command::new(&program.path);
    command.args(&program.arguments);
    run(common, program, command, Peak::Ignored)
}

/// Runs it and does at each interval what no recorder of accessed bits can do without: stops it, clears its bits, flushes its
/// translations and lets it go. Nothing is read.
pub(crate) fn cleared(common: &Common, program: &Program, interval: Duration) -> Result<Outcome> {
    let mut command = Command::new(&program.path);
    command.args(&program.arguments);
    run_beside(common, program, command, |child| {
        minimum::clear(child, interval)
            .map(|()| 0)
            .map_err(Error::io("clear the bits of", &program.path))
    })
}

/// Runs it under another program, with these arguments before its own.
pub(crate) fn under(
    common: &Common,
    program: &Program,
    other: &str,
    arguments: &[&OsStr],
) -> Result<Outcome> {
    let mut command = Command::new(other);
    command
        .args(arguments)
        .arg(&program.path)
        .args(&program.arguments);
    run(common, program, command, Peak::Ignored)
}

/// Runs the program alone and samples its peak memory.
pub(crate) fn sampled(common: &Common, program: &Program) -> Result<Outcome> {
    let mut command = Command::new(&program.path);
    command.args(&program.arguments);
    run(common, program, command, Peak::Sampled)
}

/// Runs it under `varve record` with these options; the trace is in `folder` afterwards.
pub(crate) fn recorded(
    common: &Common,
    program: &Program,
    options: &[&str],
    folder: &Path,
    peak: Peak,
) -> Result<(Outcome, Trace)> {
    recorded_by(common, program, (&["record"], options), folder, peak)
}

/// Runs it under a command of varve's that records, with these options.
pub(crate) fn recorded_by(
    common: &Common,
    program: &Program,
    (words, options): (&[&str], &[&str]),
    folder: &Path,
    peak: Peak,
) -> Result<(Outcome, Trace)> {
    let varve = fs::canonicalize(&common.varve).map_err(Error::io("find", &common.varve))?;
    let mut command = Command::new(varve);
    // Each run replaces the trace of the one before.
    command
        .args(words)
        .args(["--force", "-o"])
        .arg(folder)
        .args(options);
    command
        .arg("--")
        .arg(&program.path)
        .args(&program.arguments);
    let mut outcome = run(common, program, command, peak)?;
    let trace = Trace::open(folder)?;
    let root = trace.manifest.target.pid;
    let lives = trace.rows::<ProcessRow>()?;
    let lives = lives.iter().filter(|p| p.pid.0 == root);
    let born = lives.clone().map(|p| p.born_ns).min();
    let died = lives.filter_map(|p| p.died_ns).max();
    let (Some(born), Some(died)) = (born, died) else {
        let name = &program.name;
        return Err(Error::Failed(format!(
            "the trace of {name} does not say when it began and ended"
        )));
    };
    outcome.life_s = (died - born).0 as f64 / 1e9;
    Ok((outcome, trace))
}

fn run(common: &Common, program: &Program, command: Command, peak: Peak) -> Result<Outcome> {
    run_beside(common, program, command, |child| match peak {
        Peak::Sampled => watch(child, program),
        Peak::Ignored => Ok(0),
    })
}

/// Runs a command, and beside it something that ends before or with it and says its peak memory.
fn run_beside(
    common: &Common,
    program: &Program,
    mut command: Command,
    beside: impl FnOnce(&mut Child) -> Result<u64>,
) -> Result<Outcome> {
    let output = common
        .scratch
        .join(format!("varve-bench-{}.out", std::process::id()));
    let file = File::create(&output).map_err(Error::io("create", &output))?;
    let errors = file.try_clone().map_err(Error::io("open", &output))?;
    command
        .env("OMP_NUM_THREADS", program.threads.to_string())
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors);
    let before = Cpu::read();
    let began = Instant::now();
    let mut child = command.spawn().map_err(Error::io("start", &program.path))?;
    let peak_bytes = beside(&mut child)?;
    let status = child.wait().map_err(Error::io("wait for", &program.path))?;
    let command_s = began.elapsed().as_secs_f64();
    let spent = Cpu::read();
    let text = fs::read(&output).map_err(Error::io("read", &output))?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let _ = fs::remove_file(&output);
    let lower = text.to_lowercase();
    let wrong = lower.contains("unsuccessful") || lower.contains("not verified");
    if !status.success() || wrong {
        let name = &program.name;
        return Err(Error::Failed(format!(
            "{name} failed ({status}); it said:\n{text}"
        )));
    }
    Ok(Outcome {
        command_s,
        life_s: command_s,
        own_s: own_time(&text),
        foreign_cpus: ((spent.busy - before.busy) - (spent.ours - before.ours)).max(0.0)
            / command_s,
        stolen_cpus: (spent.stolen - before.stolen).max(0.0) / command_s,
        peak_bytes,
    })
}

/// Samples the peak until the process ends: the kernel keeps the high-water mark, so that only what
/// it gains in the last moments can be missed.
fn watch(child: &mut Child, program: &Program) -> Result<u64> {
    let path = PathBuf::from(format!("/proc/{}/status", child.id()));
    let mut peak = 0;
    while child
        .try_wait()
        .map_err(Error::io("wait for", &program.path))?
        .is_none()
    {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
        let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) * 1024);
        thread::sleep(Duration::from_millis(5));
    }
    Ok(peak)
}

/// `Time in seconds = 1.23`, or `name: 1.23 s`.
fn own_time(text: &str) -> Option<f64> {
    text.lines().find_map(|line| {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("Time in seconds") {
            return rest.trim_start_matches([' ', '=']).parse().ok();
        }
        let (_, rest) = line.strip_suffix(" s")?.split_once(": ")?;
        rest.parse().ok()
    })
}

/// CPU time used so far, seconds.
struct Cpu {
    busy: f64,
    stolen: f64,
    ours: f64,
}

impl Cpu {
    fn read() -> Cpu {
        // Fields of the first line: user nice system idle iowait irq softirq steal; guest is in user.
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let all: Vec<f64> = numbers(stat.lines().next().unwrap_or_default());
        let at = |i: usize| all.get(i).copied().unwrap_or(0.0) / TICKS;
        // utime stime cutime cstime: fields 14 to 17, the 12th to 15th after the name.
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let own: Vec<f64> = numbers(own.rsplit(')').next().unwrap_or_default());
        let ours: f64 = own.iter().skip(10).take(4).sum();
        Cpu {
            busy: at(0) + at(1) + at(2) + at(5) + at(6),
            stolen: at(7),
            ours: ours / TICKS,
        }
    }
}

fn numbers(line: &str) -> Vec<f64> {
    line.split_whitespace()
        .filter_map(|w| w.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_tell_their_time() {
        assert_eq!(own_time("x\n Time in seconds =     2.44\n"), Some(2.44));
        assert_eq!(own_time("cg: 3.10 s\n"), Some(3.1));
        assert_eq!(own_time("Verification = SUCCESSFUL\n"), None);
    }
}
