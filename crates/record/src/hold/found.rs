//! The cgroup in which a process was found, frozen in place where nobody else is in it.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use varve_bpf::TrackedProcesses;
use varve_model::Pid;
use varve_sys::{Cgroup, Freezer, Frozen};

use crate::marker::Marker;

/// Threads from which on stopping each of them takes longer than a hold may by default.
const MANY_THREADS: usize = 200;
/// What ptrace takes to stop a thread and let it go: 22 to 35 µs with 500 and 5,000 threads on a virtual machine with 2 CPUs.
const PER_THREAD: Duration = Duration::from_micros(25);

/// A process that was made in the middle of a look is in its cgroup a moment before the kernel's part tracks it.
const TRIES: u32 = 5;

/// A cgroup of somebody else's. While it is frozen it carries the recorder's mark, so that a watchdog, or the next
/// recorder, knows who froze it.
#[derive(Debug)]
pub(crate) struct FoundGroup {
    freezer: Freezer,
    mark: String,
    is_frozen: bool,
    /// Tells other recorders that this one lives, even where they cannot see its process.
    _lock: File,
}

/// What a person should know, and can do, where a process has many threads; nothing where it has few.
fn cost_of_threads(pid: Pid) -> String {
    let threads = varve_sys::threads(pid).map_or(0, |all| all.len());
    if threads < MANY_THREADS {
        return String::new();
    }
    let hold = PER_THREAD * threads as u32;
    format!(
        ". To stop each of its {threads} threads by itself takes some {} ms a time (by what it took elsewhere), whatever --max-hold and \
         --overhead permit. In a cgroup of its own that is a fraction of it: start it with `systemd-run --scope`, or make a folder in \
         /sys/fs/cgroup and write its number into the cgroup.procs there",
        hold.as_millis()
    )
}

impl FoundGroup {
    /// The cgroup of a process, if it can be frozen without harm to anybody else.
    ///
    /// # Errors
    /// Why it cannot, as the second half of a sentence.
    pub(crate) fn of(pid: Pid, tracked: &TrackedProcesses) -> Result<FoundGroup, String> {
        let path = Cgroup::of(pid).map_err(|e| e.to_string())?;
        if Cgroup::mount_point().is_ok_and(|root| root == path) {
            return Err(format!(
                "it is in the root cgroup, which cannot be frozen{}",
                cost_of_threads(pid)
            ));
        }
        let own = Cgroup::of(Pid(std::process::id()));
        if own.is_ok_and(|own| own.starts_with(&path)) {
            return Err(format!(
                "this recorder is in its cgroup {path:?} too{}",
                cost_of_threads(pid)
            ));
        }
        let freezer = Freezer::open(&path).map_err(|e| e.to_string())?;
        if freezer.is_asked_to_freeze().is_ok_and(|asked| asked) {
            return Err(format!("somebody else has frozen its cgroup {path:?}"));
        }
        for tried in 1.. {
            let tracked: HashSet<Pid> = tracked.list().into_iter().collect();
            let members = freezer.members().map_err(|e| e.to_string())?;
            match members.iter().find(|member| !tracked.contains(member)) {
                None => break,
                Some(other) if tried == TRIES => {
                    return Err(format!(
                        "other processes are in its cgroup {path:?}, such as process {other}{}",
                        cost_of_threads(pid)
                    ));
                }
                Some(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        let mark = Marker::own().map_err(|e| e.to_string())?.text();
        let found = FoundGroup {
            _lock: varve_sys::lock(&path)
                .map_err(|_| format!("another recorder uses its cgroup {path:?}"))?,
            freezer,
            mark,
            is_frozen: false,
        };
        let marked = found.mark(true).and_then(|()| found.mark(false));
        marked.map_err(|e| format!("its cgroup {path:?} cannot be marked ({e})"))?;
        Ok(found)
    }

    fn mark(&self, on: bool) -> std::io::Result<()> {
        varve_sys::mark_cgroup(self.path(), on.then_some(&self.mark))
    }

    pub(crate) fn path(&self) -> &Path {
        self.freezer.path()
    }

    pub(crate) fn freezer(&self) -> &Freezer {
        &self.freezer
    }

    /// Freezes it; nothing where it is gone or somebody else has frozen it.
    pub(crate) fn freeze(&mut self, limit: Duration, meanwhile: impl FnMut()) -> Option<Frozen> {
        if self.freezer.is_asked_to_freeze().unwrap_or(true) || self.mark(true).is_err() {
            return None;
        }
        self.is_frozen = true;
        self.freezer.freeze(limit, meanwhile).ok()
    }

    /// Lets it run, if this froze it.
    pub(crate) fn thaw(&mut self) {
        if std::mem::take(&mut self.is_frozen) {
            // A cgroup that is gone has nobody in it.
            let _ = self.freezer.thaw();
            let _ = self.mark(false);
        }
    }
}

impl Drop for FoundGroup {
    fn drop(&mut self) {
        self.thaw();
    }
}
