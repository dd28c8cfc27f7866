//! Stops (SIGSTOP) of a process while it holds others by ptrace.
//!
//! What a stopped process holds stays held, and it alone can let go. Its watchdog therefore has it go on, and it stops again by itself
//! as soon as it holds nothing. Somebody else may have it go on in the meantime (SIGCONT), and then it must not stop. Therefore it
//! counts those signals in memory that it shares with the watchdog, and the watchdog's own signal carries the count that the
//! watchdog read before it found the process stopped: the process stops again only if that count still holds.
//!
//! One gap is left. A SIGCONT that comes in the fraction of a microsecond between the last look at the count and the stop is lost, as the
//! kernel drops it for the stop: then the process stays stopped, with nothing held, until the next one.
//!
//! The watchdog's signal is sent to one thread, the others' to the process. These wait in queues of their own, so that none takes
//! the place of another (signal(7), `prepare_signal` and `legacy_queue` of the kernel's `kernel/signal.c`).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use varve_model::Pid;

/// What tells the watchdog's signal from others': any negative number is a sender's own.
const WATCHDOG: i32 = -0x5661;

/// The shared memory.
#[repr(C)]
struct Word {
    /// How many SIGCONT came from others than the watchdog.
    continued: AtomicU64,
    /// How many holds by ptrace there are.
    holds: AtomicU32,
}

/// A mapping of the shared memory, which stays.
#[derive(Clone, Copy, Debug)]
struct Mapped(NonNull<Word>);

// SAFETY: all accesses go through atomics.
unsafe impl Send for Mapped {}
// SAFETY: see above.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn of(file: &File) -> io::Result<Mapped> {
        let bytes = size_of::<Word>();
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping, which is never taken away; the file cannot become shorter.
        let base = unsafe { rustix::mm::mmap(null_mut(), bytes, access, flags, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapped(base))
    }

    fn word(&self) -> &Word {
        // SAFETY: mapped as long as the program runs, aligned to a page; zeroes are a valid value.
        unsafe { self.0.as_ref() }
    }
}

/// This process's own.
struct Own {
    file: File,
    mapped: Mapped,
}

static OWN: OnceLock<Own> = OnceLock::new();
/// The count that the watchdog's last signal carried, and one; 0: there was none.
static AGAIN: AtomicU64 = AtomicU64::new(0);

/// Whether a process that the watchdog had go on stops again: not where others had it go on since.
fn stops_again(again: u64, continued: u64) -> bool {
    again == continued + 1
}

extern "C" fn on_continue(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let Some(own) = OWN.get() else {
        return;
    };
    // SAFETY: the kernel gives a handler with SA_SIGINFO what came; a value is among that where the sender queued it.
    let (code, value) = unsafe { ((*info).si_code, (*info).si_value().sival_ptr as u64) };
    if code == WATCHDOG {
        AGAIN.store(value + 1, Ordering::SeqCst);
    } else {
        own.mapped.word().continued.fetch_add(1, Ordering::SeqCst);
    }
}

/// The memory that this process shares with its watchdogs. SIGCONT is counted from then on.
///
/// # Errors
/// Where the kernel refuses the memory or the handler of the signal.
pub fn share_stops() -> io::Result<BorrowedFd<'static>> {
    if let Some(own) = OWN.get() {
        return Ok(own.file.as_fd());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("varve-stops", flags)?);
    file.set_len(size_of::<Word>() as u64)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    let mapped = Mapped::of(&file)?;
    let own = OWN.get_or_init(|| Own { file, mapped });
    // SAFETY: zeroes are a valid sigaction; the handler touches atomics alone; all sets are local.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_continue as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        if libc::sigaction(libc::SIGCONT, &raw const action, null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        // It may have been blocked by what started this program.
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCONT);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, null_mut());
    }
    Ok(own.file.as_fd())
}

/// A hold by ptrace, or one that may come about.
#[derive(Debug)]
pub(crate) struct Holding(Option<Mapped>);

impl Holding {
    pub(crate) fn begin() -> Holding {
        let mapped = OWN.get().map(|own| own.mapped);
        if let Some(mapped) = &mapped {
            mapped.word().holds.fetch_add(1, Ordering::SeqCst);
        }
        Holding(mapped)
    }
}

/// Call it when all have been let go.
impl Drop for Holding {
    fn drop(&mut self) {
        let Some(mapped) = &self.0 else {
            return;
        };
        let word = mapped.word();
        word.holds.fetch_sub(1, Ordering::SeqCst);
        // Also has the kernel deliver what waits: it interrupts a thread that runs elsewhere only some microseconds after a signal is
        // sent to it.
        // SAFETY: takes nothing and cannot fail.
        let own = unsafe { libc::syscall(libc::SYS_getpid) };
        let again = AGAIN.swap(0, Ordering::SeqCst);
        if stops_again(again, word.continued.load(Ordering::SeqCst)) {
            // SAFETY: takes integers.
            unsafe { libc::syscall(libc::SYS_kill, own, libc::SIGSTOP) };
        }
    }
}

/// What a process has shared with its watchdog.
#[derive(Debug)]
pub struct SharedStops(Mapped);

/// `siginfo_t` of a signal that is queued with a value, on 64-bit machines.
#[repr(C)]
struct Queued {
    signal: i32,
    error: i32,
    code: i32,
    _gap: i32,
    pid: u32,
    uid: u32,
    value: u64,
    _rest: [u64; 12],
}

const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());

impl SharedStops {
    /// By the descriptor of [`share_stops`].
    ///
    /// # Errors
    /// Where it is no such memory.
    pub fn open(file: OwnedFd) -> io::Result<SharedStops> {
        Mapped::of(&File::from(file)).map(SharedStops)
    }

    /// Has a process that is stopped go on where it holds others by ptrace, until it has let them go.
    pub fn have_let_go(&self, process: Pid) {
        let word = self.0.word();
        let continued = word.continued.load(Ordering::SeqCst);
        let is_stopped = || crate::status(process).is_ok_and(|status| status.state == 'T');
        if word.holds.load(Ordering::SeqCst) == 0 || !is_stopped() {
            return;
        }
        let info = Queued {
            signal: libc::SIGCONT,
            error: 0,
            code: WATCHDOG,
            _gap: 0,
            pid: std::process::id(),
            uid: rustix::process::getuid().as_raw(),
            value: continued,
            _rest: [0; 12],
        };
        let (call, signal) = (libc::SYS_rt_tgsigqueueinfo, libc::SIGCONT);
        // SAFETY: `info` lives for the call and has the size of a siginfo_t. Refused where the process has ended.
        unsafe { libc::syscall(call, process.0, process.0, signal, &raw const info) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_was_not_told_to_go_on_since_stops_again() {
        assert!(!stops_again(0, 0));
        assert!(stops_again(1, 0));
        assert!(!stops_again(1, 1));
        assert!(stops_again(8, 7));
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let file = rustix::fs::memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
        assert!(SharedStops::open(file).is_err());
    }
}
