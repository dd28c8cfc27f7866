//! An independent full trace. Two questions:
//!
//! - *Do the oracles tell the truth?* Each workload runs under Valgrind's lackey. Every page that its
//!   log demands as read or written must be one that lackey saw accessed, and every page of an arena
//!   that lackey saw must be in the log; phase by phase, and none between phases, where the program has
//!   one thread. (Accesses by the kernel are beyond lackey.)
//! - *Does a trace hold all pages of real programs?* `sort`, `gzip` and a workload run once under lackey
//!   and once under `varve record`. Valgrind lays out memory differently, so pages are compared by file
//!   and offset from its first mapped byte: text, read-only data, data and uninitialised data of the
//!   program and of every library that both runs map. Heap, stack and the vdso are not compared.
//!   Both runs use the C library's plain variants of its string functions, since Valgrind's CPU lacks
//!   some of the newer instructions. Libraries that only one run maps (Valgrind's preloaded objects,
//!   Varve's preload library) are left out. All other data and instruction pages must be there; but of a page that
//!   is missing, lackey must say that the program accesses it wherever its strings lie (`STRING_ALIGNMENT`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use object::{Object, ObjectSegment};
use varve_model::{Address, PAGE_BYTES, Time};
use varve_trace::tables::MappingRow;
use varve_truth::{
    Access, Case, Mapped, Oracle, Outcome, PageSet, Phase, Plan, Problem, Span, by_file, describe,
    has_valgrind, make_workloads, record, run_lackey, run_suite, temporary, workload,
};

/// Workloads whose every access to an arena is the program's own, in one thread: checked by phase.
const ORACLES: &[&str] = &[
    "hot64",
    "readonly",
    "writeonly",
    "read_then_write",
    "straddle",
    "gather",
    "zeropage",
    "filemap",
    "shm",
    "vanish",
    "mremap",
    "dontneed",
];
/// The same with several threads, whose phases overlap: checked as a whole.
const THREADED: &[&str] = &["threads", "stackgrow", "shortthreads"];

/// Variants of string functions that Valgrind's CPU does not have are switched off in both runs, and those that the C
/// library prefers on some makers' processors: Valgrind's claims to be of one maker.
const PLAIN_LIBC: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX2_Usable,-AVX_Fast_Unaligned_Load,-BMI2,-RTM,-ERMS,-FSRM,-MOVBE,-LZCNT,-POPCNT,-AVX,-SSE4_2,-SSE4_1,-SSSE3,-Fast_Unaligned_Copy,-Fast_Unaligned_Load,-Slow_BSF",
);

/// The plain string functions compare so many bytes at a time, and where two strings are not aligned alike they read a jump
/// table. `gzip` compares an argument on its stack with a constant; of 16 lengths of the environment, which is above it, one
/// aligns both alike (seen with a debugger). Valgrind's stack begins elsewhere, so its run may read the table, ours not.
const STRING_ALIGNMENT: usize = 16;

fn main() -> ExitCode {
    if let Err(problem) = make_workloads() {
        println!("FAIL the workloads cannot be built: {problem}");
        return ExitCode::FAILURE;
    }
    let mut cases = Vec::new();
    for (names, by_phase) in [(ORACLES, true), (THREADED, false)] {
        cases.extend(names.iter().map(|name| {
            Case::new(format!("oracle of {name}"), move || {
                needs_valgrind(|| oracle(name, by_phase))
            })
        }));
    }
    let sort = || real(&find("sort")?, &["-n", "INPUT"]);
    let gzip = || real(&find("gzip")?, &["-9", "-c", "INPUT"]);
    let stream = || real(&workload("stream"), &["1", "1"]);
    cases.push(Case::new("pages of sort", move || needs_valgrind(sort)));
    cases.push(Case::new("pages of gzip", move || needs_valgrind(gzip)));
    cases.push(Case::new("pages of stream", move || needs_valgrind(stream)));
    run_suite("full_trace", &cases)
}

fn needs_valgrind(run: impl Fn() -> Result<Outcome, Problem>) -> Result<Outcome, Problem> {
    if has_valgrind() {
        return run();
    }
    Ok(Outcome::Skip(
        "Valgrind is not installed; hint: apt install valgrind.".into(),
    ))
}

fn oracle(name: &str, by_phase: bool) -> Result<Outcome, Problem> {
    let folder = temporary()?;
    let log = folder.path().join("oracle.log");
    let mut environment = vec![
        ("ORACLE_LOG", log.display().to_string()),
        ("ORACLE_DIR", folder.path().display().to_string()),
        ("ORACLE_PHASE_MS", "2".to_owned()),
    ];
    if by_phase {
        environment.push(("ORACLE_MARKS", "1".to_owned()));
    }
    let full = run_lackey(&workload(name), &[], &environment)?;
    let oracle = Oracle::read(&log)?;
    let mut check = Check::default();
    if by_phase {
        let phases = oracle.phases.len();
        if full.parts.len() != 2 * phases + 1 {
            let line = format!("{phases} phases, but {} parts", full.parts.len());
            return Ok(Outcome::Fail(line, Vec::new()));
        }
        for (i, part) in full.parts.iter().enumerate() {
            let phase = (i % 2 == 1).then(|| &oracle.phases[i / 2]);
            let before = i
                .checked_sub(2)
                .map_or(Time(0), |b| oracle.phases[b / 2].span.to);
            let after = oracle
                .phases
                .get(i / 2)
                .map_or(Time(u64::MAX - 1), |p| p.span.from);
            let span = phase.map_or(
                Span {
                    from: before,
                    to: after,
                },
                |p| p.span,
            );
            let name = phase.map_or("between phases", |p| p.name.as_str());
            check.part(name, phase.into_iter(), &arenas(&oracle, span), part);
        }
    } else {
        check.part(
            "all phases",
            oracle.phases.iter(),
            &arenas(
                &oracle,
                Span {
                    from: Time(0),
                    to: Time(0),
                },
            ),
            &full.data,
        );
    }
    let how = if by_phase {
        "phase by phase"
    } else {
        "as a whole"
    };
    let line = format!(
        "{how}: log {} pages, lackey saw {} of them; {} pages of arenas accessed but not in the log",
        check.demanded,
        check.demanded - check.claimed,
        check.hidden
    );
    if check.wrong.is_empty() && check.demanded > 0 {
        return Ok(Outcome::Pass(line));
    }
    Ok(Outcome::Fail(line, check.wrong))
}

/// The pages that are arenas for the whole of a stretch of time; of any time where that is empty.
fn arenas(oracle: &Oracle, span: Span) -> PageSet {
    let alive = |life: Span| span.to == Time(0) || (life.from <= span.from && life.to >= span.to);
    let alive = oracle.arenas.iter().filter(|a| alive(a.life));
    PageSet::from_runs(alive.flat_map(|a| a.pages.runs()))
}

#[derive(Default)]
struct Check {
    demanded: u64,
    claimed: u64,
    hidden: u64,
    wrong: Vec<String>,
}

impl Check {
    fn part<'a>(
        &mut self,
        name: &str,
        phases: impl Iterator<Item = &'a Phase>,
        arenas: &PageSet,
        seen: &PageSet,
    ) {
        let (mut demanded, mut possible) = (Vec::new(), Vec::new());
        for phase in phases {
            let once = phase.once.iter().map(|o| (o.access, o.pages));
            for (access, pattern) in phase.sets.iter().copied().chain(once) {
                if access != Access::Kernel {
                    demanded.extend(pattern.runs());
                }
            }
            possible.extend(phase.may.iter().flat_map(|p| p.runs()));
        }
        let demanded = PageSet::from_runs(demanded);
        let reported = demanded.union(&PageSet::from_runs(possible));
        let claimed: PageSet = demanded.iter().filter(|p| !seen.contains(*p)).collect();
        let hidden = seen
            .iter()
            .filter(|p| arenas.contains(*p) && !reported.contains(*p));
        let hidden: PageSet = hidden.collect();
        self.demanded += demanded.len();
        self.claimed += claimed.len();
        self.hidden += hidden.len();
        for (set, what) in [
            (claimed, "claimed, not seen"),
            (hidden, "seen, not in the log"),
        ] {
            if !set.is_empty() {
                self.wrong
                    .push(format!("`{name}`: {what}: {}", describe(&set, 8)));
            }
        }
    }
}

fn find(name: &str) -> Result<PathBuf, Problem> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|p| p.join(name))
        .find(|p| p.is_file());
    let found = found.ok_or_else(|| Problem::Other(format!("there is no `{name}` in PATH")))?;
    fs::canonicalize(&found).map_err(Problem::file("resolve", &found))
}

/// Bytes from a file's first mapped byte to the end of its last segment in memory.
fn reach(path: &str) -> u64 {
    let Ok(bytes) = fs::read(path) else { return 0 };
    let Ok(file) = object::File::parse(&*bytes) else {
        return bytes.len() as u64;
    };
    let ends = file.segments().map(|s| s.address() + s.size());
    let base = file.segments().map(|s| s.address()).min().unwrap_or(0);
    ends.max()
        .unwrap_or(0)
        .saturating_sub(base / PAGE_BYTES * PAGE_BYTES)
}

fn real(program: &Path, arguments: &[&str]) -> Result<Outcome, Problem> {
    let folder = temporary()?;
    let input = folder.path().join("input");
    let lines: String = (0..4000u64)
        .map(|i| format!("{}\n", i.wrapping_mul(2654435761) % 100_003))
        .collect();
    fs::write(&input, lines).map_err(Problem::file("write", &input))?;
    let input = input.display().to_string();
    let arguments: Vec<&str> = arguments
        .iter()
        .map(|a| if *a == "INPUT" { input.as_str() } else { a })
        .collect();
    let environment = [
        ("LC_ALL", "C".to_owned()),
        (PLAIN_LIBC.0, PLAIN_LIBC.1.to_owned()),
    ];
    let (mut data, mut instructions) = accessed(program, &arguments, &environment)?;

    let mut plan = Plan::workload("", Duration::from_millis(10));
    plan.program = program.to_owned();
    plan.arguments = arguments.iter().map(|a| (*a).into()).collect();
    plan.environment = environment.iter().map(|(k, v)| (*k, v.clone())).collect();
    let recorded = record(&plan)?;
    let mappings = recorded.trace.rows::<MappingRow>()?;
    let mapped: BTreeSet<Mapped> = mappings
        .iter()
        .filter(|m| m.path.starts_with('/'))
        .map(|m| Mapped {
            start: m.address,
            end: Address(m.address.0 + m.bytes.0),
            offset: m.offset,
            path: m.path.clone(),
        })
        .collect();
    let pids: BTreeSet<_> = recorded
        .touches
        .layers
        .keys()
        .map(|(_, pid)| *pid)
        .collect();
    let touched = pids.iter().fold(PageSet::default(), |all, pid| {
        all.union(&recorded.touches.ever(*pid))
    });
    recorded.finished.require(0)?;

    let ours = by_file(&touched, &mapped, reach);
    let outcome = compare(program, &ours, &data, &instructions);
    if matches!(outcome, Outcome::Pass(_)) {
        return Ok(outcome);
    }
    for length in 1..STRING_ALIGNMENT {
        let mut longer = environment.to_vec();
        longer.push(("PADDING", "x".repeat(length)));
        let (other_data, other_instructions) = accessed(program, &arguments, &longer)?;
        keep_common(&mut data, &other_data);
        keep_common(&mut instructions, &other_instructions);
    }
    Ok(compare(program, &ours, &data, &instructions))
}

type Files = BTreeMap<String, BTreeSet<u64>>;

/// The pages of each file with data and with instructions that a program accesses under lackey.
fn accessed(
    program: &Path,
    arguments: &[&str],
    environment: &[(&'static str, String)],
) -> Result<(Files, Files), Problem> {
    let full = run_lackey(program, arguments, environment)?;
    let data = by_file(&full.data, &full.mapped, reach);
    let instructions = by_file(&full.instructions, &full.mapped, reach);
    Ok((data, instructions))
}

fn keep_common(files: &mut Files, others: &Files) {
    for (path, pages) in files {
        if let Some(others) = others.get(path) {
            pages.retain(|page| others.contains(page));
        }
    }
}

fn compare(program: &Path, ours: &Files, data: &Files, instructions: &Files) -> Outcome {
    let none = BTreeSet::new();
    let (mut parts, mut wrong) = (Vec::new(), Vec::new());
    let program = program.display().to_string();
    if !ours.contains_key(&program) {
        wrong.push(format!("the trace has no mapping of {program}"));
    }
    for (path, touched) in ours {
        let (data, code) = (
            data.get(path).unwrap_or(&none),
            instructions.get(path).unwrap_or(&none),
        );
        if data.is_empty() && code.is_empty() {
            continue;
        }
        let missing = |set: &BTreeSet<u64>| set.difference(touched).copied().collect::<Vec<_>>();
        let (missing_data, missing_code) = (missing(data), missing(code));
        let name = path.rsplit('/').next().unwrap_or(path);
        parts.push(format!(
            "{name}: data {} of {}, instructions {} of {}, reported {}",
            data.len() - missing_data.len(),
            data.len(),
            code.len() - missing_code.len(),
            code.len(),
            touched.len()
        ));
        if !missing_data.is_empty() {
            wrong.push(format!("{name}: data pages {missing_data:x?} are missing"));
        }
        if !missing_code.is_empty() {
            wrong.push(format!(
                "{name}: instruction pages {missing_code:x?} are missing"
            ));
        }
    }
    if !parts.iter().any(|part| part.starts_with("libc.so")) {
        wrong.push("the C library could not be compared".into());
    }
    let line = parts.join("; ");
    if wrong.is_empty() {
        Outcome::Pass(line)
    } else {
        Outcome::Fail(line, wrong)
    }
}
