//! What a fault handler may do: next to nothing.
//!
//! The program can overwrite the handler's code, as they share memory, and may give up rights after the handler was
//! made. So whatever the handler has, the program has. The handler opens what it needs, then gives up everything: its
//! user, its groups, its capabilities, and every system call but a few, all of which act on the memory that both share or
//! on the connection to the recorder ([`super::filter`]).
//!
//! **The user.** Whoever may trace the handler may change the program. As another user's process would do for the
//! program that has left that user, so would one of `nobody`. Where it has the right to, the handler takes a user id that no
//! account has and no other process: a number from a range that systemd's table of user ids
//! (`docs/UIDS-GIDS.md`) leaves unused, and its own process id. Without the right, or in a user namespace that
//! has no such number, it keeps its user: it is then the program's, or one that the program had, and the filter is what
//! keeps its code from using it.
//!
//! **The memory's flag.** A change of user makes the kernel declare the memory undumpable, as if the program had
//! changed its user. It is declared what it was before, while the program waits.

use super::filter;
use super::mover::Pagemap;
use crate::sys;

/// User ids of handlers: this and the process id, which is below 2^22.
const FIRST_USER: usize = 0x7f00_0000;
/// `_LINUX_CAPABILITY_VERSION_3`
const CAPABILITY_VERSION: u32 = 0x2008_0522;
/// Capabilities that the kernel's sets have room for.
const CAPABILITIES: usize = 64;
/// `SECBIT_NOROOT`, `SECBIT_NO_SETUID_FIXUP`, `SECBIT_NO_CAP_AMBIENT_RAISE` and the locks of all, that of
/// `SECBIT_KEEP_CAPS` included: user id 0 means nothing.
const SECURE_BITS: usize = 0x1 | 0x2 | 0x4 | 0x8 | 0x20 | 0x40 | 0x80;
/// No core is written, nor piped to a program: for that, 1 is the value that says so (core(5)).
const NO_CORE: u64 = 1;

/// What a handler has opened.
pub(super) struct Taken {
    pub(super) pagemap: Pagemap,
    pub(super) maps: sys::ReadFile,
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// Effective, permitted and inheritable capabilities, the lower 32 of each and then the higher.
type Sets = [[u32; 3]; 2];

fn control(option: i32, value: usize) -> isize {
    // SAFETY: the options used here take integers.
    unsafe { sys::call(libc::SYS_prctl, [option as usize, value, 0, 0, 0, 0]) }
}

fn capabilities(call: libc::c_long, sets: &mut Sets) -> bool {
    let mut header = Header {
        version: CAPABILITY_VERSION,
        pid: 0,
    };
    // SAFETY: both structs are as long as the version says, and live here.
    unsafe {
        sys::call(
            call,
            [
                &raw mut header as usize,
                sets.as_mut_ptr() as usize,
                0,
                0,
                0,
                0,
            ],
        ) == 0
    }
}

/// Opens what is needed and gives up user, groups and capabilities; nothing where that cannot be.
pub(super) fn give_up() -> Option<Taken> {
    let mut sets = Sets::default();
    if !capabilities(libc::SYS_capget, &mut sets) {
        return None;
    }
    // A file keeps the rights of its opening: with none in effect, the page table shows no frame numbers.
    let mut none = sets.map(|[_, permitted, inheritable]| [0, permitted, inheritable]);
    if !capabilities(libc::SYS_capset, &mut none) {
        return None;
    }
    let taken = Taken {
        pagemap: Pagemap::open()?,
        maps: sys::ReadFile::open(c"/proc/self/maps")?,
    };
    capabilities(libc::SYS_capset, &mut sets);
    limit(libc::RLIMIT_CORE, NO_CORE);
    // The program's limit on time is not for this: at its end the kernel would end the handler.
    limit(libc::RLIMIT_CPU, libc::RLIM64_INFINITY);
    let dumpable = control(libc::PR_GET_DUMPABLE, 0);
    control(libc::PR_SET_SECUREBITS, SECURE_BITS);
    for capability in 0..CAPABILITIES {
        control(libc::PR_CAPBSET_DROP, capability);
    }
    control(
        libc::PR_CAP_AMBIENT,
        libc::PR_CAP_AMBIENT_CLEAR_ALL as usize,
    );
    become_nobody_else();
    let mut none = Sets::default();
    if !capabilities(libc::SYS_capset, &mut none) || control(libc::PR_SET_NO_NEW_PRIVS, 1) != 0 {
        return None;
    }
    // 2 cannot be asked for, and is what the kernel has set then.
    if (0..=1).contains(&dumpable) && control(libc::PR_GET_DUMPABLE, 0) != dumpable {
        control(libc::PR_SET_DUMPABLE, dumpable as usize);
    }
    Some(taken)
}

/// Whether this process has a user id that no other has: else whoever has the same could take its descriptors from it, and
/// the recorder would refuse it.
pub(super) fn has_own_user() -> bool {
    let own = FIRST_USER + sys::process_id() as usize;
    // SAFETY: takes no arguments, cannot fail.
    own == unsafe { sys::call(libc::SYS_getuid, [0; 6]) } as usize
}

/// Takes a user id of its own, where that is permitted.
fn become_nobody_else() {
    let user = FIRST_USER + sys::process_id() as usize;
    // SAFETY: these take integers; an empty list of groups is not read.
    unsafe {
        sys::call(libc::SYS_setgroups, [0; 6]);
        sys::call(libc::SYS_setresgid, [user, user, user, 0, 0, 0]);
        sys::call(libc::SYS_setresuid, [user, user, user, 0, 0, 0]);
    }
}

/// Sets a resource limit, as far as that is permitted.
fn limit(resource: u32, value: u64) {
    let both = libc::rlimit64 {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: the struct lives here; the old one is not asked for.
    unsafe {
        sys::call(
            libc::SYS_prlimit64,
            [0, resource as usize, &raw const both as usize, 0, 0, 0],
        )
    };
}

/// Gives up every system call that is not in the filter; whether it did.
pub(super) fn confine() -> bool {
    filter::install()
}
