//! What a group of processes has in memory, what it waits for, and what the machine swaps.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration as Wait;

use varve_model::{Bytes, Pid};

/// Memory of a group, as its cgroup accounts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupUsage {
    /// All that counts for the limit.
    pub used: Bytes,
    /// Memory without a file.
    pub anonymous: Bytes,
    /// The kernel's own for it: page tables, stacks of threads.
    pub kernel: Bytes,
    /// Pages of files.
    pub files: Bytes,
    /// What is swapped out.
    pub swapped: Bytes,
    /// Faults that had to read (`pgmajfault`).
    pub major_faults: u64,
    /// Pages without a file that were swapped in (`workingset_refault_anon` and, where there is one, `pswpin`).
    pub anonymous_refaults: u64,
    /// Pages of files that were read again.
    pub file_refaults: u64,
}

impl GroupUsage {
    /// Reads the files of a group of cgroup v1 or v2. What it does not say is 0.
    pub fn of(group: &Path) -> GroupUsage {
        let text = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let of = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| {
                let rest = line.strip_prefix(name)?;
                rest.strip_prefix(' ')?.trim().parse().ok()
            });
            line.unwrap_or(0)
        };
        let number = |name: &str| -> u64 {
            let text = fs::read_to_string(group.join(name)).unwrap_or_default();
            text.trim().parse().unwrap_or(0)
        };
        let is_v1 = group.join("memory.usage_in_bytes").exists();
        match is_v1 {
            true => GroupUsage {
                used: Bytes(number("memory.usage_in_bytes")),
                anonymous: Bytes(of("total_rss")),
                kernel: Bytes(number("memory.kmem.usage_in_bytes")),
                files: Bytes(of("total_cache")),
                swapped: Bytes(of("total_swap")),
                major_faults: of("total_pgmajfault"),
                anonymous_refaults: of("total_workingset_refault_anon"),
                file_refaults: of("total_workingset_refault_file"),
            },
            false => GroupUsage {
                used: Bytes(number("memory.current")),
                anonymous: Bytes(of("anon")),
                kernel: Bytes(of("kernel")),
                files: Bytes(of("file")),
                swapped: Bytes(number("memory.swap.current")),
                major_faults: of("pgmajfault"),
                anonymous_refaults: of("pswpin").max(of("workingset_refault_anon")),
                file_refaults: of("workingset_refault_file"),
            },
        }
    }

    /// The most that it ever used at once.
    pub fn peak(group: &Path) -> Option<Bytes> {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let text = read("memory.peak").or_else(|| read("memory.max_usage_in_bytes"))?;
        text.trim().parse().ok().map(Bytes)
    }
}

/// Pages that the whole machine swapped in and out since it started.
pub fn swap_moved() -> (u64, u64) {
    let found = crate::vmstat(|name| matches!(name, "pswpin" | "pswpout")).unwrap_or_default();
    let of = |name: &str| {
        let value = found.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
        value.map_or(0, i64::unsigned_abs)
    };
    (of("pswpin"), of("pswpout"))
}

/// Swap devices that are in use: path and pages, the first to be used first.
pub fn swap_devices() -> Vec<(String, Bytes)> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut found: Vec<(i64, String, Bytes)> = text
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let kib: u64 = fields.get(2)?.parse().ok()?;
            let priority = fields.get(4)?.parse().ok()?;
            Some((priority, (*fields.first()?).to_owned(), Bytes(kib << 10)))
        })
        .collect();
    found.sort_by_key(|(priority, ..)| std::cmp::Reverse(*priority));
    found
        .into_iter()
        .map(|(_, path, size)| (path, size))
        .collect()
}

/// Time in which all processes that would run waited for memory, microseconds since the group was made, or of the whole machine where
/// the group says nothing (`memory.pressure`, the line `full`). None where the kernel does not measure it.
pub fn stalled(group: Option<&Path>) -> Option<u64> {
    let text = group
        .and_then(|group| fs::read_to_string(group.join("memory.pressure")).ok())
        .or_else(|| fs::read_to_string("/proc/pressure/memory").ok())?;
    let line = text.lines().find(|line| line.starts_with("full "))?;
    line.rsplit_once("total=")?.1.trim().parse().ok()
}

/// Has a command join a cgroup before it runs, and be killed when this process ends.
///
/// # Errors
/// A path with a zero byte.
pub fn have_join(command: &mut Command, group: &Path) -> io::Result<()> {
    let procs = CString::new(group.join("cgroup.procs").as_os_str().as_bytes())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let parent = std::process::id().cast_signed();
    let join = move || {
        // SAFETY: a C string that lives, and one byte; only calls that are allowed between fork and exec.
        unsafe {
            let file = libc::open(procs.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file < 0 {
                return Err(io::Error::last_os_error());
            }
            let wrote = libc::write(file, c"0".as_ptr().cast(), 1);
            let error = io::Error::last_os_error();
            libc::close(file);
            if wrote != 1 {
                return Err(error);
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // Whoever started it may have ended before.
            if libc::getppid() != parent {
                libc::_exit(128 + libc::SIGKILL);
            }
        }
        Ok(())
    };
    // SAFETY: see above.
    unsafe { command.pre_exec(join) };
    Ok(())
}

/// Kills all processes of a group, as many as come meanwhile; silently.
pub fn kill_group(group: &Path) {
    for _ in 0..100 {
        let _ = fs::write(group.join("cgroup.kill"), "1");
        let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        let members: Vec<Pid> = text
            .lines()
            .filter_map(|l| l.parse().ok().map(Pid))
            .collect();
        if members.is_empty() {
            return;
        }
        for pid in members {
            let _ = crate::PidFd::open(pid).and_then(|process| process.signal(libc::SIGKILL));
        }
        std::thread::sleep(Wait::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_groups_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("memory.current", "9000\n");
        write(
            "memory.stat",
            "anon 4096\nanon_thp 7\nfile 8192\nkernel 100\npgmajfault 3\npswpin 5\nworkingset_refault_anon 4\n",
        );
        let found = GroupUsage::of(dir.path());
        assert_eq!(
            (found.used, found.anonymous, found.kernel),
            (Bytes(9000), Bytes(4096), Bytes(100))
        );
        assert_eq!((found.major_faults, found.anonymous_refaults), (3, 5));
        write("memory.usage_in_bytes", "5000\n");
        write(
            "memory.stat",
            "rss 1\ntotal_rss 4096\ntotal_cache 8\ntotal_workingset_refault_anon 6\n",
        );
        let found = GroupUsage::of(dir.path());
        assert_eq!(
            (found.used, found.anonymous, found.files),
            (Bytes(5000), Bytes(4096), Bytes(8))
        );
        assert_eq!(found.anonymous_refaults, 6);
        assert_eq!(GroupUsage::of(Path::new("/nowhere")), GroupUsage::default());
    }
}
