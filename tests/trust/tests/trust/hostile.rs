//! Hostile ELF, DWARF, files and names that a target brings.

mod cfi;
mod escapes;
mod files;
mod generated;
mod interrupts;
mod memory;

use varve_faults::{Stage, varve_binary};

/// Requires that `varve report` reads the stage's trace.
fn readable(stage: &Stage) {
    let mut report = stage.command(varve_binary());
    report.args(["report", "trace.varve"]);
    stage.run(report).require(0);
}
