//! `varve tier watch`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use varve_analyse::format;
use varve_model::{Bytes, PAGE_BYTES, Pid, visible};
use varve_place::{MIN_INTERVAL, Watch, WatchLook, WatchObject, family};
use varve_sys::{Child, Launch, Signals, ThpPolicy};

use crate::commands::{Failure, catch_signals, report};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  varve tier watch -- ./solver input.dat
  varve tier watch -p 1234 --interval 0.2
  varve tier watch --json --count 10 > looks.jsonl

Without a command or a process, the machine alone is watched, until Ctrl-C. Each look says what changed since the one before; with
--json, each is one line. Looks go to the standard output, and what the command writes to the standard error.")]
pub(crate) struct WatchArguments {
    /// The process to watch, with those that descend from it
    #[arg(short, long, value_name = "PID", conflicts_with = "command", value_parser = crate::values::process)]
    pub(crate) pid: Option<u32>,

    /// Seconds between looks
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,

    /// End after so many looks
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,

    /// Write a line of JSON for each look to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// A command to watch, after `--`
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| format!("`{text}` is no number of seconds"))?;
    let least = MIN_INTERVAL.as_secs_f64();
    match (least..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err(format!("between {least} and 86400 seconds, please")),
    }
}

pub(super) fn run(arguments: &WatchArguments) -> Result<ExitCode, Failure> {
    let mut signals = catch_signals()?;
    let mut child = match arguments.command.is_empty() {
        true => None,
        false => Some(begin(&arguments.command, &signals)?),
    };
    let pid = child.as_ref().map(Child::pid).or(arguments.pid.map(Pid));
    if let (Some(pid), true) = (arguments.pid.map(Pid), child.is_none())
        && !varve_sys::is_running(pid)
    {
        return Err(Failure::new(
            format!("there is no process {pid}"),
            None::<String>,
        ));
    }
    let mut watch = Watch::default();
    let mut looks = 0;
    loop {
        let (ended, is_over) = wait(arguments.interval, &mut child, pid, &mut signals)?;
        if ended.is_none() && !is_over {
            let pids = pid.map(family).unwrap_or_default();
            let look = watch.look(&pids);
            looks += 1;
            let text = match arguments.json {
                true => serde_json::to_string(&look)
                    .map_err(|e| Failure::new(format!("cannot write JSON: {e}"), None::<String>))?,
                false => shown(&look),
            };
            report::print(&format!("{text}\n"))?;
        }
        if let Some(code) = ended {
            return Ok(ExitCode::from(code as u8));
        }
        let is_enough = arguments.count.is_some_and(|most| looks >= most);
        if is_over || (is_enough && child.is_none()) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Starts a command. The looks are this program's standard output; what the command writes to its own goes to the standard error.
fn begin(command: &[OsString], signals: &Signals) -> Result<Child, Failure> {
    let failed = |e: varve_sys::SpawnError| Failure {
        code: e.exit_code(),
        what: e.to_string(),
        hint: None,
    };
    let launch = Launch {
        command,
        environment: &[],
        thp: ThpPolicy::System,
    };
    let error = std::io::stderr();
    let prepared = varve_sys::with_output(error.as_fd(), || Child::prepare(&launch, signals));
    let prepared = prepared.map_err(|e| {
        Failure::new(
            format!("cannot have the command write to the standard error: {e}"),
            None::<String>,
        )
    })?;
    let mut child = prepared.map_err(failed)?;
    child.start().map_err(failed)?;
    Ok(child)
}

/// Waits for the next look; the exit code of the command where it has ended, and whether what is watched is over.
fn wait(
    interval: Duration,
    child: &mut Option<Child>,
    pid: Option<Pid>,
    signals: &mut Signals,
) -> Result<(Option<i32>, bool), Failure> {
    let failed = |e: std::io::Error| Failure::new(format!("cannot wait: {e}"), None::<String>);
    let until = Instant::now() + interval;
    loop {
        if let Some(received) = signals.take().map_err(failed)? {
            match child {
                Some(child) if !received.from_terminal => child.signal(received.number),
                Some(_) => {}
                None => return Ok((None, true)),
            }
        }
        if let Some(child) = child {
            let ended = child.try_wait().map_err(failed)?;
            if ended.is_some() {
                return Ok((ended, false));
            }
        } else if pid.is_some_and(|pid| !varve_sys::is_running(pid)) {
            return Ok((None, true));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok((None, false));
        }
        std::thread::sleep(left.min(Duration::from_millis(20)));
    }
}

/// Objects that are shown of a process.
const SHOWN: usize = 8;

/// A look, for a person.
fn shown(look: &WatchLook) -> String {
    let mut text = format!("{:>9.3} s", look.time_ns as f64 / 1e9);
    for (name, by) in &look.counters {
        let _ = write!(text, "  {name} {by:+}");
    }
    if let Some([some, _]) = look.pressure_us.filter(|p| p[0] > 0) {
        let _ = write!(
            text,
            "  waited for memory {}",
            format::duration(varve_model::Duration(some * 1000))
        );
    }
    for node in look.nodes.iter().filter(|n| n.free_bytes.is_some()) {
        let free = Bytes(node.free_bytes.unwrap_or(0).max(0).cast_unsigned());
        let _ = write!(text, "\n  node {}: {} free", node.node, format::bytes(free));
        for (name, by) in &node.counters {
            let _ = write!(text, "  {name} {by:+}");
        }
    }
    for process in &look.processes {
        let _ = write!(
            text,
            "\n  process {}: {} CPU, {}",
            process.pid,
            format::duration(varve_model::Duration(process.cpu_ns)),
            format::counted(process.major_faults, "major fault")
        );
        for object in process.objects.iter().take(SHOWN) {
            let _ = write!(text, "\n    {}", object_line(object));
        }
    }
    for (name, value) in &look.settings {
        let _ = write!(text, "\n  {name}: {}", visible(value));
    }
    text
}

fn object_line(of: &WatchObject) -> String {
    let size = |pages: u64| format::bytes(Bytes(pages * PAGE_BYTES));
    let mut text = format!(
        "{:<40} {:>10}",
        visible(&of.name),
        format::bytes(Bytes(of.bytes))
    );
    for (node, pages) in &of.pages_on_node {
        let _ = write!(text, "  node {node} {}", size(*pages));
    }
    let _ = write!(text, "  swap {}", size(of.swapped_pages));
    for (what, pages) in [
        ("promoted", of.promoted),
        ("demoted", of.demoted),
        ("ping-pong", of.ping_pong),
    ] {
        if pages > 0 {
            let _ = write!(text, "  {what} {}", format::count(pages));
        }
    }
    text
}
