//! What this machine can do, mechanism by mechanism.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Serialize;
use varve_bpf::{Kernel, LoadOptions};
use varve_model::Pid;
use varve_sys::{Cgroup, ClearRefs, Frozen, Standby};

use crate::agents::Agents;
use crate::stale::PREFIX;

/// How a mechanism stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It works here.
    Available,
    /// It does not, and nothing can be recorded without it.
    Required,
    /// It does not; recordings lack what it gives, or get it another way.
    Missing,
    /// A fact that a reader of traces should know.
    Note,
}

/// One mechanism.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub purpose: String,
    /// How it stands.
    pub standing: Standing,
    /// How that was found, or why it is so.
    pub detail: String,
    /// How to enable it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Check {
    fn new(
        name: &str,
        purpose: &str,
        result: Result<String, (String, &str)>,
        needed: Standing,
    ) -> Check {
        let (standing, detail, hint) = match result {
            Ok(detail) => (Standing::Available, detail, None),
            Err((detail, hint)) => (needed, detail, (!hint.is_empty()).then(|| hint.to_owned())),
        };
        Check {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            standing,
            detail,
            hint,
        }
    }

    fn note(name: &str, purpose: &str, detail: String) -> Check {
        Check {
            name: name.to_owned(),
            purpose: purpose.to_owned(),
            standing: Standing::Note,
            detail,
            hint: None,
        }
    }
}

/// Tries every mechanism and leaves nothing behind, not even what a killed recorder left. `preload` is
/// the preload library, if it was found.
pub fn examine(preload: Option<&Path>) -> Vec<Check> {
    let cleaned = crate::stale::clean_stale();
    let ptrace = holding_by_ptrace();
    let mut checks = vec![clearing(), holding(ptrace.standing), ptrace];
    checks.extend(programs());
    checks.push(write_protection());
    checks.push(trapping());
    checks.push(preloading(preload));
    checks.push(rings());
    checks.extend([ageing(), reclaim(), huge_pages(), leftovers(&cleaned)]);
    checks
}

/// Whether nothing that a recording needs is missing.
pub fn can_record(checks: &[Check]) -> bool {
    checks.iter().all(|c| c.standing != Standing::Required)
}

fn clearing() -> Check {
    let tried = ClearRefs::open(Pid(std::process::id())).and_then(|mut c| {
        c.clear_accessed()?;
        c.flush()
    });
    Check::new(
        "clear_refs",
        "clears accessed bits and flushes the TLB",
        tried
            .map(|()| "/proc/PID/clear_refs works".into())
            .map_err(|e| {
                (
                    e.to_string(),
                    "the kernel needs CONFIG_PROC_PAGE_MONITOR=y, as stock kernels have",
                )
            }),
        Standing::Required,
    )
}

/// `otherwise` is how holding without a cgroup stands.
fn holding(otherwise: Standing) -> Check {
    let tried = Cgroup::of(Pid(std::process::id()))
        .and_then(|parent| Cgroup::create(&parent, &format!("{PREFIX}{}", std::process::id())))
        .and_then(|cgroup| cgroup.freeze(std::time::Duration::from_millis(100), || ()));
    let result = match tried {
        Ok(Frozen::Still) => Ok("a cgroup v2 can be made and frozen".to_owned()),
        Ok(Frozen::NotYet) => Err(("an empty cgroup did not freeze".to_owned(), "")),
        Err(e) => Err((
            e.to_string(),
            "run as root where cgroup v2 is mounted and writable (mount -t cgroup2 none /sys/fs/cgroup)",
        )),
    };
    Check::new(
        "cgroup freezer",
        "holds the target still while its bits are read",
        result,
        match otherwise {
            Standing::Available => Standing::Missing,
            _ => Standing::Required,
        },
    )
}

fn holding_by_ptrace() -> Check {
    Check::new(
        "ptrace hold",
        "holds the target still where no cgroup freezer can (--hold ptrace)",
        try_ptrace().map_err(|e| (e, "run as root, or with CAP_SYS_PTRACE")),
        Standing::Missing,
    )
}

/// Holds a guardian that has nothing to guard.
fn try_ptrace() -> Result<String, String> {
    let mut child = Command::new("/proc/self/exe")
        .arg("guardian")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| e.to_string())?;
    let pid = Pid(child.id());
    let limit = std::time::Duration::from_millis(500);
    let tried = Standby::start()
        .and_then(|standby| standby.hold(move || vec![pid], limit, || ()))
        .map(|held| held.is_some());
    drop(child.stdin.take());
    let _ = child.wait();
    match tried {
        Ok(true) => Ok("a process can be stopped and let go".to_owned()),
        Ok(false) => Err("a process did not stop".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

fn programs() -> Vec<Check> {
    let all = LoadOptions {
        waits: true,
        ..LoadOptions::default()
    };
    match Kernel::load(&all) {
        Ok(mut kernel) => {
            let clock = clock_samples(&mut kernel);
            let known = kernel.capabilities().iter();
            known
                .map(|c| {
                    let lacking = if c.required {
                        Standing::Required
                    } else {
                        Standing::Missing
                    };
                    let (detail, hint) = split_hint(&c.detail);
                    Check {
                        name: c.name.to_owned(),
                        purpose: c.purpose.to_owned(),
                        standing: if c.available {
                            Standing::Available
                        } else {
                            lacking
                        },
                        detail,
                        hint,
                    }
                })
                .chain([clock, hardware_samples()])
                .collect()
        }
        Err(e) => {
            let (detail, hint) = split_hint(&e.to_string());
            vec![Check {
                name: "BPF programs".into(),
                purpose: "read page tables and see pages vanish".into(),
                standing: Standing::Required,
                detail,
                hint,
            }]
        }
    }
}

fn clock_samples(kernel: &mut Kernel) -> Check {
    let tried = kernel.sample(1);
    Check::new(
        "cpu-clock samples",
        "the address, line and thread that time goes to, on any machine (--samples RATE)",
        tried
            .map(|_| "a timer of each CPU runs the program".into())
            .map_err(|e| {
                (
                    e.to_string(),
                    "the kernel needs CONFIG_PERF_EVENTS=y; run as root, or with CAP_PERFMON",
                )
            }),
        Standing::Missing,
    )
}

/// Where the kernel says that the processor samples accesses by itself.
fn hardware_samples() -> Check {
    Check::note(
        "hardware samples",
        "latency and memory level of single accesses (--samples auto)",
        crate::samples::hardware::standing(),
    )
}

/// Takes a hint in parentheses off a sentence.
pub(crate) fn split_hint(text: &str) -> (String, Option<String>) {
    match text.split_once(" (hint: ") {
        Some((what, hint)) => (what.to_owned(), Some(hint.trim_end_matches(')').to_owned())),
        None => (text.to_owned(), None),
    }
}

fn write_protection() -> Check {
    Check::new(
        "write protection",
        "tells writes from reads where there are no soft-dirty bits (--writes on)",
        varve_sys::try_write_protection()
            .map(|()| "userfaultfd protects pages and lets writes go on".into())
            .map_err(|e| {
                (
                    e.to_string(),
                    "the kernel needs CONFIG_USERFAULTFD=y, CONFIG_PROC_PAGE_MONITOR=y and PAGEMAP_SCAN",
                )
            }),
        Standing::Missing,
    )
}

fn trapping() -> Check {
    Check::new(
        "userfaultfd moves",
        "traps the first access to each page (--backend fault)",
        crate::trap_source::can_trap()
            .map(|()| "userfaultfd moves pages aside and back".into())
            .map_err(|why| (why, "Linux 6.8 or later has it; run as root")),
        Standing::Missing,
    )
}

fn preloading(preload: Option<&Path>) -> Check {
    Check::new(
        "preload library",
        "tells heap objects apart, with call stacks",
        preload.map(|p| p.display().to_string()).ok_or((
            "libvarve_agent.so is not beside this program".to_owned(),
            "build it with `cargo build --release -p varve-agent`, or name it in VARVE_AGENT",
        )),
        Standing::Missing,
    )
}

/// What `--backend exact` needs; `plugin` is where the emulator's plugin lies.
pub fn examine_exact(plugin: Option<&Path>) -> Check {
    let emulator = crate::exact::emulator();
    let found = match (emulator, plugin) {
        (None, _) => Err((
            format!("{} is not installed", crate::exact::EMULATOR),
            "apt-get install qemu-user",
        )),
        (_, None) => Err((
            "libvarve_exact.so is not beside this program".to_owned(),
            "build it with `cargo build --release -p varve-exact`, or name it in VARVE_EXACT",
        )),
        (Some(emulator), Some(plugin)) => {
            Ok(format!("{}, {}", emulator.display(), plugin.display()))
        }
    };
    Check::new(
        "emulator",
        "counts every access (--backend exact)",
        found,
        Standing::Missing,
    )
}

fn rings() -> Check {
    Check::new(
        "ring folder",
        "where recorded processes leave what the preload library tells",
        Agents::create(|_| Ok(()))
            .map(|a| {
                a.folder()
                    .parent()
                    .map_or_else(String::new, |p| p.display().to_string())
            })
            .map_err(|e| (e.to_string(), "make /dev/shm or /tmp writable")),
        Standing::Missing,
    )
}

fn ageing() -> Check {
    let daemon = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            fs::read_to_string(entry.path().join("comm")).is_ok_and(|c| c.starts_with("kdamond"))
        });
    Check::note(
        "DAMON",
        "others who take accessed bits",
        if daemon {
            "running: what it takes is recovered from page flags".into()
        } else {
            "not running".into()
        },
    )
}

fn reclaim() -> Check {
    let generations = fs::read_to_string("/sys/kernel/mm/lru_gen/enabled").ok();
    let on = generations.is_some_and(|g| g.trim() != "0x0000");
    Check::note(
        "reclaim",
        "takes accessed bits for good; what it scans is counted as a loss",
        if on {
            "multi-generational LRU"
        } else {
            "two lists"
        }
        .into(),
    )
}

fn huge_pages() -> Check {
    let text =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = text.split('[').nth(1).and_then(|t| t.split(']').next());
    Check::note(
        "transparent huge pages",
        "one accessed bit for 2 MiB; --thp=never shows 4 KiB",
        chosen.unwrap_or("not in this kernel").to_owned(),
    )
}

fn leftovers(cleaned: &[PathBuf]) -> Check {
    let names: Vec<_> = cleaned.iter().map(|p| p.display().to_string()).collect();
    Check::note(
        "leftovers",
        "cgroups and rings of recorders that were killed",
        match names.as_slice() {
            [] => "none".into(),
            _ => format!("let go and removed: {}", names.join(", ")),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_taken_off() {
        assert_eq!(
            split_hint("no (hint: do)"),
            ("no".into(), Some("do".into()))
        );
        assert_eq!(split_hint("no"), ("no".into(), None));
    }

    #[test]
    fn a_missing_library_does_not_keep_from_recording() {
        assert!(can_record(&[preloading(None)]));
        let needed = Check::new("x", "y", Err(("z".into(), "")), Standing::Required);
        assert!(!can_record(&[needed]));
    }
}
