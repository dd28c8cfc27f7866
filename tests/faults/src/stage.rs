//! A test's folder and processes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use varve_model::Pid;
use varve_truth::Scratch;

use crate::leftovers::{dissolve, marked_processes, recorder_cgroups, ring_folders};
use crate::programs::compiled;
use crate::stat::stat;

/// The variable that marks a stage's processes.
pub const MARK: &str = "FAULTS_STAGE";

/// A guard against hanging, and nothing that is judged: a machine may have much else to do.
const PATIENCE: Duration = Duration::from_secs(300);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn target_folder() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), PathBuf::from)
}

/// The `varve` to test: `$VARVE`, or the release build.
pub fn varve_binary() -> PathBuf {
    let path = std::env::var_os("VARVE")
        .map_or_else(|| target_folder().join("release/varve"), PathBuf::from);
    assert!(
        path.is_file(),
        "there is no varve at {}: build it, or name it in VARVE",
        path.display()
    );
    path.canonicalize().expect("the path of varve")
}

/// Options of a recording in which the first access to each page in an interval traps.
pub const TRAPPED: [&str; 6] = [
    "--backend",
    "fault",
    "--interval",
    "10ms",
    "--samples",
    "off",
];

/// Whether this machine can trap at all. Asked of the kernel itself: `varve doctor` takes seconds for all that it says.
pub fn can_trap() -> bool {
    let own = Pid(std::process::id());
    varve_sys::try_traps().is_ok() && varve_sys::shares_memory(own, own).is_ok()
}

/// A program of `programs/`, compiled with these options, unless that was done.
pub fn build(name: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("programs/{name}.c"));
    let options = [options, &["-pthread"]].concat();
    compiled(&source, &target_folder().join("faults"), &options)
}

/// The program that plays every target, built once.
pub fn actor() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("actor", &["-O2", "-g"]))
}

/// CLOCK_MONOTONIC, as traces have it.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Looks again and again until `done`, for as long as is reasonable; tells whether it came true.
pub fn patiently(mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    loop {
        if done() {
            return true;
        }
        if began.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A test's folder, and whatever it starts. The folder stays where the test fails.
#[derive(Debug)]
pub struct Stage {
    folder: Scratch,
    mark: String,
    runs: AtomicU32,
}

impl Default for Stage {
    fn default() -> Self {
        Self::new()
    }
}

impl Stage {
    /// An empty one. Recording takes privileges, and so do these tests.
    pub fn new() -> Stage {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests need root, as recording does"
        );
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let mark = format!(
            "{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        Stage {
            folder: Scratch::new("stage-").expect("a temporary folder"),
            mark,
            runs: AtomicU32::new(0),
        }
    }

    /// A path in its folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command that belongs to this stage.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        // Whoever runs the tests in the background may have Ctrl-C ignored, which programs inherit.
        let mut command = Command::new("env");
        command
            .arg("--default-signal=HUP,INT,QUIT,TERM")
            .arg(program)
            .env(MARK, &self.mark)
            .env_remove("LD_PRELOAD")
            .current_dir(self.folder.path());
        command
    }

    /// The target program, unrecorded.
    pub fn actor(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(actor());
        command.args(arguments);
        command
    }

    /// `varve record --force -o trace.varve OPTIONS -- COMMAND`.
    pub fn record<S: AsRef<OsStr>>(&self, options: &[&str], command: &[S]) -> Command {
        let mut varve = self.command(varve_binary());
        varve
            .args(["record", "--force", "-o", "trace.varve"])
            .args(options);
        if !command.is_empty() {
            varve.arg("--").args(command);
        }
        varve
    }

    /// `varve record` of the target program.
    pub fn record_actor(&self, options: &[&str], arguments: &[&str]) -> Command {
        let mut words = vec![actor().as_os_str()];
        words.extend(arguments.iter().map(OsStr::new));
        self.record(options, &words)
    }

    /// Starts it in a process group of its own, with output into files.
    pub fn start(&self, mut command: Command) -> Running {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let out = self.path(&format!("stdout-{number}"));
        let err = self.path(&format!("stderr-{number}"));
        command
            .stdout(File::create(&out).expect("a file for output"))
            .stderr(File::create(&err).expect("a file for messages"))
            .process_group(0);
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        Running { child, out, err }
    }

    /// Starts it without input and waits for its end.
    pub fn run(&self, mut command: Command) -> Ended {
        command.stdin(Stdio::null());
        self.start(command).end()
    }

    /// What is left of a recorder: its cgroup, its rings, and any process of this stage. Waits for it
    /// to go, as a watchdog may be at work still; nothing is the right answer.
    pub fn leftovers(&self, recorder: u32) -> Vec<String> {
        let look = || {
            let mut left: Vec<String> = recorder_cgroups(recorder)
                .iter()
                .map(|p| format!("cgroup {}", p.display()))
                .collect();
            left.extend(
                ring_folders(recorder)
                    .iter()
                    .map(|p| format!("rings {}", p.display())),
            );
            left.extend(marked_processes(&self.mark).iter().map(|p| {
                let words = fs::read_to_string(format!("/proc/{p}/cmdline")).unwrap_or_default();
                format!("process {p}: {}", words.replace('\0', " "))
            }));
            left
        };
        patiently(|| look().is_empty());
        look()
    }

    /// Requires that nothing is left of a recorder.
    pub fn require_clean(&self, recorder: u32) {
        let left = self.leftovers(recorder);
        assert!(left.is_empty(), "left behind: {left:#?}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // A frozen process cannot be ended by SIGTERM but by SIGKILL; a process may fork meanwhile.
        for _ in 0..100 {
            let left = marked_processes(&self.mark);
            if left.is_empty() {
                break;
            }
            for pid in left {
                for cgroup in recorder_cgroups(pid) {
                    dissolve(&cgroup);
                }
                for rings in ring_folders(pid) {
                    let _ = fs::remove_dir_all(rings);
                }
                if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A process that was started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Running {
    /// Its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn id(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let _ = rustix::process::kill_process(self.id(), signal);
    }

    /// Sends its whole process group a signal, as a terminal does.
    pub fn signal_group(&self, signal: rustix::process::Signal) {
        let _ = rustix::process::kill_process_group(self.id(), signal);
    }

    /// Stops it, and waits until all of its threads stand or it has ended; tells whether they stand.
    pub fn stop(&mut self) -> bool {
        self.signal(rustix::process::Signal::STOP);
        let pid = self.pid();
        let all_stand = || {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
            let mut states = tasks.flatten().flatten().map(|task| {
                let task = task.file_name();
                stat(format!("{pid}/task/{}", task.display())).map(|stat| stat.state)
            });
            states.all(|state| matches!(state, None | Some('T' | 't' | 'Z' | 'X')))
        };
        assert!(patiently(all_stand), "it does not stop");
        !self.has_ended()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// What it has said on standard error so far.
    pub fn messages(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap_or_default()).into_owned()
    }

    /// What it has said on standard output so far, and its children.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ended {
        let mut status = None;
        let ended = patiently(|| {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        if !ended {
            let _ = self.child.kill();
            let _ = self.child.wait();
            panic!("it hangs; it said: {}", self.messages());
        }
        Ended {
            pid: self.child.id(),
            code: status.map_or(-1, shell_code),
            out: self.out.clone(),
            stdout: fs::read(&self.out).unwrap_or_default(),
            stderr: String::from_utf8_lossy(&fs::read(&self.err).unwrap_or_default()).into_owned(),
        }
    }
}

fn shell_code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// Its id.
    pub pid: u32,
    /// As a shell shows it.
    pub code: i32,
    out: PathBuf,
    /// Its data.
    pub stdout: Vec<u8>,
    /// Its messages.
    pub stderr: String,
}

impl Ended {
    /// Its data as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The file that its data went to, and its children's.
    pub fn output(&self) -> &Path {
        &self.out
    }

    /// Requires an exit code.
    pub fn require(self, code: i32) -> Ended {
        assert_eq!(
            self.code,
            code,
            "stdout: {}stderr: {}",
            self.text(),
            self.stderr
        );
        self
    }

    /// Requires that it complained in one sentence that holds these words, followed by a hint, and in
    /// nothing else.
    pub fn require_complaint(&self, words: &[&str]) {
        let lines: Vec<&str> = self.stderr.lines().collect();
        let errors: Vec<&&str> = lines.iter().filter(|l| l.starts_with("error: ")).collect();
        assert_eq!(errors.len(), 1, "one sentence, not: {}", self.stderr);
        for word in words {
            assert!(errors[0].contains(word), "no `{word}` in: {}", self.stderr);
        }
        assert!(
            lines.iter().any(|l| l.starts_with("hint: ")),
            "no hint in: {}",
            self.stderr
        );
        assert!(
            !self.stderr.contains("panicked") && !self.stderr.contains("Error {"),
            "{}",
            self.stderr
        );
    }
}
