//! One clock for recorders and programs: `CLOCK_MONOTONIC` of the machine, which the kernel's own events have.
//!
//! In a time namespace (time_namespaces(7)) the clock of programs is ahead of it, or behind, by an offset that a file says.

use std::ffi::CStr;
use std::sync::OnceLock;

use crate::raw::system_call;

/// Where the first time namespace is (`PROC_TIME_INIT_INO`, include/linux/proc_ns.h).
const FIRST: &[u8] = b"time:[4026531834]";

/// How far the calling process's `CLOCK_MONOTONIC` is ahead of the machine's, nanoseconds. 0 also where that cannot be found out: without
/// /proc, or in a process that is in another namespace than its children will be. Makes up to five system calls.
pub fn ahead_ns() -> i64 {
    let mut own = [0u8; 64];
    let Some(own) = link(c"/proc/self/ns/time", &mut own) else {
        return 0;
    };
    if own == FIRST {
        return 0;
    }
    // The file has the offsets of the namespace that children will be in.
    let mut of_children = [0u8; 64];
    if link(c"/proc/self/ns/time_for_children", &mut of_children) != Some(own) {
        return 0;
    }
    let mut text = [0u8; 256];
    read(c"/proc/self/timens_offsets", &mut text)
        .and_then(parse)
        .unwrap_or(0)
}

/// The machine's time, by what this process read from its `CLOCK_MONOTONIC`; both in nanoseconds. For a process that stays in its time
/// namespace.
pub fn of_machine(own_ns: u64) -> u64 {
    static AHEAD: OnceLock<i64> = OnceLock::new();
    own_ns.wrapping_sub(AHEAD.get_or_init(ahead_ns).cast_unsigned())
}

/// Finds `monotonic SECONDS NANOSECONDS` among the lines.
fn parse(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    let mut words = lines.find_map(|mut words| (words.next()? == "monotonic").then_some(words))?;
    let mut number = || words.next()?.parse::<i64>().ok();
    number()?.checked_mul(1_000_000_000)?.checked_add(number()?)
}

fn link<'a>(path: &CStr, to: &'a mut [u8]) -> Option<&'a [u8]> {
    let at = libc::AT_FDCWD as usize;
    let (start, bytes) = (to.as_mut_ptr() as usize, to.len());
    let arguments = [at, path.as_ptr() as usize, start, bytes, 0, 0];
    // SAFETY: a C string, and a buffer of that length.
    let length = unsafe { system_call(libc::SYS_readlinkat, arguments) };
    to.get(..usize::try_from(length).ok()?)
}

fn read<'a>(path: &CStr, to: &'a mut [u8]) -> Option<&'a [u8]> {
    let at = libc::AT_FDCWD as usize;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a C string.
    let file = unsafe {
        system_call(
            libc::SYS_openat,
            [at, path.as_ptr() as usize, flags, 0, 0, 0],
        )
    };
    let file = usize::try_from(file).ok()?;
    let (start, bytes) = (to.as_mut_ptr() as usize, to.len());
    // SAFETY: a buffer of that length; a descriptor of this function's own.
    let length = unsafe {
        let length = system_call(libc::SYS_read, [file, start, bytes, 0, 0, 0]);
        system_call(libc::SYS_close, [file, 0, 0, 0, 0, 0]);
        length
    };
    to.get(..usize::try_from(length).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let text = b"monotonic           2         5\nboottime           -1 900000000\n";
        assert_eq!(parse(text), Some(2_000_000_005));
        assert_eq!(
            parse(b"monotonic         -60 250000000\n"),
            Some(-59_750_000_000)
        );
        assert_eq!(parse(b"monotonic 9223372036854775807 0\n"), None);
        assert_eq!(parse(b"boottime 1 2\n"), None);
        assert_eq!(parse(b""), None);
    }
}
