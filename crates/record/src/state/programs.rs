//! What a program is called: as somebody ran it, where that leads to the file which the kernel names.

use std::collections::HashMap;
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
    known: HashMap<(PathBuf, PathBuf), bool>,
}

impl Programs {
    /// The path by which a process ran the file `exe`; none where that has the file's own name or is not known. `executed`
    /// is what the kernel was asked to run: for a script that is no program. Processes that ran before the recording
    /// say by their first argument or, as the kernel does, by the name of their first thread what they were run as.
    pub(crate) fn run_as(
        &mut self,
        pid: Pid,
        exe: &Path,
        executed: Option<&str>,
        arguments: &[String],
    ) -> Option<String> {
        let mut candidates: Vec<PathBuf> = Vec::new();
        match executed {
            Some(path) => candidates.push(path.into()),
            None => {
                let first = arguments.first().filter(|a| a.starts_with('/'));
                candidates.extend(first.map(PathBuf::from));
                let name = varve_sys::status(pid).ok().map(|status| status.name);
                let name = name.filter(|name| !name.is_empty() && !name.contains('/'));
                candidates.extend(name.and_then(|name| Some(exe.parent()?.join(name))));
            }
        }
        candidates.retain(|path| path.file_name().is_some_and(|n| Some(n) != exe.file_name()));
        let found = candidates
            .into_iter()
            .find(|path| self.leads(pid, path, exe))?;
        Some(found.to_string_lossy().into_owned())
    }

    fn leads(&mut self, pid: Pid, path: &Path, exe: &Path) -> bool {
        let key = (path.to_owned(), exe.to_owned());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let path = key.0.clone();
        let looked = varve_sys::within(PATIENCE, move || varve_sys::leads_to_program(pid, &path));
        let gone = varve_sys::exe(pid).map_or(true, |now| now != exe);
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
        let exe = match runs_it() {
            true => varve_sys::exe(pid).ok().filter(|_| runs_it()),
            false => None,
        };
        let Some(process) = self.all.get_mut(&pid) else {
            return;
        };
        if let Some(exe) = exe {
            let file = exe.to_string_lossy().into_owned();
            let executed = exec.map(|exec| String::from_utf8_lossy(exec.path));
            let executed = executed.as_deref();
            (process.row.exe, process.row.file) =
                match self.programs.run_as(pid, &exe, executed, &words) {
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
        let mut run_as = |executed: Option<&str>, arguments: &[String]| {
            programs.run_as(pid, &exe, executed, arguments)
        };
        let linked = link.to_str().map(str::to_owned);
        assert_eq!(run_as(linked.as_deref(), &[]), linked);
        assert_eq!(run_as(None, &arguments), linked);
        assert_eq!(run_as(None, &[]), linked, "by the name of its first thread");
        assert_eq!(run_as(script.to_str(), &[]), None);
        assert_eq!(run_as(file.to_str(), &[]), None, "it has that name anyway");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
