//! `--backend fault`: what is touched is found as by the scan, each touch of memory that can be moved traps, the trap
//! says who and whether it wrote, and the program does what it does without a recorder.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, ExitCode};
use std::time::Duration;

use varve_model::{Page, Pid, Tid, Time, TouchSource};
use varve_trace::tables::FaultRow;
use varve_truth::{
    Access, Case, Outcome, Phase, Plan, Problem, Recorded, Span, finish, judge, make_workloads,
    record, run_suite, temporary, workload,
};

/// The exit code of a workload that cannot run on this machine.
const CANNOT: i32 = 77;

/// How the recorder begins its refusal where pages cannot be moved.
const CANNOT_TRAP: &str = "accesses cannot be trapped";

/// The workloads, and of how many percent of its loops' demands of anonymous memory the first access must have
/// trapped; those of which any must begin when their handler has moved a page. Less than all where pages are shared with a
/// forked process, which cannot be moved.
const WORKLOADS: &[(&str, u64)] = &[
    ("readonly", 100),
    ("writeonly", 100),
    ("read_then_write", 100),
    ("hot64", 100),
    ("straddle", 100),
    ("gather", 100),
    ("threads", 100),
    ("shortthreads", 0),
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
    ("shortlife", 0),
    ("sweep", 0),
];

fn main() -> ExitCode {
    if let Err(problem) = make_workloads() {
        println!("FAIL the workloads cannot be built: {problem}");
        return ExitCode::FAILURE;
    }
    let mut cases: Vec<Case> = WORKLOADS
        .iter()
        .map(|&(workload, share)| Case::new(workload, move || trapped(workload, 50, share, &[])))
        .collect();
    for workload in ["kernelbuf", "mremap", "cow_fork", "threads"] {
        let name = format!("{workload} @10 ms");
        cases.push(Case::new(name, move || trapped(workload, 10, 0, &[])));
    }
    cases.push(Case::new("threads --hold ptrace", || {
        trapped("threads", 50, 100, &["--hold", "ptrace"])
    }));
    cases.push(Case::new("hot64 --without protect", control));
    let cases: Vec<Case> = cases.into_iter().map(where_it_can_trap).collect();
    run_suite("fault", &cases)
}

fn run(
    workload: &'static str,
    interval: u64,
    options: &[&'static str],
    without: Option<&'static str>,
    awaits_moves: bool,
) -> Result<Recorded, Problem> {
    let mut plan = Plan::workload(workload, Duration::from_millis(interval));
    plan.options = ["--backend", "fault", "--samples", "off"]
        .iter()
        .chain(options)
        .map(Into::into)
        .collect();
    plan.without = without;
    if awaits_moves {
        plan.environment = vec![("ORACLE_AWAITS_MOVES", "1".to_owned())];
    }
    if workload == "sweep" {
        // Each access traps, and no demand is made of how many: a few sweeps of a few MiB show that none is missed.
        plan.environment = [("SWEEP_MB", "16"), ("SWEEPS", "4")]
            .map(|(name, value)| (name, value.to_owned()))
            .into();
    }
    record(&plan)
}

/// What the traps of a recording say of the workload's loops.
#[derive(Default)]
struct Found {
    /// Pages of anonymous arenas that loops accessed in one interval alone.
    demanded: u64,
    /// Of them, those whose first access trapped.
    trapped: u64,
    /// Traps by a thread that does not access the page in that interval, or that say that a page was written which no
    /// phase wrote.
    wrong: Vec<String>,
}

/// The phases of a process that were at work within a span.
fn at_work(recorded: &Recorded, pid: Pid, span: Span) -> impl Iterator<Item = &Phase> {
    let phases = recorded.oracle.phases.iter();
    phases.filter(move |p| p.pid == pid && p.span.overlaps(span))
}

fn pages_of<'a>(phase: &'a Phase) -> impl Iterator<Item = (Access, Page)> + 'a {
    let sets = phase.sets.iter().copied();
    let once = phase.once.iter().map(|o| (o.access, o.pages));
    sets.chain(once).flat_map(|(access, pattern)| {
        let runs = pattern.runs();
        runs.flat_map(move |(first, n)| (0..n).map(move |i| (access, Page(first.0 + i))))
    })
}

impl Found {
    fn in_trace(recorded: &Recorded) -> Result<Found, Problem> {
        let mut found = Found::default();
        // What has gone is no arena: the workload's next memory may lie there.
        let anonymous = |pid: Pid, page: Page, at: Option<Time>| {
            recorded.oracle.arenas.iter().any(|a| {
                let pages = a.pages.first.0..a.pages.first.0 + a.pages.pages;
                let lives = at.is_none_or(|at| (a.life.from..a.life.to).contains(&at));
                a.pid == pid && a.kind == "anon" && pages.contains(&page.0) && lives
            })
        };
        for phase in &recorded.oracle.phases {
            for one in &phase.loops {
                let intervals = recorded.touches.around(*one);
                if intervals.len() != 1 {
                    continue;
                }
                let Some(layer) = recorded.touches.layers.get(&(intervals.start, phase.pid)) else {
                    continue;
                };
                let caught: BTreeSet<u64> = layer
                    .touches
                    .iter()
                    .filter(|t| t.source == TouchSource::Fault)
                    .flat_map(|t| t.first.0..t.first.0 + t.pages)
                    .collect();
                let sets = phase.sets.iter().flat_map(|(_, p)| p.runs());
                for page in sets.flat_map(|(first, n)| (0..n).map(move |i| first.0 + i)) {
                    if anonymous(phase.pid, Page(page), None) {
                        found.demanded += 1;
                        found.trapped += u64::from(caught.contains(&page));
                    }
                }
            }
        }
        found.check_who(recorded, anonymous)?;
        Ok(found)
    }

    /// The first trap of a page in an interval in which only known phases are at work names one of their threads, and a
    /// write only where one of them writes.
    fn check_who(
        &mut self,
        recorded: &Recorded,
        anonymous: impl Fn(Pid, Page, Option<Time>) -> bool,
    ) -> Result<(), Problem> {
        let mut faults: Vec<FaultRow> = recorded.trace.rows()?;
        faults.retain(|f| !f.kernel && anonymous(f.pid, f.address.page(), Some(f.time_ns)));
        for (at, (span, _, _)) in recorded.touches.intervals.iter().enumerate() {
            let mut first: BTreeMap<(Pid, Page), &FaultRow> = BTreeMap::new();
            for fault in &faults {
                if (span.from..=span.to).contains(&fault.time_ns) {
                    let known = first.entry((fault.pid, fault.address.page()));
                    let earliest = known.or_insert(fault);
                    if fault.time_ns < earliest.time_ns {
                        *earliest = fault;
                    }
                }
            }
            let mut who: BTreeMap<(Pid, Page), BTreeSet<(Tid, bool)>> = BTreeMap::new();
            let pids: BTreeSet<Pid> = first.keys().map(|(pid, _)| *pid).collect();
            for pid in pids {
                for phase in at_work(recorded, pid, *span) {
                    for (access, page) in pages_of(phase) {
                        let does = (phase.tid, access == Access::Write);
                        who.entry((pid, page)).or_default().insert(does);
                    }
                }
            }
            for ((pid, page), fault) in first {
                // What no phase names is the workload's set-up.
                let Some(does) = who.get(&(pid, page)) else {
                    continue;
                };
                let right = does.iter().any(|(tid, writes)| {
                    *tid == fault.tid && (*writes || fault.write != Some(true))
                });
                if !right {
                    self.wrong.push(format!(
                        "interval {at}: page {:#x} by thread {}, write {:?}; known {does:?}",
                        page.0, fault.tid, fault.write
                    ));
                }
            }
        }
        Ok(())
    }
}

/// What the workload prints without a recorder.
fn alone(name: &str, phase: Duration) -> Result<String, Problem> {
    let folder = temporary()?;
    let mut command = Command::new(workload(name));
    command
        .env("ORACLE_LOG", folder.path().join("oracle.log"))
        .env("ORACLE_DIR", folder.path())
        .env("ORACLE_PHASE_MS", phase.as_millis().to_string());
    Ok(finish(command, folder.path(), Duration::from_secs(600))?.stdout)
}

fn trapped(
    workload: &'static str,
    interval: u64,
    share: u64,
    options: &[&'static str],
) -> Result<Outcome, Problem> {
    let recorded = run(workload, interval, options, None, share > 0)?;
    if recorded.finished.code == CANNOT {
        return Ok(Outcome::Skip(recorded.finished.stderr.trim().to_owned()));
    }
    let verdict = judge(&recorded.oracle, &recorded.touches);
    let found = Found::in_trace(&recorded)?;
    let manifest = &recorded.trace.manifest;
    let complete = manifest.completeness.complete;
    let note = manifest.traps.unwrap_or_default();
    let output = recorded.finished.require(0)?.stdout;
    let same = output == alone(workload, Duration::from_millis(20))?;
    let percent = (found.trapped * 100)
        .checked_div(found.demanded)
        .unwrap_or(100);
    let line = format!(
        "missed {}, unexplained {}; trapped {} of {} demands; wrong {}; moved {}, resolved {}, immovable {}{}{}",
        verdict.missed(),
        verdict.unexplained(),
        found.trapped,
        found.demanded,
        found.wrong.len(),
        note.moved_pages,
        note.resolved,
        note.immovable_pages,
        if same { "" } else { "; its output differs" },
        if complete && note.given_up + verdict.writes_invented == 0 {
            String::new()
        } else {
            let invented = verdict.writes_invented;
            format!(
                "; complete {complete}, invented {invented}, given up {}",
                note.given_up
            )
        },
    );
    let right = verdict.missed() + verdict.unexplained() + verdict.writes_invented == 0
        && found.wrong.is_empty()
        && percent >= share
        && note.given_up == 0;
    // What ends within its first interval is never protected.
    let protected = note.moved_pages > 0 || workload == "shortlife";
    if right && complete && same && protected {
        Ok(Outcome::Pass(line))
    } else {
        let mut details = verdict.failures;
        details.extend(found.wrong.into_iter().take(5));
        Ok(Outcome::Fail(line, details))
    }
}

/// The case, left out where the recorder says that this kernel cannot do it.
fn where_it_can_trap(case: Case) -> Case {
    let run = case.run;
    Case::new(case.name, move || match run() {
        Err(Problem::Run { output, .. }) if output.contains(CANNOT_TRAP) => {
            let said = output.lines().find(|line| line.contains(CANNOT_TRAP));
            Ok(Outcome::Skip(said.unwrap_or(CANNOT_TRAP).to_owned()))
        }
        outcome => outcome,
    })
}

/// Where nothing is moved, nothing traps again.
fn control() -> Result<Outcome, Problem> {
    let recorded = run("hot64", 50, &[], Some("protect"), false)?;
    let found = Found::in_trace(&recorded)?;
    let line = format!("trapped {} of {} demands", found.trapped, found.demanded);
    if found.demanded > 0 && found.trapped * 10 < found.demanded {
        Ok(Outcome::Pass(line))
    } else {
        Ok(Outcome::Fail(line, found.wrong))
    }
}
