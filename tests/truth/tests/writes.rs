//! What a trace says of writes: of no page that was written that it was not, of no page that was not
//! that it was, and how many pages it says nothing of.
//!
//! On kernels with soft-dirty bits these are tested, on others userfaultfd's write protection.

use std::process::ExitCode;
use std::time::Duration;

use varve_truth::{
    Case, Outcome, Plan, Problem, Recorded, judge, make_workloads, record, run_suite,
};

/// The exit code of a workload that cannot run on this machine.
const CANNOT: i32 = 77;

/// The workloads, and of how many percent of touched arena pages the trace must know whether they were
/// written: first touches by reading and what a process without the preload library does are not known.
const WORKLOADS: &[(&str, u64)] = &[
    ("writeonly", 80),
    ("readonly", 60),
    ("read_then_write", 60),
    // Its arena is filled within the first interval, before anything can be protected: what is left are
    // the phases that touch it again.
    ("hot64", 20),
    ("straddle", 60),
    ("gather", 60),
    ("threads", 60),
    ("thp", 0),
    ("zeropage", 0),
    ("filemap", 0),
    ("shm", 0),
    ("cow_fork", 0),
    ("mremap", 0),
    ("dontneed", 0),
    ("vanish", 0),
    ("exec", 0),
    ("stackgrow", 0),
    ("kernelbuf", 0),
    ("shortthreads", 0),
    ("sweep", 60),
    ("written", 40),
];

fn main() -> ExitCode {
    if let Err(problem) = make_workloads() {
        println!("FAIL the workloads cannot be built: {problem}");
        return ExitCode::FAILURE;
    }
    let mut cases: Vec<Case> = WORKLOADS
        .iter()
        .map(|&(workload, known)| Case::new(workload, move || reported(workload, 50, known)))
        .collect();
    // Shorter intervals have more boundaries, at which something may go wrong.
    for workload in ["written", "kernelbuf", "mremap", "shm", "cow_fork"] {
        let name = format!("{workload} @10 ms");
        cases.push(Case::new(name, move || reported(workload, 10, 0)));
    }
    cases.push(Case::new("readonly --writes=off", nothing_reported));
    run_suite("writes", &cases)
}

fn run(workload: &'static str, interval: u64, option: &str) -> Result<Recorded, Problem> {
    let mut plan = Plan::workload(workload, Duration::from_millis(interval));
    plan.options = vec![option.into()];
    // The first intervals, which set-up takes, tell little, and on a busy machine intervals are long.
    plan.phase *= 2;
    record(&plan)
}

/// Pages of arenas that the trace says were written, were not, and says nothing of.
#[derive(Default)]
struct Reported {
    written: u64,
    unwritten: u64,
    nothing: u64,
}

impl Reported {
    fn of(recorded: &Recorded) -> Reported {
        let mut reported = Reported::default();
        for ((_, pid), layer) in &recorded.touches.layers {
            let arenas = recorded.oracle.arenas.iter().filter(|a| a.pid == *pid);
            for arena in arenas {
                let (first, end) = (arena.pages.first.0, arena.pages.first.0 + arena.pages.pages);
                for touch in &layer.touches {
                    let to = (touch.first.0 + touch.pages).min(end);
                    let pages = to.saturating_sub(touch.first.0.max(first));
                    match touch.written {
                        Some(true) => reported.written += pages,
                        Some(false) => reported.unwritten += pages,
                        None => reported.nothing += pages,
                    }
                }
            }
        }
        reported
    }

    fn percent_known(&self) -> u64 {
        let known = self.written + self.unwritten;
        known * 100 / (known + self.nothing).max(1)
    }
}

fn reported(workload: &'static str, interval: u64, known: u64) -> Result<Outcome, Problem> {
    let recorded = run(workload, interval, "--writes=on")?;
    if recorded.finished.code == CANNOT {
        return Ok(Outcome::Skip(recorded.finished.stderr.trim().to_owned()));
    }
    let verdict = judge(&recorded.oracle, &recorded.touches);
    let reported = Reported::of(&recorded);
    let source = recorded.trace.manifest.features.writes.clone();
    let complete = recorded.trace.manifest.completeness.complete;
    recorded.finished.require(0)?;
    let line = format!(
        "{}: written {}, not written {}, not known {} ({} % known); denied {}, invented {}, missed {}",
        source.as_deref().unwrap_or("nothing"),
        reported.written,
        reported.unwritten,
        reported.nothing,
        reported.percent_known(),
        verdict.writes_denied,
        verdict.writes_invented,
        verdict.missed(),
    );
    let right = verdict.writes_denied + verdict.writes_invented + verdict.missed() == 0;
    if right && complete && source.is_some() && reported.percent_known() >= known {
        Ok(Outcome::Pass(line))
    } else {
        Ok(Outcome::Fail(line, verdict.failures))
    }
}

fn nothing_reported() -> Result<Outcome, Problem> {
    let recorded = run("readonly", 50, "--writes=off")?;
    let reported = Reported::of(&recorded);
    let line = format!(
        "not known {}, known {}",
        reported.nothing,
        reported.written + reported.unwritten
    );
    if reported.written + reported.unwritten == 0 && reported.nothing > 0 {
        Ok(Outcome::Pass(line))
    } else {
        Ok(Outcome::Fail(line, Vec::new()))
    }
}
