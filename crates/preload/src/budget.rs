//! How much of a program's address space this library may take (RLIMIT_AS, `ulimit -v`; RLIMIT_DATA, `ulimit -d`).

use crate::{proc, process, sys};

/// The limits of which this library takes a part; [`used`] and [`budgets`] have their order.
pub(crate) const LIMITS: [u32; 2] = [libc::RLIMIT_AS, libc::RLIMIT_DATA];
/// At most one part of so many of what a limit leaves.
const SHARE: u64 = 8;

/// Bytes of address space that the process has, and of what RLIMIT_DATA counts, at least; none where `/proc` cannot be read.
pub(crate) fn used() -> Option<[u64; 2]> {
    let mut words = [0u64; 16];
    let read = sys::ReadFile::open(c"/proc/self/statm")?.read(&mut words);
    let mut pages = proc::numbers::<u64>(proc::bytes(&words, read));
    // size resident shared text lib data: data is with the stack (proc(5)).
    Some([pages.next()? * 4096, pages.nth(4)? * 4096])
}

/// What one purpose may take of each of [`LIMITS`] in all, where it has `held` by now: a share of what the limit leaves to it and to the program.
/// All where there is no limit; nothing below one where it is not known what is used. `new` is a limit that is about to be set.
pub(crate) fn budgets(new: Option<(u32, u64)>, held: [u64; 2]) -> [u64; 2] {
    let limits = LIMITS.map(|resource| match new {
        Some((which, limit)) if which == resource => {
            (limit != libc::RLIM64_INFINITY).then_some(limit)
        }
        _ => sys::limit(resource),
    });
    if limits == [None; 2] {
        return [u64::MAX; 2];
    }
    let used = used().unwrap_or([u64::MAX; 2]);
    [0, 1].map(|which| budget(limits[which], used[which].saturating_sub(held[which])))
}

/// What may be taken of one limit, of which the program uses so much.
fn budget(limit: Option<u64>, used: u64) -> u64 {
    limit.map_or(u64::MAX, |limit| limit.saturating_sub(used) / SHARE)
}

/// Whether a table of so many bytes may be mapped, which stays. A program that has confined itself may be ended for asking: it has what it has then.
#[cold]
pub(crate) fn permits(bytes: usize) -> bool {
    let [space, data] = match process::is_confined() {
        true => [u64::MAX; 2],
        false => budgets(None, [0; 2]),
    };
    bytes as u64 <= space.min(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Of a limit that leaves so many MiB, in MiB: what this process uses may change a little meanwhile.
    fn of_space(left: u64, held: u64) -> u64 {
        let [used, _] = used().unwrap();
        let limit = used + left * MIB;
        let [space, _] = budgets(Some((libc::RLIMIT_AS, limit)), [held * MIB, 0]);
        (space + MIB / 2) / MIB
    }

    #[test]
    fn a_limit_leaves_an_eighth_of_what_is_not_used_otherwise() {
        assert_eq!(of_space(800, 0), 100);
        assert_eq!(of_space(800, 8), 101);
        assert_eq!(of_space(0, 0), 0);
        assert_eq!(budget(Some(8), 16), 0);
    }

    #[test]
    fn a_limit_counts_from_when_it_is_set_until_it_is_lifted() {
        let none = Some((libc::RLIMIT_AS, libc::RLIM64_INFINITY));
        assert_eq!(budgets(none, [0; 2])[0], u64::MAX);
        let all = Some((libc::RLIMIT_DATA, 0));
        assert_eq!(budgets(all, [0; 2])[1], 0);
    }
}
