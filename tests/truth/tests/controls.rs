//! Negative controls: with one mechanism left out, the oracle that needs it must find pages missing;
//! with it, none. Both recordings are made in the same run.

use std::process::ExitCode;
use std::time::Duration;

use varve_truth::{
    Case, Outcome, Plan, Problem, Verdict, is_emulated, judge, make_workloads, record, run_suite,
};

/// How often a control is tried: what it waits for is a matter of luck. In one run of six, and in several
/// runs on end, a virtual machine keeps no translation of `hot64` from one interval to the next. Without holds of slices one try of ten
/// loses pages: of 200 tries none does in one run of 10^9.
const TRIES: usize = 200;

struct Control {
    mechanism: &'static str,
    workload: &'static str,
    interval: u64,
    options: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
    /// Missed pages count in phases whose names begin so: others may fail for other reasons.
    phases: &'static [&'static str],
}

const CONTROLS: &[Control] = &[
    // Translations that stay in the TLB do not set the accessed bit again.
    Control {
        mechanism: "flush",
        workload: "hot64",
        interval: 10,
        options: &[],
        environment: &[],
        phases: &["hot"],
    },
    // An access between the reading and the clearing of its bit is lost. The larger the resident
    // memory and the shorter the interval, the larger the share of time in which that can happen.
    Control {
        mechanism: "hold",
        workload: "sweep",
        interval: 10,
        options: &[],
        environment: &[("SWEEP_MB", "512"), ("SWEEPS", "10")],
        phases: &["sweep"],
    },
    // The same where each boundary is a pass of many short holds: an access is lost between the reading and clearing of its part.
    Control {
        mechanism: "hold",
        workload: "sweep",
        interval: 10,
        options: &["--hold", "cgroup", "--max-hold", "2ms"],
        environment: &[("SWEEP_MB", "512"), ("SWEEPS", "10")],
        phases: &["sweep"],
    },
    // The kernel reaches the pages of an O_DIRECT transfer without their accessed bit.
    Control {
        mechanism: "page-flags",
        workload: "kernelbuf",
        interval: 50,
        options: &[],
        environment: &[],
        phases: &["O_DIRECT", "io_uring O_DIRECT"],
    },
    Control {
        mechanism: "vanish",
        workload: "vanish",
        interval: 50,
        options: &[],
        environment: &[],
        phases: &["map,", "replaced", "brk", "touched once"],
    },
    Control {
        mechanism: "vanish",
        workload: "exec",
        interval: 50,
        options: &[],
        environment: &[],
        phases: &["touch and exec"],
    },
    Control {
        mechanism: "vanish",
        workload: "shortlife",
        interval: 50,
        options: &[],
        environment: &[],
        phases: &["parent", "child"],
    },
    Control {
        mechanism: "vanish",
        workload: "mremap",
        interval: 50,
        options: &[],
        environment: &[],
        phases: &["touch and"],
    },
    Control {
        mechanism: "vanish",
        workload: "dontneed",
        interval: 50,
        options: &[],
        environment: &[],
        phases: &["MADV_"],
    },
    Control {
        mechanism: "vanish",
        workload: "shm",
        interval: 50,
        options: &[],
        environment: &[],
        phases: &["touch and detach"],
    },
    Control {
        mechanism: "vanish",
        workload: "truncated",
        interval: 50,
        options: &[],
        environment: &[],
        phases: &["touched, then"],
    },
];

fn main() -> ExitCode {
    if let Err(problem) = make_workloads() {
        println!("FAIL the workloads cannot be built: {problem}");
        return ExitCode::FAILURE;
    }
    let cases: Vec<Case> = CONTROLS
        .iter()
        .map(|c| {
            let words = [&[c.workload], c.options, &["without", c.mechanism]].concat();
            Case::new(words.join(" "), || run(c))
        })
        .collect();
    run_suite("controls", &cases)
}

fn missed(verdict: &Verdict, control: &Control) -> u64 {
    let counts = |phase: &str| control.phases.iter().any(|p| phase.starts_with(p));
    verdict
        .missed_in
        .iter()
        .filter(|(phase, _)| counts(phase))
        .map(|(_, n)| n)
        .sum()
}

fn run_once(
    control: &Control,
    without: Option<&'static str>,
) -> Result<(u64, Verdict, bool), Problem> {
    let mut plan = Plan::workload(control.workload, Duration::from_millis(control.interval));
    plan.environment = control
        .environment
        .iter()
        .map(|(k, v)| (*k, (*v).to_owned()))
        .collect();
    plan.options = control.options.iter().map(Into::into).collect();
    plan.without = without;
    let recorded = record(&plan)?;
    let verdict = judge(&recorded.oracle, &recorded.touches);
    let complete = recorded.trace.manifest.completeness.complete;
    recorded.finished.require(0)?;
    Ok((missed(&verdict, control), verdict, complete))
}

fn run(control: &Control) -> Result<Outcome, Problem> {
    if control.mechanism == "flush" && is_emulated() {
        // Its software TLB is emptied at every switch of address spaces.
        return Ok(Outcome::Skip(
            "an emulated processor keeps no translations for so long".to_owned(),
        ));
    }
    let (with, verdict, _) = run_once(control, None)?;
    if with > 0 {
        let line = format!(
            "with it {with} of {} pages are missed too",
            verdict.expected
        );
        return Ok(Outcome::Fail(line, verdict.failures));
    }
    let mut claims_complete = false;
    for tries in 1..=TRIES {
        let (lost, without, complete) = run_once(control, Some(control.mechanism))?;
        claims_complete |= complete;
        if lost == 0 {
            continue;
        }
        let line = format!(
            "without it {lost} of {} pages are missed (try {tries}), with it {with} of {}",
            without.expected, verdict.expected
        );
        return Ok(if claims_complete {
            let details = vec!["the trace made without it calls itself complete".to_owned()];
            Outcome::Fail(line, details)
        } else {
            Outcome::Pass(line)
        });
    }
    let line = format!("nothing is missed without it in {TRIES} tries: the control shows nothing");
    Ok(Outcome::Fail(line, Vec::new()))
}
