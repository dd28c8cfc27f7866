//! A process that nobody records: what its system calls cost meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::statistics::median;

/// Calls that are timed together.
const CALLS: u32 = 200;
/// Between two groups of calls.
const PAUSE: Duration = Duration::from_millis(5);

/// Nanoseconds that a system call takes, at the median of groups; until `stop` is set, of those within the window.
pub(super) fn run(began: Instant, stop: &AtomicBool) -> Vec<(Duration, f64)> {
    let mut groups = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        for _ in 0..CALLS {
            // A system call that does nothing, and that the C library does not answer by itself.
            std::hint::black_box(rustix::process::getppid());
        }
        let took = start.elapsed().as_nanos() as f64 / f64::from(CALLS);
        groups.push((start - began, took));
        std::thread::sleep(PAUSE);
    }
    groups
}

/// The median of the groups in a window.
pub(super) fn within(groups: &[(Duration, f64)], window: &std::ops::Range<Duration>) -> f64 {
    let inside = groups.iter().filter(|(at, _)| window.contains(at));
    median(&inside.map(|(_, ns)| *ns).collect::<Vec<_>>())
}
