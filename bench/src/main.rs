//! Benchmarks of Varve. Each prints a table of ratios taken within one run, and writes what it
//! measured, raw, into `bench/runs/`. `docs/benchmarks.md` says how to read them.

mod alloc;
mod capture;
mod density;
mod error;
mod exact;
mod fault;
mod hold;
mod importing;
mod launch;
mod marks;
mod memory;
mod minimum;
mod overhead;
mod reading;
mod run;
mod samples;
mod servers;
mod start;
mod statistics;
mod study;
mod synthesis;
mod targets;
mod tier;
mod trace_size;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::error::Result;

#[derive(Debug, Parser)]
#[command(
    name = "varve-bench",
    about = "What recording with Varve costs",
    arg_required_else_help = true
)]
struct Arguments {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    benchmark: Benchmark,
}

/// What all benchmarks share.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The varve to measure
    #[arg(
        long,
        value_name = "FILE",
        default_value = "target/release/varve",
        global = true
    )]
    pub(crate) varve: PathBuf,
    /// Folder for the results
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "bench/runs",
        global = true
    )]
    pub(crate) runs: PathBuf,
    /// Folder for traces while they are needed
    #[arg(long, value_name = "FOLDER", default_value = "/tmp", global = true)]
    pub(crate) scratch: PathBuf,
    /// Run everything once, small, and judge no time: for CI
    #[arg(long, global = true)]
    pub(crate) smoke: bool,
    /// Goes into the name of the result file
    #[arg(long, value_name = "WORD", global = true)]
    pub(crate) label: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Slowdown of programs, plain and recorded by turns
    Overhead(overhead::Options),
    /// Slowdown by samples at 1000/s and 4000/s, against none, by turns
    Samples(samples::Options),
    /// Slowdown of programs whose every access is counted, beside the emulator alone
    Exact(exact::Options),
    /// What each backend captures, at what price, and how fast
    Capture(capture::Options),
    /// The figures of the Moca study: pages, events and slowdown by method, and a sweep of intervals, as tables and plots
    Study(study::Options),
    /// Slowdown of programs whose first access to each page in an interval traps, by turns
    Fault(fault::Options),
    /// What servers and everyday commands lose, and somebody whom nobody records
    Servers(servers::Options),
    /// Slowdown of programs whose allocator operations are counted, beside heaptrack, by turns
    Alloc(alloc::Options),
    /// The time before the target begins and after its end, and what each process of a shell script costs
    Start(start::Options),
    /// How long the target is held, by threads and resident memory
    Hold(hold::Options),
    /// What the name of a phase costs, where nobody records and where somebody does
    Marks(marks::Options),
    /// Peak memory of the recorder
    Memory(memory::Options),
    /// Bits of trace per resident page and interval
    TraceSize(trace_size::Options),
    /// Bits of the touches table at given densities of random touches, and its decoding speed
    Density(density::Options),
    /// Time and memory of `varve report`, and how they grow with the trace
    Report(reading::Options),
    /// Time and memory of `varve import`, and how they grow with the samples
    Import(importing::Options),
    /// Time and memory of `varve tier simulate` under eight policies
    Tier(tier::Options),
    /// Only make the trace that `report` reads, to look at or to profile with
    Synthesize(Synthesize),
}

#[derive(Debug, Args)]
struct Synthesize {
    /// Trace folder to write
    folder: PathBuf,
    #[command(flatten)]
    size: reading::Size,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let common = &arguments.common;
    let run = match &arguments.benchmark {
        Benchmark::Overhead(options) => overhead::measure(common, options),
        Benchmark::Samples(options) => samples::measure(common, options),
        Benchmark::Exact(options) => exact::measure(common, options),
        Benchmark::Capture(options) => capture::measure(common, options),
        Benchmark::Study(options) => study::measure(common, options),
        Benchmark::Fault(options) => fault::measure(common, options),
        Benchmark::Servers(options) => servers::measure(common, options),
        Benchmark::Alloc(options) => alloc::measure(common, options),
        Benchmark::Start(options) => start::measure(common, options),
        Benchmark::Hold(options) => hold::measure(common, options),
        Benchmark::Marks(options) => marks::measure(common, options),
        Benchmark::Memory(options) => memory::measure(common, options),
        Benchmark::TraceSize(options) => trace_size::measure(common, options),
        Benchmark::Density(options) => density::measure(common, options),
        Benchmark::Report(options) => reading::measure(common, options),
        Benchmark::Import(options) => importing::measure(common, options),
        Benchmark::Tier(options) => tier::measure(common, options),
        Benchmark::Synthesize(options) => {
            let size = options.size;
            let rows = synthesis::write(&options.folder, size.rows(), size.intervals, 0)?;
            println!("{}: {rows} rows", options.folder.display());
            return Ok(());
        }
    }?;
    run.print(common);
    run.write(common)
}
