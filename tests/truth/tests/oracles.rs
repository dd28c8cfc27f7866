//! Every oracle workload, recorded live at 10 ms and 50 ms: no page missed, every extra page explained.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use varve_trace::Manifest;
use varve_trace::tables::IntervalRow;
use varve_truth::{
    Case, HugePages, Oracle, Outcome, Plan, Problem, Recorded, Verdict, judge, make_workloads,
    record, run_suite, workload,
};

/// The exit code of a workload that cannot run on this machine.
const CANNOT: i32 = 77;
/// Extra pages without an explanation that a case may have, per million of demanded ones.
const UNEXPLAINED_PER_MILLION: u64 = 100;

const INTERVALS: [u64; 2] = [10, 50];

/// The workloads, and how many demands of a single interval a run must at least have tested.
const WORKLOADS: &[(&str, u64)] = &[
    ("hot64", 3),
    ("readonly", 3),
    ("writeonly", 6),
    ("read_then_write", 9),
    ("straddle", 9),
    ("gather", 3),
    ("threads", 12),
    ("thp", 6),
    ("zeropage", 6),
    ("filemap", 18),
    ("shm", 9),
    ("cow_fork", 9),
    ("exec", 4),
    ("vanish", 1000),
    ("mremap", 6),
    ("truncated", 20),
    ("dontneed", 20),
    ("stackgrow", 9),
    ("kernelbuf", 20),
    ("shortthreads", 300),
    ("shortlife", 1),
    ("sweep", 300),
];

/// Workloads that one recording holds one after the other. An emulated machine takes longer for the beginning and the end of a recording
/// than for most workloads, so that `cargo xtask vm-truth` runs this case in place of one for each.
const ONE_BY_ONE: [&str; 8] = [
    "readonly",
    "writeonly",
    "vanish",
    "exec",
    "shm",
    "cow_fork",
    "mremap",
    "dontneed",
];

/// Runs the programs that it is given; the first that fails is the last.
const EACH: &str = r#"for program; do "$program" || exit; done"#;

fn main() -> ExitCode {
    if let Err(problem) = make_workloads() {
        println!("FAIL the workloads cannot be built: {problem}");
        return ExitCode::FAILURE;
    }
    let mut cases = Vec::new();
    for interval in INTERVALS.map(Duration::from_millis) {
        let name = |workload: &str| format!("{workload} @{} ms", interval.as_millis());
        for &(workload, strong) in WORKLOADS {
            cases.push(Case::new(name(workload), move || {
                check(&Plan::workload(workload, interval), strong)
            }));
        }
        // Without --follow the process that cuts the file is one that is not recorded.
        cases.push(Case::new(name("truncated by an outsider"), move || {
            let mut plan = Plan::workload("truncated", interval);
            plan.options = vec!["--no-follow".into()];
            check(&plan, 20)
        }));
        cases.push(Case::new(name("truncated by O_TRUNC"), move || {
            let mut plan = Plan::workload("truncated", interval);
            plan.options = vec!["--no-follow".into()];
            plan.arguments = vec!["open".into()];
            check(&plan, 0)
        }));
        cases.push(Case::new(
            name("truncated by O_TRUNC --vanish exact"),
            move || {
                let mut plan = Plan::workload("truncated", interval);
                plan.options = ["--vanish", "exact"].map(Into::into).to_vec();
                reported_incomplete(&plan, &["open"])
            },
        ));
        cases.push(Case::new(name("hugetlb"), move || {
            let _reserved = match HugePages::reserve(8) {
                Ok(guard) => guard,
                Err(problem) => return Ok(Outcome::Skip(format!("No huge pages: {problem}."))),
            };
            check(&Plan::workload("hugetlb", interval), 6)
        }));
        cases.push(Case::new(name("threads of 64"), move || {
            let mut plan = Plan::workload("threads", interval);
            plan.arguments = vec!["64".into()];
            check(&plan, 200)
        }));
        cases.push(Case::new(name("thp --thp=never"), move || {
            let mut plan = Plan::workload("thp", interval);
            plan.options = vec!["--thp=never".into()];
            without_huge_pages(&plan)
        }));
    }
    // The other way to see pages go.
    let interval = Duration::from_millis(50);
    for (workload, strong) in [
        ("shm", 9),
        ("cow_fork", 9),
        ("exec", 4),
        ("vanish", 1000),
        ("mremap", 6),
        ("truncated", 20),
        ("dontneed", 20),
        ("shortthreads", 300),
        ("shortlife", 1),
    ] {
        cases.push(Case::new(format!("{workload} --vanish exact"), move || {
            let mut plan = Plan::workload(workload, interval);
            plan.options = vec!["--vanish".into(), "exact".into()];
            check(&plan, strong)
        }));
    }
    // Where the kernel reads and clears in one step nothing is held by itself.
    let interval = Duration::from_millis(50);
    for (workload, strong) in [("readonly", 3), ("vanish", 1000)] {
        cases.push(Case::new(format!("{workload} --hold cgroup"), move || {
            let mut plan = Plan::workload(workload, interval);
            plan.options = vec!["--hold".into(), "cgroup".into()];
            check(&plan, strong)
        }));
    }
    // Each boundary is a pass of many short holds, between which the program runs.
    for (workload, strong) in [
        ("hot64", 3),
        ("readonly", 3),
        ("threads", 12),
        ("thp", 6),
        ("zeropage", 6),
        ("filemap", 18),
        ("shm", 9),
        ("cow_fork", 9),
        ("exec", 4),
        ("vanish", 1000),
        ("mremap", 6),
        ("dontneed", 20),
        ("kernelbuf", 20),
        ("shortthreads", 300),
        ("shortlife", 1),
        ("sweep", 300),
    ] {
        for vanish in ["exact", "locks"] {
            let name = format!("{workload} --max-hold 100us --vanish {vanish}");
            cases.push(Case::new(name, move || {
                let mut plan = Plan::workload(workload, interval);
                plan.options = [
                    "--hold",
                    "cgroup",
                    "--max-hold",
                    "100us",
                    "--vanish",
                    vanish,
                ]
                .map(Into::into)
                .to_vec();
                // A pass takes longer than one hold.
                plan.phase *= 2;
                in_slices(&plan, strong)
            }));
        }
    }
    for (workload, strong) in [("threads", 12), ("sweep", 300)] {
        let name = format!("{workload} --max-hold 200us --hold ptrace");
        cases.push(Case::new(name, move || {
            let mut plan = Plan::workload(workload, interval);
            plan.options = ["--hold", "ptrace", "--max-hold", "200us"]
                .map(Into::into)
                .to_vec();
            plan.phase *= 2;
            in_slices(&plan, strong)
        }));
    }
    // The other way to hold the target, on what depends on it: threads, forks, execs, hot memory.
    for (workload, strong) in [
        ("hot64", 3),
        ("threads", 12),
        ("cow_fork", 9),
        ("exec", 4),
        ("vanish", 1000),
        ("shortthreads", 300),
        ("shortlife", 1),
        ("sweep", 300),
    ] {
        cases.push(Case::new(format!("{workload} --hold ptrace"), move || {
            let mut plan = Plan::workload(workload, interval);
            plan.options = vec!["--hold".into(), "ptrace".into()];
            // On a busy machine each hold takes longer than the freezer's.
            plan.phase *= 2;
            check(&plan, strong)
        }));
    }
    cases.push(Case::new("one by one @50 ms", move || one_by_one(interval)));
    // Once is enough for the 4 GiB: it takes its time.
    let interval = Duration::from_millis(50);
    cases.push(Case::new("big @50 ms", move || {
        check(&Plan::workload("big", interval), 10)
    }));
    run_suite("oracles", &cases)
}

/// How often a case is recorded at most, each time with phases twice as long, until it has demands enough to be judged. What
/// decides is how much there is to judge, and never what was found: a missed page is judged at once.
const LONGER: u32 = 6;

/// A recording with demands enough, or why there is none on this machine.
fn long_enough(plan: &Plan, strong: u64) -> Result<Result<Recorded, String>, Problem> {
    let mut plan = plan.clone();
    for longer in (0..LONGER).rev() {
        let recorded = record(&plan)?;
        if recorded.finished.code == CANNOT {
            return Ok(Err(recorded.finished.stderr.trim().to_owned()));
        }
        // On a busy machine intervals are long and few demands lie within one: then the phases last longer too.
        let found = judge(&recorded.oracle, &recorded.touches);
        if longer == 0 || found.strong >= strong || found.missed() > 0 {
            return Ok(Ok(recorded));
        }
        plan.phase *= 2;
    }
    Err(Problem::Other("nothing was recorded".to_owned()))
}

fn check(plan: &Plan, strong: u64) -> Result<Outcome, Problem> {
    match long_enough(plan, strong)? {
        Ok(recorded) => verdict(recorded, strong),
        Err(why) => Ok(Outcome::Skip(why)),
    }
}

/// Idle memory of the program besides, so that a boundary takes more than one of the shortest holds that can be asked for.
const BALLAST_PAGES: u64 = 4096;

/// The same, and the target must have been held several times at a boundary.
fn in_slices(plan: &Plan, strong: u64) -> Result<Outcome, Problem> {
    let mut plan = plan.clone();
    plan.environment
        .push(("ORACLE_BALLAST", BALLAST_PAGES.to_string()));
    let recorded = match long_enough(&plan, strong)? {
        Ok(recorded) => recorded,
        Err(why) => return Ok(Outcome::Skip(why)),
    };
    let rows: Vec<IntervalRow> = recorded.trace.rows()?;
    let most = rows.iter().map(|row| row.holds).max().unwrap_or(0);
    Ok(match verdict(recorded, strong)? {
        Outcome::Pass(line) if most < 2 => Outcome::Fail(
            line,
            vec!["no boundary had several holds: the case shows nothing".to_owned()],
        ),
        Outcome::Pass(line) => Outcome::Pass(format!("{line}, up to {most} times")),
        other => other,
    })
}

fn verdict(recorded: Recorded, strong: u64) -> Result<Outcome, Problem> {
    let verdict = judge(&recorded.oracle, &recorded.touches);
    let (mut line, wrong) = judged(&verdict, &recorded.trace.manifest, strong);
    let finished = recorded.finished.require(0)?;
    line += &left_out(&recorded.oracle);
    Ok(match wrong {
        None => Outcome::Pass(line),
        Some(mut wrong) => {
            wrong.extend(last_messages(&finished.stderr));
            Outcome::Fail(line, wrong)
        }
    })
}

/// The line of a verdict, and what is wrong where it does not hold.
fn judged(verdict: &Verdict, manifest: &Manifest, strong: u64) -> (String, Option<Vec<String>>) {
    let mut wrong = verdict.failures.clone();
    if verdict.expected == 0 {
        wrong.push("the workload demanded nothing".into());
    }
    if verdict.strong < strong {
        wrong.push(format!(
            "only {} demands lay in one interval; {strong} are needed for the case to mean anything",
            verdict.strong
        ));
    }
    // A recorder that knows that it lost something says so; the pages are missed all the same.
    let completeness = &manifest.completeness;
    if !completeness.complete {
        wrong.push(format!(
            "the trace is not complete: {}",
            completeness.statement
        ));
    }
    let too_many =
        verdict.unexplained() > 2 + verdict.expected * UNEXPLAINED_PER_MILLION / 1_000_000;
    let failed = verdict.missed() > 0
        || verdict.writes_denied > 0
        || verdict.writes_invented > 0
        || verdict.strong < strong
        || verdict.expected == 0
        || !completeness.complete
        || too_many;
    let line = format!("{verdict}, held by {}", held_by(manifest));
    wrong.extend(
        verdict
            .missed_in
            .iter()
            .map(|(phase, n)| format!("{n} missed in phase `{phase}`")),
    );
    (line, failed.then_some(wrong))
}

/// The parts of workloads that could not run.
fn left_out(oracle: &Oracle) -> String {
    match oracle.skipped.is_empty() {
        true => String::new(),
        false => format!("; left out: {}", oracle.skipped.join(" ")),
    }
}

/// The last lines that a recorder said.
fn last_messages(stderr: &str) -> impl Iterator<Item = String> {
    stderr.lines().rev().take(5).map(|l| format!("stderr: {l}"))
}

/// Several workloads in one recording, each judged by itself. Those that have too few demands are recorded again, for longer.
fn one_by_one(interval: Duration) -> Result<Outcome, Problem> {
    let wanted = |(name, _): &&(&str, u64)| ONE_BY_ONE.contains(name);
    let mut left: Vec<(&str, u64)> = WORKLOADS.iter().filter(wanted).copied().collect();
    let mut plan = Plan::workload("", interval);
    plan.program = "/bin/sh".into();
    let mut lines = Vec::new();
    for longer in (0..LONGER).rev() {
        plan.arguments = ["-c", EACH, "sh"].map(OsString::from).to_vec();
        let programs = left.iter();
        plan.arguments
            .extend(programs.map(|(name, _)| workload(name).into_os_string()));
        let recorded = record(&plan)?;
        let manifest = &recorded.trace.manifest;
        let finished = recorded.finished.require(0)?;
        let names: Vec<&str> = left.iter().map(|(name, _)| *name).collect();
        let parts = recorded.oracle.one_by_one(&names);
        if parts.len() != names.len() {
            let found: Vec<String> = parts.into_iter().map(|(name, _)| name).collect();
            let line = format!("of {names:?} the log has {found:?}");
            return Ok(Outcome::Fail(line, Vec::new()));
        }
        let mut again = Vec::new();
        for ((name, strong), (_, oracle)) in left.into_iter().zip(parts) {
            let verdict = judge(&oracle, &recorded.touches);
            if longer > 0 && verdict.strong < strong && verdict.missed() == 0 {
                again.push((name, strong));
                continue;
            }
            let (line, wrong) = judged(&verdict, manifest, strong);
            let line = format!("{name}: {line}");
            if let Some(mut wrong) = wrong {
                wrong.extend(last_messages(&finished.stderr));
                return Ok(Outcome::Fail(line, wrong));
            }
            lines.push(line);
        }
        if again.is_empty() {
            let line = lines.join("; ") + &left_out(&recorded.oracle);
            return Ok(Outcome::Pass(line));
        }
        left = again;
        plan.phase *= 2;
    }
    Err(Problem::Other("nothing was recorded".to_owned()))
}

/// What held the target, in the manifest's words.
fn held_by(manifest: &Manifest) -> &str {
    match manifest.features.hold.as_str() {
        "" => "nobody",
        hold => hold,
    }
}

/// What cannot be read before it goes must be counted.
fn reported_incomplete(plan: &Plan, arguments: &[&str]) -> Result<Outcome, Problem> {
    let mut plan = plan.clone();
    plan.options.push("--no-follow".into());
    plan.arguments = arguments.iter().map(Into::into).collect();
    let recorded = record(&plan)?;
    if recorded.finished.code == CANNOT {
        return Ok(Outcome::Skip(recorded.finished.stderr.trim().to_owned()));
    }
    let manifest = &recorded.trace.manifest;
    let lost = manifest.losses.get("vanish_walks").copied().unwrap_or(0);
    let complete = manifest.completeness.complete;
    recorded.finished.require(0)?;
    let line = format!("{lost} losses counted, complete: {complete}");
    Ok(if lost > 0 && !complete {
        Outcome::Pass(line)
    } else {
        Outcome::Fail(line, Vec::new())
    })
}

/// With huge pages forbidden every touch is seen at 4 KiB.
fn without_huge_pages(plan: &Plan) -> Result<Outcome, Problem> {
    let recorded = record(plan)?;
    let pids: Vec<_> = recorded
        .oracle
        .programs
        .iter()
        .map(|(pid, _)| *pid)
        .collect();
    let layers = recorded
        .touches
        .layers
        .iter()
        .filter(|((_, pid), _)| pids.contains(pid));
    let huge = layers
        .flat_map(|(_, l)| &l.touches)
        .filter(|t| t.granule > 1)
        .count();
    if huge > 0 {
        return Ok(Outcome::Fail(
            format!("{huge} touches of huge pages"),
            Vec::new(),
        ));
    }
    verdict(recorded, 6)
}
