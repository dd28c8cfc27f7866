//! A filter of system calls that the program was begun under (seccomp(2)), as sandboxes, containers and services are.
//!
//! Most filters answer what they forbid with an error, and some end the process. Which one this is nobody tells; so a
//! child makes the calls that the library needs, each in a way that does nothing, before the program's own process does.
//! Where the child is ended the library keeps silent.

use crate::{proc, sys};

const LINE: &[u8] = b"\nSeccomp:\t";
const TRACER: &[u8] = b"\nTracerPid:\t";
/// `__WCLONE`: children without an exit signal, of whose end the program hears nothing.
const WAIT_CLONE: usize = 0x8000_0000;
/// No descriptor.
const NONE: usize = usize::MAX;

/// Whether the library's calls would end this process.
#[cold]
pub(crate) fn forbids_the_library() -> bool {
    has_filter() && !child_survives()
}

fn has_filter() -> bool {
    status(&mut [0; 512]).is_some_and(is_filtered)
}

/// Whether the program is traced below a filter, which may leave it to the tracer what becomes of a call
/// (`SECCOMP_RET_TRACE`). Of a process that is not traced, all such calls fail, that of its end among them.
#[cold]
pub(crate) fn may_need_a_tracer() -> bool {
    status(&mut [0; 512]).is_some_and(|text| {
        is_filtered(text) && value_of(TRACER, text).is_none_or(|tracer| !tracer.starts_with(b"0\n"))
    })
}

/// The text of the process's status, which is read into this room.
fn status(room: &mut [u64]) -> Option<&[u8]> {
    let count = sys::ReadFile::open(c"/proc/self/status")?.read(room);
    Some(proc::bytes(room, count))
}

/// Whether a status is that of a process with a filter.
fn is_filtered(text: &[u8]) -> bool {
    value_of(LINE, text).is_some_and(|value| value.starts_with(b"2"))
}

/// What stands behind a word of a status.
fn value_of<'a>(word: &[u8], text: &'a [u8]) -> Option<&'a [u8]> {
    let at = text.windows(word.len()).position(|line| line == word)?;
    text.get(at + word.len()..)
}

/// Whether a child that makes the library's calls lives on. It has a copy of the memory and no exit signal.
fn child_survives() -> bool {
    // SAFETY: a fork; the child makes system calls that change nothing, and ends.
    let child = unsafe { sys::call(libc::SYS_clone, [0; 6]) };
    if child == 0 {
        try_all();
        loop {
            // SAFETY: takes an integer, does not return.
            unsafe { sys::call(libc::SYS_exit_group, [0; 6]) };
        }
    }
    if child < 0 {
        // Nothing is known, and one that forbids this forbids more.
        return false;
    }
    let mut status = 0i32;
    loop {
        let place = &raw mut status as usize;
        // SAFETY: an integer that lives here.
        let done = unsafe {
            sys::call(
                libc::SYS_wait4,
                [child as usize, place, WAIT_CLONE, 0, 0, 0],
            )
        };
        if done == child {
            return status == 0;
        }
        if done != -(libc::EINTR as isize) {
            return false;
        }
    }
}

/// What the library calls, with arguments that the kernel refuses or that ask for nothing.
fn try_all() {
    let name = c"varve-probe".as_ptr() as usize;
    let socket = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let calls: [(libc::c_long, [usize; 6]); 37] = [
        (
            libc::SYS_prctl,
            [libc::PR_SET_NAME as usize, name, 0, 0, 0, 0],
        ),
        (
            libc::SYS_socket,
            [libc::AF_UNIX as usize, socket as usize, 0, 0, 0, 0],
        ),
        (libc::SYS_connect, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_getsockopt, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_setsockopt, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_sendmsg, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_recvmsg, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_sendto, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_poll, [0; 6]),
        (libc::SYS_fcntl, [NONE, libc::F_GETFL as usize, 0, 0, 0, 0]),
        (libc::SYS_fstat, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_statx, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_faccessat, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_openat, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_read, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_lseek, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_getdents64, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_waitid, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_close, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_mmap, [0; 6]),
        (libc::SYS_munmap, [1, 0, 0, 0, 0, 0]),
        (libc::SYS_madvise, [0; 6]),
        (libc::SYS_mlock2, [0; 6]),
        (libc::SYS_munlock, [0; 6]),
        (libc::SYS_mbind, [0; 6]),
        (libc::SYS_ioctl, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_process_vm_readv, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_prlimit64, [0, NONE, 0, 0, 0, 0]),
        (libc::SYS_futex, [0, libc::FUTEX_WAKE as usize, 0, 0, 0, 0]),
        (libc::SYS_nanosleep, [0; 6]),
        (libc::SYS_sched_yield, [0; 6]),
        (libc::SYS_clock_gettime, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_rt_sigprocmask, [NONE, 0, 0, 0, 0, 0]),
        (libc::SYS_getpid, [0; 6]),
        (libc::SYS_getppid, [0; 6]),
        (libc::SYS_gettid, [0; 6]),
        (libc::SYS_getuid, [0; 6]),
    ];
    for (number, arguments) in calls {
        // SAFETY: as said above: nothing of this process is changed but the child's own name and descriptors.
        unsafe { sys::call(number, arguments) };
    }
}
