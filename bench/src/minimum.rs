//! What no recorder of accessed bits can do without.

use std::io;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use varve_model::Pid;
use varve_sys::{Cgroup, ClearRefs, Frozen, Urgent};

/// How long it may take to stop the program; then it runs on until the next interval.
const LIMIT: Duration = Duration::from_millis(20);

/// Clears the bits of a process at each interval until it ends. One that it makes is not.
pub(crate) fn clear(child: &mut Child, interval: Duration) -> io::Result<()> {
    varve_sys::thread_priority(-20);
    let pid = Pid(child.id());
    let own = Cgroup::of(Pid(std::process::id())).map_err(io::Error::other)?;
    let name = format!("varve-bench-{}", std::process::id());
    let group = Cgroup::create(&own, &name, &name).map_err(io::Error::other)?;
    group.add(pid).map_err(io::Error::other)?;
    let mut bits = ClearRefs::open(pid)?;
    let mut next = Instant::now();
    while child.try_wait()?.is_none() {
        next = (next + interval).max(Instant::now());
        while Instant::now() < next && child.try_wait()?.is_none() {
            let left = next.saturating_duration_since(Instant::now());
            thread::sleep(left.min(Duration::from_millis(5)));
        }
        let _urgent = Urgent::begin();
        let frozen = group.freezer().freeze(LIMIT, || {});
        let done = match frozen {
            // Who has just ended has no memory.
            Ok(Frozen::Still) => bits.clear_accessed().and_then(|()| bits.flush()),
            Ok(Frozen::NotYet) => Ok(()),
            Err(error) => Err(io::Error::other(error)),
        };
        group.freezer().thaw().map_err(io::Error::other)?;
        if child.try_wait()?.is_none() {
            done?;
        }
    }
    Ok(())
}
