//! Time and memory of `varve import` on text of `perf script`, and how they grow with the samples.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use crate::Common;
use crate::error::{Error, Result};
use crate::launch::{Program, sampled};
use crate::run::{Run, verdict};

const MIB: f64 = 1_048_576.0;
/// Parts of the size, of which the last is all of it.
const PARTS: [u64; 3] = [4, 2, 1];
/// The longest that all of it may take, seconds.
const MAX_SECONDS: f64 = 60.0;
/// The peak memory may grow by this factor from the smallest part to all, four times as many samples.
const MAX_GROWTH: f64 = 1.1;
/// Bytes of an object, and the distance between two.
const OBJECT: u64 = 16 << 10;
const STRIDE: u64 = 32 << 10;
/// Threads that sample.
const THREADS: u64 = 8;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Samples, in millions
    #[arg(long, default_value_t = 10)]
    million_samples: u64,
    /// Objects that they lie in
    #[arg(long, default_value_t = 100_000)]
    objects: u64,
}

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let (samples, objects) = match common.smoke {
        true => (40_000, 1000),
        false => (
            options.million_samples.max(1) * 1_000_000,
            options.objects.max(1),
        ),
    };
    let mut run = Run {
        name: "import",
        options: json!({"samples": samples, "objects": objects}),
        columns: vec![
            "samples",
            "text MiB",
            "seconds",
            "peak MiB",
            "ns per sample",
            "other CPUs",
        ],
        rows: Vec::new(),
        verdicts: Vec::new(),
        summary: Value::Null,
        raw: Value::Null,
    };
    let mut raw = Vec::new();
    let mut figures = Vec::new();
    for part in PARTS {
        let samples = samples / part;
        let text = scratch.path().join("samples.txt");
        write(&text, samples, objects).map_err(Error::io("write", &text))?;
        let bytes = fs::metadata(&text).map_err(Error::io("read", &text))?.len();
        let trace = scratch.path().join("t.varve");
        let program = Program {
            name: "import".to_owned(),
            path: common.varve.clone(),
            arguments: vec![
                "import".into(),
                "--force".into(),
                text.clone().into(),
                "-o".into(),
                trace.into(),
            ],
            threads: 1,
        };
        let outcome = sampled(common, &program)?;
        run.rows.push(vec![
            samples.to_string(),
            format!("{:.0}", bytes as f64 / MIB),
            format!("{:.2}", outcome.command_s),
            format!("{:.0}", outcome.peak_bytes as f64 / MIB),
            format!("{:.0}", outcome.command_s * 1e9 / samples as f64),
            format!("{:.2}", outcome.foreign_cpus),
        ]);
        figures.push((outcome.command_s, outcome.peak_bytes));
        raw.push(json!({
            "samples": samples, "objects": objects, "text_bytes": bytes,
            "peak_bytes": outcome.peak_bytes, "outcome": outcome.json(),
        }));
    }
    let (seconds, peak) = figures.last().copied().unwrap_or_default();
    let growth = peak as f64 / figures.first().map_or(1, |f| f.1).max(1) as f64;
    let what = format!("import of {samples} samples against {objects} objects");
    run.verdicts
        .push(verdict(&what, seconds, MAX_SECONDS, " s"));
    let what = "growth of the peak memory with four times as many samples";
    run.verdicts.push(verdict(what, growth, MAX_GROWTH, ""));
    run.summary = json!({"seconds": seconds, "peak_bytes": peak, "memory_growth": growth});
    run.raw = json!(raw);
    Ok(run)
}

/// Text as `perf script --show-mmap-events` prints it: all objects are mapped first, then each sample lies in one of them, at
/// random.
fn write(path: &Path, samples: u64, objects: u64) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    writeln!(
        out,
        "solver 1000/1000 1.000000: PERF_RECORD_COMM exec: solver:1000/1000"
    )?;
    for object in 0..objects {
        let start = (0x7f00 << 32) + object * STRIDE;
        let time = 1_000_001 + object;
        let (seconds, rest) = (time / 1_000_000, time % 1_000_000);
        writeln!(
            out,
            "solver 1000/1000 {seconds}.{rest:06}: PERF_RECORD_MMAP2 1000/1000: [{start:#x}({OBJECT:#x}) @ 0 00:00 0 0]: rw-p //anon"
        )?;
    }
    let mut seed = 1u64;
    for sample in 0..samples {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let address = (0x7f00 << 32) + (seed >> 33) % objects * STRIDE + (seed >> 20) % OBJECT;
        let time = 1_000_001 + objects + sample;
        let (seconds, rest) = (time / 1_000_000, time % 1_000_000);
        let thread = 1000 + (seed >> 12) % THREADS;
        let place = (seed >> 8) % 64;
        writeln!(
            out,
            "solver  1000/{thread} [{:03}] {seconds}.{rest:06}:          1 cpu/mem-loads,ldlat=30/P: {address:>16x}         5080021 |OP LOAD|LVL L3 hit|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A {:>15} {:>16x} step_{place}+0x16 (/usr/bin/solver)",
            thread % 2,
            40 + (seed >> 40) % 300,
            0x40_1000 + place * 16,
        )?;
    }
    out.flush()
}
