//! The system calls that a fault handler may make. Any other ends the handler, and nobody else.
//!
//! Each acts on the memory that the handler shares with the program, on descriptors that it has (its userfaultfds, the
//! program's mappings and page table, the connection to the recorder), or on nothing. None opens, makes or
//! signals anything, and none makes memory executable: through the handler, a program gains nothing.

use super::mover::{
    IOC_NEW, PAGEMAP_SCAN, UFFDIO_API, UFFDIO_COPY, UFFDIO_MOVE, UFFDIO_POISON, UFFDIO_REGISTER,
    UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_ZEROPAGE,
};
use crate::sys;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// `AUDIT_ARCH_X86_64`
const ARCHITECTURE: u32 = 0xc000_003e;
/// Where `struct seccomp_data` has the number, the architecture, and the lower half of each argument.
const NUMBER: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const fn argument(index: u32) -> u32 {
    16 + 8 * index
}

/// Calls whose arguments do not matter.
const CALLS: [libc::c_long; 15] = [
    libc::SYS_poll,
    libc::SYS_read,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sched_yield,
    libc::SYS_nanosleep,
    libc::SYS_munmap,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_clock_gettime,
    // The kernel makes it itself, after a stop.
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getpid,
];
/// Calls of a thread for itself.
const OF_THREADS: [libc::c_long; 2] = [libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity];
/// Requests to userfaultfds and to the page table.
const REQUESTS: [usize; 10] = [
    UFFDIO_MOVE,
    UFFDIO_WAKE,
    UFFDIO_COPY,
    UFFDIO_ZEROPAGE,
    PAGEMAP_SCAN,
    UFFDIO_REGISTER,
    UFFDIO_UNREGISTER,
    UFFDIO_POISON,
    UFFDIO_API,
    IOC_NEW,
];
const ADVICE: [usize; 3] = [
    libc::MADV_DONTNEED as usize,
    libc::MADV_DONTFORK as usize,
    libc::MADV_COLD as usize,
];
/// Of calls that act on a thread: the caller.
const OWN: [usize; 1] = [0];
const PROTECTION: [usize; 1] = [(libc::PROT_READ | libc::PROT_WRITE) as usize];
const PLACED: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const FLAGS: [usize; 2] = [
    PLACED as usize,
    (PLACED | libc::MAP_FIXED_NOREPLACE) as usize,
];

const MAX_STEPS: usize = 96;
const NOTHING: libc::sock_filter = libc::sock_filter {
    code: 0,
    jt: 0,
    jf: 0,
    k: 0,
};

/// A program of the filter, as it is written.
struct Program {
    steps: [libc::sock_filter; MAX_STEPS],
    count: usize,
}

impl Program {
    const fn step(&mut self, code: u16, k: u32, jt: u8, jf: u8) {
        self.steps[self.count] = libc::sock_filter { code, jt, jf, k };
        self.count += 1;
    }

    /// Permits the call if what was loaded is one of these values.
    const fn permit(&mut self, values: &[usize]) {
        let mut i = 0;
        while i < values.len() {
            self.step(EQUAL, values[i] as u32, 0, 1);
            self.step(RETURN, libc::SECCOMP_RET_ALLOW, 0, 0);
            i += 1;
        }
    }

    /// Ends the handler.
    const fn refuse(&mut self) {
        self.step(RETURN, libc::SECCOMP_RET_KILL_PROCESS, 0, 0);
    }

    /// What follows, of this many steps, is for one call.
    const fn only_for(&mut self, call: libc::c_long, steps: usize) {
        self.step(EQUAL, call as u32, 0, steps as u8);
    }
}

/// Steps of [`Program::permit`] with what is around it: loading, and the end.
const fn checked(values: usize) -> usize {
    2 + 2 * values
}

const fn write() -> Program {
    let mut program = Program {
        steps: [NOTHING; MAX_STEPS],
        count: 0,
    };
    let p = &mut program;
    p.step(LOAD, ARCHITECTURE_AT, 0, 0);
    p.step(EQUAL, ARCHITECTURE, 1, 0);
    p.refuse();
    p.step(LOAD, NUMBER, 0, 0);
    // The most frequent first.
    p.only_for(libc::SYS_ioctl, checked(REQUESTS.len()));
    p.step(LOAD, argument(1), 0, 0);
    p.permit(&REQUESTS);
    p.refuse();
    let mut i = 0;
    while i < CALLS.len() {
        p.permit(&[CALLS[i] as usize]);
        i += 1;
    }
    p.only_for(libc::SYS_madvise, checked(ADVICE.len()));
    p.step(LOAD, argument(2), 0, 0);
    p.permit(&ADVICE);
    p.refuse();
    let mut i = 0;
    while i < OF_THREADS.len() {
        p.only_for(OF_THREADS[i], checked(OWN.len()));
        p.step(LOAD, argument(0), 0, 0);
        p.permit(&OWN);
        p.refuse();
        i += 1;
    }
    p.only_for(libc::SYS_mmap, 3 + checked(FLAGS.len()));
    p.step(LOAD, argument(2), 0, 0);
    p.step(EQUAL, PROTECTION[0] as u32, 1, 0);
    p.refuse();
    p.step(LOAD, argument(3), 0, 0);
    p.permit(&FLAGS);
    p.refuse();
    p.refuse();
    program
}

static PROGRAM: Program = write();

/// Installs it; whether the kernel did. Cannot be undone.
pub(super) fn install() -> bool {
    let program = libc::sock_fprog {
        len: PROGRAM.count as u16,
        filter: PROGRAM.steps.as_ptr().cast_mut(),
    };
    let mode = libc::SECCOMP_SET_MODE_FILTER as usize;
    // The handler runs nobody's code that it should be guarded from, so it need not pay for that.
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW as usize;
    // SAFETY: the kernel reads the steps, as many as there are.
    unsafe {
        sys::call(
            libc::SYS_seccomp,
            [mode, flags, &raw const program as usize, 0, 0, 0],
        ) == 0
    }
}
