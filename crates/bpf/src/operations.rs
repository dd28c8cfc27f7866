//! What the kernel does within allocator operations

use std::os::fd::{AsFd, IntoRawFd, OwnedFd};

use libbpf_rs::{Link, Object};
use varve_model::{Duration, PAGE_BYTES, Pid};

use crate::abi::{self, OperationKey, OperationSum};
use crate::kernel::{map_error, system};
use crate::programs::OPERATION_CLOCK;
use crate::samples::{online_cpus, open_clock, period_of};
use crate::{BpfError, raw};

/// Where the threads of a process say which allocator operation runs
#[derive(Debug)]
pub struct RunningPlaces {
    pub(crate) map: OwnedFd,
}

impl RunningPlaces {
    /// It is so far from their thread pointer, from now on
    pub fn set(&self, pid: Pid, place: i64) {
        // Where this fails the process is charged with nothing, as one that does not say it
        let _ = raw::map_update(self.map.as_fd(), pid.0, &place.cast_unsigned());
    }
}

/// What was charged
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Charged {
    /// A system call, by its number
    Call(u32),
    /// A page fault
    Fault,
    /// The clock of a CPU found a thread at work in its own code
    ClockUser,
    /// Likewise in the kernel
    ClockKernel,
    /// Of [`Charged::ClockUser`], those that found it at an instruction by which loops that wait pause
    ClockPause,
    /// A wait for the lock of the process's mappings in which the thread slept
    LockSlept,
    /// Likewise, in which it kept its CPU
    LockSpun,
    /// Likewise, while another process held the lock
    LockOthers,
    /// A call that unmapped pages that were there, as the counter of the process's pages says
    Unmapped,
    /// Likewise of `madvise`
    Advised,
    /// How much of the process was there before calls that take pages away: [`Charge::bytes`] is the most, at most
    Most,
}

/// What was charged to an operation since the load
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Charge {
    /// The process
    pub pid: Pid,
    /// What ran and from where, in the library's words; 0: no operation
    pub word: u64,
    /// What was charged
    pub what: Charged,
    /// How often
    pub count: u64,
    /// How long in all the thread ran or slept; of system calls and waits only
    pub time: Duration,
    /// How long it was ready to run meanwhile and had no CPU; not known of kernels without `CONFIG_SCHED_INFO`: 0
    pub queued: Duration,
    /// Bytes of memory that the calls were about that did not fail
    pub bytes: u64,
    /// Calls that failed
    pub failed: u64,
}

/// Charges operations for as long as it lives
pub struct Operations {
    sums: OwnedFd,
    drops: OwnedFd,
    rate: u32,
    /// Bytes that the counters of a process's pages may lack
    held_back: u64,
    /// A clock of each CPU
    _links: Vec<Link>,
}

impl Operations {
    pub(crate) fn start(
        object: &Object,
        sums: OwnedFd,
        drops: OwnedFd,
        rate: u32,
    ) -> Result<Operations, BpfError> {
        let program = object
            .progs_mut()
            .find(|program| program.name() == OPERATION_CLOCK && program.autoload())
            .ok_or_else(|| {
                BpfError::Load(format!("the kernel refused the program {OPERATION_CLOCK}"))
            })?;
        let mut links = Vec::new();
        let cpus = online_cpus().map_err(system("reading which CPUs are online"))?;
        let batch = u64::from(counter_batch(cpus.len()));
        // Of pages that are there, and of those in swap
        let held_back = 2 * batch * cpus.len() as u64 * PAGE_BYTES;
        for cpu in cpus {
            let event = open_clock(cpu, period_of(rate));
            let event = event.map_err(system("opening the cpu-clock event"))?;
            // The link owns the event from here on
            let link = program.attach_perf_event(event.into_raw_fd());
            links.push(link.map_err(|e| BpfError::Load(format!("{OPERATION_CLOCK}: {e}")))?);
        }
        Ok(Operations {
            sums,
            drops,
            rate,
            held_back,
            _links: links,
        })
    }

    /// How often each CPU's clock looks, per second
    pub fn rate(&self) -> u32 {
        self.rate
    }

    /// All that was charged since the load, but for processes that were forgotten
    pub fn charges(&self) -> Vec<Charge> {
        let entries = raw::map_entries::<OperationKey, OperationSum>(self.sums.as_fd());
        let charge = |(key, sum): (OperationKey, OperationSum)| Charge {
            pid: Pid(key.pid),
            word: key.word,
            what: match key.what {
                abi::OPERATION_FAULT => Charged::Fault,
                abi::OPERATION_CLOCK_USER => Charged::ClockUser,
                abi::OPERATION_CLOCK_KERNEL => Charged::ClockKernel,
                abi::OPERATION_CLOCK_PAUSE => Charged::ClockPause,
                abi::OPERATION_LOCK_SLEPT => Charged::LockSlept,
                abi::OPERATION_LOCK_SPUN => Charged::LockSpun,
                abi::OPERATION_LOCK_OTHERS => Charged::LockOthers,
                abi::OPERATION_UNMAPPED => Charged::Unmapped,
                abi::OPERATION_ADVISED => Charged::Advised,
                abi::OPERATION_MOST => Charged::Most,
                number => Charged::Call(number),
            },
            count: sum.count,
            time: Duration(sum.ns),
            queued: Duration(sum.queued),
            bytes: match key.what {
                abi::OPERATION_MOST => sum.bytes.saturating_add(self.held_back),
                _ => sum.bytes,
            },
            failed: sum.failed,
        };
        entries.into_iter().map(charge).collect()
    }

    /// Forgets what was charged to a process
    pub fn forget(&self, pid: Pid) {
        let entries = raw::map_entries::<OperationKey, OperationSum>(self.sums.as_fd());
        for (key, _) in entries.iter().filter(|(key, _)| key.pid == pid.0) {
            raw::map_remove(self.sums.as_fd(), key);
        }
    }

    /// How much there was no room for since the load
    ///
    /// # Errors
    /// [`BpfError::Map`] where the counter cannot be read.
    pub fn dropped(&self) -> Result<u64, BpfError> {
        raw::map_lookup::<u64>(self.drops.as_fd(), abi::DROP_OPERATION).map_err(map_error("drops"))
    }
}

/// Pages of a counter that each of so many CPUs holds back at most (`compute_batch_value` of lib/percpu_counter.c)
pub(crate) fn counter_batch(cpus: usize) -> u32 {
    u32::try_from(cpus)
        .unwrap_or(u32::MAX)
        .saturating_mul(2)
        .max(32)
}

impl std::fmt::Debug for Operations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operations")
            .field("rate", &self.rate)
            .finish_non_exhaustive()
    }
}
