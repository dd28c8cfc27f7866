//! `varve record --every`: a service is recorded for a short time, over and over, and its traces go to a store.
//!
//! Each recording is made by a process of its own, so that nothing of one is left in the next. It ends by itself: whoever kills
//! this process leaves no recorder behind for longer than `--for`.

mod find;
mod spool;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::builder::NonEmptyStringValueParser;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory};
use sha2::{Digest, Sha256};
use varve_analyse::format;
use varve_model::{Backend, Bytes, visible};
use varve_sys::{Signals, is_readable};

use self::find::{Found, Selector};
use self::spool::Spool;
use super::super::{Failure, push};
use super::{NOTHING_RECORDED, Record};
use crate::arguments::Arguments;
use crate::values::{Moment, Share, Size};

/// A recorder that takes so much longer than it shall record is ended: its watchdog lets the target go.
const PATIENCE: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(100);

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Recording over and over")]
pub(crate) struct Repeated {
    /// Record again every so often, such as 10m, for the time of `--for`, and put the traces into the store of `--to`;
    /// processes are looked for anew each time
    #[arg(long, value_name = "TIME", value_parser = period, requires_all = ["each", "to"], conflicts_with_all = ["output", "force", "delay", "duration", "command"])]
    pub(crate) every: Option<Moment>,

    /// How long each of these recordings is, such as 10s
    #[arg(long = "for", id = "each", value_name = "TIME", requires = "every")]
    pub(crate) each: Option<Moment>,

    /// Record processes whose program is called so
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), requires = "every", group = "selected")]
    pub(crate) name: Option<String>,

    /// Record the processes of a systemd unit
    #[arg(long, value_name = "UNIT", value_parser = NonEmptyStringValueParser::new(), requires = "every", group = "selected")]
    pub(crate) unit: Option<String>,

    /// Record the processes of a cgroup and of those below it, given as in `/proc/PID/cgroup` or by its folder
    #[arg(long, value_name = "PATH", requires = "every", group = "selected")]
    pub(crate) cgroup: Option<PathBuf>,

    /// The store, as of `varve push`
    #[arg(long, value_name = "STORE", requires = "every")]
    pub(crate) to: Option<PathBuf>,

    /// What the program is called in the store [default: its file's name]
    #[arg(long, value_name = "NAME", requires = "every", value_parser = push::name)]
    pub(crate) service: Option<String>,

    /// Folder for traces until they are in the store [default: STORE/.spool]
    #[arg(long, value_name = "FOLDER", requires = "every")]
    pub(crate) spool: Option<PathBuf>,

    /// What the traces may take on the disk, those that were put into the store by `--every` on this machine and those that
    /// were not yet: the oldest are removed [default: 1GiB]
    #[arg(long, value_name = "SIZE", requires = "every")]
    pub(crate) max_disk: Option<Size>,

    /// How many processes are recorded at a time, others the next time; children count with their parent [default: 4]
    #[arg(long, value_name = "N", requires = "every", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) max_processes: Option<u32>,

    /// Record on this share of the hosts only, such as 1%, chosen by the hash of their names
    #[arg(long, value_name = "SHARE", requires = "every")]
    pub(crate) hosts: Option<Share>,

    /// End after so many times
    #[arg(long, value_name = "N", requires = "every", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) times: Option<u64>,
}

/// Longer times are typing errors.
const MAX_PERIOD: Duration = Duration::from_secs(366 * 24 * 3600);

/// A time from one recording to the next.
fn period(text: &str) -> Result<Moment, String> {
    let period: Moment = text.parse()?;
    match Duration::from_nanos(period.0.0) <= MAX_PERIOD {
        true => Ok(period),
        false => Err("it is longer than a year".to_owned()),
    }
}

/// Those that each recording is not given.
const OWN: [&str; 12] = [
    "every",
    "each",
    "name",
    "unit",
    "cgroup",
    "to",
    "service",
    "spool",
    "max_disk",
    "max_processes",
    "hosts",
    "times",
];

const DEFAULT_DISK: Bytes = Bytes(1 << 30);
const DEFAULT_PROCESSES: u32 = 4;

pub(super) fn run(record: &Record, every: Moment) -> Result<ExitCode, Failure> {
    repeat(record, every).map_err(|failure| Failure {
        code: match failure.code {
            WRONG_ARGUMENTS => WRONG_ARGUMENTS,
            _ => NOTHING_RECORDED,
        },
        ..failure
    })
}

/// The exit code where the arguments are wrong, as that of the parser of arguments.
const WRONG_ARGUMENTS: u8 = 2;

/// That they are.
fn wrong(what: impl Into<String>, hint: &str) -> Failure {
    Failure {
        what: what.into(),
        hint: Some(hint.to_owned()),
        code: WRONG_ARGUMENTS,
    }
}

fn repeat(record: &Record, every: Moment) -> Result<ExitCode, Failure> {
    let service = Service::new(record, every)?;
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    if let Some(Share(share)) = record.repeated.hosts
        && !is_chosen(&host, share)
    {
        varve_ui::note(format!(
            "{} is not among the {} of the hosts that record: nothing is done here",
            visible(&host),
            share_in_words(share)
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let mut signals = Signals::catch().map_err(|e| cannot("catch signals", &e))?;
    let _locked = service.spool.lock()?;
    service.announce(record);
    service.repeat(&mut signals)
}

/// A share of hosts lies below it, the same ones each time.
fn is_chosen(host: &str, share: f64) -> bool {
    let hash = Sha256::digest(host.as_bytes());
    let first = hash[..8]
        .iter()
        .fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    (first as f64) < share * 2f64.powi(64)
}

fn share_in_words(share: f64) -> String {
    let rounded = (share * 1e4).round() / 100.0;
    format!("{rounded} %")
}

/// What is recorded, how often, and where it goes.
struct Service {
    selector: Selector,
    every: Duration,
    each: Duration,
    spool: Spool,
    max_processes: usize,
    times: Option<u64>,
    /// Options of `varve record` that each recording is given.
    options: Vec<OsString>,
}

/// A recording that goes on.
struct Recorder {
    of: Found,
    child: Child,
    /// What it says.
    log: PathBuf,
}

/// How a number of recordings ended.
enum Ended {
    All,
    /// By a signal to this process.
    Interrupted,
}

impl Service {
    fn new(record: &Record, Moment(every): Moment) -> Result<Service, Failure> {
        let repeated = &record.repeated;
        let (Some(Moment(each)), Some(to)) = (repeated.each, &repeated.to) else {
            return Err(wrong(
                "`--every` needs `--for` and `--to`",
                "as in `varve record --name redis-server --every 10m --for 10s --to /srv/traces`",
            ));
        };
        if each.0 == 0 {
            return Err(wrong(
                "`--for` is no time at all",
                "give how long each recording is, such as `--for 10s`",
            ));
        }
        if every < each {
            let length = |time| format::duration(time);
            return Err(wrong(
                format!(
                    "`--for {}` is longer than `--every {}`: a recording would not be over when the next one begins",
                    length(each),
                    length(every)
                ),
                "give a time for each recording that is not longer than the time from one to the next",
            ));
        }
        if record.backend == Backend::Exact {
            return Err(wrong(
                "`--backend exact` records commands from their beginning, and not processes that run",
                "leave it out: `--every` records by `--backend scan`",
            ));
        }
        let selector = Selector::new(record.pid, repeated)?;
        let max_disk = repeated.max_disk.map_or(DEFAULT_DISK, |size| size.0);
        let max_processes = repeated.max_processes.unwrap_or(DEFAULT_PROCESSES);
        Ok(Service {
            selector,
            every: Duration::from_nanos(every.0),
            each: Duration::from_nanos(each.0),
            spool: Spool::new(
                to,
                repeated.spool.as_deref(),
                repeated.service.clone(),
                max_disk,
            )?,
            max_processes: max_processes as usize,
            times: repeated.times,
            options: options_of_each(),
        })
    }

    /// What is going to be done, and at which cost.
    fn announce(&self, record: &Record) {
        let length = |of: Duration| format::duration(varve_model::Duration(of.as_nanos() as u64));
        let overhead = record.overhead.0;
        let mean = overhead * self.each.as_secs_f64() / self.every.as_secs_f64();
        varve_ui::note(format!(
            "recording {} for {} every {}: {} of cost asked meanwhile, {} over time; Ctrl-C ends it",
            self.selector,
            length(self.each),
            length(self.every),
            share_in_words(overhead),
            share_in_words(mean),
        ));
    }

    fn repeat(&self, signals: &mut Signals) -> Result<ExitCode, Failure> {
        let begin = Instant::now();
        let mut waits = false;
        for round in 0.. {
            if self.times.is_some_and(|times| round >= times) {
                break;
            }
            // What took longer than it should have moves no later one.
            let planned = begin + self.every.saturating_mul(round as u32);
            if is_signalled(signals, planned.saturating_duration_since(Instant::now()))? {
                break;
            }
            let found = self.selector.find();
            if found.is_empty() && self.selector.is_over() {
                varve_ui::note(format!("{} has ended", self.selector));
                break;
            }
            if found.is_empty() && !std::mem::replace(&mut waits, true) {
                varve_ui::note(format!(
                    "there are no {}: waiting{}",
                    self.selector,
                    self.selector.how_it_matches()
                ));
            }
            waits &= found.is_empty();
            let ended = self.record(&self.choose(found, round), signals)?;
            self.spool.settle();
            if matches!(ended, Ended::Interrupted) {
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Those that are recorded this time: where there are too many, others the next time.
    fn choose(&self, mut found: Vec<Found>, round: u64) -> Vec<Found> {
        let all = found.len();
        if all <= self.max_processes {
            return found;
        }
        varve_ui::note(format!(
            "{all} processes are there, and {} of them recorded this time (--max-processes)",
            self.max_processes
        ));
        let first = (round as usize).wrapping_mul(self.max_processes) % all;
        found.rotate_left(first);
        found.truncate(self.max_processes);
        found
    }

    /// Records these at once.
    fn record(&self, found: &[Found], signals: &mut Signals) -> Result<Ended, Failure> {
        let mut recorders = Vec::new();
        for of in found {
            match self.start(of, signals) {
                Ok(recorder) => recorders.push(recorder),
                Err(e) => varve_ui::error(format!("cannot record {of}: {e}")),
            }
        }
        let deadline = Instant::now() + self.each + PATIENCE;
        let mut ended = Ended::All;
        while !recorders.is_empty() {
            if is_signalled(signals, STEP)? {
                ended = Ended::Interrupted;
                recorders.iter().for_each(Recorder::interrupt);
            }
            if Instant::now() > deadline {
                recorders.iter_mut().for_each(Recorder::kill);
            }
            recorders.retain_mut(Recorder::goes_on);
        }
        Ok(ended)
    }

    fn start(&self, of: &Found, signals: &Signals) -> io::Result<Recorder> {
        let (trace, log) = self.spool.trace(of);
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("record")
            .args(&self.options)
            .arg(format!("--pid={}", of.pid))
            .arg(format!("--duration={}ms", self.each.as_millis()))
            .arg("--output")
            .arg(trace)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // A pipe that nobody reads would stop it when it is full.
            .stderr(File::create(&log)?)
            // Ctrl-C is for this process, which ends the others.
            .process_group(0);
        Ok(Recorder {
            of: of.clone(),
            child: signals.spawn(&mut command)?,
            log,
        })
    }
}

impl Recorder {
    fn interrupt(&self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().cast_signed());
        // It is a child that was not waited for, so that the number is its own.
        let _ = pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::INT));
    }

    fn kill(&mut self) {
        varve_ui::error(format!(
            "the recording of {} does not end: its recorder is killed, and the target goes on",
            self.of
        ));
        let _ = self.child.kill();
    }

    /// Whether it goes on; where it has failed that is said.
    fn goes_on(&mut self) -> bool {
        let status = match self.child.try_wait() {
            Ok(None) => return true,
            Ok(Some(status)) => Ok(status),
            Err(e) => Err(e),
        };
        let said = fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let _ = fs::remove_file(&self.log);
        match status {
            Ok(status) if status.success() => {
                varve_ui::note(format!("{}: {}", self.of, in_one_line(&said)));
            }
            Ok(status) if status.signal().is_some() => varve_ui::error(format!(
                "the recorder of {} was killed by signal {}: what it had written is kept",
                self.of,
                status.signal().unwrap_or_default()
            )),
            Ok(_) => varve_ui::error(format!(
                "{} was not recorded: {}",
                self.of,
                said.trim().replace('\n', " / ")
            )),
            Err(e) => varve_ui::error(format!("cannot wait for the recorder of {}: {e}", self.of)),
        }
        false
    }
}

/// What a recorder says at its end: what was recorded, whether all of it, where not, and what that cost.
fn in_one_line(said: &str) -> String {
    let line = |word: &str| {
        said.lines()
            .find_map(|l| l.strip_prefix("varve: ")?.strip_prefix(word))
    };
    let recorded = line("recorded ").and_then(|l| Some(l.split_once(": ")?.1.to_owned()));
    let incomplete = line("INCOMPLETE: ").map(|l| format!("INCOMPLETE: {l}"));
    let cost = line("cost: ").map(|l| format!("cost: {l}"));
    let parts: Vec<String> = [recorded, incomplete, cost].into_iter().flatten().collect();
    parts.join("; ")
}

/// Waits for a signal, or so long.
fn is_signalled(signals: &mut Signals, limit: Duration) -> Result<bool, Failure> {
    is_readable([signals.as_fd()], Some(limit));
    let signal = signals.take().map_err(|e| cannot("read signals", &e))?;
    Ok(signal.is_some())
}

fn cannot(what: &str, error: &io::Error) -> Failure {
    Failure::new(format!("cannot {what}: {error}"), None::<String>)
}

/// The options on the command line that are not about repeating, as they were typed.
fn options_of_each() -> Vec<OsString> {
    let matches = Arguments::command().get_matches();
    match matches.subcommand_matches("record") {
        Some(matches) => typed(matches),
        None => Vec::new(),
    }
}

fn typed(matches: &ArgMatches) -> Vec<OsString> {
    let record = Record::augment_args(clap::Command::new("record"));
    let mut options = Vec::new();
    for argument in record.get_arguments() {
        let id = argument.get_id().as_str();
        let is_typed = matches.value_source(id) == Some(ValueSource::CommandLine);
        let Some(long) = argument.get_long().filter(|_| is_typed) else {
            continue;
        };
        if id == "pid" || OWN.contains(&id) {
            continue;
        }
        let mut option = OsString::from(format!("--{long}"));
        if !argument.get_action().takes_values() {
            options.push(option);
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            option.push("=");
            option.push(value);
            options.push(std::mem::replace(&mut option, format!("--{long}").into()));
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_a_share_of_hosts_is_chosen() {
        let chosen = |share: f64| {
            let hosts = (0..10_000).map(|i| format!("host-{i}.example"));
            hosts.filter(|host| is_chosen(host, share)).count()
        };
        assert_eq!(chosen(1.0), 10_000);
        // Five standard deviations of 10,000 tries.
        assert!(chosen(0.1).abs_diff(1000) < 150);
        let few = (0..1000)
            .map(|i| format!("h{i}"))
            .filter(|h| is_chosen(h, 0.01));
        assert!(few.into_iter().all(|host| is_chosen(&host, 0.1)));
    }

    #[test]
    fn the_end_of_a_recording_is_one_line() {
        let said = "varve: The target was held.\nvarve: recorded a: 2 s, 3 processes\nvarve: INCOMPLETE: x: y\n\
                    varve: cost: asked 5.0 %\nvarve: wrote t";
        let line = "2 s, 3 processes; INCOMPLETE: x: y; cost: asked 5.0 %";
        assert_eq!(in_one_line(said), line);
        assert_eq!(in_one_line(""), "");
    }

    #[test]
    fn each_recording_has_the_other_options() {
        let typed_of = |line: &str| {
            let matches = Arguments::command().get_matches_from(line.split(' '));
            typed(matches.subcommand_matches("record").unwrap())
        };
        assert_eq!(
            typed_of(
                "varve record --every 10m --for 10s --to s --name x --overhead=2% --no-follow --without hold,flush --share"
            ),
            [
                "--share",
                "--overhead=2%",
                "--no-follow",
                "--without=hold",
                "--without=flush"
            ]
        );
        let own = Repeated::augment_args(clap::Command::new("repeated"));
        let ids: Vec<&str> = own.get_arguments().map(|a| a.get_id().as_str()).collect();
        assert_eq!(ids, OWN);
    }
}
