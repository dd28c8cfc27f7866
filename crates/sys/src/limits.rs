//! Resource limits that concern a recorder otherwise than the program that it starts (setrlimit(2)).

use std::io;
use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What this process was started with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inherited {
    /// What was done about SIGXFSZ.
    pub(crate) file_size_action: libc::sighandler_t,
    /// Which of the C library's own signals were ignored: it takes them as soon as there are threads.
    pub(crate) library_ignored: [bool; LIBRARY_SIGNALS.len()],
    /// Open files, where the limit was changed.
    pub(crate) files: Option<libc::rlimit>,
}

/// The signals that the C library keeps to itself (nptl(7)): to cancel threads, and to change the user of all of them.
/// Its own functions refuse them, so that the system call is asked.
const LIBRARY_SIGNALS: [i32; 2] = [32, 33];

/// The kernel's `struct sigaction`; its mask has 64 bits.
#[repr(C)]
struct KernelAction {
    handler: libc::sighandler_t,
    flags: u64,
    restorer: usize,
    mask: u64,
}

const NO_ACTION: KernelAction = KernelAction {
    handler: libc::SIG_DFL,
    flags: 0,
    restorer: 0,
    mask: 0,
};

fn is_ignored(signal: i32) -> bool {
    let mut action = NO_ACTION;
    // SAFETY: asks only; the kernel writes one action, as long as this one, with a mask of eight bytes.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            std::ptr::null::<KernelAction>(),
            &raw mut action,
            size_of::<u64>(),
        )
    };
    asked == 0 && action.handler == libc::SIG_IGN
}

impl Inherited {
    /// Ignores again what was ignored of the C library's own signals.
    ///
    /// # Safety
    /// For a child between fork and exec, which has no threads: the C library's own handlers are gone afterwards.
    pub(crate) unsafe fn ignore_library_signals(&self) {
        let action = KernelAction {
            handler: libc::SIG_IGN,
            ..NO_ACTION
        };
        for (signal, ignored) in LIBRARY_SIGNALS.into_iter().zip(self.library_ignored) {
            if ignored {
                // SAFETY: the kernel reads one action, as long as this one, with a mask of eight bytes.
                unsafe {
                    libc::syscall(
                        libc::SYS_rt_sigaction,
                        signal,
                        &raw const action,
                        std::ptr::null_mut::<KernelAction>(),
                        size_of::<u64>(),
                    )
                };
            }
        }
    }
}

static INHERITED: OnceLock<Inherited> = OnceLock::new();

/// Files that a recorder may have open where it may choose: some for each process that is recorded.
const MANY_FILES: u64 = 1 << 18;

/// Raises the limit of open files as far as this process may; whether it did.
fn raise_file_limit(limit: Rlimit) -> bool {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open");
    let most = most.ok().and_then(|text| text.trim().parse().ok());
    let many = MANY_FILES.min(most.unwrap_or(MANY_FILES));
    // With CAP_SYS_RESOURCE (getrlimit(2)); then within the hard limit.
    let raised = [
        limit.maximum.map(|maximum| maximum.max(many)),
        limit.maximum,
    ];
    raised.into_iter().any(|maximum| {
        let files = Rlimit {
            current: maximum,
            maximum,
        };
        limit.current != maximum && setrlimit(Resource::Nofile, files).is_ok()
    })
}

/// Has this process live with small limits: a file that reaches `ulimit -f` is an error of the write, as on a full disk, rather than the
/// end of the process, and as many files may be open as the hard limit allows, or more with `CAP_SYS_RESOURCE`. What this process starts
/// by [`crate::Child`] has all that as it was.
pub fn live_with_limits() {
    INHERITED.get_or_init(|| {
        // SAFETY: signal takes integers, and ignoring this signal concerns nothing but writes.
        let file_size_action = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        let limit = getrlimit(Resource::Nofile);
        let is_raised = raise_file_limit(limit);
        let raw = |n: Option<u64>| n.map_or(libc::RLIM_INFINITY, |n| n as libc::rlim_t);
        Inherited {
            file_size_action,
            library_ignored: LIBRARY_SIGNALS.map(is_ignored),
            files: is_raised.then_some(libc::rlimit {
                rlim_cur: raw(limit.current),
                rlim_max: raw(limit.maximum),
            }),
        }
    });
}

/// What a child is to be given; nothing where this process changed nothing.
pub(crate) fn inherited() -> Option<Inherited> {
    INHERITED.get().copied()
}

/// How many files this process may have open; nothing for any number.
pub fn file_limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// How many files this process has open, of all its threads.
///
/// # Errors
/// Where `/proc` cannot be read.
pub fn open_file_count() -> io::Result<u64> {
    const OWN: &str = "/proc/self/fd";
    // Its size is the count since Linux 6.2 (f1f1f2569901), and 0 before.
    match std::fs::metadata(OWN)?.len() {
        // One of them is that of the listing itself.
        0 => Ok((std::fs::read_dir(OWN)?.count() as u64).saturating_sub(1)),
        count => Ok(count),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_counted() {
        // Other tests of this process open files: one that has many is seen for all of them.
        let before = open_file_count().unwrap();
        let held: Vec<_> = (0..200)
            .map(|_| std::fs::File::open("/").unwrap())
            .collect();
        let with = open_file_count().unwrap();
        assert!(with.abs_diff(before + 200) < 100, "{before} {with}");
        drop(held);
    }
}
