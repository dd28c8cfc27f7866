//! Whether a target can be held still, and its accessed bits cleared.

use std::process::{Command, Stdio};

use varve_model::Pid;
use varve_sys::{Cgroup, ClearRefs, Frozen, Standby};

use super::{Check, Standing};
use crate::leftovers::PREFIX;
use crate::marker::Marker;

pub(super) fn clearing() -> Check {
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
pub(super) fn holding(otherwise: Standing) -> Check {
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

/// Which of them `--hold auto` uses. `atomic` is whether bits are read and cleared in one step.
pub(super) fn in_use(atomic: bool, cgroup: &Check, ptrace: &Check) -> Check {
    let works = |check: &Check| check.standing == Standing::Available;
    let held = match (works(cgroup), works(ptrace)) {
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
    let found = match atomic {
        true => format!(
            "nothing, as what is cleared is kept; with `--backend fault`, or where more was touched than can be kept: {held}"
        ),
        false => held.to_owned(),
    };
    Check::note("hold", "what `--hold auto` uses", found)
}

pub(super) fn holding_by_ptrace() -> Check {
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
