//! One run of a benchmark: its table, its raw data, and where and with what it was taken.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::Common;
use crate::error::{Error, Result};

/// What a benchmark gives back.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its name, part of the result's file name.
    pub(crate) name: &'static str,
    /// The options that matter, as given.
    pub(crate) options: Value,
    /// Column titles.
    pub(crate) columns: Vec<&'static str>,
    /// The table, as printed.
    pub(crate) rows: Vec<Vec<String>>,
    /// One sentence each: a figure, its target, whether it holds.
    pub(crate) verdicts: Vec<String>,
    /// Summary figures for machines.
    pub(crate) summary: Value,
    /// Everything that was measured.
    pub(crate) raw: Value,
}

impl Run {
    /// Prints the table; nothing is judged in smoke mode.
    pub(crate) fn print(&self, common: &Common) {
        let mut widths: Vec<usize> = self.columns.iter().map(|c| c.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &[String]| {
            let padded = cells.iter().zip(&widths).enumerate();
            let padded = padded.map(|(i, (cell, width))| match i {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            println!("{}", padded.collect::<Vec<_>>().join("  ").trim_end());
        };
        line(
            &self
                .columns
                .iter()
                .map(|c| (*c).to_owned())
                .collect::<Vec<_>>(),
        );
        for row in &self.rows {
            line(row);
        }
        if !common.smoke {
            for verdict in &self.verdicts {
                println!("{verdict}");
            }
        }
    }

    /// Writes the result file; in smoke mode it is only made, not kept.
    pub(crate) fn write(&self, common: &Common) -> Result<()> {
        let date = date();
        let label = common.label.as_ref().map(|l| format!("-{l}"));
        let path = common.runs.join(format!(
            "{date}-{}{}.json",
            self.name,
            label.unwrap_or_default()
        ));
        let machine = varve_sys::facts();
        let document = json!({
            "schema": "varve-bench-1",
            "benchmark": self.name,
            "date": said("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"]),
            "machine": {
                "cpu": machine.cpu,
                "cpus": machine.cpus,
                "memory_bytes": machine.memory.0,
                "kernel": machine.kernel,
                "architecture": machine.architecture,
                "virtual_machine": machine.virtual_machine,
            },
            "versions": {
                "varve": said(&common.varve.to_string_lossy(), &["--version"]),
                "commit": said("git", &["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]),
                "cc": said("cc", &["--version"]).and_then(|t| t.lines().next().map(str::to_owned)),
            },
            "options": self.options,
            "summary": self.summary,
            "verdicts": self.verdicts,
            "raw": self.raw,
        });
        let text = format!("{document:#}\n");
        if common.smoke {
            println!("smoke: nothing was judged and nothing is kept");
            return Ok(());
        }
        fs::create_dir_all(&common.runs).map_err(Error::io("create", &common.runs))?;
        fs::write(&path, text).map_err(Error::io("write", &path))?;
        println!("wrote {}", path.display());
        Ok(())
    }
}

/// Today, as part of a file's name.
pub(crate) fn date() -> String {
    said("date", &["-u", "+%Y-%m-%d"]).unwrap_or_else(|| "undated".into())
}

/// What a program prints, trimmed; nothing where it fails.
fn said(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// A sentence on a figure and its target.
pub(crate) fn verdict(what: &str, figure: f64, most: f64, unit: &str) -> String {
    let holds = if figure <= most {
        "holds"
    } else {
        "DOES NOT HOLD"
    };
    format!("{what}: {figure:.3}{unit}, target at most {most:.3}{unit}: {holds}")
}
