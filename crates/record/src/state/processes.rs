//! The processes and threads that are recorded, and what they map.

mod known;
mod mappings;
mod peaks;

use std::collections::HashMap;

use varve_bpf::{Exec, Fork, ForkKind, Peak, TrackedProcesses};
use varve_model::{Address, Duration, Pid, Tid, Time};
use varve_sys::MapEntry;
use varve_trace::tables::{MappingRow, ProcessRow, ThreadRow};

use self::known::Known;
pub(crate) use self::known::SharedMapping;
use self::peaks::{Peaks, RUNNING};
use super::build_ids::BuildIds;
use super::emulator::{self, EMULATOR};
use super::programs::Programs;
use super::ranges::Ranges;

/// What a program mapped when it began, as it reported itself.
#[derive(Debug)]
pub(crate) struct FirstMaps {
    pub(crate) pid: Pid,
    pub(crate) time: Time,
    pub(crate) entries: Vec<MapEntry>,
}

/// How long the mappings of a process that has just begun are not looked at, where they become known otherwise.
const LOADING: Duration = Duration(3_000_000);

/// Who reports a process's heap objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObjectsFrom {
    /// The preload library, which may not have said anything yet.
    Preload,
    /// The kernel's tracepoints.
    Kernel,
}

/// Whether the mappings known here are those of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Maps {
    Current,
    /// They changed; look again not before this moment.
    Stale(Time),
}

/// What is known of a mapping.
#[derive(Clone, Debug)]
struct Seen {
    since: Time,
    build_id: Option<String>,
}

/// A recorded process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) row: ProcessRow,
    pub(crate) objects_from: ObjectsFrom,
    /// When what it runs began: its last exec, or its fork.
    pub(crate) image: Time,
    /// The threads that know themselves by another number, in a pid namespace of their own, by that number.
    own_numbers: HashMap<Tid, Tid>,
    /// The parent whose memory it shares, between vfork and exec.
    pub(crate) shares_with: Option<Pid>,
    /// What the kernel's peaks of resident memory are of.
    peaks: Peaks,
    /// The parent whose objects it has copies of, until they are taken over.
    pub(crate) inherits: Option<(Pid, Time)>,
    threads: HashMap<Tid, ThreadRow>,
    mappings: Known,
    maps: Maps,
    /// When they changed last.
    maps_changed: Time,
    /// Not before this moment are they looked at: it is loading its libraries, and whoever looks makes it wait.
    loads_until: Time,
    /// Nor before this one unless an interval ends: looking takes long.
    looks_from: Time,
    /// How often the known mappings have changed.
    changes: u64,
    /// When they were looked at last.
    refreshed: Time,
    /// Until when libraries that it unloaded had been there, by where their code began.
    unloaded: HashMap<Address, Time>,
    /// Whether its root folder is the recorder's, so that its paths lead somewhere when it has ended.
    has_our_root: bool,
}

/// Another one whenever the known mappings of a process may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapsVersion(Time, u64);

impl Process {
    fn new(pid: Pid, parent: Pid, born: Time) -> Process {
        Process {
            row: ProcessRow {
                pid,
                parent,
                exe: String::new(),
                file: None,
                command: String::new(),
                born_ns: born,
                died_ns: None,
                exit_code: None,
                objects: None,
                objects_why: None,
                peak_resident_bytes: None,
                peak_resident_why: Some(RUNNING.into()),
            },
            objects_from: ObjectsFrom::Kernel,
            image: born,
            own_numbers: HashMap::new(),
            shares_with: None,
            peaks: Peaks::Began,
            inherits: None,
            threads: HashMap::new(),
            mappings: Known::default(),
            maps: Maps::Stale(born),
            maps_changed: born,
            loads_until: Time(0),
            looks_from: Time(0),
            changes: 0,
            refreshed: Time(0),
            unloaded: HashMap::new(),
            has_our_root: false,
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    pub(crate) all: HashMap<Pid, Process>,
    /// Rows that were written once and may be written again when more is known.
    pub(crate) process_rows: Vec<ProcessRow>,
    pub(crate) thread_rows: Vec<ThreadRow>,
    pub(crate) mapping_rows: Vec<MappingRow>,
    /// Where accesses are trapped: the memory to which each process's pages are moved, until it runs another program.
    pub(crate) shadows: HashMap<Pid, Ranges>,
    build_ids: BuildIds,
    pub(super) programs: Programs,
    /// The kernel's word on what each of them runs now.
    pub(crate) tracked: Option<TrackedProcesses>,
    /// Whether the programs run under an emulator, which the kernel takes for the program.
    pub(crate) emulated: bool,
}

impl Processes {
    /// A process that may be seen for the first time, with its first thread.
    pub(crate) fn adopt(&mut self, pid: Pid, parent: Pid, born: Time) -> &mut Process {
        let known = self.all.len();
        let make = || Process::new(pid, parent, born);
        self.all.entry(pid).or_insert_with(make);
        if self.all.len() > known {
            self.describe(pid, None);
            self.thread(pid, Tid(pid.0), born, None);
            if let Some(process) = self.all.get_mut(&pid) {
                process.has_our_root = varve_sys::has_our_root(pid);
            }
        }
        self.all.entry(pid).or_insert_with(make)
    }

    /// A process runs another program: the row of the first ends here.
    pub(crate) fn exec(&mut self, exec: &Exec<'_>) {
        let (pid, time) = (exec.pid, exec.time);
        let path = String::from_utf8_lossy(exec.path).into_owned();
        let Some(process) = self.all.get_mut(&pid) else {
            return;
        };
        process.image = time;
        process.has_our_root = !exec.has_other_root;
        process.loads_until = Time(0);
        process.looks_from = Time(0);
        // The leader is the only thread left.
        let leader = Tid(pid.0);
        process.own_numbers.retain(|_, tid| *tid == leader);
        // Between fork and exec nothing of its own happened: one row for both.
        if !process.row.exe.is_empty() && !process.mappings.is_empty() {
            process.row.died_ns = Some(time);
            process.set_peak(exec.peak, self.emulated);
            self.process_rows.push(process.row.clone());
            process.row.born_ns = time;
            process.row.died_ns = None;
        }
        process.peaks = Peaks::after(exec.peak);
        process.row.peak_resident_bytes = None;
        process.row.peak_resident_why = Some(RUNNING.into());
        process.row.exe.clone_from(&path);
        process.row.file = None;
        process.row.command = path;
        process.row.objects = None;
        process.row.objects_why = None;
        process.shares_with = None;
        process.inherits = None;
        self.end_mappings(pid, time);
        self.maps_changed(pid, time);
        self.describe(pid, Some(exec));
        if self.emulated {
            self.thread(pid, Tid(pid.0), time, Some(EMULATOR));
        }
    }

    /// A thread made another of the same process, which has its name.
    pub(crate) fn thread_made(&mut self, pid: Pid, maker: Tid, tid: Tid, born: Time) {
        let process = self.all.get(&pid);
        // Looking it up would take longer than making a thread does.
        let name = process.and_then(|p| Some(p.threads.get(&maker)?.name.clone()));
        self.thread(pid, tid, born, name.as_deref());
    }

    /// A process was made by another, and has what that has.
    pub(crate) fn forked(&mut self, fork: &Fork) {
        let parent = self.all.get(&fork.parent);
        if let Some(parent) = parent
            && !self.all.contains_key(&fork.pid)
        {
            // It is what its parent is: nothing is to be looked up, and it may be another program by now.
            let name = parent.threads.get(&fork.parent_tid);
            let name = name.map(|thread| thread.name.clone());
            let fresh = Process::new(fork.pid, fork.parent, fork.time);
            self.all.insert(fork.pid, fresh);
            self.thread(fork.pid, fork.tid, fork.time, name.as_deref());
        } else {
            self.adopt(fork.pid, fork.parent, fork.time);
        }
        let parent = self.all.get(&fork.parent);
        let has_our_root = parent.is_some_and(|p| p.has_our_root);
        let parent = parent.map(|p| (p.objects_from, p.row.clone()));
        let Some(process) = self.all.get_mut(&fork.pid) else {
            return;
        };
        if let Some((objects_from, parent)) = parent {
            process.objects_from = objects_from;
            process.row.objects = parent.objects;
            process.row.objects_why = parent.objects_why;
            let same = process.row.exe == *parent.file.as_ref().unwrap_or(&parent.exe);
            // It may have ended before anybody looked, and its thread may have another name than the program.
            if process.row.exe.is_empty() || same {
                process.row.exe = parent.exe;
                process.row.file = parent.file;
                process.row.command = parent.command;
                self.process_rows.push(process.row.clone());
            }
        } else {
            process.objects_from = ObjectsFrom::Kernel;
        }
        process.image = fork.time;
        process.peaks = Peaks::forked(fork.kind);
        process.has_our_root |= has_our_root;
        if fork.kind == ForkKind::SharedMemory {
            process.shares_with = Some(fork.parent);
            return;
        }
        process.inherits = Some((fork.parent, fork.time));
        process.loads_until = fork.time + LOADING;
        // The shadow is copied with all other memory.
        if let Some(shadow) = self.shadows.get(&fork.parent).cloned() {
            self.shadows.insert(fork.pid, shadow);
        }
    }

    /// Notes who reports a process's objects, and why not the preload library.
    pub(crate) fn objects_come_from(
        &mut self,
        pid: Pid,
        from: ObjectsFrom,
        why: Option<&'static str>,
    ) {
        let Some(process) = self.all.get_mut(&pid) else {
            return;
        };
        process.objects_from = from;
        let word = match from {
            ObjectsFrom::Preload => "preload",
            ObjectsFrom::Kernel => "kernel",
        };
        process.row.objects = Some(word.into());
        process.row.objects_why = why.map(Into::into);
        self.process_rows.push(process.row.clone());
    }

    /// Whether the preload library has reported what a process runs since then.
    pub(crate) fn has_spoken(&self, pid: Pid, image: Time) -> bool {
        let process = self.all.get(&pid);
        process.is_none_or(|p| p.image != image || p.row.objects.as_deref() == Some("preload"))
    }

    /// Whether the events have reported a process and what it runs since then.
    pub(crate) fn knows(&self, pid: Pid, image: Time) -> bool {
        let process = self.all.get(&pid);
        process.is_some_and(|p| p.image >= image)
    }

    /// A thread that calls itself `own` is this one.
    pub(crate) fn thread_calls_itself(&mut self, pid: Pid, tid: Tid, own: Tid) {
        if let Some(process) = self.all.get_mut(&pid)
            && own != tid
        {
            process.own_numbers.insert(own, tid);
        }
    }

    /// The thread of a process that calls itself so.
    pub(crate) fn thread_known_as(&self, pid: Pid, own: Tid) -> Tid {
        let process = self.all.get(&pid);
        let known = process.and_then(|p| p.own_numbers.get(&own));
        known.copied().unwrap_or(own)
    }

    /// A thread came to be or changed its name.
    pub(crate) fn thread(&mut self, pid: Pid, tid: Tid, born: Time, name: Option<&str>) {
        let Some(process) = self.all.get_mut(&pid) else {
            return;
        };
        let inherited = process
            .threads
            .get(&Tid(pid.0))
            .map(|t| t.name.clone())
            .unwrap_or_default();
        let row = process.threads.entry(tid).or_insert_with(|| ThreadRow {
            pid,
            tid,
            name: inherited,
            born_ns: born,
            died_ns: None,
        });
        match name {
            Some(name) => row.name = name.to_owned(),
            None => {
                if let Ok(status) = varve_sys::status(Pid(tid.0)) {
                    row.name = status.name;
                }
            }
        }
        // The kernel names threads by the program that it runs, which is not the one that is recorded.
        if self.emulated && row.name == EMULATOR {
            row.name = emulator::comm(&process.row.exe);
        }
        self.thread_rows.push(row.clone());
    }

    pub(crate) fn thread_ended(&mut self, pid: Pid, tid: Tid, time: Time) {
        let Some(process) = self.all.get_mut(&pid) else {
            return;
        };
        process.own_numbers.retain(|_, known| *known != tid);
        if let Some(mut row) = process.threads.remove(&tid) {
            row.died_ns = Some(time);
            self.thread_rows.push(row);
        }
    }

    pub(crate) fn process_ended(
        &mut self,
        pid: Pid,
        time: Time,
        exit_code: Option<i32>,
        peak: Peak,
    ) {
        self.end_mappings(pid, time);
        let Some(mut process) = self.all.remove(&pid) else {
            return;
        };
        for (_, mut thread) in process.threads.drain() {
            thread.died_ns = Some(time);
            self.thread_rows.push(thread);
        }
        process.row.died_ns = Some(time);
        process.row.exit_code = exit_code;
        process.set_peak(peak, self.emulated);
        self.process_rows.push(process.row);
    }

    pub(crate) fn threads(&self) -> usize {
        self.all.values().map(|p| p.threads.len()).sum()
    }

    /// The process that the touches of `pid` belong to: its own, or the parent's whose memory it
    /// shares.
    pub(crate) fn owner_of_memory(&self, pid: Pid) -> Pid {
        let mut owner = pid;
        // vfork in a vforked child cannot go deep, and a cycle cannot be; the bound is for safety.
        for _ in 0..8 {
            match self.all.get(&owner).and_then(|p| p.shares_with) {
                Some(parent) => owner = parent,
                None => break,
            }
        }
        owner
    }

    /// Notes the memory to which pages of a process are moved.
    pub(crate) fn add_shadow(&mut self, pid: Pid, shadow: &Ranges) {
        self.shadows.entry(pid).or_default().extend(shadow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulated_threads_have_the_names_of_their_programs() {
        let pid = Pid(u32::MAX - 1);
        let mut processes = Processes {
            emulated: true,
            ..Processes::default()
        };
        processes.adopt(pid, Pid(1), Time(1));
        let exe = "/usr/bin/a-program-with-a-long-name";
        processes.exec(&Exec {
            time: Time(2),
            pid,
            old_tid: Tid(pid.0),
            mm: varve_bpf::MmId(1),
            path: exe.as_bytes(),
            names: &[],
            is_static: false,
            is_secure: false,
            has_other_root: false,
            arguments: &[],
            has_more: false,
            preload: varve_bpf::Preload::Absent,
            peak: Peak::default(),
        });
        processes.thread_made(pid, Tid(pid.0), Tid(5), Time(3));
        processes.thread(pid, Tid(6), Time(4), Some("worker"));
        let threads = &processes.all[&pid].threads;
        let name = |tid| threads[&tid].name.as_str();
        assert_eq!(name(Tid(pid.0)), "a-program-with-");
        assert_eq!(name(Tid(5)), "a-program-with-");
        assert_eq!(name(Tid(6)), "worker");
    }
}
