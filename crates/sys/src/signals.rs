//! Signals as data: blocked in the recorder and read from a descriptor.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use varve_model::Duration;

use crate::clock::monotonic_now;

/// The signals that end a recording.
const CAUGHT: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Signals that mean nothing to a recorder and would end it: anybody with its user may send them, its target too.
const REFUSED: [libc::c_int; 7] = [
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGUSR2,
    libc::SIGIO,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

/// Adds them to a set.
fn add_refused(set: &mut libc::sigset_t) {
    for signal in REFUSED
        .into_iter()
        .chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
    {
        // SAFETY: the set is initialised, as it is behind a reference, and the signals are valid ones.
        unsafe { libc::sigaddset(set, signal) };
    }
}

/// Whether whoever started this program had it ignore SIGPIPE. Rust's runtime ignores that signal before
/// `main`, so it has to be asked earlier.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

#[used]
#[unsafe(link_section = ".init_array")]
static ASK_EARLY: extern "C" fn() = {
    extern "C" fn ask() {
        PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
    }
    ask
};

fn is_ignored(signal: libc::c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; `action` is large enough, and all zeroes is a valid value of it.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// What a child shall do about SIGPIPE: as this program was started.
pub(crate) fn inherited_pipe_action() -> libc::sighandler_t {
    if PIPE_IGNORED.load(Ordering::Relaxed) {
        libc::SIG_IGN
    } else {
        libc::SIG_DFL
    }
}

/// When a signal was last taken by [`Signals::take`], nanoseconds of the monotonic clock; 0: never.
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Signals that follow one another so soon are one: `timeout -s INT` sends two, and who presses Ctrl-C twice means the same.
const SAME: Duration = Duration(1_000_000_000);

/// Whether a signal is no other than the one that was taken last.
pub fn was_just_taken() -> bool {
    let taken = TAKEN.load(Ordering::Relaxed);
    taken > 0 && monotonic_now().0.saturating_sub(taken) < SAME.0
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its number.
    pub number: i32,
    /// Whether the terminal sent it, in which case the target got it too.
    pub from_terminal: bool,
}

/// The caught signals; the previous mask returns on drop, but for signals that are refused.
#[derive(Debug)]
pub struct Signals {
    file: std::fs::File,
    /// SIGUSR1 alone, which ends nothing.
    pause: std::fs::File,
    previous: libc::sigset_t,
}

impl Signals {
    /// Blocks SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGUSR1 for this thread and those it makes, and gives
    /// them as data. Blocks all others, too, that would end this program and come from nobody but another one. Call before any thread is made.
    pub fn catch() -> io::Result<Signals> {
        let mut set = MaybeUninit::uninit();
        let mut previous = MaybeUninit::uninit();
        // SAFETY: the sets are local and initialised by sigemptyset and pthread_sigmask before use.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in CAUGHT {
                // `nohup` means it. SIGINT is caught all the same: a shell's script has its background
                // commands ignore it, and `kill -INT` is how a recording is ended.
                if signal == libc::SIGHUP && is_ignored(signal) {
                    continue;
                }
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let mut pause = MaybeUninit::uninit();
            libc::sigemptyset(pause.as_mut_ptr());
            libc::sigaddset(pause.as_mut_ptr(), libc::SIGUSR1);
            let mut blocked = set.assume_init();
            libc::sigaddset(&raw mut blocked, libc::SIGUSR1);
            add_refused(&mut blocked);
            let (file, pause) = (signal_file(set.as_ptr())?, signal_file(pause.as_ptr())?);
            let error =
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, previous.as_mut_ptr());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            Ok(Signals {
                file,
                pause,
                previous: previous.assume_init(),
            })
        }
    }

    /// Starts a command with the signals blocked that were so before these were caught: a child has its parent's otherwise, and would not
    /// get its own timers' signals.
    ///
    /// # Errors
    /// Where it cannot be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        let previous = self.previous;
        let restore = move || {
            // SAFETY: the set is a copy of one that the kernel gave; the call takes no lock and no memory.
            match unsafe {
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const previous, std::ptr::null_mut())
            } {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        };
        // SAFETY: what runs between fork and exec makes one system call.
        unsafe { command.pre_exec(restore) }.spawn()
    }

    /// Where it can be seen that somebody wants a pause or its end.
    pub fn pause_fd(&self) -> BorrowedFd<'_> {
        self.pause.as_fd()
    }

    /// Whether SIGUSR1 has come since this was last asked.
    pub fn take_pause(&mut self) -> bool {
        let mut raw = [0u8; size_of::<libc::signalfd_siginfo>()];
        self.pause.read(&mut raw).is_ok_and(|n| n == raw.len())
    }

    /// The next signal that waits, if any.
    pub fn take(&mut self) -> io::Result<Option<Received>> {
        let mut raw = [0u8; size_of::<libc::signalfd_siginfo>()];
        match self.file.read(&mut raw) {
            Ok(n) if n == raw.len() => {
                if !was_just_taken() {
                    TAKEN.store(monotonic_now().0, Ordering::Relaxed);
                }
                // SAFETY: the kernel filled a whole signalfd_siginfo, which is plain data.
                let info: libc::signalfd_siginfo =
                    unsafe { std::ptr::read_unaligned(raw.as_ptr().cast()) };
                Ok(Some(Received {
                    number: info.ssi_signo as i32,
                    from_terminal: info.ssi_code == libc::SI_KERNEL,
                }))
            }
            Ok(_) => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The mask that was in force before, which a child must have.
    pub(crate) fn previous(&self) -> libc::sigset_t {
        self.previous
    }
}

/// Has Ctrl-Z (SIGTSTP) wait until [`DeferredStop::stop_now`]: a process that stops at any moment may do so while others
/// wait for it. The signal has its usual effect again when this is dropped.
#[derive(Debug)]
pub struct DeferredStop {
    file: std::fs::File,
}

impl DeferredStop {
    /// Blocks it for this thread and those it makes; none where it is blocked or ignored already.
    pub fn begin() -> io::Result<Option<DeferredStop>> {
        let (set, mut previous) = (stop_signal(), MaybeUninit::uninit());
        // SAFETY: both sets are local; pthread_sigmask initialises the second.
        let was_blocked = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), previous.as_mut_ptr());
            libc::sigismember(previous.as_ptr(), libc::SIGTSTP) == 1
        };
        if was_blocked || is_ignored(libc::SIGTSTP) {
            return Ok(None);
        }
        // SAFETY: an initialised set.
        let file = unsafe { signal_file(&raw const set)? };
        change_mask(libc::SIG_BLOCK);
        Ok(Some(DeferredStop { file }))
    }

    /// Stops this process if somebody wants that, until somebody has it go on.
    pub fn stop_now(&self) {
        if crate::is_readable([self.file.as_fd()], Some(std::time::Duration::ZERO)) == [true] {
            // The kernel delivers what waits before the first call returns.
            change_mask(libc::SIG_UNBLOCK);
            change_mask(libc::SIG_BLOCK);
        }
    }
}

impl AsFd for DeferredStop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for DeferredStop {
    fn drop(&mut self) {
        change_mask(libc::SIG_UNBLOCK);
    }
}

fn stop_signal() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTSTP);
        set.assume_init()
    }
}

fn change_mask(how: libc::c_int) {
    let set = stop_signal();
    // SAFETY: an initialised set; the mask before is not asked for.
    unsafe {
        libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut());
    }
}

/// A descriptor that signals of a set can be read from.
///
/// # Safety
/// `set` points to an initialised set.
unsafe fn signal_file(set: *const libc::sigset_t) -> io::Result<std::fs::File> {
    // SAFETY: the caller's promise; the descriptor is nobody else's.
    unsafe {
        match libc::signalfd(-1, set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(std::fs::File::from_raw_fd(fd)),
        }
    }
}

/// Takes a signal that waits, by a descriptor of [`Signals`]; its number.
pub fn take_signal(waiting: &OwnedFd) -> Option<i32> {
    let mut raw = [0u8; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(waiting, &mut raw[..]).ok()?;
    // The number comes first.
    (read == raw.len()).then(|| i32::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]))
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if was_just_taken() {
            // The same again, which would end the program.
            while self.take().is_ok_and(|taken| taken.is_some()) {}
        }
        // One of those that were refused may wait: it would end the program while the trace is put in order.
        let mut mask = self.previous;
        add_refused(&mut mask);
        // SAFETY: the mask is local, and made of the one that pthread_sigmask gave.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
        }
    }
}
