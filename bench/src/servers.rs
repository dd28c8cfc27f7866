//! What servers and everyday commands lose while they are recorded: requests per second, the slowest of a hundred, the
//! longest stall, the time of a command, and what somebody pays whom nobody records.

mod bystander;
mod load;
mod programs;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::{Value, json};

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Peak, plain, recorded};
use crate::run::{Run, verdict};
use crate::statistics::{greatest, median, quantile};
use load::Answer;
use programs::{Load, Server};

const SERVERS: [&str; 4] = ["redis", "memcached", "nginx", "postgresql"];
const COMMANDS: [&str; 4] = ["jvm", "ffmpeg", "g++", "forks"];

/// The targets with default options: the share of requests, the share that a bystander keeps, and the longest stall by
/// attaching and detaching, milliseconds.
const RATE: f64 = 0.95;
const BYSTANDER: f64 = 0.98;
const STALL_MS: f64 = 20.0;
/// And the slowest of a hundred: times as long, or so many milliseconds more.
const P99: f64 = 1.1;
const P99_MS: f64 = 2.0;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only these: redis, memcached, nginx, postgresql, jvm, ffmpeg, g++, forks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Options of `varve record` to measure; give it once for each set
    #[arg(long = "record", value_name = "OPTIONS", default_values = ["", "--samples off"], allow_hyphen_values = true)]
    variants: Vec<String>,
    /// Rounds: in each, once plain and once with each set of options
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// How long requests are counted, seconds
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Connections
    #[arg(long, default_value_t = 16)]
    connections: u64,
    /// What Redis, memcached and PostgreSQL have in memory, MiB
    #[arg(long, default_value_t = 512)]
    size: u64,
}

/// One measurement of a server.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    /// Requests per second.
    rate: f64,
    /// Milliseconds.
    p99: f64,
    /// The longest, attaching and detaching included, milliseconds.
    longest: f64,
    /// Nanoseconds of a bystander's system call.
    bystander: f64,
}

impl Served {
    fn json(&self) -> Value {
        json!({"rate": self.rate, "p99_ms": self.p99, "longest_ms": self.longest, "bystander_ns": self.bystander})
    }
}

/// One run of a command, seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Ran {
    /// From its first instruction to its end.
    itself: f64,
    /// With the start and the end of the recorder.
    whole: f64,
}

/// What came of a program: of each round plain first, then each set of options.
enum Measured {
    Server(String, Vec<Vec<Served>>),
    Command(String, Vec<Vec<Ran>>),
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let is_chosen = |name: &&str| options.only.is_empty() || options.only.iter().any(|o| o == name);
    let all = SERVERS.iter().chain(&COMMANDS).copied();
    if let Some(unknown) = options.only.iter().find(|o| !all.clone().any(|n| n == *o)) {
        return Err(Error::Failed(format!("there is no program {unknown} here")));
    }
    let mut measured = Vec::new();
    for name in SERVERS.into_iter().filter(|n| is_chosen(n)) {
        if let Some(rounds) = of_server(common, options, name)? {
            measured.push(Measured::Server(name.to_owned(), rounds));
        }
    }
    for name in COMMANDS.into_iter().filter(|n| is_chosen(n)) {
        if let Some(rounds) = of_command(common, options, name)? {
            measured.push(Measured::Command(name.to_owned(), rounds));
        }
    }
    Ok(report(options, &measured))
}

fn repeats(common: &Common, options: &Options) -> usize {
    match common.smoke {
        true => 1,
        false => options.repeats.max(1) as usize,
    }
}

fn of_server(common: &Common, options: &Options, name: &str) -> Result<Option<Vec<Vec<Served>>>> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    programs::open_to_nobody(scratch.path())?;
    let size = if common.smoke { 16 } else { options.size };
    let Some(server) = programs::start(name, size << 20, scratch.path())? else {
        eprintln!("{name}: not installed, left out");
        return Ok(None);
    };
    eprintln!("{name} ...");
    let all = 1 + options.variants.len();
    let mut rounds = Vec::new();
    for turn in 0..repeats(common, options) {
        let mut round = vec![Served::default(); all];
        // Each is first by turns: what drifts on the machine meets all alike.
        for step in 0..all {
            let which = (turn + step) % all;
            let with = which.checked_sub(1).map(|i| options.variants[i].as_str());
            round[which] = serve(common, options, &server, with, scratch.path())?;
            eprintln!(
                "  {:.0}/s, p99 {:.2} ms, longest {:.1} ms, {}",
                round[which].rate,
                round[which].p99,
                round[which].longest,
                with.map_or("plain".to_owned(), |w| format!("recorded {w}")),
            );
        }
        rounds.push(round);
    }
    Ok(Some(rounds))
}

/// Has a server answer, recorded or not, and counts.
fn serve(
    common: &Common,
    options: &Options,
    server: &Server,
    with: Option<&str>,
    folder: &Path,
) -> Result<Served> {
    let seconds = if common.smoke { 0.5 } else { options.seconds };
    let (lead, counted) = (Duration::from_millis(500), Duration::from_secs_f64(seconds));
    let began = Instant::now();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let bystander = scope.spawn(|| bystander::run(began, &stop));
        let answers = scope.spawn(|| match &server.load {
            Load::Requests(address, protocol) => {
                load::run(*address, *protocol, options.connections, began, &stop)
            }
            Load::Pgbench { programs, port } => {
                // It is given beforehand for how long: with a recorder to begin and to end.
                let whole = lead * 4 + counted + Duration::from_secs(3);
                pgbench(programs, *port, folder, whole, began)
            }
        });
        let run = || -> Result<Range<Duration>> {
            thread::sleep(lead);
            let recorder = with
                .map(|with| Recorder::start(common, server.pid(), with, folder))
                .transpose()?;
            thread::sleep(lead);
            let from = began.elapsed();
            thread::sleep(counted);
            let window = from..began.elapsed();
            if let Some(recorder) = recorder {
                recorder.end()?;
            }
            thread::sleep(lead);
            Ok(window)
        };
        let window = run();
        stop.store(true, Ordering::Relaxed);
        let joined = (answers.join(), bystander.join());
        let (Ok(answers), Ok(groups)) = joined else {
            return Err(Error::Failed("a thread of the load panicked".into()));
        };
        let (answers, window) = (answers?, window?);
        Ok(Served {
            bystander: bystander::within(&groups, &window),
            ..summary(&answers, &window)
        })
    })
}

fn summary(answers: &[Answer], window: &Range<Duration>) -> Served {
    let milliseconds = |a: &Answer| a.took.as_secs_f64() * 1e3;
    let inside: Vec<f64> = answers
        .iter()
        .filter(|a| window.contains(&a.at))
        .map(milliseconds)
        .collect();
    let all: Vec<f64> = answers.iter().map(milliseconds).collect();
    Served {
        rate: inside.len() as f64 / (window.end - window.start).as_secs_f64(),
        p99: quantile(&inside, 0.99),
        longest: greatest(&all),
        bystander: 0.0,
    }
}

/// `pgbench -S` for so long; when each transaction ended and how long it took.
fn pgbench(
    programs: &Path,
    port: u16,
    folder: &Path,
    whole: Duration,
    began: Instant,
) -> Result<Vec<Answer>> {
    let program = programs.join("pgbench");
    let port = port.to_string();
    let seconds = whole.as_secs().max(1).to_string();
    // Times in the log are those of the day.
    let day = || std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    let offset = day().saturating_sub(began.elapsed());
    let output = programs::as_nobody(&program, folder)
        .args(["-h", "127.0.0.1", "-p", &port, "-U", "bench", "-S", "-n"])
        .args([
            "-c",
            "8",
            "-j",
            "2",
            "-T",
            &seconds,
            "--log",
            "--log-prefix=load",
            "postgres",
        ])
        .output()
        .map_err(Error::io("run", &program))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Failed(format!("pgbench failed: {said}")));
    }
    let mut answers = Vec::new();
    let entries = fs::read_dir(folder).map_err(Error::io("read", folder))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with("load.") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        answers.extend(text.lines().filter_map(|line| answer(line, offset)));
        fs::remove_file(&path).map_err(Error::io("remove", &path))?;
    }
    Ok(answers)
}

/// A line of pgbench's log: client, transaction, microseconds, script, seconds and microseconds of the day.
fn answer(line: &str, offset: Duration) -> Option<Answer> {
    let fields: Vec<u64> = line.split(' ').filter_map(|f| f.parse().ok()).collect();
    let [_, _, took, _, seconds, microseconds, ..] = fields[..] else {
        return None;
    };
    let at = Duration::from_secs(seconds) + Duration::from_micros(microseconds);
    Some(Answer {
        at: at.checked_sub(offset)?,
        took: Duration::from_micros(took),
    })
}

/// A recorder that is attached.
struct Recorder {
    child: Child,
    messages: BufReader<std::process::ChildStderr>,
}

impl Recorder {
    /// Starts it and waits until it says that it records.
    fn start(common: &Common, pid: u32, with: &str, folder: &Path) -> Result<Recorder> {
        let mut child = Command::new(&common.varve)
            .args(["record", "--force", "-o"])
            .arg(folder.join("server.varve"))
            .args(["-p", &pid.to_string()])
            .args(with.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(Error::io("start", &common.varve))?;
        let messages = child.stderr.take();
        let messages = messages.ok_or_else(|| Error::Failed("no messages of varve".into()))?;
        let mut recorder = Recorder {
            child,
            messages: BufReader::new(messages),
        };
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let read = recorder.messages.read_line(&mut line);
            if read.map_err(Error::io("hear", &common.varve))? == 0 {
                return Err(Error::Failed(format!("varve record said:\n{said}")));
            }
            if line.contains("recording process") {
                return Ok(recorder);
            }
            said += &line;
        }
    }

    /// Ends the recording and waits for its trace.
    fn end(mut self) -> Result<()> {
        if let Some(pid) = rustix::process::Pid::from_raw(self.child.id().cast_signed()) {
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        let mut said = String::new();
        let _ = self.messages.read_to_string(&mut said);
        let status = self
            .child
            .wait()
            .map_err(Error::io("wait for", Path::new("varve record")))?;
        match status.success() {
            true => Ok(()),
            false => Err(Error::Failed(format!(
                "varve record failed ({status}):\n{said}"
            ))),
        }
    }
}

fn of_command(common: &Common, options: &Options, name: &str) -> Result<Option<Vec<Vec<Ran>>>> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let Some(program) = programs::command(name, scratch.path(), common.smoke)? else {
        eprintln!("{name}: not installed, left out");
        return Ok(None);
    };
    eprintln!("{name} ...");
    let folder = scratch.path().join("command.varve");
    let all = 1 + options.variants.len();
    let mut rounds = Vec::new();
    for turn in 0..repeats(common, options) {
        let mut round = vec![Ran::default(); all];
        for step in 0..all {
            let which = (turn + step) % all;
            let outcome = match which.checked_sub(1) {
                None => plain(common, &program)?,
                Some(i) => {
                    let words: Vec<&str> = options.variants[i].split_whitespace().collect();
                    recorded(common, &program, &words, &folder, Peak::Ignored)?.0
                }
            };
            round[which] = Ran {
                itself: outcome.life_s,
                whole: outcome.command_s,
            };
            eprintln!(
                "  {:.2} s, in all {:.2} s",
                outcome.life_s, outcome.command_s
            );
        }
        rounds.push(round);
    }
    Ok(Some(rounds))
}

/// A figure of each round, plain and with one set of options, and their ratios.
fn compare<T>(rounds: &[Vec<T>], which: usize, figure: impl Fn(&T) -> f64) -> [Vec<f64>; 3] {
    let of = |i: usize| rounds.iter().map(|r| figure(&r[i])).collect::<Vec<_>>();
    let (plain, with) = (of(0), of(which));
    let ratios = plain.iter().zip(&with).map(|(p, w)| w / p).collect();
    [plain, with, ratios]
}

fn report(options: &Options, measured: &[Measured]) -> Run {
    let mut rows = Vec::new();
    let mut verdicts = Vec::new();
    for one in measured {
        for (i, variant) in options.variants.iter().enumerate() {
            let is_default = variant.is_empty();
            let shown = if is_default { "default" } else { variant };
            match one {
                Measured::Server(name, rounds) => {
                    let [plain, _, rate] = compare(rounds, i + 1, |s| s.rate);
                    let [p99, p99_with, _] = compare(rounds, i + 1, |s| s.p99);
                    let [_, longest, _] = compare(rounds, i + 1, |s| s.longest);
                    let [_, _, slower] = compare(rounds, i + 1, |s| s.bystander);
                    let (rate_of, keeps) = (median(&rate), 1.0 / median(&slower));
                    rows.push(vec![
                        name.clone(),
                        shown.to_owned(),
                        format!("{:.0}/s", median(&plain)),
                        format!("{rate_of:.3}"),
                        format!("{:.3}-{:.3}", quantile(&rate, 0.0), greatest(&rate)),
                        format!("{:.2}", median(&p99)),
                        format!("{:.2}", median(&p99_with)),
                        format!("{:.1}", median(&longest)),
                        format!("{keeps:.2}"),
                        "-".to_owned(),
                    ]);
                    if is_default {
                        let limit = (median(&p99) * P99).max(median(&p99) + P99_MS);
                        verdicts.push(at_least(&format!("{name}: requests"), rate_of, RATE));
                        verdicts.push(verdict(
                            &format!("{name}: p99"),
                            median(&p99_with),
                            limit,
                            " ms",
                        ));
                        verdicts.push(verdict(
                            &format!("{name}: longest"),
                            median(&longest),
                            STALL_MS,
                            " ms",
                        ));
                        verdicts.push(at_least(&format!("{name}: bystander"), keeps, BYSTANDER));
                    }
                }
                Measured::Command(name, rounds) => {
                    let [plain, _, ratios] = compare(rounds, i + 1, |r| r.itself);
                    let [_, _, whole] = compare(rounds, i + 1, |r| r.whole);
                    let (rate, whole) = (1.0 / median(&ratios), 1.0 / median(&whole));
                    let none = || "-".to_owned();
                    rows.push(vec![
                        name.clone(),
                        shown.to_owned(),
                        format!("{:.2} s", median(&plain)),
                        format!("{rate:.3}"),
                        format!(
                            "{:.3}-{:.3}",
                            1.0 / greatest(&ratios),
                            1.0 / quantile(&ratios, 0.0)
                        ),
                        none(),
                        none(),
                        none(),
                        none(),
                        format!("{whole:.3}"),
                    ]);
                    if is_default {
                        verdicts.push(at_least(&format!("{name}: speed"), rate, RATE));
                    }
                }
            }
        }
    }
    Run {
        name: "servers",
        options: json!({
            "repeats": options.repeats, "seconds": options.seconds, "connections": options.connections,
            "size_mib": options.size, "record": options.variants,
        }),
        columns: vec![
            "program",
            "options",
            "plain",
            "rate",
            "range",
            "p99 ms",
            "with",
            "longest",
            "bystander",
            "start and end too",
        ],
        rows,
        verdicts,
        summary: json!({}),
        raw: measured
            .iter()
            .map(|one| match one {
                Measured::Server(name, rounds) => {
                    let rounds: Vec<Vec<Value>> = rounds
                        .iter()
                        .map(|r| r.iter().map(Served::json).collect())
                        .collect();
                    json!({"program": name, "rounds": rounds})
                }
                Measured::Command(name, rounds) => {
                    let round = |r: &Vec<Ran>| -> Vec<Value> {
                        r.iter()
                            .map(|r| json!({"itself_s": r.itself, "whole_s": r.whole}))
                            .collect()
                    };
                    let rounds: Vec<Vec<Value>> = rounds.iter().map(round).collect();
                    json!({"program": name, "rounds": rounds})
                }
            })
            .collect(),
    }
}

/// A sentence on a figure that is to be large.
fn at_least(what: &str, figure: f64, least: f64) -> String {
    let holds = if figure >= least {
        "holds"
    } else {
        "DOES NOT HOLD"
    };
    format!("{what}: {figure:.3} of plain, target at least {least}: {holds}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_pgbench_is_an_answer() {
        let line = "3 17 412 0 1700000002 500000";
        let found = answer(line, Duration::from_secs(1_700_000_000)).unwrap();
        assert_eq!(found.at, Duration::from_millis(2500));
        assert_eq!(found.took, Duration::from_micros(412));
        assert!(answer("progress", Duration::ZERO).is_none());
    }

    #[test]
    fn only_the_window_is_counted_but_every_stall() {
        let answer = |at, took| Answer {
            at: Duration::from_millis(at),
            took: Duration::from_millis(took),
        };
        let answers = [
            answer(10, 1),
            answer(500, 2),
            answer(900, 3),
            answer(2000, 70),
        ];
        let found = summary(
            &answers,
            &(Duration::from_millis(400)..Duration::from_millis(1400)),
        );
        assert_eq!(found.rate, 2.0);
        assert_eq!(found.longest, 70.0);
        assert!(found.p99 > 2.9 && found.p99 <= 3.0);
    }
}
