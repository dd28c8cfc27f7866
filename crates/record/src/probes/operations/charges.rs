//! What the kernel's part has charged to operations, and what that has grown by.

use std::borrow::Cow;
use std::collections::HashMap;

use varve_bpf::{Charge, Charged, Operations, is_probes_own};
use varve_model::{Address, Bytes, Duration, Pid, Time};
use varve_preload_abi::operations::{COUNTING, of_running_word};
use varve_trace::tables::OperationChargeRow;

use crate::state::State;

/// What was charged.
pub(super) struct Charges {
    kernel: Operations,
    known: HashMap<(Pid, u64, Charged), Charge>,
}

impl Charges {
    pub(super) fn new(kernel: Operations) -> Charges {
        Charges {
            kernel,
            known: HashMap::new(),
        }
    }

    /// What was charged since the last time, to one process or all. Sums of one process are those of all programs that it has run since they were
    /// forgotten: of one that has begun just now there may be some.
    pub(super) fn read(
        &mut self,
        now: Time,
        of: Option<Pid>,
        state: &mut State,
        rows: &mut Vec<OperationChargeRow>,
    ) {
        let period = 1_000_000_000 / u64::from(self.kernel.rate().max(1));
        let is_programs = |what| !matches!(what, Charged::Call(n) if is_probes_own(n));
        let wanted =
            |charge: &Charge| of.is_none_or(|pid| pid == charge.pid) && is_programs(charge.what);
        for charge in self.kernel.charges().into_iter().filter(wanted) {
            let key = (charge.pid, charge.word, charge.what);
            let before = self.known.insert(key, charge);
            let grown = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0));
            let count = grown(charge.count, before.map(|b| b.count));
            if count == 0 {
                continue;
            }
            let running = of_running_word(charge.word);
            let counts = charge.word == COUNTING;
            if charge.word != 0 && running.is_none() && !counts {
                continue;
            }
            let pid = state.processes.owner_of_memory(charge.pid);
            let site = running.and_then(|(_, site)| {
                let frame = vec![Address(site)];
                state.stacks.site(pid, now, frame, true)
            });
            let total = match charge.what {
                Charged::ClockUser | Charged::ClockKernel | Charged::ClockPause => count * period,
                _ => grown(charge.time.0, before.map(|b| b.time.0)),
            };
            rows.push(OperationChargeRow {
                time_ns: now,
                pid,
                operation: match running {
                    Some((operation, _)) => Some(operation.as_str().to_owned()),
                    None => counts.then(|| COUNTING_NAME.to_owned()),
                },
                site,
                name: name(charge.what),
                count,
                total_ns: Duration(total),
                queued_ns: Duration(grown(charge.queued.0, before.map(|b| b.queued.0))),
                bytes: Bytes(grown(charge.bytes, before.map(|b| b.bytes))),
                failed: grown(charge.failed, before.map(|b| b.failed)),
            });
        }
    }

    /// The number of the process may be another's, or its code another program's.
    pub(super) fn forget(&mut self, pid: Pid) {
        self.kernel.forget(pid);
        self.known.retain(|(of, ..), _| *of != pid);
    }

    /// What there was no room for.
    pub(super) fn dropped(&self) -> u64 {
        self.kernel.dropped().unwrap_or(0)
    }
}

/// In place of an operation: the library was at work on its tables.
const COUNTING_NAME: &str = "counting";

fn name(what: Charged) -> Cow<'static, str> {
    match what {
        Charged::Fault => "page_fault".into(),
        Charged::ClockUser => "clock_user".into(),
        Charged::ClockKernel => "clock_kernel".into(),
        Charged::ClockPause => "clock_pause".into(),
        Charged::LockSlept => "mmap_lock".into(),
        Charged::LockSpun => "mmap_lock_spun".into(),
        Charged::LockOthers => "mmap_lock_of_others".into(),
        Charged::Unmapped => "unmapped_resident".into(),
        Charged::Advised => "advised_resident".into(),
        Charged::Most => "most_resident".into(),
        Charged::Call(number) => match CALLS.iter().find(|(n, _)| *n == i64::from(number)) {
            Some((_, name)) => (*name).into(),
            None => format!("syscall_{number}").into(),
        },
    }
}

/// System calls that allocators are known to make.
const CALLS: [(i64, &str); 29] = [
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_rt_sigreturn, "rt_sigreturn"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_munmap, "munmap"),
    (libc::SYS_madvise, "madvise"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_brk, "brk"),
    (libc::SYS_mremap, "mremap"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_membarrier, "membarrier"),
    (libc::SYS_sched_yield, "sched_yield"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_clock_gettime, "clock_gettime"),
    (libc::SYS_openat, "openat"),
    (libc::SYS_read, "read"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_write, "write"),
    (libc::SYS_close, "close"),
    (libc::SYS_readlink, "readlink"),
    (libc::SYS_getrandom, "getrandom"),
    (libc::SYS_getcpu, "getcpu"),
    (libc::SYS_prctl, "prctl"),
    (libc::SYS_sched_getaffinity, "sched_getaffinity"),
    (libc::SYS_rt_sigprocmask, "rt_sigprocmask"),
    (libc::SYS_clone, "clone"),
    (libc::SYS_clone3, "clone3"),
    (libc::SYS_mincore, "mincore"),
    (libc::SYS_rseq, "rseq"),
];
