//! Running cases one after the other, one line each.

use std::process::ExitCode;
use std::time::Instant;

use crate::Problem;
use crate::scratch::judged;

/// How a case ended.
#[derive(Debug)]
pub enum Outcome {
    /// It holds; the line says what was found.
    Pass(String),
    /// It does not; the line, and the details.
    Fail(String, Vec<String>),
    /// It cannot run on this machine; a sentence says why.
    Skip(String),
}

/// One thing to check.
pub struct Case {
    /// Its name, for the line and the filter.
    pub name: String,
    /// The check.
    pub run: Box<dyn Fn() -> Result<Outcome, Problem>>,
}

impl Case {
    /// A case of this name.
    pub fn new(
        name: impl Into<String>,
        run: impl Fn() -> Result<Outcome, Problem> + 'static,
    ) -> Case {
        Case {
            name: name.into(),
            run: Box::new(run),
        }
    }
}

/// Runs the cases whose names contain any of the program's arguments, or with `--exact` are one of them (all, without
/// arguments); the exit code says whether all of them passed. What a case that fails has recorded last is kept. An argument that no case answers to is an error: otherwise a
/// misspelt one would pass. `--list` lists them, as `cargo nextest` asks for it.
pub fn run_suite(suite: &str, cases: &[Case]) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|a| a == flag);
    if has("--list") {
        // None is left out unless asked for.
        for case in cases.iter().filter(|_| !has("--ignored")) {
            println!("{}: test", case.name);
        }
        return ExitCode::SUCCESS;
    }
    let exact = has("--exact");
    let matches = |case: &Case, filter: &str| {
        if exact {
            case.name == filter
        } else {
            case.name.contains(filter)
        }
    };
    let filters: Vec<&String> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let unknown = |filter: &&&String| !cases.iter().any(|case| matches(case, filter));
    if let Some(filter) = filters.iter().find(unknown) {
        println!("FAIL {suite} has no case `{filter}`; --list names them");
        return ExitCode::FAILURE;
    }
    let wanted = |case: &&Case| filters.is_empty() || filters.iter().any(|f| matches(case, f));
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), 0);
    for case in cases.iter().filter(wanted) {
        let started = Instant::now();
        let has_failed = |outcome: &Result<Outcome, Problem>| {
            !matches!(outcome, Ok(Outcome::Pass(_) | Outcome::Skip(_)))
        };
        let (outcome, kept) = judged(&case.run, has_failed);
        let seconds = started.elapsed().as_secs_f64();
        match outcome {
            Ok(Outcome::Pass(line)) => {
                passed += 1;
                println!("ok   {:<28} {line} [{seconds:.1} s]", case.name);
            }
            Ok(Outcome::Skip(sentence)) => {
                skipped += 1;
                println!("skip {:<28} {sentence}", case.name);
            }
            Ok(Outcome::Fail(line, details)) => {
                failed.push(case.name.as_str());
                println!("FAIL {:<28} {line} [{seconds:.1} s]", case.name);
                for detail in details {
                    println!("       {detail}");
                }
            }
            Err(problem) => {
                failed.push(case.name.as_str());
                println!("FAIL {:<28} {problem}", case.name);
            }
        }
        for folder in kept {
            println!("       kept: {}", folder.display());
        }
    }
    println!(
        "{suite}: {passed} passed, {} failed, {skipped} skipped",
        failed.len()
    );
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
