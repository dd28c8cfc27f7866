//! A target that notes when it touched its pages, and cgroups to put it in.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use varve_faults::{Running, Stage, cgroup_root, check_trace, patiently};
use varve_trace::Trace;
use varve_trace::tables::{IntervalRow, TouchRow};
use varve_trust::program;

pub(crate) const PAGES: u64 = 64;

/// A cgroup of a test's own; whatever is in it goes to the one above when the test ends.
pub(crate) struct Group(pub(crate) PathBuf);

impl Group {
    pub(crate) fn new(name: &str) -> Group {
        Group::below(&cgroup_root(), OsStr::new(name))
    }

    pub(crate) fn below(parent: &Path, name: &OsStr) -> Group {
        let mut unique = OsString::from(format!("trust-{}-", std::process::id()));
        unique.push(name);
        let path = parent.join(unique);
        fs::create_dir(&path).expect("a cgroup");
        Group(path)
    }

    pub(crate) fn set(&self, file: &str, text: &str) {
        fs::write(self.0.join(file), text)
            .unwrap_or_else(|e| panic!("{text} to {file} of {:?}: {e}", self.0));
    }

    pub(crate) fn take(&self, pid: u32) {
        self.set("cgroup.procs", &pid.to_string());
    }

    /// All limits and weights that this machine has for it.
    pub(crate) fn limits(&self) -> BTreeMap<OsString, Vec<u8>> {
        let files = fs::read_dir(&self.0).expect("its files").flatten();
        let is_limit = |name: &OsStr| {
            let name = name.to_string_lossy();
            [
                ".max",
                ".min",
                ".high",
                ".low",
                ".weight",
                ".type",
                ".subtree_control",
                ".freeze",
            ]
            .iter()
            .any(|end| name.ends_with(end))
        };
        files
            .map(|f| f.file_name())
            .filter(|name| is_limit(name))
            .map(|name| {
                let text = fs::read(self.0.join(&name)).unwrap_or_default();
                (name, text)
            })
            .collect()
    }
}

/// Hears what is written to the freezer of a cgroup, by whoever.
pub(crate) struct Freezer(OwnedFd);

impl Freezer {
    pub(crate) fn of(group: &Group) -> Freezer {
        let flags = CreateFlags::NONBLOCK | CreateFlags::CLOEXEC;
        let heard = inotify::init(flags).expect("inotify");
        let file = group.0.join("cgroup.freeze");
        inotify::add_watch(&heard, file, WatchFlags::MODIFY).expect("a watch");
        Freezer(heard)
    }

    /// Whether it was asked to freeze or to thaw since it was asked last.
    pub(crate) fn was_written(&self) -> bool {
        let mut events = [0; 4096];
        match rustix::io::read(&self.0, &mut events) {
            Ok(bytes) => bytes > 0,
            Err(Errno::AGAIN) => false,
            Err(problem) => panic!("inotify: {problem}"),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.freeze"), "0");
        for _ in 0..100 {
            for list in ["cgroup.procs", "cgroup.threads"] {
                let pids = fs::read_to_string(self.0.join(list)).unwrap_or_default();
                for pid in pids.lines() {
                    let _ = fs::write(cgroup_root().join("cgroup.procs"), pid);
                }
            }
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The words for a target that touches its pages again and again.
pub(crate) fn rounds(stage: &Stage, threads: u32) -> Vec<OsString> {
    vec![
        program("rounds").into(),
        stage.folder().into(),
        PAGES.to_string().into(),
        threads.to_string().into(),
    ]
}

pub(crate) fn start_rounds(stage: &Stage, threads: u32) -> Running {
    let words = rounds(stage, threads);
    let mut command = stage.command(&words[0]);
    command.args(&words[1..]);
    let running = stage.start(command);
    assert!(patiently(|| stage.path("started").exists()));
    running
}

pub(crate) fn rounds_done(stage: &Stage) -> usize {
    times(stage).len()
}

pub(crate) fn go_on(stage: &Stage, rounds: usize) {
    let before = rounds_done(stage);
    assert!(
        patiently(|| rounds_done(stage) > before + rounds),
        "it stands still"
    );
}

/// Begin and end of each round.
pub(crate) fn times(stage: &Stage) -> Vec<(u64, u64)> {
    let bytes = fs::read(stage.path("rounds")).unwrap_or_default();
    let mut words = bytes
        .chunks_exact(8)
        .map(|w| u64::from_ne_bytes(w.try_into().expect("eight bytes")));
    std::iter::from_fn(|| Some((words.next()?, words.next()?)))
        .take_while(|(began, _)| *began > 0)
        .collect()
}

/// Attaches, and waits until intervals have been flushed.
pub(crate) fn attach(stage: &Stage, pid: u32, options: &[&str]) -> Running {
    let pid = pid.to_string();
    let all: Vec<&str> = ["--interval", "10ms", "-p", &pid]
        .into_iter()
        .chain(options.iter().copied())
        .collect();
    let recorder = stage.start(stage.record::<&str>(&all, &[]));
    let parts = stage.path("trace.varve/parts/intervals-000000.parquet");
    assert!(patiently(|| parts.exists()), "{}", recorder.messages());
    recorder
}

pub(crate) struct Seen {
    pub(crate) trace: Trace,
    /// Intervals in which a whole round fell, with all pages that it touched.
    whole: usize,
    /// Those of them after the 50th round.
    late: usize,
    /// Such with pages missing.
    pub(crate) short: Vec<Short>,
}

/// An interval in which pages are missing.
#[derive(Debug)]
#[expect(dead_code, reason = "for the message of a test that fails")]
pub(crate) struct Short {
    pub(crate) interval: u32,
    /// By number in the target's memory.
    missing: Vec<u64>,
    /// Nanoseconds, as all that follows.
    lasted: u64,
    /// The rounds that it has a part of, since its beginning.
    rounds: Vec<(i64, i64)>,
}

/// Compares a trace with what the target noted.
pub(crate) fn compare(recorded: &Stage, target: &Stage) -> Seen {
    check_trace(&recorded.path("trace.varve")).expect("a trace");
    let trace = Trace::open(&recorded.path("trace.varve")).expect("a trace");
    let address: u64 = fs::read_to_string(target.path("started"))
        .expect("its address")
        .trim_matches(['\n', '\0'])
        .parse()
        .expect("a number");
    let first = address / 4096;
    let mut touched: BTreeMap<u32, HashSet<u64>> = BTreeMap::new();
    for row in trace.rows::<TouchRow>().expect("touches") {
        let pages = row.page.0..row.page.0 + u64::from(row.pages);
        let known = touched.entry(row.interval.0).or_default();
        known.extend(pages.filter(|p| (first..first + PAGES).contains(p)));
    }
    let times = times(target);
    let mut seen = Seen {
        whole: 0,
        late: 0,
        short: Vec::new(),
        trace,
    };
    for interval in seen.trace.rows::<IntervalRow>().expect("intervals") {
        let (start, end) = (interval.start_ns.0, interval.end_ns.0);
        if !times
            .iter()
            .any(|(began, ended)| *began >= start && *ended <= end && *ended > 0)
        {
            continue;
        }
        let pages = touched.get(&interval.interval.0).map_or(0, HashSet::len);
        if pages as u64 == PAGES {
            seen.whole += 1;
            seen.late += usize::from(times.get(50).is_some_and(|(began, _)| start > *began));
        } else {
            let there = touched.remove(&interval.interval.0).unwrap_or_default();
            let within = |(began, ended): &&(u64, u64)| *ended > start && *began < end;
            seen.short.push(Short {
                interval: interval.interval.0,
                missing: (0..PAGES)
                    .filter(|p| !there.contains(&(first + p)))
                    .collect(),
                lasted: end - start,
                rounds: times
                    .iter()
                    .filter(within)
                    .map(|(began, ended)| {
                        (began.wrapping_sub(start) as i64, (ended - start) as i64)
                    })
                    .collect(),
            });
        }
    }
    seen
}

impl Seen {
    pub(crate) fn require_all(&self, hold: &str) {
        let manifest = &self.trace.manifest;
        assert!(
            self.short.is_empty(),
            "{:#?} of a trace that says: {}",
            self.short,
            manifest.completeness.statement
        );
        // On a machine that has much else to do intervals are long.
        assert!(
            self.whole > 0 && self.late > 0,
            "{} intervals say anything",
            self.whole
        );
        // Reclaim is the machine's.
        let lost: u64 = manifest
            .losses
            .iter()
            .filter(|(kind, _)| *kind != "reclaim_scanned_pages")
            .map(|(_, n)| n)
            .sum();
        assert_eq!(lost, 0, "{:?}", manifest.losses);
        // Where the kernel reads and clears in one step nothing is held unless that is asked for.
        let held = manifest.features.hold.as_str();
        assert!([hold, "fexit"].contains(&held), "held by {held}");
    }
}

pub(crate) fn stop(recorder: Running, target: Running) -> String {
    recorder.signal(Signal::INT);
    let said = recorder.end().require(0).stderr;
    target.signal(Signal::TERM);
    target.end().require(7);
    said
}
