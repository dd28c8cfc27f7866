//! Runs the truth suites, `varve doctor` and the facts under the kernels that Varve must live with.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cases::{Case, Wanted, choose};
use crate::error::{Error, Result, make_dir, run, text_of};
use crate::guest::Output;
use crate::report::Watched;
use crate::vm::{Machine, Mebibytes, run_in};
use crate::{Places, error};

/// The kernels of Debian 12 and 13.
pub(crate) const KERNELS: [&str; 2] = ["6.1", "6.12"];

/// What all cases under one kernel may take at most: a guard only, every case has a limit of its own.
const GUEST_SECONDS: u64 = 4 * 3600;

/// The longest that a case was silent is a minute and a half. Twice in some forty runs the guest of 6.1 locked up, with both
/// processors busy, while the machine was loaded; twelve of the same cases on an idle one did not show it.
const SILENCE_SECONDS: u64 = 600;
/// Has a guest that locks up say so on its console.
const SAYS_LOCKUPS: &str = "watchdog_thresh=20 softlockup_all_cpu_backtrace=1";

/// How a guest runs its cases; `$1` is the kernel, and arguments come in threes: suite, executable, case. Each case is a
/// process of its own and ends with one line, by which the host knows how far the guest came.
const IN_THE_GUEST: &str = r##"
kernel=$1
shift
all=0
while [ $# -gt 0 ]; do
    label="$1 '$3' on $kernel"
    read -r began _ </proc/uptime
    if [ "$1" = doctor ]; then "$2" doctor --all; else "$2" --exact "$3"; fi >"$TMPDIR/said" 2>&1
    code=$?
    read -r ended _ </proc/uptime
    cat "$TMPDIR/said"
    skipped=$(sed -n "s/^skip  *//p" "$TMPDIR/said")
    skipped=$(echo "${skipped#"$3"}" | sed "s/^ *//")
    if [ $code -ne 0 ]; then
        all=1
        echo "FAILED: $label, exit code $code"
    elif [ -n "$skipped" ] && [ "$1" != doctor ]; then
        echo "skipped: $label: $skipped"
    else
        echo "passed: $label, $((${ended%.*} - ${began%.*})) s"
    fi
    shift 3
done
exit $all
"##;

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
        let command = [program.display().to_string()];
        let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
        let mut output = Output {
            out: &mut out,
            err: &mut err,
        };
        let outcome = run_in(places, &on(machine, kernel), &command, &mut output)?;
        all_ran &= outcome.code == 0;
    }
    Ok(all_ran)
}

/// Runs `varve doctor` and the wanted cases of the truth suites under each kernel, which is booted once; true if all passed.
pub(crate) fn truth(
    places: &Places,
    machine: &Machine,
    kernels: &[String],
    wanted: &Wanted,
) -> Result<bool> {
    let varve = build_varve(places)?;
    let suites = build_tests(places)?;
    let mut cases = vec![Case {
        suite: "doctor".to_owned(),
        executable: varve.clone(),
        name: "--all".to_owned(),
    }];
    cases.extend(choose(&suites, wanted)?);
    // An emulated machine would take many minutes for what is out of date.
    run(Command::new("make")
        .args(["-s", "-C"])
        .arg(places.repository.join("workloads")))?;
    let workloads = places.repository.join("workloads/bin");
    let mut passed = true;
    for kernel in kernels {
        let mut machine = on(machine, kernel);
        // A real file system, so that O_DIRECT and hole punching mean what they mean outside.
        machine.disk.get_or_insert(Mebibytes(4096));
        machine.env.push(format!("VARVE={}", varve.display()));
        machine
            .env
            .push(format!("VARVE_WORKLOADS={}", workloads.display()));
        machine.timeout = machine.timeout.max(GUEST_SECONDS);
        machine.silence.get_or_insert(SILENCE_SECONDS);
        machine.append = format!("{} {SAYS_LOCKUPS}", machine.append);
        passed &= under(places, &machine, &cases)?;
    }
    Ok(passed)
}

fn on(machine: &Machine, kernel: &str) -> Machine {
    Machine {
        kernel: kernel.to_owned(),
        ..machine.clone()
    }
}

/// The cases under one kernel. Emulation loses a machine now and then, which is no fault of a case: once for each kernel
/// another one is booted for what had not ended, and the output names the case at which that was. A machine that is lost
/// again is a failure.
fn under(places: &Places, machine: &Machine, cases: &[Case]) -> Result<bool> {
    let mut left: Vec<&Case> = cases.iter().collect();
    let mut passed = true;
    let mut lost: Option<String> = None;
    loop {
        let (said, result) = boot(places, machine, &left)?;
        passed &= said.failed.is_empty();
        left.retain(|case| !said.ended.contains(&case.label(&machine.kernel)));
        let Some(first) = left.first().map(|case| case.label(&machine.kernel)) else {
            return Ok(passed);
        };
        let why = match result {
            Ok(code) => format!("the guest ended with exit code {code} before all cases had"),
            Err(error) => error.to_string(),
        };
        if let Some(before) = lost {
            println!("FAILED: {first}, its guest was lost: {why} (and before: {before})");
            for case in left.iter().skip(1) {
                println!("FAILED: {}, not run", case.label(&machine.kernel));
            }
            return Ok(false);
        }
        eprintln!("once more, in another guest: {first}: {why}");
        lost = Some(format!("{first}: {why}"));
    }
}

/// What the guest said of its cases, and how it ended: the exit code, or how it was lost.
fn boot(
    places: &Places,
    machine: &Machine,
    cases: &[&Case],
) -> Result<(Watched<std::io::Stdout>, Result<u32>)> {
    let mut command: Vec<String> = ["sh", "-c", IN_THE_GUEST, "sh"].map(str::to_owned).to_vec();
    command.push(machine.kernel.clone());
    for case in cases {
        command.extend([
            case.suite.clone(),
            case.executable.display().to_string(),
            case.name.clone(),
        ]);
    }
    let labels: BTreeSet<String> = cases.iter().map(|c| c.label(&machine.kernel)).collect();
    let mut out = Watched::new(std::io::stdout(), labels);
    let mut err = std::io::stderr();
    let mut output = Output {
        out: &mut out,
        err: &mut err,
    };
    match run_in(places, machine, &command, &mut output) {
        Ok(outcome) => Ok((out, Ok(outcome.code))),
        Err(error @ Error::Failed { .. }) => Ok((out, Err(error))),
        // Another guest would fail the same way.
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

/// The executables of the truth suites, as cargo reports them, by name.
fn build_tests(places: &Places) -> Result<Vec<(String, PathBuf)>> {
    let text = text_of(cargo(places).args([
        // As `make test` builds them: for one package alone cargo would build its dependencies anew.
        "test",
        "--release",
        "--locked",
        "--workspace",
        "--no-run",
        "--message-format=json",
    ]))?;
    let mut tests: Vec<_> = text.lines().filter_map(test_executable).collect();
    tests.sort();
    if tests.is_empty() {
        // Nothing to run must not look like everything passed.
        return Err(Error::failed(
            "cargo reported no test executables of varve-truth",
        ));
    }
    Ok(tests)
}

/// The suite and its path in one of cargo's messages, if it is about an integration test.
fn test_executable(line: &str) -> Option<(String, PathBuf)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let manifest = message["manifest_path"].as_str()?;
    let of_test = message["profile"]["test"] == true
        && message["target"]["kind"][0] == "test"
        && Path::new(manifest).ends_with("tests/truth/Cargo.toml");
    let name = message["target"]["name"].as_str()?;
    // Valgrind, to which the full traces compare the oracles, and the emulator that counts accesses are the same under
    // every kernel, and slow.
    let here_only = matches!(name, "full_trace" | "exact");
    let path = message["executable"].as_str()?;
    (of_test && !here_only).then(|| (name.to_owned(), Path::new(path).to_owned()))
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
                r#"{{"executable":"/t","manifest_path":"/r/{package}/Cargo.toml","target":{{"name":"oracles","kind":["{kind}"]}},"profile":{{"test":{test}}}}}"#
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
