//! Starting the target so that it waits just before exec until the recorder is ready.

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU8, Ordering};

use varve_model::Pid;

use crate::limits::{Inherited, inherited, inherited_files};
use crate::signals::{Signals, inherited_pipe_action};

/// Which of the descriptors 0, 1 and 2 whoever started this program had closed, a bit each. Rust's runtime opens `/dev/null` in
/// their place before `main`, so that they have to be looked at earlier; the target shall not have it.
static CLOSED: AtomicU8 = AtomicU8::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_EARLY: extern "C" fn() = {
    extern "C" fn look() {
        for fd in 0..3 {
            // SAFETY: only asks.
            if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
                CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
            }
        }
    }
    look
};

/// Whether the target may get huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThpPolicy {
    /// As the system has it.
    System,
    /// None: every touch is seen at 4 KiB (`PR_SET_THP_DISABLE`, inherited by children).
    Never,
}

/// Goes on in a process that is nobody's child, in a session of its own; the one that called ends. To be called by a
/// process that has one thread.
///
/// # Errors
/// Where no process can be made.
pub fn detach() -> io::Result<()> {
    // SAFETY: this process has one thread, as the caller vouches, so that the child has all that there is.
    match unsafe { libc::fork() } {
        0 => {
            rustix::process::setsid()?;
            Ok(())
        }
        // SAFETY: ends the process; the child has its descriptors.
        1.. => unsafe { libc::_exit(0) },
        _ => Err(io::Error::last_os_error()),
    }
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The program, looked up in `PATH` as a shell would, and its arguments.
    pub command: &'a [OsString],
    /// Variables to set.
    pub environment: &'a [(&'a str, OsString)],
    /// Huge pages.
    pub thp: ThpPolicy,
}

/// Why the target did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// An argument holds a zero byte.
    #[error("the command has an argument with a zero byte")]
    ZeroByte,
    /// A process could not be made.
    #[error("cannot start a process: {0}")]
    Fork(#[source] io::Error),
    /// The program could not be run.
    #[error("cannot run {}: {source}", program.display())]
    Exec {
        /// The program as given.
        program: OsString,
        /// Why.
        source: io::Error,
    },
}

impl SpawnError {
    /// The exit code that a shell gives: 127 for a program that is not there, 126 for one that cannot
    /// be run.
    pub fn exit_code(&self) -> u8 {
        match self {
            SpawnError::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            SpawnError::Exec { .. } => 126,
            _ => 125,
        }
    }
}

/// A child of ours.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    program: OsString,
    /// A byte in it lets the child go on to exec.
    go: Option<std::fs::File>,
    /// What exec said, if it failed; end of file if it worked.
    failed: std::fs::File,
    reaped: Option<i32>,
}

fn c_string(s: &OsStr) -> Result<CString, SpawnError> {
    CString::new(s.as_bytes()).map_err(|_| SpawnError::ZeroByte)
}

fn pipe() -> Result<(std::fs::File, std::fs::File), SpawnError> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|e| SpawnError::Fork(e.into()))?;
    Ok((read.into(), write.into()))
}

impl Child {
    /// Makes the process; it waits until [`Child::start`].
    pub fn prepare(launch: &Launch<'_>, signals: &Signals) -> Result<Child, SpawnError> {
        let program = launch.command.first().cloned().unwrap_or_default();
        let arguments: Vec<CString> = launch
            .command
            .iter()
            .map(|a| c_string(a))
            .collect::<Result<_, _>>()?;
        let mut environment: Vec<CString> = Vec::new();
        for (name, value) in std::env::vars_os() {
            if !launch.environment.iter().any(|(n, _)| name == *n) {
                let mut pair = name;
                pair.push("=");
                pair.push(value);
                environment.push(c_string(&pair)?);
            }
        }
        for (name, value) in launch.environment {
            let mut pair = OsString::from(name);
            pair.push("=");
            pair.push(value);
            environment.push(c_string(&pair)?);
        }
        let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
            let list = strings.iter().map(|s| s.as_ptr());
            list.chain([std::ptr::null()]).collect()
        };
        let argv = pointers(&arguments);
        let envp = pointers(&environment);
        let (go_read, go_write) = pipe()?;
        let (failed_read, failed_write) = pipe()?;
        let mask = signals.previous();
        let pipe_action = inherited_pipe_action();
        let (limits, files) = (inherited(), inherited_files());
        let rights = crate::rights::first();
        // SAFETY: the child calls only async-signal-safe functions on memory prepared above, and ends
        // in exec or _exit.
        let pid = unsafe { libc::fork() };
        if pid < 0 {
            return Err(SpawnError::Fork(io::Error::last_os_error()));
        }
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
                child_main(&Ready {
                    go: go_read.as_raw_fd(),
                    go_write: go_write.as_raw_fd(),
                    failed: failed_write.as_raw_fd(),
                    mask: &mask,
                    pipe_action,
                    limits,
                    files,
                    thp: launch.thp,
                    argv: &argv,
                    envp: &envp,
                    rights,
                })
            }
        }
        Ok(Child {
            pid: Pid(pid as u32),
            program,
            go: Some(go_write),
            failed: failed_read,
            reaped: None,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Lets the child run its program, and waits until it does.
    ///
    /// # Errors
    /// [`SpawnError::Exec`] where the program cannot be run; the child is gone then.
    pub fn start(&mut self) -> Result<(), SpawnError> {
        if let Some(mut go) = self.go.take() {
            // A child that was killed meanwhile shows in its wait status.
            let _ = go.write_all(b"!");
        }
        let mut errno = [0u8; 4];
        match self.failed.read_exact(&mut errno) {
            Ok(()) => {
                let _ = self.wait();
                Err(SpawnError::Exec {
                    program: self.program.clone(),
                    source: io::Error::from_raw_os_error(i32::from_ne_bytes(errno)),
                })
            }
            Err(_) => Ok(()),
        }
    }

    /// The exit code as a shell shows it (128 + signal), if the child has ended.
    pub fn try_wait(&mut self) -> io::Result<Option<i32>> {
        self.wait_with(libc::WNOHANG)
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> io::Result<i32> {
        loop {
            if let Some(code) = self.wait_with(0)? {
                return Ok(code);
            }
        }
    }

    /// Whether there is an end to be reported. A child that is held by ptrace shows its stops to waitpid,
    /// too, and must not lose them.
    fn has_ended(&self, flags: libc::c_int) -> io::Result<bool> {
        // SAFETY: zeroes are a valid siginfo_t.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = flags | libc::WEXITED | libc::WNOWAIT;
        // SAFETY: `info` lives for the call, which fills it.
        let done = unsafe { libc::waitid(libc::P_PID, self.pid.0, &raw mut info, flags) };
        if done < 0 {
            return match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(false),
                e => Err(e),
            };
        }
        // Without anything to report the zeroes stay.
        Ok(matches!(
            info.si_code,
            libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED
        ))
    }

    fn wait_with(&mut self, flags: libc::c_int) -> io::Result<Option<i32>> {
        if let Some(code) = self.reaped {
            return Ok(Some(code));
        }
        if !self.has_ended(flags)? {
            return Ok(None);
        }
        let mut status = 0;
        // SAFETY: waitpid writes one int that lives here.
        let done = unsafe { libc::waitpid(self.pid.0 as libc::pid_t, &mut status, flags) };
        match done {
            0 => Ok(None),
            -1 => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(None),
                e => Err(e),
            },
            _ => {
                let code = if libc::WIFSIGNALED(status) {
                    128 + libc::WTERMSIG(status)
                } else {
                    libc::WEXITSTATUS(status)
                };
                self.reaped = Some(code);
                Ok(Some(code))
            }
        }
    }

    /// Sends a signal to the child, if it has not been waited for.
    pub fn signal(&self, number: i32) {
        if self.reaped.is_none() {
            // SAFETY: kill takes integers; the pid is ours until it is reaped.
            unsafe {
                libc::kill(self.pid.0 as libc::pid_t, number);
            }
        }
    }
}

/// A child that was never started ends: it must not linger before exec for ever.
impl Drop for Child {
    fn drop(&mut self) {
        if self.go.take().is_some() {
            self.signal(libc::SIGKILL);
            let _ = self.wait();
        }
    }
}

/// What the child needs between fork and exec, all made before the fork.
struct Ready<'a> {
    go: i32,
    go_write: i32,
    failed: i32,
    mask: &'a libc::sigset_t,
    pipe_action: libc::sighandler_t,
    limits: Option<Inherited>,
    files: Option<libc::rlimit>,
    thp: ThpPolicy,
    argv: &'a [*const libc::c_char],
    envp: &'a [*const libc::c_char],
    /// The target's are those that this program was started with.
    rights: crate::Rights,
}

/// What the child does between fork and exec.
///
/// # Safety
/// Only async-signal-safe calls are made; `argv` and `envp` end in null.
unsafe fn child_main(ready: &Ready<'_>) -> ! {
    let Ready {
        go,
        go_write,
        failed,
        mask,
        pipe_action,
        limits,
        files,
        thp,
        argv,
        envp,
        rights,
    } = *ready;
    // SAFETY: see above; every pointer outlives the call.
    unsafe {
        // With the write end open here too, a dead recorder would go unnoticed.
        libc::close(go_write);
        let mut byte = 0u8;
        let n = loop {
            let n = libc::read(go, (&raw mut byte).cast(), 1);
            if n >= 0 || *libc::__errno_location() != libc::EINTR {
                break n;
            }
        };
        if n != 1 {
            libc::_exit(125);
        }
        for fd in 0..3 {
            if CLOSED.load(Ordering::Relaxed) & 1 << fd != 0 {
                libc::close(fd);
            }
        }
        if thp == ThpPolicy::Never {
            libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
        }
        // Rust ignores SIGPIPE in this process; the target must not inherit that.
        libc::signal(libc::SIGPIPE, pipe_action);
        if let Some(limits) = limits {
            libc::signal(libc::SIGXFSZ, limits.file_size_action);
            limits.ignore_library_signals();
        }
        if let Some(files) = files {
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, std::ptr::null_mut());
        // Where that fails exec says what is missing.
        rights.apply_raw();
        libc::execvpe(argv[0], argv.as_ptr(), envp.as_ptr());
        let errno = *libc::__errno_location();
        libc::write(failed, (&raw const errno).cast(), 4);
        libc::_exit(127)
    }
}
