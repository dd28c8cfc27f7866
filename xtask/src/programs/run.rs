//! One run of one program, alone or under a recording, in a folder that is the same each time.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::page::Facts;
use super::table::{Input, Program, Words};
use crate::error::{Doing, Error, Result, make_dir, read, run, shown, write};

/// What a run may take: a guard only, against a program that a recording lets stand still.
const LIMIT: Duration = Duration::from_secs(900);
/// Debian's programs before others of the same name; what Debian lacks may come from elsewhere.
const PATH: &str = "/usr/bin:/bin:/usr/sbin:/sbin";

/// Ends all processes that stand in the folder `$1` or were started with it in their environment, but for those of the program `$2`.
/// What they start meanwhile is found the next time.
const END: &str = r#"
folder=$1
left() {
    { grep -lsF "$folder" /proc/[0-9]*/environ; find /proc -maxdepth 2 -name cwd -lname "$folder/*" 2>/dev/null; } | cut -d / -f 3 | sort -u |
    while read -r process; do
        [ "$(readlink "/proc/$process/exe")" = "${2-none}" ] || echo "$process"
    done
}
for again in 1 2 3 4 5 6 7 8; do
    found=$(left "$@")
    [ -n "$found" ] || break
    kill -KILL $found 2>/dev/null
done"#;

/// Where programs are looked for.
pub(super) fn path() -> String {
    format!("{PATH}:{}", std::env::var("PATH").unwrap_or_default())
}

/// How a program is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By itself.
    Alone,
    /// Under `varve record`.
    Record,
    /// Under `varve record --backend fault`.
    Fault,
    /// Under `varve alloc record`.
    Alloc,
}

impl Way {
    /// All kinds of recording.
    pub(super) const RECORDED: [Way; 3] = [Way::Record, Way::Fault, Way::Alloc];

    /// One word for names of files and messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Alone => "alone",
            Way::Record => "record",
            Way::Fault => "fault",
            Way::Alloc => "alloc",
        }
    }

    /// Arguments of the recorder before its output.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Way::Alone => &[],
            Way::Record => &["record"],
            Way::Fault => &["record", "--backend", "fault"],
            Way::Alloc => &["alloc", "record"],
        }
    }

    /// Arguments that show the first screen of such a trace.
    fn report(self) -> &'static [&'static str] {
        match self {
            Way::Alloc => &["alloc", "report"],
            _ => &["report"],
        }
    }
}

/// The folders of one program's runs; they go with this value, and so does what runs in them.
///
/// Runs take place in `here`, with `scratch` as home and for temporary files, and are moved to a folder of their own afterwards: a path
/// that a program prints is the same in each run.
pub(super) struct Stage<'a> {
    program: &'a Program,
    varve: &'a Path,
    /// Its fields go in their order: the guard before the folder.
    _guard: Guard,
    folder: tempfile::TempDir,
}

/// What is left of a run.
pub(super) struct Ended {
    /// How it was run.
    pub(super) way: Way,
    /// The exit code, as a shell says it: 128 + signal if one ended it.
    pub(super) code: i32,
    /// The run, with what the recorder does before and after.
    pub(super) ran: Duration,
    /// Whether it was ended because it took too long.
    pub(super) given_up: bool,
    /// Whether its standard error is its own, and not the recorder's too.
    pub(super) has_own_stderr: bool,
    /// Its folder: `stdout`, `stderr`, `files`, and of a recording `varve`, which is what that said, and `trace`.
    pub(super) folder: PathBuf,
    facts: Facts,
}

impl Ended {
    /// What the page tells of it.
    pub(super) fn into_facts(self) -> Facts {
        self.facts
    }

    /// The last line that it wrote to standard error, for messages.
    pub(super) fn said(&self) -> Result<String> {
        let text = read(&self.folder.join("stderr"))?;
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(text.lines().last().unwrap_or("it said nothing").to_owned())
    }
}

impl<'a> Stage<'a> {
    /// Makes the folders and the program's input.
    pub(super) fn new(program: &'a Program, varve: &'a Path) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("varve-programs-")
            // Where root records, a server may have another user.
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .doing(|| "create a folder".to_owned())?;
        let stage = Stage {
            program,
            varve,
            _guard: Guard::over(folder.path())?,
            folder,
        };
        make_dir(&stage.at("input"))?;
        stage.reset()?;
        let mut command = stage.surrounded("sh");
        command
            .args(["-e", "-c", program.prepare])
            .current_dir(stage.at("input"))
            .stdin(Stdio::null());
        run(&mut command)?;
        match program.input {
            Input::Nothing | Input::Prepared(_) => {}
            Input::Text(text) => write(&stage.at("text"), text)?,
        }
        Ok(stage)
    }

    /// Runs the program once.
    pub(super) fn run(&self, way: Way) -> Result<Ended> {
        self.reset()?;
        let folder = self.run_folder(way)?;
        let mut command = self.command(way, &folder);
        command
            .current_dir(self.at("here"))
            .process_group(0)
            .stdin(self.input()?)
            .stdout(create(&folder.join("stdout"))?)
            // The program's own goes to `stderr` by its shell.
            .stderr(create(&folder.join("varve"))?);
        create(&folder.join("stderr"))?;
        let began = Instant::now();
        let child = command
            .spawn()
            .doing(|| format!("start `{}`", shown(&command)))?;
        let (status, given_up) = wait(child)?;
        let ran = began.elapsed();
        self.end_what_is_left()?;
        fs::rename(self.at("here"), folder.join("files"))
            .doing(|| "move the files of a run".to_owned())?;
        let code = status
            .code()
            .or(status.signal().map(|signal| 128 + signal))
            .unwrap_or(-1);
        let mut ended = Ended {
            way,
            code,
            ran,
            given_up,
            has_own_stderr: matches!(self.program.words, Words::Line(_)),
            folder,
            facts: Facts {
                way: way.name(),
                whole: ran,
                recorded: None,
                completeness: None,
            },
        };
        self.look_at_trace(&mut ended)?;
        Ok(ended)
    }

    /// What the recorder said at the end, and the first screen of the trace; `None` where there is none.
    pub(super) fn screen(&self, ended: &Ended) -> Result<Option<String>> {
        let trace = ended.folder.join("trace");
        if !trace.is_dir() {
            return Ok(None);
        }
        let mut command = self.surrounded(self.varve);
        command
            .args(ended.way.report())
            .arg("trace")
            .current_dir(&ended.folder);
        let report = run(&mut command)?;
        let said = read(&ended.folder.join("varve"))?;
        Ok(Some(format!(
            "{}\n{}",
            String::from_utf8_lossy(&said),
            String::from_utf8_lossy(&report.stdout)
        )))
    }

    /// Copies all runs, for a person to look at; what was there is replaced.
    pub(super) fn keep(&self, to: &Path) -> Result<()> {
        if to.exists() {
            fs::remove_dir_all(to).doing(|| format!("remove {}", to.display()))?;
        }
        run(Command::new("cp").arg("-a").arg(self.at("runs")).arg(to))?;
        Ok(())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Empty folders for the next run.
    fn reset(&self) -> Result<()> {
        for name in ["here", "scratch"] {
            let path = self.at(name);
            if path.exists() {
                fs::remove_dir_all(&path).doing(|| format!("remove {}", path.display()))?;
            }
            make_dir(&path)?;
        }
        Ok(())
    }

    /// A new folder for what is left of a run.
    fn run_folder(&self, way: Way) -> Result<PathBuf> {
        let runs = self.at("runs");
        make_dir(&runs)?;
        let taken = fs::read_dir(&runs).doing(|| format!("read {}", runs.display()))?;
        let folder = runs.join(format!("{}-{}", taken.count() + 1, way.name()));
        make_dir(&folder)?;
        Ok(folder)
    }

    /// A command in surroundings that are the same on every machine, as far as that goes.
    fn surrounded(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", path())
            .env("HOME", self.at("scratch"))
            .env("TMPDIR", self.at("scratch"))
            .env("INPUT", self.at("input"))
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC");
        command
    }

    fn command(&self, way: Way, folder: &Path) -> Command {
        let stderr = folder.join("stderr").display().to_string();
        let words: Vec<&str> = match self.program.words {
            Words::Line(line) => vec!["sh", "-c", line],
            Words::Exec(words) => words.to_vec(),
        };
        if way == Way::Alone {
            // A shell says by its exit code why a program cannot be run.
            let mut command = self.surrounded("sh");
            command
                .args(["-c", r#"exec "$@" 2>"$0""#])
                .arg(&stderr)
                .args(words);
            return command;
        }
        let mut command = self.surrounded(self.varve);
        command
            .args(way.arguments())
            .arg("-o")
            .arg(folder.join("trace"))
            .arg("--");
        if matches!(self.program.words, Words::Line(_)) {
            // What the program says is not to stand among what the recorder says.
            command
                .args(["sh", "-c", r#"exec "$@" 2>"$0""#])
                .arg(&stderr);
        }
        command.args(words);
        command
    }

    fn input(&self) -> Result<Stdio> {
        let path = match self.program.input {
            Input::Nothing => return Ok(Stdio::null()),
            Input::Text(_) => self.at("text"),
            Input::Prepared(name) => self.at("input").join(name),
        };
        let file = File::open(&path).doing(|| format!("open {}", path.display()))?;
        Ok(file.into())
    }

    /// Reads what the trace says of itself.
    fn look_at_trace(&self, ended: &mut Ended) -> Result<()> {
        let trace = ended.folder.join("trace");
        if !trace.is_dir() {
            return Ok(());
        }
        let mut command = self.surrounded(self.varve);
        command
            .arg("report")
            .arg(&trace)
            .args(["--json", "--section", "recording"]);
        let text = run(&mut command)?.stdout;
        let json: serde_json::Value = serde_json::from_slice(&text).map_err(|error| {
            Error::failed(format!("`{}` wrote no JSON: {error}", shown(&command)))
        })?;
        let trace = &json["trace"];
        ended.facts.recorded = trace["duration_ns"].as_u64().map(Duration::from_nanos);
        let losses = trace["losses"].as_object().into_iter().flatten();
        let losses: Vec<String> = losses.map(|(name, n)| format!("{name} {n}")).collect();
        ended.facts.completeness = Some(if trace["complete"] == true {
            Ok(())
        } else {
            Err(losses.join(", "))
        });
        Ok(())
    }

    /// Ends what a run left behind: a server whose line failed, say. The recorder's own processes end by themselves.
    fn end_what_is_left(&self) -> Result<()> {
        let mut command = Command::new("sh");
        command
            .args(["-c", END, "sh"])
            .arg(self.folder.path())
            .arg(self.varve);
        run(&mut command)?;
        Ok(())
    }
}

/// Removes a folder and ends what runs in it when this value goes, and also when this program is killed.
struct Guard(Child);

impl Guard {
    fn over(folder: &Path) -> Result<Self> {
        // The end of its input comes however the other end of the pipe goes.
        let script = format!("cat >/dev/null\n{END}\nrm -rf \"$folder\"");
        let mut command = Command::new("sh");
        command
            .args(["-c", &script, "sh"])
            .arg(folder)
            .stdin(Stdio::piped())
            .process_group(0);
        let guard = command.spawn().doing(|| "start sh".to_owned())?;
        Ok(Guard(guard))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // Fails only if it has been waited for.
        let _ = self.0.wait();
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).doing(|| format!("create {}", path.display()))
}

/// Waits for a process; true if it took too long and was ended, with all of its group.
fn wait(mut child: Child) -> Result<(ExitStatus, bool)> {
    let group = format!("-{}", child.id());
    std::thread::scope(|scope| {
        let (ended, limit) = channel::<()>();
        let guard = scope.spawn(move || {
            // An error that is no timeout says that the process has ended.
            let late = limit.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            if late {
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            }
            late
        });
        let status = child.wait().doing(|| "wait for a program".to_owned());
        drop(ended);
        Ok((status?, guard.join().unwrap_or(false)))
    })
}
