//! What a program is called: as somebody ran it, where that leads to the file which the kernel names.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use varve_bpf::Exec;
use varve_model::Pid;

use super::emulator;
use super::processes::Processes;

/// How long a file system may take: that of a target's user may never answer. The recorder does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);
/// Paths that are remembered.
const MAX_KNOWN: usize = 1 << 12;

/// Which paths lead to which programs, so that each is looked up once.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    known: HashMap<(PathBuf, PathBuf, bool), bool>,
}

impl Programs {
    /// The path by which a process ran the file `exe`; none where that has the file's own name or is not known. `executed`
    /// is what the kernel was asked to run: for a script that is no program.
    pub(crate) fn run_as(&mut self, pid: Pid, exe: &Path, executed: &Executed) -> Option<String> {
        let path = executed.path.as_path();
        let found = has_other_name(path, exe) && self.leads(pid, path, exe, executed.has_our_root);
        found.then(|| path.to_string_lossy().into_owned())
    }

    /// The same of a process that ran before the recording. It says by its first argument or, as the kernel does, by the
    /// name of its first thread what it was run as.
    pub(crate) fn ran_before_as(
        &mut self,
        pid: Pid,
        exe: &Path,
        arguments: &[String],
    ) -> Option<String> {
        let first = arguments.first().filter(|a| a.starts_with('/'));
        let mut candidates: Vec<PathBuf> = first.map(PathBuf::from).into_iter().collect();
        let name = varve_sys::status(pid).ok().map(|status| status.name);
        let name = name.filter(|name| !name.is_empty() && !name.contains('/'));
        candidates.extend(name.and_then(|name| Some(exe.parent()?.join(name))));
        let found = candidates
            .into_iter()
            .find(|path| has_other_name(path, exe) && self.leads(pid, path, exe, false))?;
        Some(found.to_string_lossy().into_owned())
    }

    /// Whether a path of a process's leads to a file. Where its root is the recorder's nobody need look at the process, which
    /// may be gone.
    fn leads(&mut self, pid: Pid, path: &Path, exe: &Path, has_our_root: bool) -> bool {
        let is_ours = has_our_root && path.is_absolute();
        let key = (path.to_owned(), exe.to_owned(), is_ours);
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let (path, file) = (key.0.clone(), key.1.clone());
        let looked = varve_sys::within(PATIENCE, move || match is_ours {
            true => varve_sys::leads_to(&path, &file),
            false => varve_sys::leads_to_program(pid, &path),
        });
        let gone = !is_ours && varve_sys::exe(pid).map_or(true, |now| now != exe);
        let leads = looked.unwrap_or(false) && !gone;
        // Of a process that is gone nothing is learnt.
        if !gone {
            if self.known.len() >= MAX_KNOWN {
                self.known.clear();
            }
            self.known.insert(key, leads);
        }
        leads
    }
}

/// What the kernel was asked to run.
#[derive(Debug)]
pub(crate) struct Executed {
    path: PathBuf,
    /// Whether the process's root is the recorder's.
    has_our_root: bool,
}

impl Executed {
    fn of(exec: &Exec<'_>) -> Executed {
        Executed {
            path: PathBuf::from(OsStr::from_bytes(exec.path)),
            has_our_root: !exec.has_other_root,
        }
    }
}

fn has_other_name(path: &Path, exe: &Path) -> bool {
    path.file_name().is_some_and(|n| Some(n) != exe.file_name())
}

impl Processes {
    /// Notes what the process runs: what the kernel said when it began, and what can be read now.
    pub(super) fn describe(&mut self, pid: Pid, exec: Option<&Exec<'_>>) {
        // By now it may run another program, whose event is still to come.
        let runs_it = || match (exec, &self.tracked) {
            (Some(exec), Some(tracked)) => tracked.image(pid) == Some(exec.time),
            _ => true,
        };
        let words = match exec {
            Some(exec) if !exec.has_more => varve_sys::command_words(exec.arguments),
            _ => {
                let now = varve_sys::cmdline(pid).unwrap_or_default();
                match exec.filter(|_| now.is_empty() || !runs_it()) {
                    Some(exec) => cut_words(exec.arguments),
                    None => now,
                }
            }
        };
        let exe = exec
            .and_then(Exec::file)
            .or_else(|| varve_sys::exe(pid).ok().filter(|_| runs_it()));
        let Some(process) = self.all.get_mut(&pid) else {
            return;
        };
        if let Some(exe) = exe {
            let run_as = match exec.map(Executed::of) {
                Some(executed) => self.programs.run_as(pid, &exe, &executed),
                None => self.programs.ran_before_as(pid, &exe, &words),
            };
            let file = exe.to_string_lossy().into_owned();
            (process.row.exe, process.row.file) = match run_as {
                Some(path) => (path, Some(file)),
                None => (file, None),
            };
        }
        match self.emulated.then(|| emulator::program(&words)).flatten() {
            Some((exe, command)) => {
                process.row.exe = exe;
                process.row.file = None;
                process.row.command = command;
            }
            None if words.is_empty() => {}
            None => process.row.command = words.join(" "),
        }
        self.process_rows.push(process.row.clone());
    }
}

/// The words of a command line of which this is the beginning.
fn cut_words(text: &[u8]) -> Vec<String> {
    let mut words = varve_sys::command_words(text);
    words.push("...".to_owned());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_called_as_it_was_run_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link, script) = (
            folder.path().join("check"),
            folder.path().join("server"),
            folder.path().join("script"),
        );
        std::fs::copy("/bin/sleep", &file).unwrap();
        std::os::unix::fs::symlink("check", &link).unwrap();
        std::fs::write(&script, "#!/bin/sleep\n").unwrap();
        let mut child = std::process::Command::new(&link).arg("60").spawn().unwrap();
        let pid = Pid(child.id());
        // It is a copy of this program until it has run the other.
        let exe = loop {
            match varve_sys::exe(pid) {
                Ok(exe) if exe.ends_with("check") => break exe,
                _ => std::thread::yield_now(),
            }
        };
        let arguments = varve_sys::cmdline(pid).unwrap();
        let mut programs = Programs::default();
        let linked = link.to_str().map(str::to_owned);
        for has_our_root in [false, true] {
            let mut run_as = |path: &Path| {
                let executed = Executed {
                    path: path.to_owned(),
                    has_our_root,
                };
                programs.run_as(pid, &exe, &executed)
            };
            assert_eq!(run_as(&link), linked);
            assert_eq!(run_as(&script), None);
            assert_eq!(run_as(&file), None, "it has that name anyway");
        }
        let mut ran_before_as = |arguments: &[String]| programs.ran_before_as(pid, &exe, arguments);
        assert_eq!(ran_before_as(&arguments), linked);
        assert_eq!(
            ran_before_as(&[]),
            linked,
            "by the name of its first thread"
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
