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

/// Raises the limit as far as this process may; whether it did.
fn raise(limit: Rlimit) -> bool {
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

/// The limit of open files that this process was started with, where it was changed.
static FILES: OnceLock<Option<libc::rlimit>> = OnceLock::new();

/// Has this process open as many files as the hard limit allows, or more with `CAP_SYS_RESOURCE`: for what opens some for each process
/// of others. What this process starts by [`crate::Child`] has the limits as they were; what else it starts has the raised ones.
pub fn raise_file_limit() {
    FILES.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile);
        let raw = |n: Option<u64>| n.map_or(libc::RLIM_INFINITY, |n| n as libc::rlim_t);
        raise(limit).then_some(libc::rlimit {
            rlim_cur: raw(limit.current),
            rlim_max: raw(limit.maximum),
        })
    });
}

/// The limit of open files that a child is to be given, where this process changed its own.
pub(crate) fn inherited_files() -> Option<libc::rlimit> {
    FILES.get().copied().flatten()
}

/// Has a file of this process that reaches `ulimit -f` be an error of the write, as on a full disk, rather than the end of the process.
/// What this process starts by [`crate::Child`] has the signal as it was.
pub fn live_with_limits() {
    INHERITED.get_or_init(|| {
        // SAFETY: signal takes integers, and ignoring this signal concerns nothing but writes.
        let file_size_action = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        Inherited {
            file_size_action,
            library_ignored: LIBRARY_SIGNALS.map(is_ignored),
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

const OWN: &str = "/proc/self/fd";

/// Whether this process has at most so many files open, of all its threads. Where the kernel does not count them and the table of
/// descriptors is longer, they are listed, which takes the longer the more there are.
///
/// # Errors
/// Where `/proc` cannot be read.
pub fn has_at_most_open(most: u64) -> io::Result<bool> {
    // Its size is the count since Linux 6.2 (f1f1f2569901), and 0 before.
    let count = match std::fs::metadata(OWN)?.len() {
        0 if table_size()? <= most => return Ok(true),
        0 => listed()?,
        count => count,
    };
    Ok(count <= most)
}

/// For how many descriptors the table of this process has room; it never shrinks.
fn table_size() -> io::Result<u64> {
    table_size_of(&std::fs::read_to_string("/proc/self/status")?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the status has no FDSize"))
}

fn table_size_of(status: &str) -> Option<u64> {
    crate::proc::status_field(status, "FDSize")?.parse().ok()
}

/// The number of open files by the list of them.
fn listed() -> io::Result<u64> {
    // One of them is that of the listing itself.
    Ok((std::fs::read_dir(OWN)?.count() as u64).saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_counted() {
        // Other tests of this process open files: one that has many is seen for all of them.
        let before = listed().unwrap();
        let held: Vec<_> = (0..200)
            .map(|_| std::fs::File::open("/").unwrap())
            .collect();
        let with = listed().unwrap();
        assert!(with.abs_diff(before + 200) < 100, "{before} {with}");
        assert!(!has_at_most_open(before + 100).unwrap());
        assert!(has_at_most_open(before + 300).unwrap());
        // What is open fits into the table.
        assert!(table_size().unwrap() >= with - 100);
        drop(held);
    }

    #[test]
    fn the_size_of_the_table_is_a_line_of_the_status() {
        let status = "Name:\tFDSize: 3\nFDSize:\t256\nGroups:\t0 \n";
        assert_eq!(table_size_of(status), Some(256));
        assert_eq!(table_size_of("Name:\tsh\n"), None);
    }
}
