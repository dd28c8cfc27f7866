//! How much slower programs run while every access is counted, beside what the emulator alone costs.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use varve_trace::tables::CountRow;

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Outcome, Peak, Program, plain, recorded};
use crate::overhead::executables;
use crate::run::{Run, verdict};
use crate::statistics::{geometric_mean, greatest, median};

/// The emulator, with the processor that the recorder chooses.
const EMULATOR: [&str; 3] = ["/usr/bin/qemu-x86_64", "-cpu", "max"];

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Folder of programs, all of which are run [default: cg and is of workloads/bin]
    #[arg(long, value_name = "FOLDER")]
    suite: Option<PathBuf>,
    /// Only these programs of the suite
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Accesses in an interval; 0: the whole run is one
    #[arg(long, default_value_t = 0)]
    interval_accesses: u64,
    /// Rounds of runs for each program
    #[arg(long, default_value_t = 3)]
    repeats: u32,
    /// OMP_NUM_THREADS
    #[arg(long, default_value_t = 2)]
    threads: u32,
}

/// One round: plain, in the emulator alone, and counted.
struct Round {
    plain: Outcome,
    emulated: Outcome,
    counted: Outcome,
    accesses: u64,
}

struct Measured {
    name: String,
    rounds: Vec<Round>,
    incomplete: Vec<String>,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let mut measured = Vec::new();
    for program in programs(common, options)? {
        eprintln!("{} ...", program.name);
        measured.push(rounds(common, options, &program)?);
    }
    Ok(report(options, &measured))
}

fn programs(common: &Common, options: &Options) -> Result<Vec<Program>> {
    let (folder, mut names) = match &options.suite {
        Some(folder) => (folder.clone(), executables(folder)?),
        None => (
            "workloads/bin".into(),
            ["cg", "is"].map(str::to_owned).to_vec(),
        ),
    };
    if !options.only.is_empty() {
        names.retain(|n| options.only.contains(n));
    }
    if names.is_empty() {
        return Err(Error::Failed(format!(
            "there is no program to run in {}",
            folder.display()
        )));
    }
    // Emulated, the committed programs take their smallest size even in a full run.
    let seconds = if common.smoke { "0.01" } else { "0.2" };
    let small = ["--size", "S", "--seconds", seconds];
    Ok(names
        .into_iter()
        .map(|name| Program {
            path: folder.join(&name),
            name,
            arguments: match options.suite {
                None => small.map(Into::into).to_vec(),
                Some(_) => Vec::new(),
            },
            threads: options.threads,
        })
        .collect())
}

fn rounds(common: &Common, options: &Options, program: &Program) -> Result<Measured> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let folder = scratch.path().join("exact.varve");
    let emulated = Program {
        path: EMULATOR[0].into(),
        arguments: EMULATOR[1..]
            .iter()
            .map(Into::into)
            .chain([program.path.clone().into_os_string()])
            .chain(program.arguments.iter().cloned())
            .collect(),
        ..program.clone()
    };
    let mut arguments = vec!["--backend", "exact"];
    let length = options.interval_accesses.to_string();
    if options.interval_accesses > 0 {
        arguments.extend(["--interval-accesses", &length]);
    }
    let mut measured = Measured {
        name: program.name.clone(),
        rounds: Vec::new(),
        incomplete: Vec::new(),
    };
    let repeats = if common.smoke {
        1
    } else {
        options.repeats.max(1)
    };
    for _ in 0..repeats {
        // What drifts on the machine meets all three alike.
        let plain_run = plain(common, program)?;
        let emulated_run = plain(common, &emulated)?;
        let (counted, trace) = recorded(common, program, &arguments, &folder, Peak::Ignored)?;
        let mut accesses = 0;
        for batch in trace.batches::<CountRow>()? {
            accesses += batch?.iter().map(|r| r.reads + r.writes).sum::<u64>();
        }
        let completeness = &trace.manifest.completeness;
        if !completeness.complete {
            measured.incomplete.push(completeness.statement.clone());
        }
        eprintln!(
            "  {:.2} s plain, {:.2} s emulated, {:.2} s counted",
            plain_run.life_s, emulated_run.life_s, counted.life_s
        );
        measured.rounds.push(Round {
            plain: plain_run,
            emulated: emulated_run,
            counted,
            accesses,
        });
    }
    Ok(measured)
}

fn ratios(measured: &Measured, of: impl Fn(&Round) -> f64) -> f64 {
    median(&measured.rounds.iter().map(of).collect::<Vec<_>>())
}

fn report(options: &Options, measured: &[Measured]) -> Run {
    let mut rows = Vec::new();
    let (mut to_plain, mut to_emulated, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for m in measured {
        let slow = ratios(m, |r| r.counted.life_s / r.plain.life_s);
        let more = ratios(m, |r| r.counted.life_s / r.emulated.life_s);
        let emulator = ratios(m, |r| r.emulated.life_s / r.plain.life_s);
        // Threads count side by side.
        let threads = f64::from(options.threads);
        let each = ratios(m, |r| {
            (r.counted.life_s - r.emulated.life_s) * threads * 1e9 / r.accesses.max(1) as f64
        });
        let foreign: Vec<f64> = m
            .rounds
            .iter()
            .flat_map(|r| [&r.plain, &r.emulated, &r.counted])
            .map(|o| o.foreign_cpus + o.stolen_cpus)
            .collect();
        rows.push(vec![
            m.name.clone(),
            format!("{:.2}", ratios(m, |r| r.plain.life_s)),
            format!("{slow:.1}"),
            format!("{emulator:.1}"),
            format!("{more:.2}"),
            format!("{:.2}", ratios(m, |r| r.accesses as f64) / 1e9),
            format!("{each:.1}"),
            format!("{:.2}", greatest(&foreign)),
            if m.incomplete.is_empty() { "yes" } else { "no" }.into(),
        ]);
        to_plain.push(slow);
        to_emulated.push(more);
        bare.push(emulator);
    }
    let mean = geometric_mean(&to_plain);
    Run {
        name: "exact",
        options: json!({
            "interval_accesses": options.interval_accesses, "repeats": options.repeats, "threads": options.threads,
            "suite": if options.suite.is_some() { "given" } else { "workloads/bin" },
        }),
        columns: vec![
            "program", "plain s", "slowdown", "emulator alone", "to emulator", "10^9 accesses", "ns each",
            "other CPUs", "complete",
        ],
        rows,
        verdicts: vec![
            verdict("geometric mean slowdown", mean, 35.0, ""),
            format!(
                "the emulator alone: geometric mean {:.2}; counting makes it {:.2} times that",
                geometric_mean(&bare),
                geometric_mean(&to_emulated)
            ),
        ],
        summary: json!({
            "geometric_mean": mean, "emulator_geometric_mean": geometric_mean(&bare),
            "to_emulator_geometric_mean": geometric_mean(&to_emulated), "worst": greatest(&to_plain),
        }),
        raw: measured
            .iter()
            .map(|m| {
                json!({
                    "program": m.name,
                    "rounds": m.rounds.iter().map(|r| json!({
                        "plain": r.plain.json(), "emulated": r.emulated.json(), "counted": r.counted.json(),
                        "accesses": r.accesses,
                    })).collect::<Vec<_>>(),
                    "incomplete": m.incomplete,
                })
            })
            .collect(),
    }
}
