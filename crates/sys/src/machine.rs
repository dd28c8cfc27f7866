//! What machine this is.

use std::fs;
use std::path::{Path, PathBuf};

use varve_model::{Bytes, Pid};

/// Facts for the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub architecture: String,
    /// The CPU's name, where the kernel reports it.
    pub cpu: Option<String>,
    /// CPUs online.
    pub cpus: u32,
    /// Physical memory.
    pub memory: Bytes,
    /// Memory nodes (NUMA) that have memory, where the kernel says.
    pub nodes: Option<u32>,
    /// Whether the machine is a guest of a hypervisor.
    pub virtual_machine: bool,
}

/// Reads the facts.
pub fn facts() -> Facts {
    let uname = rustix::system::uname();
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        cpuinfo
            .lines()
            .filter_map(|l| l.split_once(':'))
            .find(|(k, _)| k.trim() == key)
            .map(|(_, v)| v.trim().to_owned())
    };
    let memory = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|t| {
            let line = t.lines().find(|l| l.starts_with("MemTotal:"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .unwrap_or(0);
    Facts {
        kernel: uname.release().to_string_lossy().into_owned(),
        architecture: uname.machine().to_string_lossy().into_owned(),
        cpu: field("model name"),
        cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        memory: Bytes(memory * 1024),
        nodes: nodes_with_memory(),
        virtual_machine: field("flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
    }
}

/// Memory that this process may still use: what the kernel has available, within the limits of its cgroups (v2,
/// `Documentation/admin-guide/cgroup-v2.rst`). Where the kernel does not say, there is no bound.
pub fn available_memory() -> Bytes {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| {
        let rest = line.strip_prefix("MemAvailable:")?;
        rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let available = available.map_or(u64::MAX, |kib| kib.saturating_mul(1024));
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let groups = own
        .into_iter()
        .flat_map(|own| mounts.map(|mount| mount.join(own)));
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let left = groups.flat_map(|group| {
        let above: Vec<PathBuf> = group.ancestors().map(Path::to_owned).collect();
        above.into_iter().filter_map(move |group| {
            let limit = number(group.join("memory.max"))?;
            Some(limit.saturating_sub(number(group.join("memory.current")).unwrap_or(0)))
        })
    });
    Bytes(left.fold(available, u64::min))
}

/// How many memory nodes have memory, where the kernel says.
fn nodes_with_memory() -> Option<u32> {
    let list = fs::read_to_string("/sys/devices/system/node/has_memory").ok()?;
    counted_list(list.trim())
}

/// How many numbers a list of the kernel's has, such as `0-3,8`.
fn counted_list(list: &str) -> Option<u32> {
    let parts = list.split(',').map(|part| match part.split_once('-') {
        Some((first, last)) => {
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            last.checked_sub(first)?.checked_add(1)
        }
        None => part.parse::<u32>().ok().map(|_| 1),
    });
    parts.sum()
}

/// The counters of `/proc/vmstat` whose names pass `wanted`.
pub fn vmstat(wanted: impl Fn(&str) -> bool) -> std::io::Result<Vec<(String, i64)>> {
    let text = fs::read_to_string("/proc/vmstat")?;
    Ok(text
        .lines()
        .filter_map(|l| l.split_once(' '))
        .filter(|(name, _)| wanted(name))
        .filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?)))
        .collect())
}

/// Threads of the whole machine that run or want to, at this moment (`/proc/loadavg`, proc(5)).
pub fn runnable_threads() -> std::io::Result<u64> {
    let text = fs::read_to_string("/proc/loadavg")?;
    let running = text.split_whitespace().nth(3);
    running
        .and_then(|f| f.split_once('/')?.0.parse().ok())
        .ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// CPUs on which the first thread of a process may run.
pub fn allowed_cpus(pid: Pid) -> std::io::Result<u64> {
    let pid = rustix::process::Pid::from_raw(pid.0 as i32);
    Ok(u64::from(rustix::thread::sched_getaffinity(pid)?.count()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_counted() {
        assert_eq!(counted_list("0"), Some(1));
        assert_eq!(counted_list("0-3,8"), Some(5));
        assert_eq!(counted_list(""), None);
        assert_eq!(counted_list("3-1"), None);
    }
}
