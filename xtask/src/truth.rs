//! Runs the truth suite, `varve doctor` and the facts under the kernels that Varve must live with.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result, make_dir, run, text_of};
use crate::guest::Output;
use crate::vm::{Machine, Mebibytes, run_in};
use crate::{Places, error};

/// The kernels of Debian 12 and 13.
pub(crate) const KERNELS: [&str; 2] = ["6.1", "6.12"];

/// What a whole suite may take at most, on a machine that does other things too.
const SUITE_SECONDS: u64 = 3600;

/// The longest that a case was silent is a minute and a half. Twice in some forty runs the guest of 6.1 locked up, with both
/// processors busy, while the machine was loaded; twelve of the same cases on an idle one did not show it.
const SILENCE_SECONDS: u64 = 420;
/// Has a guest that locks up say so on its console.
const SAYS_LOCKUPS: &str = "watchdog_thresh=20 softlockup_all_cpu_backtrace=1";

/// Prints what each kernel offers, see tests/kernel/facts.c.
pub(crate) fn facts(places: &Places, machine: &Machine, kernels: &[String]) -> Result<bool> {
    make_dir(&places.target.join("kernels"))?;
    let program = places.target.join("kernels/facts");
    let source = places.repository.join("tests/kernel/facts.c");
    run(Command::new("cc")
        .args(["-O2", "-Wall", "-o"])
        .arg(&program)
        .arg(&source))?;
    let mut all_ran = true;
    for kernel in kernels {
        println!("# {kernel}");
        all_ran &= step(
            places,
            &on(machine, kernel),
            "facts",
            &[program.display().to_string()],
        )?;
    }
    Ok(all_ran)
}

/// Of so many turns each runs an executable under a kernel once.
const TURNS: usize = 3;

/// Runs `varve doctor` and every executable of the truth suite under each kernel; true if all passed. With `turn` a third of
/// them under each kernel, and the others in the next turns.
pub(crate) fn truth(
    places: &Places,
    machine: &Machine,
    kernels: &[String],
    turn: Option<usize>,
    filter: &[String],
) -> Result<bool> {
    let varve = build_varve(places)?;
    let tests = build_tests(places)?;
    // An emulated machine would take many minutes for what is out of date.
    run(Command::new("make")
        .args(["-s", "-C"])
        .arg(places.repository.join("workloads")))?;
    let mut passed = true;
    for (k, kernel) in kernels.iter().enumerate() {
        let mut machine = on(machine, kernel);
        // A real file system, so that O_DIRECT and hole punching mean what they mean outside.
        machine.disk.get_or_insert(Mebibytes(4096));
        machine.env.push(format!("VARVE={}", varve.display()));
        passed &= step(
            places,
            &machine,
            "varve doctor",
            &[
                varve.display().to_string(),
                "doctor".to_owned(),
                "--all".to_owned(),
            ],
        )?;
        // Every case has a limit of its own.
        machine.timeout = machine.timeout.max(SUITE_SECONDS);
        machine.silence.get_or_insert(SILENCE_SECONDS);
        machine.append = format!("{} {SAYS_LOCKUPS}", machine.append);
        for (t, test) in tests.iter().enumerate() {
            let name = test
                .file_name()
                .map_or_else(String::new, |n| n.to_string_lossy().into_owned());
            if turn.is_some_and(|turn| (turn + k + t) % TURNS != 0) {
                eprintln!("in another turn: {name} on {kernel}");
                continue;
            }
            let mut command = vec![test.display().to_string(), "--test-threads=1".to_owned()];
            command.extend(filter.iter().cloned());
            passed &= step(places, &machine, &name, &command)?;
        }
    }
    Ok(passed)
}

fn on(machine: &Machine, kernel: &str) -> Machine {
    Machine {
        kernel: kernel.to_owned(),
        ..machine.clone()
    }
}

/// The turn of this commit: one more than that of its parent.
pub(crate) fn turn_of_commit(places: &Places) -> Result<usize> {
    let count = text_of(
        Command::new("git")
            .arg("-C")
            .arg(&places.repository)
            .args(["rev-list", "--count", "HEAD"]),
    )?;
    let count = count.trim().parse();
    count.map_err(|_| Error::failed("git does not count the commits of this checkout"))
}

/// One command under one kernel. A machine that fails is a failure of this step, not of those after it.
fn step(places: &Places, machine: &Machine, name: &str, command: &[String]) -> Result<bool> {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    let mut attempt = || {
        run_in(
            places,
            machine,
            command,
            &mut Output {
                out: &mut out,
                err: &mut err,
            },
        )
    };
    let mut outcome = attempt();
    if let Err(error @ Error::Failed { .. }) = &outcome {
        // The machine itself was lost, not the test: emulation does that now and then.
        eprintln!("once more: {name} on {}: {error}", machine.kernel);
        outcome = attempt();
    }
    match outcome {
        Ok(outcome) => {
            let ran = outcome.ran.as_secs_f64();
            let verdict = if outcome.code == 0 {
                "passed"
            } else {
                "FAILED"
            };
            eprintln!(
                "{verdict}: {name} on {}, exit code {}, {ran:.1} s",
                machine.kernel, outcome.code
            );
            Ok(outcome.code == 0)
        }
        Err(error @ Error::Failed { .. }) => {
            eprintln!("FAILED: {name} on {}: {error}", machine.kernel);
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn cargo(places: &Places) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(&places.repository);
    command
}

fn build_varve(places: &Places) -> Result<PathBuf> {
    // As `make build` does. The libraries lie beside the program and are found there.
    run(cargo(places).args([
        "build",
        "--release",
        "--locked",
        "-p",
        "varve",
        "-p",
        "varve-preload",
        "-p",
        "varve-qemu-counter",
        "-p",
        "varve-snmalloc",
    ]))?;
    let varve = places.target.join("release/varve");
    if varve.is_file() {
        Ok(varve)
    } else {
        Err(Error::failed(format!("cargo built no {}", varve.display())))
    }
}

/// The executables of the truth suite, as cargo reports them.
fn build_tests(places: &Places) -> Result<Vec<PathBuf>> {
    let text = text_of(cargo(places).args([
        // As `make test` builds them: for one package alone cargo would build its dependencies anew.
        "test",
        "--release",
        "--locked",
        "--workspace",
        "--no-run",
        "--message-format=json",
    ]))?;
    let mut tests: Vec<PathBuf> = text.lines().filter_map(test_executable).collect();
    // Cargo names them in the order in which they come about; turns are taken in one that stays.
    tests.sort();
    if tests.is_empty() {
        // Nothing to run must not look like everything passed.
        return Err(Error::failed(
            "cargo reported no test executables of varve-truth",
        ));
    }
    Ok(tests)
}

/// The path in one of cargo's messages, if it is about an integration test.
fn test_executable(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let manifest = message["manifest_path"].as_str()?;
    let of_test = message["profile"]["test"] == true
        && message["target"]["kind"][0] == "test"
        && Path::new(manifest).ends_with("tests/truth/Cargo.toml");
    // Valgrind, to which the full traces compare the oracles, and the emulator that counts accesses are the same under
    // every kernel, and slow.
    let name = message["target"]["name"].as_str();
    let here_only = matches!(name, Some("full_trace" | "exact"));
    (of_test && !here_only)
        .then(|| {
            message["executable"]
                .as_str()
                .map(|p| Path::new(p).to_owned())
        })
        .flatten()
}

/// Runs the harness's own checks, tests/kernel/run.
pub(crate) fn check_harness(places: &Places, kernels: &[String]) -> Result<bool> {
    let program = std::env::current_exe();
    let program = error::Doing::doing(program, || "find this program".to_owned())?;
    let mut command = Command::new(places.repository.join("tests/kernel/run"));
    command.arg(program).args(kernels);
    let status = error::Doing::doing(command.status(), || "start tests/kernel/run".to_owned())?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::test_executable;

    #[test]
    fn only_integration_tests_count() {
        let of = |package: &str, kind: &str, test: bool| {
            let line = format!(
                r#"{{"executable":"/t","manifest_path":"/r/{package}/Cargo.toml","target":{{"kind":["{kind}"]}},"profile":{{"test":{test}}}}}"#
            );
            test_executable(&line)
        };
        assert!(of("tests/truth", "test", true).is_some());
        assert!(of("tests/truth", "lib", true).is_none());
        assert!(of("tests/truth", "bin", false).is_none());
        assert!(of("tests/trust", "test", true).is_none());
        assert!(test_executable("no message").is_none());
    }
}
