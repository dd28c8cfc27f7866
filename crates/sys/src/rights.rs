//! The capabilities of this process: which it has, and giving them up.
//!
//! A capability (capabilities(7)) is *permitted* to a thread, or *effective* besides, which the kernel asks for. A
//! recorder that runs as an ordinary user, with capabilities of its file or of whoever started it, opens files and
//! writes traces with the user's own rights: what overrides the permissions of files is effective only in
//! [`with_any_file`].

use std::fmt;
use std::io;
use std::sync::OnceLock;

/// A capability that a recorder may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Capability {
    /// Opens what the permissions of a file deny.
    DacOverride = 1,
    /// Reads what the permissions of a file deny.
    DacReadSearch = 2,
    /// Changes files of other users as their owner may.
    Fowner = 3,
    /// Sends signals to other users' processes.
    Kill = 5,
    /// Looks into other users' processes, and stops them.
    SysPtrace = 19,
    /// Almost anything; on kernels before 5.8 also what [`Capability::Bpf`] and [`Capability::Perfmon`] are for.
    SysAdmin = 21,
    /// Raises priorities.
    SysNice = 23,
    /// Exceeds limits of resources.
    SysResource = 24,
    /// Has kernel programs read the kernel's memory, and samples all CPUs.
    Perfmon = 38,
    /// Loads kernel programs.
    Bpf = 39,
    /// Opens the very files that other processes have mapped.
    CheckpointRestore = 40,
}

impl Capability {
    /// All of them, in the order of their numbers.
    pub const ALL: [Capability; 11] = [
        Capability::DacOverride,
        Capability::DacReadSearch,
        Capability::Fowner,
        Capability::Kill,
        Capability::SysPtrace,
        Capability::SysAdmin,
        Capability::SysNice,
        Capability::SysResource,
        Capability::Perfmon,
        Capability::Bpf,
        Capability::CheckpointRestore,
    ];

    /// Its name in capabilities(7).
    pub const fn as_str(self) -> &'static str {
        match self {
            Capability::DacOverride => "CAP_DAC_OVERRIDE",
            Capability::DacReadSearch => "CAP_DAC_READ_SEARCH",
            Capability::Fowner => "CAP_FOWNER",
            Capability::Kill => "CAP_KILL",
            Capability::SysPtrace => "CAP_SYS_PTRACE",
            Capability::SysAdmin => "CAP_SYS_ADMIN",
            Capability::SysNice => "CAP_SYS_NICE",
            Capability::SysResource => "CAP_SYS_RESOURCE",
            Capability::Perfmon => "CAP_PERFMON",
            Capability::Bpf => "CAP_BPF",
            Capability::CheckpointRestore => "CAP_CHECKPOINT_RESTORE",
        }
    }

    const fn bit(self) -> u64 {
        1 << self as u8
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The capability sets of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    effective: u64,
    permitted: u64,
    inheritable: u64,
}

/// What overrides the permissions of files.
const ANY_FILE: u64 =
    Capability::DacOverride.bit() | Capability::DacReadSearch.bit() | Capability::Fowner.bit();

/// What the process was started with, which programs that it starts get.
static FIRST: OnceLock<Rights> = OnceLock::new();

/// The header of version 3 of the sets (linux/capability.h).
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// A half of each set; the first halves come first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const VERSION_3: u32 = 0x2008_0522;

const fn header() -> Header {
    Header {
        version: VERSION_3,
        pid: 0,
    }
}

impl Rights {
    /// Those of the calling thread.
    pub fn own() -> Rights {
        let mut halves = [Half::default(); 2];
        let mut header = header();
        // SAFETY: version 3 fills two halves; both outlive the call.
        let done = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) };
        if done != 0 {
            return Rights::default();
        }
        let join =
            |of: fn(&Half) -> u32| u64::from(of(&halves[0])) | u64::from(of(&halves[1])) << 32;
        Rights {
            effective: join(|h| h.effective),
            permitted: join(|h| h.permitted),
            inheritable: join(|h| h.inheritable),
        }
    }

    /// Whether it may be used, now or with [`with_any_file`].
    pub const fn has(self, capability: Capability) -> bool {
        self.permitted & capability.bit() != 0
    }

    /// Whether the kernel would let it do what the capability is for: `CAP_SYS_ADMIN` covers those that were split off.
    pub const fn covers(self, capability: Capability) -> bool {
        let split_off = matches!(
            capability,
            Capability::Bpf | Capability::Perfmon | Capability::CheckpointRestore
        );
        self.has(capability) || split_off && self.has(Capability::SysAdmin)
    }

    /// Those of [`Capability::ALL`] that are there.
    pub fn list(self) -> Vec<Capability> {
        let all = Capability::ALL.into_iter();
        all.filter(|c| self.has(*c)).collect()
    }

    /// Whether there are any at all.
    pub const fn any(self) -> bool {
        self.permitted != 0
    }

    fn apply(self) -> io::Result<()> {
        if self.apply_raw() == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Async-signal-safe, for a child between fork and exec.
    pub(crate) fn apply_raw(self) -> i64 {
        let half = |shift: u32| Half {
            effective: (self.effective >> shift) as u32,
            permitted: (self.permitted >> shift) as u32,
            inheritable: (self.inheritable >> shift) as u32,
        };
        let halves = [half(0), half(32)];
        let mut header = header();
        // SAFETY: version 3 reads two halves; both outlive the call.
        unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) }
    }
}

fn mask(keep: &[Capability]) -> u64 {
    keep.iter().fold(0, |mask, c| mask | c.bit())
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Called once, before anything else: notes what programs that are started shall have, and has an ordinary user
/// open files with its own rights, whatever capabilities there are; the others become effective.
///
/// # Errors
/// Where the kernel does not let go of them.
pub fn begin() -> io::Result<()> {
    let first = *FIRST.get_or_init(Rights::own);
    // A program whose file permits capabilities begins with none of them effective.
    let wanted = Rights {
        effective: first.permitted & !ANY_FILE,
        ..first
    };
    if is_root() || wanted == first {
        return Ok(());
    }
    wanted.apply()
}

/// What the process was started with.
pub(crate) fn first() -> Rights {
    *FIRST.get_or_init(Rights::own)
}

/// Gives up everything but `keep`, for good: in the calling thread, in those that it starts, and in
/// programs that those run (`no_new_privs`). An ordinary user's capabilities for files stay not effective.
///
/// # Errors
/// Where the kernel does not let go of them.
pub fn keep_only(keep: &[Capability]) -> io::Result<()> {
    limit(mask(keep))
}

/// The same, but whatever the caller hands on to every program (ambient capabilities) stays too: the kernel lets nobody
/// stop a process that has more than he has.
///
/// # Errors
/// Where the kernel does not let go of them.
pub fn keep_only_and_ambient(keep: &[Capability]) -> io::Result<()> {
    let ambient = (0..64u64).filter(|number| {
        // SAFETY: four integers.
        unsafe {
            libc::prctl(
                libc::PR_CAP_AMBIENT,
                libc::PR_CAP_AMBIENT_IS_SET,
                *number,
                0,
                0,
            ) == 1
        }
    });
    limit(ambient.fold(mask(keep), |mask, number| mask | 1 << number))
}

fn limit(keep: u64) -> io::Result<()> {
    let own = Rights::own();
    Rights {
        effective: own.effective & keep,
        permitted: own.permitted & keep,
        inheritable: own.inheritable & keep,
    }
    .apply()?;
    // SAFETY: integers.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Runs `work` with [`Capability::DacOverride`] effective, where it is permitted: for files of the kernel that stand for
/// processes of other users, and for devices; never for a path that somebody names.
pub fn with_any_file<T>(work: impl FnOnce() -> T) -> T {
    let own = Rights::own();
    let wanted = own.effective | (own.permitted & Capability::DacOverride.bit());
    if wanted == own.effective {
        return work();
    }
    let raised = Rights {
        effective: wanted,
        ..own
    };
    // Where this fails the work says so.
    let _ = raised.apply();
    let result = work();
    let _ = own.apply();
    result
}

/// Runs `work` with these capabilities not effective, to find out whether it needs them.
pub fn without<T>(capabilities: &[Capability], work: impl FnOnce() -> T) -> T {
    let own = Rights::own();
    let lowered = Rights {
        effective: own.effective & !mask(capabilities),
        ..own
    };
    // Where this fails the work succeeds for sure.
    let _ = lowered.apply();
    let result = work();
    let _ = own.apply();
    result
}

/// Whether this program runs as another user than its caller (set-user-ID).
pub fn changed_user() -> bool {
    rustix::process::getuid() != rustix::process::geteuid()
        || rustix::process::getgid() != rustix::process::getegid()
}

/// Gives up everything but `keep` if this is root; an ordinary user gives up everything.
///
/// # Errors
/// Where the kernel does not let go of them.
pub fn keep_if_root(keep: &[Capability]) -> io::Result<()> {
    limit(if is_root() { mask(keep) } else { 0 })
}

/// Whether this program got rights that its caller lacks from its file (set-user-ID, capabilities). What the caller
/// says in the environment must not be believed then.
pub fn gained_by_file() -> bool {
    // SAFETY: an integer in, an integer out.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Whether programs that this process runs can gain nothing from their files.
pub fn gains_nothing() -> bool {
    // SAFETY: integers.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

/// Has a command that will be started gain nothing from its file: it can have no more than this process.
pub fn without_gain(command: &mut std::process::Command) -> &mut std::process::Command {
    use std::os::unix::process::CommandExt;
    // SAFETY: prctl is async-signal-safe and takes integers.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 {
                Ok(())
            } else {
                Err(io::Error::last_os_error())
            }
        })
    }
}

/// Hides this process from others of the same user: they can neither trace it nor take its descriptors, which give
/// access to the kernel's memory.
pub fn hide_from_user() {
    // SAFETY: integers. It cannot fail with this value.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_up_and_others_do_not() {
        let before = Rights::own();
        std::thread::spawn(move || {
            keep_only(&[Capability::DacOverride]).unwrap();
            let after = Rights::own();
            assert_eq!(
                after.permitted,
                before.permitted & Capability::DacOverride.bit()
            );
            assert!(!after.has(Capability::Bpf));
        })
        .join()
        .unwrap();
        assert_eq!(Rights::own(), before);
    }

    #[test]
    fn numbers_are_those_of_the_kernel() {
        assert_eq!(Capability::SysPtrace as u32, 19);
        assert_eq!(
            mask(&[Capability::Bpf, Capability::DacOverride]),
            1 << 39 | 2
        );
        assert_eq!(Capability::Perfmon.to_string(), "CAP_PERFMON");
    }
}
