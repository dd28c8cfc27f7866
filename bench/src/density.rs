//! The touches table at given densities of uniformly random touches, the worst case for runs: what
//! the entropy is, what the table takes, how fast it is decoded.

use std::fs;
use std::path::Path;
use std::time::Instant;

use clap::Args;
use serde_json::json;
use varve_model::{Interval, Page, Pid, TouchSource};
use varve_trace::tables::TouchRow;
use varve_trace::{Trace, TraceWriter, write_table};

use crate::Common;
use crate::error::{Error, Result};
use crate::run::{Run, verdict};
use crate::statistics::greatest;
use crate::synthesis::manifest;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Pages resident
    #[arg(long, default_value_t = 65_536)]
    pages: u64,
    /// Intervals
    #[arg(long, default_value_t = 100)]
    intervals: u32,
}

/// Densities that are tried, percent.
const PERCENT: [u32; 11] = [2, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90];

pub(crate) fn measure(common: &Common, options: &Options) -> Result<Run> {
    let (pages, intervals) = match common.smoke {
        true => (4096, 4),
        false => (options.pages, options.intervals),
    };
    let scratch = tempfile::tempdir_in(&common.scratch)
        .map_err(Error::io("make a folder in", &common.scratch))?;
    let folder = scratch.path().join("density.varve");
    // A trace that has touches only needs a manifest all the same.
    let writer = TraceWriter::create(&folder, &manifest(0))?;
    let (mut rows, mut raw, mut most) = (Vec::new(), Vec::new(), Vec::new());
    for percent in PERCENT {
        let touches = random_touches(pages, intervals, f64::from(percent) / 100.0);
        let began = Instant::now();
        write_table(writer.folder(), &touches)?;
        let written = began.elapsed().as_secs_f64();
        let path = folder.join("touches.parquet");
        let bytes = fs::metadata(&path).map_err(Error::io("read", &path))?.len();
        let began = Instant::now();
        let read = count(&folder)?;
        let decoded = began.elapsed().as_secs_f64();
        let touched: u64 = touches.iter().map(|t| u64::from(t.pages)).sum();
        if read != touched {
            return Err(Error::Failed(format!(
                "{touched} pages went in and {read} came out"
            )));
        }
        let cells = (pages * u64::from(intervals)) as f64;
        let bits = bytes as f64 * 8.0 / cells;
        most.push(bits);
        let p = f64::from(percent) / 100.0;
        let entropy = -(p * p.log2() + (1.0 - p) * (1.0 - p).log2());
        rows.push(vec![
            format!("{percent} %"),
            format!("{entropy:.3}"),
            format!("{bits:.3}"),
            format!("{:.2}", bits / entropy),
            format!("{:.2}", written * 1e9 / cells),
            format!("{:.2}", decoded * 1e9 / cells),
        ]);
        raw.push(json!({
            "density": p, "entropy_bits": entropy, "bytes": bytes, "runs": touches.len(),
            "write_s": written, "read_s": decoded,
        }));
    }
    Ok(Run {
        name: "density",
        options: json!({"pages": pages, "intervals": intervals}),
        columns: vec![
            "touched",
            "entropy",
            "bits",
            "bits / entropy",
            "write ns",
            "read ns",
        ],
        rows,
        verdicts: vec![verdict(
            "most bits per page and interval",
            greatest(&most),
            1.1,
            " bits",
        )],
        summary: json!({"most_bits": greatest(&most)}),
        raw: raw.into(),
    })
}

/// Pages of the table, through the reader that reports use.
fn count(folder: &Path) -> Result<u64> {
    let mut pages = 0;
    for unit in Trace::open(folder)?.touch_units()? {
        unit.read(|columns| {
            pages += columns.pages.iter().map(|p| u64::from(*p)).sum::<u64>();
            true
        })?;
    }
    Ok(pages)
}

/// Runs of pages of which each is touched with the same chance.
fn random_touches(pages: u64, intervals: u32, density: f64) -> Vec<TouchRow> {
    let mut state = 1;
    let mut rows: Vec<TouchRow> = Vec::new();
    for interval in 0..intervals {
        let mut previous = false;
        for page in 0..pages {
            let touched = unit(&mut state) < density;
            match rows.last_mut() {
                Some(last) if touched && previous => last.pages += 1,
                _ if touched => rows.push(TouchRow {
                    interval: Interval(interval),
                    pid: Pid(1),
                    page: Page(0x7f_0000_0000 + page),
                    pages: 1,
                    page_bytes: 4096,
                    written: None,
                    source: TouchSource::Scan,
                }),
                _ => {}
            }
            previous = touched;
        }
    }
    rows
}

/// splitmix64, as a number in [0, 1).
fn unit(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
