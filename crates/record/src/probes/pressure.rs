//! How short the machine was of memory and CPU, and what that cost the target, at each boundary: totals since the
//! beginning of the recording, as counters.
//!
//! Sources: `/proc/pressure/{memory,cpu,io}` (Documentation/accounting/psi.rst), and of each recorded process that is still
//! there `utime`, `stime` and `majflt` of `/proc/PID/stat` (proc(5)).

use std::collections::HashMap;
use std::fs;

use varve_model::Pid;
use varve_trace::tables::CounterRow;

use super::{Closed, Kind, Probe, Setup, Started, load_nothing};
use crate::RecordError;
use crate::state::State;

pub(crate) const KIND: Kind = Kind {
    load: load_nothing,
    start,
};

/// The times of an emulated program are the emulator's.
fn start(setup: &mut Setup<'_>) -> Result<Started, RecordError> {
    if !setup.options.scans() {
        return Ok(None);
    }
    Ok(Some(Box::new(Pressure {
        began: STALLS.map(|(file, _, line)| stalled_us(file, line)),
        processes: HashMap::new(),
        ended: Spent::default(),
    })))
}

/// Of more processes the times are not read at each boundary: it would cost more than it shows.
const MAX_PROCESSES: usize = 32;

/// Totals of time in which some, or all, tasks of the machine waited: file, counter, line of the file.
const STALLS: [(&str, &str, &str); 4] = [
    ("memory", "psi_memory_some_us", "some"),
    ("memory", "psi_memory_full_us", "full"),
    ("cpu", "psi_cpu_some_us", "some"),
    ("io", "psi_io_full_us", "full"),
];

/// What a process has used since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Spent {
    user_ns: u64,
    system_ns: u64,
    major_faults: u64,
}

impl Spent {
    fn plus(self, other: Spent) -> Spent {
        Spent {
            user_ns: self.user_ns + other.user_ns,
            system_ns: self.system_ns + other.system_ns,
            major_faults: self.major_faults + other.major_faults,
        }
    }

    fn minus(self, other: Spent) -> Spent {
        Spent {
            user_ns: self.user_ns.saturating_sub(other.user_ns),
            system_ns: self.system_ns.saturating_sub(other.system_ns),
            major_faults: self.major_faults.saturating_sub(other.major_faults),
        }
    }
}

/// A process: what it had used when it was first seen, and at the last boundary.
#[derive(Clone, Copy, Debug)]
struct Known {
    first: Spent,
    last: Spent,
}

/// The probe.
struct Pressure {
    began: [Option<u64>; STALLS.len()],
    processes: HashMap<Pid, Known>,
    /// Of processes that have ended, up to the last boundary that they saw.
    ended: Spent,
}

impl Pressure {
    /// What all processes have used since the recording began; none where there are too many.
    fn used(&mut self, state: &State) -> Option<Spent> {
        if state.processes.all.len() > MAX_PROCESSES {
            return None;
        }
        let ended = |(pid, _): &(&Pid, &mut Known)| !state.processes.all.contains_key(pid);
        let gone: Vec<Pid> = self
            .processes
            .iter_mut()
            .filter(ended)
            .map(|(p, _)| *p)
            .collect();
        for known in gone.iter().filter_map(|pid| self.processes.remove(pid)) {
            self.ended = self.ended.plus(known.last.minus(known.first));
        }
        for (pid, process) in &state.processes.all {
            let Some(now) = spent(*pid) else { continue };
            // One that was there before the recording has used what does not count.
            let was_there = process.row.born_ns < state.began;
            let first = if was_there { now } else { Spent::default() };
            let known = self.processes.entry(*pid);
            known.or_insert(Known { first, last: now }).last = now;
        }
        let running = self.processes.values().map(|k| k.last.minus(k.first));
        Some(running.fold(self.ended, Spent::plus))
    }
}

impl Probe for Pressure {
    fn closed(&mut self, closed: &Closed<'_>, state: &mut State) {
        let used = self.used(state);
        let mut row = |name: &str, value: u64| {
            state.tables.counters.push(CounterRow {
                time_ns: closed.end,
                node: None,
                name: name.into(),
                value: i64::try_from(value).unwrap_or(i64::MAX),
            });
        };
        for ((file, name, line), began) in STALLS.into_iter().zip(self.began) {
            if let (Some(began), Some(now)) = (began, stalled_us(file, line)) {
                row(name, now.saturating_sub(began));
            }
        }
        if let Some(used) = used {
            row("user_ns", used.user_ns);
            row("system_ns", used.system_ns);
            row("major_faults", used.major_faults);
        }
    }
}

/// The total of a line of a pressure file, microseconds; none where the kernel does not account it.
fn stalled_us(file: &str, line: &str) -> Option<u64> {
    total_of(
        &fs::read_to_string(format!("/proc/pressure/{file}")).ok()?,
        line,
    )
}

fn total_of(text: &str, line: &str) -> Option<u64> {
    let fields = text.lines().find_map(|l| l.strip_prefix(line))?;
    let total = fields
        .split_whitespace()
        .find_map(|f| f.strip_prefix("total="))?;
    total.parse().ok()
}

fn spent(pid: Pid) -> Option<Spent> {
    let status = varve_sys::status(pid).ok()?;
    Some(Spent {
        user_ns: status.user.0,
        system_ns: status.system.0,
        major_faults: status.major_faults,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_totals_of_the_kernels_text() {
        let text = "some avg10=0.10 avg60=0.00 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=45\n";
        assert_eq!(total_of(text, "some"), Some(123));
        assert_eq!(total_of(text, "full"), Some(45));
        assert_eq!(total_of("", "some"), None);
    }

    #[test]
    fn this_process_has_used_some_time() {
        let mut spun = 0_u64;
        while spent(Pid(std::process::id())).unwrap().user_ns == 0 {
            spun = std::hint::black_box(spun + 1);
        }
    }
}
