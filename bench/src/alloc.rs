//! Slowdown of programs whose allocator operations are counted, beside heaptrack: in each round every program plain, counted and
//! under heaptrack, one after the other.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;
use serde_json::{Value, json};

use crate::Common;
use crate::error::Result;
use crate::launch::{Outcome, Peak, Program, plain, recorded_by, under};
use crate::run::{Run, verdict};
use crate::statistics::{geometric_mean, greatest, median};
use crate::targets::Targets;

/// Programs that spend up to 20 % of their time allocating may take so much longer, and those that do nothing else.
const ORDINARY: f64 = 1.05;
const STRESS: f64 = 1.5;
/// With many threads the time may be so many times the plain one: 60 % of the throughput.
const THREADS: f64 = 1.0 / 0.6;
/// heaptrack's overhead is to be so many times ours at least.
const HEAPTRACK: f64 = 3.0;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Rounds
    #[arg(long, default_value_t = 5)]
    repeats: u32,
    /// Pairs of operations of the stress programs
    #[arg(long, default_value_t = 5_000_000)]
    pairs: u64,
    /// Programs whose names contain this
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Ordinary,
    Stress,
    Threads,
}

struct Measured {
    program: Program,
    class: Class,
    plain: Vec<f64>,
    counted: Vec<f64>,
    heaptrack: Vec<f64>,
    raw: Vec<Value>,
}

impl Measured {
    /// The median of the ratios of one round each.
    fn ratio(&self, of: &[f64]) -> Option<f64> {
        let ratios: Vec<f64> = of.iter().zip(&self.plain).map(|(a, b)| a / b).collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }
}

/// A program of the machine's, where it is there.
fn installed(path: &str, arguments: &[&str]) -> Option<Program> {
    let path = PathBuf::from(path);
    path.is_file().then(|| Program {
        name: path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        path,
        arguments: arguments.iter().map(Into::into).collect(),
        threads: 1,
    })
}

fn programs(targets: &Targets, options: &Options, smoke: bool) -> Vec<(Program, Class)> {
    let pairs = if smoke { 20_000 } else { options.pairs };
    let blocks = |threads: u64, pairs: u64, work: u64| {
        let arguments = [threads, pairs, work].map(|n| n.to_string());
        targets.program("blocks", &arguments)
    };
    let rows = if smoke { 1000 } else { 400_000 };
    let table = format!(
        "create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < {rows}) \
         insert into t select x, hex(randomblob(20)) from c; select count(*), sum(length(b)) from t;"
    );
    let words = if smoke { 1000 } else { 300_000 };
    let perl = format!(
        "my %h; $h{{$_ % 5000}} .= $_ for 1..{words}; my $n = 0; for (1..{words}) {{ $n += length($h{{$_ % 5000}}) }} print $n"
    );
    let python = format!(
        "d = {{}}\nfor i in range({words}): d[i % 7000] = str(i) * 3\nprint(sum(len(v) for v in d.values()))"
    );
    let ordinary = [
        Some(blocks(1, pairs / 5, 400)),
        installed("/usr/bin/sqlite3", &[":memory:", &table]),
        installed("/usr/bin/perl", &["-e", &perl]),
        installed("/usr/bin/python3", &["-c", &python]),
    ];
    let mut all: Vec<(Program, Class)> = Vec::new();
    all.extend(ordinary.into_iter().flatten().map(|p| (p, Class::Ordinary)));
    all.push((blocks(1, pairs, 0), Class::Stress));
    all.push((blocks(1, pairs, 20), Class::Stress));
    for threads in [2, 8, 64] {
        all.push((blocks(threads, pairs, 0), Class::Threads));
    }
    all.retain(|(program, _)| program.name.contains(&options.only));
    all
}

/// What a program says that it took, or its life.
fn seconds(outcome: &Outcome) -> f64 {
    outcome.own_s.unwrap_or(outcome.life_s)
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let targets = Targets::build(common)?;
    let folder = targets.trace_folder();
    let repeats = if common.smoke {
        1
    } else {
        options.repeats.max(1)
    };
    let has_heaptrack = Command::new("heaptrack").arg("--version").output().is_ok();
    let data = folder.with_extension("heap");
    let fresh = |(program, class)| Measured {
        program,
        class,
        plain: Vec::new(),
        counted: Vec::new(),
        heaptrack: Vec::new(),
        raw: Vec::new(),
    };
    let programs = programs(&targets, options, common.smoke);
    let mut all: Vec<Measured> = programs.into_iter().map(fresh).collect();
    for _ in 0..repeats {
        for of in &mut all {
            let alone = plain(common, &of.program)?;
            let words: (&[&str], &[&str]) = (&["alloc", "record", "--pages", "off"], &[]);
            let (counted, _) = recorded_by(common, &of.program, words, &folder, Peak::Ignored)?;
            let heaptrack = match has_heaptrack {
                false => None,
                true => {
                    let before: [&OsStr; 2] = ["-o".as_ref(), data.as_os_str()];
                    Some(under(common, &of.program, "heaptrack", &before)?)
                }
            };
            of.plain.push(seconds(&alone));
            of.counted.push(seconds(&counted));
            of.heaptrack.extend(heaptrack.as_ref().map(seconds));
            of.raw.push(json!({
                "plain": alone.json(), "counted": counted.json(), "heaptrack": heaptrack.map(|h| h.json()),
            }));
        }
    }
    Ok(summarised(options, repeats, &all))
}

fn summarised(options: &Options, repeats: u32, all: &[Measured]) -> Run {
    let shown = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), |r| format!("{r:.3}"));
    let rows = all.iter().map(|of| {
        let (counted, heaptrack) = (of.ratio(&of.counted), of.ratio(&of.heaptrack));
        let times = counted.zip(heaptrack);
        vec![
            of.program.name.clone(),
            format!("{:.3} s", median(&of.plain)),
            shown(counted),
            shown(heaptrack),
            times.map_or_else(
                || "-".to_owned(),
                |(c, h)| match c - 1.0 {
                    over if over > 0.005 => format!("{:.1}", (h - 1.0) / over),
                    _ => "-".to_owned(),
                },
            ),
        ]
    });
    let ratios = |class: Class| -> Vec<f64> {
        let of = all.iter().filter(|m| m.class == class);
        of.filter_map(|m| m.ratio(&m.counted)).collect()
    };
    let overheads = |of: fn(&Measured) -> Option<f64>| {
        let found: Vec<f64> = all
            .iter()
            .filter_map(of)
            .map(|r| (r - 1.0).max(0.001))
            .collect();
        geometric_mean(&found)
    };
    let (ours, theirs) = (
        overheads(|m| m.ratio(&m.counted)),
        overheads(|m| m.ratio(&m.heaptrack)),
    );
    let [ordinary, stress] = [Class::Ordinary, Class::Stress].map(|c| geometric_mean(&ratios(c)));
    let threads = greatest(&ratios(Class::Threads));
    let mut verdicts = vec![
        verdict(
            "ordinary programs, geometric mean",
            ordinary,
            ORDINARY,
            " times plain",
        ),
        verdict(
            "allocation stress, geometric mean",
            stress,
            STRESS,
            " times plain",
        ),
        verdict("many threads, at worst", threads, THREADS, " times plain"),
    ];
    if theirs > 0.0 {
        verdicts.push(verdict(
            "our overhead, of heaptrack's",
            ours / theirs,
            1.0 / HEAPTRACK,
            "",
        ));
    }
    Run {
        name: "alloc",
        options: json!({"repeats": repeats, "pairs": options.pairs, "only": options.only}),
        columns: vec![
            "program",
            "plain",
            "counted",
            "heaptrack",
            "its overhead / ours",
        ],
        rows: rows.collect(),
        verdicts,
        summary: json!({
            "ordinary": ordinary, "stress": stress, "threads_worst": threads, "overhead": ours, "heaptrack_overhead": theirs,
        }),
        raw: all
            .iter()
            .map(|m| json!({"program": m.program.name, "rounds": m.raw}))
            .collect(),
    }
}
