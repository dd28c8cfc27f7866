//! What the kernel counts of memory that it moves between tiers, and the settings by which it does.

use std::fs;
use std::path::Path;

const NODES: &str = "/sys/devices/system/node";

/// A counter, of a node or of the whole machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TierCounter {
    /// The node; none for the whole machine.
    pub node: Option<u32>,
    /// The kernel's name.
    pub name: String,
}

/// Whether a counter of `/proc/vmstat` says something of tiers: pages promoted, demoted, migrated, swapped, compressed, refaulted, and what
/// NUMA balancing did.
pub fn is_of_tiers(name: &str) -> bool {
    [
        "pgpromote_",
        "pgdemote_",
        "pgmigrate_",
        "numa_",
        "pswp",
        "zswp",
        "workingset_refault_",
    ]
    .iter()
    .any(|start| name.starts_with(start))
        || name == "pgmajfault"
}

/// The counters of the machine and, where it has several nodes of memory, of each node; what a node has free is in `free_bytes`.
pub fn tier_counters() -> Vec<(TierCounter, i64)> {
    let machine = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let mut found = counters_in(None, &machine);
    let nodes = crate::nodes();
    if nodes.len() > 1 {
        for node in nodes {
            let folder = Path::new(NODES).join(format!("node{}", node.number));
            let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
            found.extend(counters_in(Some(node.number), &read("vmstat")));
            found.extend(free_in(node.number, &read("meminfo")));
        }
    }
    found
}

fn counters_in(node: Option<u32>, text: &str) -> Vec<(TierCounter, i64)> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .filter(|(name, _)| is_of_tiers(name))
        .filter_map(|(name, value)| {
            let name = name.to_owned();
            Some((TierCounter { node, name }, value.trim().parse().ok()?))
        })
        .collect()
}

fn free_in(node: u32, meminfo: &str) -> Option<(TierCounter, i64)> {
    let line = meminfo.lines().find(|l| l.contains("MemFree:"))?;
    let kib: i64 = line.split_whitespace().rev().nth(1)?.parse().ok()?;
    let name = "free_bytes".to_owned();
    let node = Some(node);
    Some((TierCounter { node, name }, kib << 10))
}

/// The settings in force: what each is called, and what it says; those that this kernel lacks are left out.
pub fn tier_settings() -> Vec<(&'static str, String)> {
    const FILES: [(&str, &str); 8] = [
        ("numa_balancing", "/proc/sys/kernel/numa_balancing"),
        (
            "promote_rate_limit_MBps",
            "/proc/sys/kernel/numa_balancing_promote_rate_limit_MBps",
        ),
        ("demotion_enabled", "/sys/kernel/mm/numa/demotion_enabled"),
        ("swappiness", "/proc/sys/vm/swappiness"),
        ("zswap", "/sys/module/zswap/parameters/enabled"),
        ("lru_gen", "/sys/kernel/mm/lru_gen/enabled"),
        (
            "transparent_hugepage",
            "/sys/kernel/mm/transparent_hugepage/enabled",
        ),
        ("page_cluster", "/proc/sys/vm/page-cluster"),
    ];
    FILES
        .into_iter()
        .filter_map(|(name, path)| {
            let text = fs::read_to_string(path).ok()?;
            Some((name, text.trim().to_owned()))
        })
        .collect()
}

/// The totals of `/proc/pressure/memory` in microseconds: when some task waited for memory, and when all did.
pub fn memory_pressure_us() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/pressure/memory").ok()?;
    let total = |start: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(start))?;
        let field = line
            .split_whitespace()
            .find_map(|f| f.strip_prefix("total="));
        field?.parse().ok()
    };
    Some((total("some")?, total("full")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_tiers_are_found_and_others_are_not() {
        let text = "nr_free_pages 1\npswpin 7\nnuma_hit 9\npgpromote_success 2\npgdemote_kswapd x\npgfault 5\n";
        let found = counters_in(Some(1), text);
        let names: Vec<(&str, i64)> = found.iter().map(|(c, v)| (c.name.as_str(), *v)).collect();
        assert_eq!(
            names,
            [("pswpin", 7), ("numa_hit", 9), ("pgpromote_success", 2)]
        );
        let (free, bytes) = free_in(1, "Node 1 MemTotal: 10 kB\nNode 1 MemFree:   4 kB\n").unwrap();
        assert_eq!((free.node, bytes), (Some(1), 4096));
    }

    #[test]
    fn this_machine_counts_what_it_swaps() {
        let has = |name: &str| tier_counters().iter().any(|(c, _)| c.name == name);
        assert!(has("pgmajfault"));
    }
}
