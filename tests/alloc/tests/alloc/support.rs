//! Runs programs under `varve alloc record` and reads what is said of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The folder of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The program under test.
pub fn varve() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let release = exe.ancestors().find(|p| p.ends_with("release")).unwrap();
    let varve = release.join("varve");
    assert!(varve.exists(), "build it first: make build");
    varve
}

/// A workload, by name.
pub fn workload(name: &str) -> PathBuf {
    let path = root().join("workloads/bin").join(name);
    assert!(path.exists(), "build it first: make -C workloads");
    path
}

/// A C program of this text, compiled in the folder by these options beside `-O1`.
///
/// # Panics
/// Where it does not compile.
pub fn compiled(folder: &Path, name: &str, text: &str, options: &[&str]) -> PathBuf {
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, text).unwrap();
    let compiled = Command::new("gcc")
        .args(["-O1", "-o"])
        .args([&program, &source])
        .args(options)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    program
}

/// A recorded run.
pub struct Recorded {
    pub output: Output,
    pub judgement: Value,
    /// Where the trace lies.
    pub folder: TempDir,
}

impl Recorded {
    /// What was printed, both streams, without what the recorder says.
    pub fn said(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let errors = text(&self.output.stderr);
        let own = errors
            .lines()
            .filter(|l| !l.starts_with("varve:") && !l.starts_with("hint:"));
        text(&self.output.stdout) + &own.map(|l| format!("{l}\n")).collect::<String>()
    }

    pub fn count(&self, operation: &str) -> u64 {
        self.judgement["operations"][operation]["count"]
            .as_u64()
            .unwrap_or(0)
    }

    /// Calls of a system call within operations.
    pub fn calls(&self, name: &str) -> u64 {
        let all = self.judgement["syscalls"].as_array().unwrap();
        let found = all.iter().find(|c| c["name"] == name);
        found.map_or(0, |c| c["count"].as_u64().unwrap())
    }

    pub fn memory(&self, field: &str) -> u64 {
        self.judgement["memory"][field].as_u64().unwrap()
    }

    /// What is wrong, the costliest first.
    pub fn diseases(&self) -> Vec<String> {
        let all = self.judgement["diagnoses"].as_array().unwrap();
        all.iter()
            .map(|d| d["id"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// What is said of a trace that is still being recorded, by a copy of it; none where it has nothing yet.
pub fn so_far(trace: &Path) -> Option<Value> {
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.varve");
    let copied = Command::new("cp").arg("-r").args([trace, &copy]).output();
    copied.unwrap();
    let output = |words: &[&str]| {
        let mut command = Command::new(varve());
        command.args(words).arg(&copy).output().unwrap()
    };
    output(&["recover"]);
    let report = output(&["alloc", "report", "--json"]);
    let is_read = report.status.success();
    is_read.then(|| serde_json::from_slice(&report.stdout).unwrap())
}

/// Waits until that is so of what is recorded so far, which it gives.
pub fn wait_for(trace: &Path, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    // What never comes is not waited for without end.
    let begin = Instant::now();
    loop {
        let found = so_far(trace);
        if let Some(found) = found.as_ref().filter(|found| is_so(found)) {
            return found.clone();
        }
        let found = found.map(|f| f["memory"].clone());
        assert!(
            begin.elapsed() < Duration::from_secs(180),
            "{what}: {found:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Pages are recorded only where a test asks for them.
fn of_pages(options: &[&str]) -> &'static [&'static str] {
    match options.contains(&"--pages") {
        true => &[],
        false => &["--pages", "off"],
    }
}

/// Records a command that waits for the end of its input, which comes once that is so of what is recorded.
pub fn record_until(
    options: &[&str],
    command: &[&str],
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Recorded {
    let recorded = record_up_to(options, command, what, is_so);
    let trace = recorded.folder.path().join("t.varve");
    let judgement = so_far(&trace).expect("the trace is read");
    Recorded {
        judgement,
        ..recorded
    }
}

/// The same, with what was said when that was so: what comes to light later does not count.
pub fn record_up_to(
    options: &[&str],
    command: &[&str],
    what: &str,
    is_so: impl Fn(&Value) -> bool,
) -> Recorded {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.varve");
    let mut recorder = Command::new(varve())
        .args(["alloc", "record", "-o"])
        .arg(&trace)
        .args(of_pages(options))
        .args(options)
        .arg("--")
        .args(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let input = recorder.stdin.take();
    let judgement = wait_for(&trace, what, is_so);
    drop(input);
    let output = recorder.wait_with_output().unwrap();
    Recorded {
        judgement,
        output,
        folder,
    }
}

/// Records a command.
pub fn record(options: &[&str], command: &[&str]) -> Recorded {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.varve");
    let output = Command::new(varve())
        .args(["alloc", "record", "-o"])
        .arg(&trace)
        .args(of_pages(options))
        .args(options)
        .arg("--")
        .args(command)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let report = Command::new(varve())
        .args(["alloc", "report", "--json"])
        .arg(&trace)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        report.status.success(),
        "{errors}{}",
        String::from_utf8_lossy(&report.stderr)
    );
    Recorded {
        judgement: serde_json::from_slice(&report.stdout).unwrap(),
        output,
        folder,
    }
}

/// The two numbers that `alloc_work` prints last: what it allocated and freed.
pub fn own_counts(said: &str) -> (u64, u64) {
    let last = said.lines().last().unwrap();
    let (allocated, freed) = last.split_once(' ').unwrap();
    (allocated.parse().unwrap(), freed.parse().unwrap())
}

/// The lines that flame graphs are drawn of, with the outermost function first and a weight last, and the standard error.
pub fn folded(of: &Recorded, measure: &str) -> (Vec<(String, u64)>, String) {
    let printed = Command::new(varve())
        .args(["alloc", "report", "--folded", measure])
        .arg(of.folder.path().join("t.varve"))
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let row = |line: &str| {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), weight.parse().unwrap())
    };
    let rows = text(printed.stdout).lines().map(row).collect();
    (rows, text(printed.stderr))
}
