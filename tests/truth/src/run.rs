//! Building workloads and running them under `varve record`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use varve_model::Loss;
use varve_trace::{Manifest, Trace};

use crate::{Oracle, Problem, Scratch, Touches};

/// How often a running program is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How much of a failed program's output is shown.
const TAIL: usize = 2000;

fn repository() -> PathBuf {
    let relative = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // As the kernel names it in mappings.
    relative.canonicalize().unwrap_or(relative)
}

/// The `varve` to test: `$VARVE`, or the release build.
pub fn varve_binary() -> Result<PathBuf, Problem> {
    let built = || {
        let target = std::env::var_os("CARGO_TARGET_DIR");
        target
            .map_or_else(|| repository().join("target"), PathBuf::from)
            .join("release/varve")
    };
    let path = std::env::var_os("VARVE").map_or_else(built, PathBuf::from);
    if path.is_file() {
        Ok(path)
    } else {
        Err(Problem::NoVarve(path))
    }
}

/// Builds the workloads, unless `$VARVE_WORKLOADS` names a folder of built ones.
pub fn make_workloads() -> Result<(), Problem> {
    if std::env::var_os("VARVE_WORKLOADS").is_some() {
        return Ok(());
    }
    let workloads = repository().join("workloads");
    // Tests run two at a time, and both would build what is out of date.
    let mut make = Command::new("flock");
    make.arg(&workloads)
        .args(["make", "-s", "-C"])
        .arg(&workloads);
    let folder = temporary()?;
    let finished = finish(make, folder.path(), LIMIT)?;
    finished.require(0).map(|_| ())
}

/// The path of a built workload.
pub fn workload(name: &str) -> PathBuf {
    let built = || repository().join("workloads/bin");
    std::env::var_os("VARVE_WORKLOADS")
        .map_or_else(built, PathBuf::from)
        .join(name)
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    command: String,
    /// As a shell would show it: 128 + signal where it was killed.
    pub code: i32,
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
}

impl Finished {
    /// Itself, if it ended with this code.
    pub fn require(self, code: i32) -> Result<Finished, Problem> {
        if self.code == code {
            return Ok(self);
        }
        let mut output = self.stderr + &self.stdout;
        let cut = output.char_indices().rev().nth(TAIL).map_or(0, |(i, _)| i);
        output.drain(..cut);
        Err(Problem::Run {
            command: self.command,
            what: format!("ended with {}", self.code),
            output,
        })
    }
}

/// Ends what is left of a process group when a case is given up.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            if let Some(group) = Pid::from_raw(self.0.id().cast_signed()) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }
}

/// Runs a command to its end, in a process group of its own, which is killed after `limit`.
pub fn finish(mut command: Command, folder: &Path, limit: Duration) -> Result<Finished, Problem> {
    let (out, err) = (folder.join("stdout"), folder.join("stderr"));
    let create = |path: &Path| File::create(path).map_err(Problem::file("create", path));
    command
        .stdin(Stdio::null())
        .stdout(create(&out)?)
        .stderr(create(&err)?)
        .process_group(0);
    let program = PathBuf::from(command.get_program());
    let name = format!("{command:?}");
    let mut group = Group(command.spawn().map_err(Problem::file("run", &program))?);
    let started = Instant::now();
    let status: Option<ExitStatus> = loop {
        match group
            .0
            .try_wait()
            .map_err(Problem::file("wait for", &program))?
        {
            Some(status) => break Some(status),
            None if started.elapsed() > limit => break None,
            None => std::thread::sleep(LOOK),
        }
    };
    drop(group);
    let read = |path: &Path| {
        let bytes = std::fs::read(path).map_err(Problem::file("read", path))?;
        Ok::<_, Problem>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (stdout, stderr) = (read(&out)?, read(&err)?);
    match status {
        Some(status) => Ok(Finished {
            command: name,
            code: status
                .code()
                .or(status.signal().map(|s| 128 + s))
                .unwrap_or(-1),
            stdout,
            stderr,
        }),
        None => Err(Problem::Run {
            command: name,
            what: format!("did not end within {} s and was killed", limit.as_secs()),
            output: stderr + &stdout,
        }),
    }
}

/// What to record and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The recording's interval.
    pub interval: Duration,
    /// How long a repeating phase of the workload lasts.
    pub phase: Duration,
    /// More of the program's environment.
    pub environment: Vec<(&'static str, String)>,
    /// Mechanisms to leave out, as `--without` takes them.
    pub without: Option<&'static str>,
    /// Other options of `varve record`.
    pub options: Vec<OsString>,
    /// A command to put before `varve`, such as `setarch -R`.
    pub wrapper: Vec<OsString>,
}

/// What a recording may take before it is given up: a guard, on a machine that has much else to do.
const LIMIT: Duration = Duration::from_secs(600);

/// How much longer everything takes: an emulated machine is ten to thirty times slower.
fn patience() -> u32 {
    if is_emulated() { 4 } else { 1 }
}

/// Whether this is one of the virtual machines of `cargo xtask vm`, which are emulated.
pub fn is_emulated() -> bool {
    std::env::var_os("VARVE_VM").is_some()
}

impl Plan {
    /// A workload at an interval; its phases last five of them, and at least 250 ms: on a busy
    /// machine intervals get longer than asked for.
    pub fn workload(name: &str, interval: Duration) -> Plan {
        Plan {
            program: workload(name),
            arguments: Vec::new(),
            interval,
            phase: (interval * 5).max(Duration::from_millis(250)) * patience(),
            environment: Vec::new(),
            without: None,
            options: Vec::new(),
            wrapper: Vec::new(),
        }
    }
}

/// A finished recording of a workload.
#[derive(Debug)]
pub struct Recorded {
    /// What the workload said of itself; empty for a program without an oracle.
    pub oracle: Oracle,
    /// What the trace says.
    pub touches: Touches,
    /// The trace.
    pub trace: Trace,
    /// How the recorder, and so the program, ended.
    pub finished: Finished,
    /// Holds the trace and the log until the case is done.
    pub folder: Scratch,
}

/// A temporary folder of a case.
pub fn temporary() -> Result<Scratch, Problem> {
    Scratch::new("truth-").map_err(Problem::file("make", Path::new("a temporary folder")))
}

/// A folder for one case on a real disk, where O_DIRECT works: beside the build's output; in a virtual machine, whose
/// checkout lies on the host's file system, on its own disk.
fn scratch() -> Result<Scratch, Problem> {
    let parent = repository().join("target");
    let parent = if parent.is_dir() && !is_emulated() {
        parent
    } else {
        std::env::temp_dir()
    };
    Scratch::new_in(&parent, "truth-").map_err(Problem::file("make a folder in", &parent))
}

/// How often a recording is made again at most, each time because the machine itself spoilt it.
const SPOILT: usize = 5;

/// Whether the only loss of a trace is that the machine was short of memory: the kernel's reclaim takes accessed bits, which no
/// recorder can prevent, and this one says so. Such a recording shows nothing of the recorder, and is made again.
pub fn only_reclaim_was_lost(manifest: &Manifest) -> bool {
    let reclaim = Loss::ReclaimScannedPages.as_str();
    let mut lost = manifest.losses.iter().filter(|(_, n)| **n > 0).peekable();
    lost.peek().is_some() && lost.all(|(kind, _)| kind == reclaim)
}

/// Records the plan's program, again where nothing but the machine's reclaim spoilt it. Exit codes other than 0 are for
/// the caller to judge.
pub fn record(plan: &Plan) -> Result<Recorded, Problem> {
    let mut recorded = record_once(plan)?;
    for _ in 0..SPOILT {
        if plan.without.is_some() || !only_reclaim_was_lost(&recorded.trace.manifest) {
            break;
        }
        // What files left in memory need not be reclaimed where it is let go of before. Where that is not allowed the
        // recording may be spoilt again.
        let _ = std::fs::write("/proc/sys/vm/drop_caches", "1");
        recorded = record_once(plan)?;
    }
    Ok(recorded)
}

fn record_once(plan: &Plan) -> Result<Recorded, Problem> {
    let folder = scratch()?;
    let (log, output) = (
        folder.path().join("oracle.log"),
        folder.path().join("trace.varve"),
    );
    let varve = varve_binary()?;
    let mut words: Vec<OsString> = plan.wrapper.clone();
    words.extend([
        varve.into(),
        "record".into(),
        "-o".into(),
        output.clone().into(),
    ]);
    words.push("--interval".into());
    words.push(format!("{}ms", plan.interval.as_millis()).into());
    if let Some(without) = plan.without {
        words.extend(["--without".into(), without.into()]);
    }
    words.extend(plan.options.iter().cloned());
    words.push("--".into());
    words.push(plan.program.clone().into());
    words.extend(plan.arguments.iter().cloned());

    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .env("ORACLE_LOG", &log)
        .env("ORACLE_DIR", folder.path())
        .env("ORACLE_PHASE_MS", plan.phase.as_millis().to_string())
        .envs(plan.environment.iter().map(|(k, v)| (k, OsStr::new(v))));
    let finished = finish(command, folder.path(), LIMIT * patience())?;
    if !output.is_dir() {
        let command = finished.command.clone();
        let output = finished.stderr + &finished.stdout;
        return Err(Problem::Run {
            command,
            what: format!("ended with {} and left no trace", finished.code),
            output,
        });
    }
    let oracle = if log.is_file() {
        Oracle::read(&log)?
    } else {
        Oracle::default()
    };
    let trace = Trace::open(&output)?;
    let touches = Touches::load(&trace)?;
    Ok(Recorded {
        oracle,
        touches,
        trace,
        finished,
        folder,
    })
}
