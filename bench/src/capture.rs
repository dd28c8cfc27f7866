//! What each backend captures of a program and at what price: percent of the pages of the run and of each interval,
//! events per second, slowdown. The successor of figures 3 and 4 of the Moca study (RR-8931), beside its numbers.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use varve_trace::Trace;
use varve_trace::tables::{CountRow, FaultRow, IntervalRow, MappingRow, SampleRow, TouchRow};

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Outcome, Peak, Program, plain, recorded};
use crate::run::Run;
use crate::statistics::{geometric_mean, median};

/// What the committed programs are given, so that the emulator ends in a minute.
const SMALL: [&str; 4] = ["--size", "S", "--seconds", "0.2"];

/// A way to record, by what it is asked for on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Method {
    /// Page tables at the end of each interval
    Scan,
    /// The same with software samples at 1000/s; only the samples are counted
    Samples,
    /// The first access to each page in each interval traps
    Fault,
    /// Every access is counted in an emulator
    Exact,
}

impl Method {
    pub(crate) const ALL: [Method; 4] =
        [Method::Scan, Method::Samples, Method::Fault, Method::Exact];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Method::Scan => "scan",
            Method::Samples => "samples",
            Method::Fault => "fault",
            Method::Exact => "exact",
        }
    }

    /// Huge pages are off: all methods count the same 4 KiB pages then.
    fn arguments(self, interval: &str) -> Vec<&str> {
        match self {
            Method::Scan => vec!["--thp", "never", "--interval", interval, "--samples", "off"],
            Method::Samples => vec![
                "--thp",
                "never",
                "--interval",
                interval,
                "--samples",
                "1000/s",
            ],
            Method::Fault => vec![
                "--backend",
                "fault",
                "--thp",
                "never",
                "--interval",
                interval,
                "--samples",
                "off",
            ],
            Method::Exact => vec!["--backend", "exact"],
        }
    }

    /// The tools of the study that worked alike.
    const fn baseline_tool(self) -> Option<&'static str> {
        match self {
            Method::Scan => None,
            Method::Samples => Some("MitosTun"),
            Method::Fault => Some("Moca"),
            Method::Exact => Some("Tabarnac"),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folder of programs, all of which are run [default: cg and is of workloads/bin]
    #[arg(long, value_name = "FOLDER")]
    suite: Option<PathBuf>,
    /// Only these programs of the suite
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Only these methods
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = Method::ALL)]
    methods: Vec<Method>,
    /// Interval, as for `varve record`
    #[arg(long, default_value = "50ms")]
    interval: String,
    /// Rounds of runs for each program
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// `OMP_NUM_THREADS`
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Folder with the study's figures as tables: `moca_npb_pages_percent.csv`, `moca_npb_slowdown_intel.csv`
    #[arg(long, value_name = "FOLDER")]
    study: Option<PathBuf>,
}

/// What one recording holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Captured {
    /// Page touches, samples with an address, trapped accesses or counted accesses.
    pub(crate) events: u64,
    /// Different pages of the whole run.
    pub(crate) pages: u64,
    /// Pages of each interval, added up over the intervals.
    pub(crate) interval_pages: u64,
    /// The same of the complete table of touches of the same recording; 0 where there is none.
    complete_interval_pages: u64,
}

/// One round: plain, and each method in the order of the options.
pub(crate) struct Round {
    pub(crate) plain: Outcome,
    pub(crate) recorded: Vec<(Outcome, Captured)>,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let mut measured = Vec::new();
    for program in programs(options.suite.as_deref(), &options.only, options.threads)? {
        eprintln!("{} ...", program.name);
        let interval = &options.interval;
        let all = rounds(
            common,
            &program,
            &options.methods,
            interval,
            options.repeats,
        )?;
        measured.push((program.name, all));
    }
    report(options, &measured)
}

/// The programs of a suite, or small ones of the committed.
pub(crate) fn programs(
    suite: Option<&Path>,
    only: &[String],
    threads: u32,
) -> Result<Vec<Program>> {
    let (folder, names) = match suite {
        Some(folder) => (folder, crate::overhead::executables(folder)?),
        None => (
            Path::new("workloads/bin"),
            ["cg", "is"].map(str::to_owned).to_vec(),
        ),
    };
    let arguments = match suite {
        None => SMALL.map(Into::into).to_vec(),
        Some(_) => Vec::new(),
    };
    let wanted = names.into_iter();
    let wanted = wanted.filter(|name| only.is_empty() || only.contains(name));
    let programs: Vec<Program> = wanted
        .map(|name| Program {
            path: folder.join(&name),
            name,
            arguments: arguments.clone(),
            threads,
        })
        .collect();
    if programs.is_empty() {
        let folder = folder.display();
        return Err(Error::Failed(format!(
            "there is no program to run in {folder}"
        )));
    }
    Ok(programs)
}

/// Runs a program plain and by each method in turn, as often as asked for; once in smoke mode.
pub(crate) fn rounds(
    common: &Common,
    program: &Program,
    methods: &[Method],
    interval: &str,
    repeats: u32,
) -> Result<Vec<Round>> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let folder = scratch.path().join("capture.varve");
    let repeats = if common.smoke { 1 } else { repeats.max(1) };
    let mut rounds = Vec::new();
    for _ in 0..repeats {
        // What drifts on the machine meets all of a round alike.
        let plain = plain(common, program)?;
        let mut all = Vec::new();
        for method in methods {
            let arguments = method.arguments(interval);
            let (outcome, trace) = recorded(common, program, &arguments, &folder, Peak::Ignored)?;
            let captured = captured(*method, &trace)?;
            let ratio = outcome.life_s / plain.life_s;
            eprintln!("  {}: {ratio:.2}, {} pages", method.name(), captured.pages);
            all.push((outcome, captured));
        }
        rounds.push(Round {
            plain,
            recorded: all,
        });
    }
    Ok(rounds)
}

/// Mappings that cannot be written: code and constants. Fetches of instructions are not data accesses, and only the
/// scan sees them.
struct Constant(Vec<(u32, u64, u64)>);

impl Constant {
    fn of(trace: &Trace) -> Result<Constant> {
        let rows = trace.rows::<MappingRow>()?;
        let (writable, constant): (Vec<_>, Vec<_>) =
            rows.iter().partition(|row| row.perms.contains('w'));
        let pages = |row: &MappingRow| {
            let (first, last) = (row.address.0 >> 12, (row.address.0 + row.bytes.0) >> 12);
            (row.pid.0, first, last)
        };
        let mut ranges: Vec<_> = constant.into_iter().map(pages).collect();
        // What was writable for a part of its life counts.
        for (writer, low, high) in writable.into_iter().map(pages) {
            ranges.retain(|(pid, first, last)| *pid != writer || *last <= low || high <= *first);
        }
        Ok(Constant(ranges))
    }

    fn contains(&self, pid: u32, page: u64) -> bool {
        let holds =
            |(of, first, last): &(u32, u64, u64)| *of == pid && (*first..*last).contains(&page);
        self.0.iter().any(holds)
    }
}

fn captured(method: Method, trace: &Trace) -> Result<Captured> {
    let constant = Constant::of(trace)?;
    match method {
        Method::Exact => counted(trace, &constant),
        Method::Scan => {
            let touched = Touched::of(trace, &constant)?;
            Ok(Captured {
                events: touched.by_interval.len() as u64,
                pages: touched.pages.len() as u64,
                interval_pages: touched.by_interval.len() as u64,
                complete_interval_pages: touched.by_interval.len() as u64,
            })
        }
        Method::Samples => {
            let mut rows = Vec::new();
            for batch in trace.batches::<SampleRow>()? {
                let with_address =
                    |r: SampleRow| r.address.map(|a| (r.time_ns.0, r.pid.0, a.0 >> 12));
                rows.extend(batch?.into_iter().filter_map(with_address));
            }
            among(trace, &constant, rows)
        }
        Method::Fault => {
            let mut rows = Vec::new();
            for batch in trace.batches::<FaultRow>()? {
                rows.extend(
                    batch?
                        .into_iter()
                        .map(|r| (r.time_ns.0, r.pid.0, r.address.0 >> 12)),
                );
            }
            among(trace, &constant, rows)
        }
    }
}

/// Pages of the table of touches.
struct Touched {
    /// (pid, page)
    pages: HashSet<(u32, u64)>,
    /// (interval, pid, page)
    by_interval: HashSet<(u64, u32, u64)>,
}

impl Touched {
    fn of(trace: &Trace, constant: &Constant) -> Result<Touched> {
        let mut touched = Touched {
            pages: HashSet::new(),
            by_interval: HashSet::new(),
        };
        for batch in trace.batches::<TouchRow>()? {
            for row in batch? {
                for page in row.page.0..row.page.0 + u64::from(row.pages) {
                    if constant.contains(row.pid.0, page) {
                        continue;
                    }
                    touched.pages.insert((row.pid.0, page));
                    touched
                        .by_interval
                        .insert((row.interval.0.into(), row.pid.0, page));
                }
            }
        }
        Ok(touched)
    }
}

/// What events (time, process, page) hold of the touches of the same trace.
fn among(trace: &Trace, constant: &Constant, events: Vec<(u64, u32, u64)>) -> Result<Captured> {
    let touched = Touched::of(trace, constant)?;
    let mut ends: Vec<(u64, u64)> = Vec::new();
    for row in trace.rows::<IntervalRow>()? {
        ends.push((row.end_ns.0, row.interval.0.into()));
    }
    ends.sort_unstable();
    let (mut pages, mut by_interval) = (HashSet::new(), HashSet::new());
    let number = events.len() as u64;
    for (time, pid, page) in events {
        pages.insert((pid, page));
        let at = ends.partition_point(|(end, _)| *end < time);
        if let Some((_, interval)) = ends.get(at) {
            by_interval.insert((*interval, pid, page));
        }
    }
    Ok(Captured {
        events: number,
        pages: pages.intersection(&touched.pages).count() as u64,
        interval_pages: by_interval.intersection(&touched.by_interval).count() as u64,
        complete_interval_pages: touched.by_interval.len() as u64,
    })
}

fn counted(trace: &Trace, constant: &Constant) -> Result<Captured> {
    let mut captured = Captured::default();
    let (mut pages, mut by_interval) = (HashSet::new(), HashSet::new());
    for batch in trace.batches::<CountRow>()? {
        for row in batch? {
            captured.events += row.reads + row.writes;
            if constant.contains(row.pid.0, row.page.0) {
                continue;
            }
            pages.insert((row.pid.0, row.page.0));
            by_interval.insert((row.interval.0, row.pid.0, row.page.0));
        }
    }
    captured.pages = pages.len() as u64;
    captured.interval_pages = by_interval.len() as u64;
    captured.complete_interval_pages = captured.interval_pages;
    Ok(captured)
}

/// The study's figures: program, tool, value.
fn study(folder: &Path, file: &str) -> Result<Vec<(String, String, f64)>> {
    let path = folder.join(file);
    let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
    let row = |line: &str| {
        let mut fields = line.split(',');
        let (program, tool) = (fields.next()?, fields.next()?);
        Some((
            program.to_owned(),
            tool.to_owned(),
            fields.next()?.parse().ok()?,
        ))
    };
    Ok(text.lines().skip(1).filter_map(row).collect())
}

/// `mg.A` is the study's `mg`.
fn look_up(figures: &[(String, String, f64)], program: &str, tool: &str) -> Option<f64> {
    let program = program.split('.').next().unwrap_or(program);
    figures
        .iter()
        .find(|f| f.0 == program && f.1 == tool)
        .map(|f| f.2)
}

fn of_rounds(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    median(&rounds.iter().map(of).collect::<Vec<_>>())
}

fn percent(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| 100.0 * part / whole)
}

fn shown(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(|| "-".into(), |f| format!("{f:.digits$}"))
}

fn report(options: &Options, measured: &[(String, Vec<Round>)]) -> Result<Run> {
    let (pages, slowdowns) = match &options.study {
        Some(folder) => (
            study(folder, "moca_npb_pages_percent.csv")?,
            study(folder, "moca_npb_slowdown_intel.csv")?,
        ),
        None => (Vec::new(), Vec::new()),
    };
    let exact = options.methods.iter().position(|m| *m == Method::Exact);
    let (mut rows, mut summary) = (Vec::new(), serde_json::Map::new());
    let mut verdicts = Vec::new();
    for (i, method) in options.methods.iter().enumerate() {
        let mut slow = Vec::new();
        for (name, rounds) in measured {
            let slowdown = of_rounds(rounds, |r| r.recorded[i].0.life_s / r.plain.life_s);
            let of =
                |get: fn(&Captured) -> u64| of_rounds(rounds, |r| get(&r.recorded[i].1) as f64);
            let (run_pages, events) = (of(|c| c.pages), of(|c| c.events));
            let all = exact.map(|e| of_rounds(rounds, |r| r.recorded[e].1.pages as f64));
            let rate = of_rounds(rounds, |r| {
                r.recorded[i].1.events as f64 / r.recorded[i].0.life_s
            });
            let tool = method.baseline_tool();
            let then = |figures: &[_]| tool.and_then(|t| look_up(figures, name, t));
            rows.push(vec![
                name.clone(),
                method.name().into(),
                format!("{slowdown:.2}"),
                shown(then(&slowdowns), 2),
                format!("{run_pages:.0}"),
                shown(all.and_then(|all| percent(run_pages, all)), 2),
                shown(then(&pages), 2),
                shown(
                    percent(of(|c| c.interval_pages), of(|c| c.complete_interval_pages)),
                    2,
                ),
                format!("{:.3}", events / 1e6),
                format!("{:.3}", rate / 1e6),
                tool.unwrap_or("-").into(),
            ]);
            slow.push(slowdown);
        }
        let mean = geometric_mean(&slow);
        summary.insert(
            method.name().into(),
            json!({"geometric_mean_slowdown": mean}),
        );
        verdicts.push(format!(
            "{}: geometric mean slowdown {mean:.2}",
            method.name()
        ));
    }
    verdicts.push(
        "% of run: pages of writable memory, against those that exact counts; % of interval: against the touches of the same recording, which are \
         complete, so 100 for scan and exact by definition; then: the tool of the Moca study that worked alike, its \
         slowdown (Intel) and its % of run"
            .into(),
    );
    Ok(Run {
        name: "capture",
        options: json!({
            "interval": options.interval, "repeats": options.repeats, "threads": options.threads, "thp": "never",
            "methods": options.methods.iter().map(|m| m.name()).collect::<Vec<_>>(),
            "suite": if options.suite.is_some() { "given" } else { "workloads/bin" },
        }),
        columns: vec![
            "program",
            "method",
            "slowdown",
            "then",
            "pages",
            "% of run",
            "then",
            "% of interval",
            "10^6 events",
            "10^6/s",
            "then with",
        ],
        rows,
        verdicts,
        summary: Value::Object(summary),
        raw: measured
            .iter()
            .map(|(name, rounds)| raw(&options.methods, name, rounds))
            .collect(),
    })
}

/// Everything that was measured of a program.
pub(crate) fn raw(methods: &[Method], name: &str, rounds: &[Round]) -> Value {
    let round = |round: &Round| {
        let methods = methods.iter().zip(&round.recorded).map(|(method, (outcome, c))| {
            json!({
                "method": method.name(), "run": outcome.json(), "events": c.events, "pages": c.pages,
                "interval_pages": c.interval_pages, "complete_interval_pages": c.complete_interval_pages,
            })
        });
        json!({"plain": round.plain.json(), "recorded": methods.collect::<Vec<_>>()})
    };
    json!({"program": name, "rounds": rounds.iter().map(round).collect::<Vec<_>>()})
}
