//! What this machine can do, mechanism by mechanism.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Serialize;
use varve_bpf::{Kernel, LoadOptions};
use varve_model::Pid;
use varve_sys::{Capability, Cgroup, ClearRefs, Frozen, Rights, Standby};

use crate::leftovers::{Leftover, PREFIX, clean_leftovers, find_leftovers};
use crate::marker::Marker;
use crate::rights::{self, NEEDS};

/// How a mechanism stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It works here.
    Available,
    /// It does not, and nothing can be recorded without it.
    Required,
    /// It does not, and no recording is complete without it.
    Promised,
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

/// What to do about what dead recorders left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftovers {
    /// List it.
    List,
    /// Remove what is theirs without doubt, and list the rest.
    Clean,
}

/// Tries every mechanism and leaves nothing behind. `preload` is the preload library, if it was found, or why it is not
/// to be used.
pub fn examine(preload: Result<Option<PathBuf>, String>, choice: Leftovers) -> Vec<Check> {
    let left = match choice {
        Leftovers::List => find_leftovers(),
        Leftovers::Clean => clean_leftovers(),
    };
    let ptrace = holding_by_ptrace();
    let mut checks = privileges();
    let cgroup = holding(ptrace.standing);
    checks.extend([clearing(), in_use(&cgroup, &ptrace), cgroup, ptrace]);
    checks.extend(programs());
    checks.push(write_protection());
    checks.push(trapping());
    checks.push(preloading(preload));
    checks.push(rings());
    checks.extend([ageing(), reclaim(), huge_pages(), leftovers(&left, choice)]);
    checks
}

/// Whether nothing that a recording needs is missing.
pub fn can_record(checks: &[Check]) -> bool {
    checks.iter().all(|c| c.standing != Standing::Required)
}

/// Which capabilities this process has, and for what they do not suffice.
fn privileges() -> Vec<Check> {
    let own = Rights::own();
    let mut checks = vec![Check::note(
        "privileges",
        "who runs this, and what the kernel allows",
        format!(
            "user {}, with {}",
            rustix::process::geteuid().as_raw(),
            match own.list().len() {
                0 => "no capabilities".to_owned(),
                n if n == Capability::ALL.len() =>
                    "every capability that recording could use".to_owned(),
                _ => rights::list(&own.list()),
            }
        ),
    )];
    checks.extend(NEEDS.iter().map(|need| {
        let lacking = need.lacking(own);
        let result = if lacking.is_empty() {
            Ok(format!("{} suffice", rights::list(need.capabilities)))
        } else {
            Err(format!("lacks {}", rights::list(&lacking)))
        };
        let hint = format!(
            "run it with sudo, or let a group run it: chown root:GROUP varve && chmod 750 varve && setcap {} varve \
             (SECURITY.md says what that group can do then)",
            rights::file_form(need.capabilities)
        );
        let needed = if need.required {
            Standing::Required
        } else {
            Standing::Missing
        };
        Check::new(need.what, need.purpose, result.map_err(|e| (e, hint.as_str())), needed)
    }));
    checks
}

fn clearing() -> Check {
    // This process may be hidden from its own user; another one is not.
    let tried = with_bystander(|pid| {
        let mut file = ClearRefs::open(pid)?;
        file.clear_accessed()?;
        file.flush()
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
    let mark = Marker::own().map_or_else(|_| String::new(), |m| m.text());
    let name = format!("{PREFIX}{}", std::process::id());
    let limit = std::time::Duration::from_millis(100);
    let tried = Cgroup::of(Pid(std::process::id()))
        .and_then(|parent| Cgroup::create(&parent, &name, &mark))
        .and_then(|cgroup| cgroup.freezer().freeze(limit, || ()));
    let result = match tried {
        Ok(Frozen::Still) => Ok("a cgroup v2 can be made and frozen".to_owned()),
        Ok(Frozen::NotYet) => Err(("an empty cgroup did not freeze".to_owned(), "")),
        Err(e) => Err((
            e.to_string(),
            "it takes root, or a cgroup v2 of one's own, mounted and writable",
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

/// Which of them `--hold auto` uses.
fn in_use(cgroup: &Check, ptrace: &Check) -> Check {
    let works = |check: &Check| check.standing == Standing::Available;
    let found = match (works(cgroup), works(ptrace)) {
        (true, true) => {
            "a command by the freezer of a cgroup made below this one; a process that runs by its own cgroup's freezer \
             if nobody else is in there, else by ptrace"
        }
        (true, false) => {
            "a command by the freezer of a cgroup made below this one; a process that runs by its own cgroup's freezer \
             if nobody else is in there, else not at all"
        }
        (false, true) => "everything by ptrace, as no cgroup can be made",
        (false, false) => "nothing can be held",
    };
    Check::note("hold", "what `--hold auto` uses", found.to_owned())
}

fn holding_by_ptrace() -> Check {
    Check::new(
        "ptrace hold",
        "holds the target still where no cgroup freezer can (--hold ptrace)",
        try_ptrace().map_err(|e| {
            (
                e,
                "is a debugger or a security module (kernel.yama.ptrace_scope) in the way?",
            )
        }),
        Standing::Missing,
    )
}

/// Runs `work` with a process of this user that does nothing.
fn with_bystander<T>(work: impl FnOnce(Pid) -> std::io::Result<T>) -> std::io::Result<T> {
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let result = work(Pid(child.id()));
    // It ends with its input.
    drop(child.stdin.take());
    let _ = child.wait();
    result
}

fn try_ptrace() -> Result<String, String> {
    let limit = std::time::Duration::from_millis(500);
    let tried = with_bystander(|pid| {
        let standby = Standby::start().map_err(std::io::Error::other)?;
        let held = standby.hold(move || vec![pid], limit, || ());
        Ok(held.map(|held| held.refused().first().map(ToString::to_string)))
    });
    match tried {
        Ok(Some(None)) => Ok("a process can be stopped and let go".to_owned()),
        Ok(Some(Some(why))) => Err(why),
        Ok(None) => Err("a process did not stop".to_owned()),
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
                    let lacking = match (c.required, c.promised) {
                        (true, _) => Standing::Required,
                        (false, true) => Standing::Promised,
                        (false, false) => Standing::Missing,
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
                    "the kernel needs CONFIG_PERF_EVENTS=y; it takes root or CAP_PERFMON",
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
        crate::probes::samples::hardware::standing(),
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
        "distinguishes writes from reads where there are no soft-dirty bits (--writes on)",
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
        crate::probes::traps::can_trap()
            .map(|()| "userfaultfd moves pages away and back".into())
            .map_err(|why| (why, "Linux 6.8 or later has it; it takes root, or CAP_SYS_PTRACE and CAP_DAC_OVERRIDE")),
        Standing::Missing,
    )
}

fn preloading(preload: Result<Option<PathBuf>, String>) -> Check {
    let found = match preload {
        Ok(Some(path)) => Ok(path.display().to_string()),
        Ok(None) => Err((
            "libvarve_preload.so is not beside this program".to_owned(),
            "build it with `cargo build --release -p varve-preload`, or name it in VARVE_PRELOAD",
        )),
        Err(why) => Err((why, "`varve record --no-preload` does without it")),
    };
    Check::new(
        "preload library",
        "reports heap objects, with call stacks",
        found,
        Standing::Missing,
    )
}

/// What `--backend exact` needs; `plugin` is where the emulator's plugin lies.
pub fn examine_exact(plugin: Result<Option<PathBuf>, String>) -> Check {
    let emulator = crate::probes::counts::emulator();
    let found = match (emulator, plugin) {
        (None, _) => Err((
            format!("{} is not installed", crate::state::emulator::EMULATOR),
            "apt-get install qemu-user",
        )),
        (_, Err(why)) => Err((why, "")),
        (_, Ok(None)) => Err((
            "libvarve_qemu_counter.so is not beside this program".to_owned(),
            "build it with `cargo build --release -p varve-qemu-counter`, or name it in VARVE_QEMU_COUNTER",
        )),
        (Some(emulator), Ok(Some(plugin))) => {
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
        "where recorded processes meet the recorder",
        crate::target::run_folder::RunFolder::create(|_| Ok(()))
            .map(|a| {
                a.path()
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

fn leftovers(left: &[Leftover], choice: Leftovers) -> Check {
    let names = |of: &mut dyn Iterator<Item = String>| of.collect::<Vec<_>>().join(", ");
    let certain = names(
        &mut left
            .iter()
            .filter(|l| l.doubt.is_none())
            .map(|l| l.path.display().to_string()),
    );
    let doubtful = names(&mut left.iter().filter_map(|l| {
        let doubt = l.doubt.as_deref()?;
        Some(format!("{} ({doubt})", l.path.display()))
    }));
    let mut parts = Vec::new();
    if !certain.is_empty() {
        parts.push(match choice {
            Leftovers::List => certain.clone(),
            Leftovers::Clean => format!("let go and removed: {certain}"),
        });
    }
    if !doubtful.is_empty() {
        parts.push(format!("left alone: {doubtful}"));
    }
    let detail = if parts.is_empty() {
        "none".to_owned()
    } else {
        parts.join("; ")
    };
    let mut check = Check::note(
        "leftovers",
        "cgroups and run folders of recorders that were killed",
        detail,
    );
    if choice == Leftovers::List && !certain.is_empty() {
        check.hint =
            Some("`varve doctor --clean` removes them, and so does the next recording".into());
    }
    check
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
        assert!(can_record(&[preloading(Ok(None))]));
        let needed = Check::new("x", "y", Err(("z".into(), "")), Standing::Required);
        assert!(!can_record(&[needed]));
    }
}
