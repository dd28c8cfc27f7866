//! What a probed operation costs on this machine, found by probing functions of this program

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use libbpf_rs::Object;
use varve_model::{Address, Duration, Pid};

use super::{ProbeLinks, ProbePlace, ProbedCall, ProbedPoint, Probes, attach, place_of};
use crate::BpfError;
use crate::kernel::system;

/// What probes cost
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProbeCost {
    /// How much longer an operation takes
    pub operation: Duration,
    /// How much of that lies within the time that is measured for it
    pub within: Duration,
    /// The same of [`ProbedPoint::steps`]
    pub operation_steps: Duration,
    /// See above
    pub within_steps: Duration,
    /// Whether programs that confine themselves (seccomp) live on when a function with a probe at its end returns: some kernels make a system call
    /// there that such programs do not permit, and are killed for
    pub spares_confined: bool,
}

/// Calls of each of the two functions in a round
const CALLS: usize = 300;
/// Rounds, of which the middle one counts: others' work on the same CPUs falls into some
const ROUNDS: usize = 9;

const OWN_FILE: &str = "/proc/self/exe";

/// What the first allocates lies here
const BLOCKS: usize = 1 << 32;

/// Returns an address for a size. The kernel does its first instruction itself
#[unsafe(naked)]
extern "C" fn pushing_allocation(_bytes: usize) -> usize {
    std::arch::naked_asm!("push rdi", "pop rax", "bts rax, 32", "ret")
}

/// Does nothing, likewise
#[unsafe(naked)]
extern "C" fn pushing_free(_block: usize) {
    std::arch::naked_asm!("push rdi", "pop rax", "ret")
}

/// Returns an address for a size. The processor is to do its first instruction
#[unsafe(naked)]
extern "C" fn stepping_allocation(_bytes: usize) -> usize {
    std::arch::naked_asm!("mov rax, rdi", "bts rax, 32", "ret")
}

/// Does nothing, likewise
#[unsafe(naked)]
extern "C" fn stepping_free(_block: usize) {
    std::arch::naked_asm!("mov rax, rdi", "ret")
}

/// Two functions that are measured
#[derive(Clone, Copy)]
struct Measured {
    allocation: extern "C" fn(usize) -> usize,
    free: extern "C" fn(usize),
}

const PUSHING: Measured = Measured {
    allocation: pushing_allocation,
    free: pushing_free,
};
const STEPPING: Measured = Measured {
    allocation: stepping_allocation,
    free: stepping_free,
};

/// Numbers of the preload library's `malloc` and `free`
const MALLOC: u8 = 1;
const FREE: u8 = 16;

fn points(of: Measured) -> Result<Vec<ProbedPoint>, BpfError> {
    let allocation = ProbedCall {
        operation: MALLOC,
        size: Some(1),
        ..ProbedCall::default()
    };
    let free = ProbedCall {
        operation: FREE,
        old: Some(1),
        ..ProbedCall::default()
    };
    let functions = [
        (of.allocation as usize as u64, allocation),
        (of.free as usize as u64, free),
    ];
    let mut points = Vec::new();
    for (code, call) in functions {
        let offset = place_of(Address(code))?;
        points.extend(
            [ProbePlace::Begin, ProbePlace::End].map(|place| ProbedPoint {
                offset,
                call,
                place,
                returns: false,
                steps: false,
            }),
        );
    }
    Ok(points)
}

/// What the measured functions are probed by
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub(crate) object: &'a Object,
    pub(crate) many: bool,
    pub(crate) probes: &'a Probes,
}

impl Means<'_> {
    fn attach(&self, to: Measured, whom: Option<Pid>) -> Result<ProbeLinks, BpfError> {
        attach(
            self.object,
            self.many,
            Path::new(OWN_FILE),
            &points(to)?,
            whom,
        )
    }
}

/// Calls both functions from a thread of their own, so often; how long that took
fn call(of: Measured, times: usize) -> Duration {
    let work = move || {
        let began = Instant::now();
        for size in 0..times {
            let block = (of.allocation)(black_box(size * 16));
            debug_assert!(block >= BLOCKS);
            (of.free)(black_box(block));
        }
        Duration(began.elapsed().as_nanos() as u64)
    };
    std::thread::scope(|scope| scope.spawn(work).join().unwrap_or(Duration(0)))
}

/// What came of calls while both functions were probed
struct Counted {
    took: Duration,
    count: u64,
    /// The time that was measured for them
    within: Duration,
}

fn counted(means: Means<'_>, of: Measured, times: usize) -> Result<Counted, BpfError> {
    let own = Pid(std::process::id());
    let probes = means.probes;
    let links = means.attach(of, Some(own))?;
    probes.time_every(1, &ProbeCost::default())?;
    probes.begin(own)?;
    let took = call(of, times);
    drop(links);
    let rows: Vec<_> = probes.rows().into_iter().filter(|r| r.pid == own).collect();
    rows.iter().for_each(|row| probes.remove(row));
    for process in probes.processes().iter().filter(|p| p.pid == own) {
        probes.forget(own, process.image);
    }
    probes.forget_times(own);
    probes.time_every(0, &ProbeCost::default())?;
    let within: i64 = rows.iter().map(|row| row.ns).sum();
    Ok(Counted {
        took,
        count: rows.iter().map(|row| row.count).sum(),
        within: Duration(u64::try_from(within).unwrap_or(0)),
    })
}

/// Whether probes can be attached with the rights that this thread has
pub(crate) fn can_attach(means: Means<'_>) -> bool {
    let own = Pid(std::process::id());
    means.attach(PUSHING, Some(own)).is_ok()
}

/// Whether probes for one process count all of its threads: those of some kernels, attached many at once, count one alone (Linux 6.6 to 6.9, mended by
/// commit 46ba0e49b642)
pub(crate) fn counts_all_threads(means: Means<'_>) -> bool {
    counted(means, PUSHING, 1).is_ok_and(|counted| counted.count == 2)
}

/// What an operation takes longer, and how much of that is measured for it
fn cost_of(means: Means<'_>, of: Measured) -> Result<(Duration, Duration), BpfError> {
    let rounds: Result<Vec<_>, BpfError> = (0..ROUNDS).map(|_| round(means, of)).collect();
    let (mut longer, mut within): (Vec<Duration>, Vec<Duration>) = rounds?.into_iter().unzip();
    longer.sort_unstable();
    within.sort_unstable();
    let middle = |of: &[Duration]| of.get(of.len() / 2).copied().unwrap_or(Duration(0));
    Ok((middle(&longer), middle(&within)))
}

fn round(means: Means<'_>, of: Measured) -> Result<(Duration, Duration), BpfError> {
    let plain = call(of, CALLS);
    let counted = counted(means, of, CALLS)?;
    let calls = 2 * CALLS as u64;
    if counted.count != calls {
        let count = counted.count;
        return Err(BpfError::Load(format!(
            "of {calls} calls of a probed function {count} were counted"
        )));
    }
    let longer = Duration(counted.took.0.saturating_sub(plain.0) / calls);
    Ok((longer, Duration(counted.within.0 / calls)))
}

/// Probes functions of this program for a moment
pub(crate) fn measure(means: Means<'_>) -> Result<ProbeCost, BpfError> {
    let (operation, within) = cost_of(means, PUSHING)?;
    let (operation_steps, within_steps) = cost_of(means, STEPPING)?;
    Ok(ProbeCost {
        operation,
        within,
        operation_steps,
        within_steps,
        spares_confined: spares_confined(means)?,
    })
}

/// System calls that the kernel has put where probed functions return to, or begin (arch/x86/entry/syscalls/syscall_64.tbl)
const URETPROBE: u32 = 335;
const UPROBE: u32 = 336;

/// Whether it is one of them: the probes make it, and not the program
#[must_use]
pub fn is_probes_own(call: u32) -> bool {
    matches!(call, URETPROBE | UPROBE)
}

/// Tries it with a process that is killed for those calls
fn spares_confined(means: Means<'_>) -> Result<bool, BpfError> {
    // The child has a memory of its own.
    let _links = means.attach(PUSHING, None)?;
    // SAFETY: a child with a copy of this memory and without a signal at its end, which runs `be_confined` alone.
    let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if child == 0 {
        be_confined();
    }
    if child < 0 {
        let error = std::io::Error::last_os_error();
        return Err(system("making a process that confines itself")(error));
    }
    let mut status = 0;
    loop {
        // SAFETY: an own child, and a local that the call fills.
        let waited = unsafe { libc::waitpid(child as i32, &raw mut status, libc::__WALL) };
        if waited == child as i32 {
            return Ok(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(system("waiting for a process that confines itself")(error));
        }
    }
}

/// In a forked child: system calls alone. 0: it lived on, also where it cannot confine itself.
fn be_confined() -> ! {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let equal = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        instruction(load, 0, 0, 0),
        instruction(equal, 2, 0, URETPROBE),
        instruction(equal, 1, 0, UPROBE),
        instruction(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
        instruction(answer, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: flags and a filter that lives here; the functions are this program's own; the child ends without running anything of its parent's.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        );
        (PUSHING.free)((PUSHING.allocation)(16));
        libc::_exit(0)
    }
}
