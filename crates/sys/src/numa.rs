//! Nodes of memory, and the policy with which a thread and its children take pages from them.

use std::fs;
use std::io;
use std::path::Path;

use varve_model::Bytes;

const MPOL_DEFAULT: i32 = 0;
const MPOL_PREFERRED: i32 = 1;
const NODES: &str = "/sys/devices/system/node";

/// A node that has memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Whether it has processors.
    pub has_cpus: bool,
    /// How far it is from the first node with processors, as the firmware says: 10 is itself.
    pub distance: u32,
    /// Its memory.
    pub bytes: Bytes,
}

/// The nodes that have memory, the nearest first; of nodes as near as each other, those with processors.
pub fn nodes() -> Vec<Node> {
    nodes_in(Path::new(NODES))
}

fn nodes_in(folder: &Path) -> Vec<Node> {
    let list = |name: &str| parse_list(&fs::read_to_string(folder.join(name)).unwrap_or_default());
    let (memory, cpus) = (list("has_memory"), list("has_cpu"));
    let online = list("online");
    let from = cpus.first().copied().unwrap_or(0);
    let distances = fs::read_to_string(folder.join(format!("node{from}/distance")));
    let distances: Vec<u32> = distances
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|d| d.parse().ok())
        .collect();
    let mut found: Vec<Node> = memory
        .iter()
        .map(|&number| {
            let at = online.iter().position(|n| *n == number);
            let info = fs::read_to_string(folder.join(format!("node{number}/meminfo")));
            let info = info.unwrap_or_default();
            let total = info.lines().find(|l| l.contains("MemTotal:"));
            let kib = total.and_then(|l| l.split_whitespace().rev().nth(1)?.parse::<u64>().ok());
            Node {
                number,
                has_cpus: cpus.contains(&number),
                distance: at.and_then(|i| distances.get(i).copied()).unwrap_or(10),
                bytes: Bytes(kib.unwrap_or(0) << 10),
            }
        })
        .collect();
    found.sort_by_key(|n| (n.distance, !n.has_cpus, n.number));
    found
}

/// `0-2,5`.
fn parse_list(text: &str) -> Vec<u32> {
    let parts = text.trim().split(',');
    parts
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            (last - first.min(last) < 4096).then_some(first..=last)
        })
        .flatten()
        .collect()
}

/// Has this thread, and what it starts, take pages from a node where it has some; none for the nearest again.
///
/// # Errors
/// Where there is no such node, or the kernel has no policies.
pub fn prefer_node(node: Option<u32>) -> io::Result<()> {
    let mut mask = [0u64; 16];
    if let Some(node) = node {
        let word = mask.get_mut(node as usize / 64);
        *word.ok_or(io::ErrorKind::InvalidInput)? |= 1 << (node % 64);
    }
    let (policy, nodes, bits) = match node {
        Some(_) => (MPOL_PREFERRED, mask.as_ptr(), size_of_val(&mask) * 8 + 1),
        None => (MPOL_DEFAULT, std::ptr::null(), 0),
    };
    // SAFETY: the mask lives for the call and is as long as is said.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, policy, nodes, bits) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_node_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("has_memory", "0-2\n");
        put("online", "0-2\n");
        put("has_cpu", "1\n");
        put("node1/distance", "20 10 40\n");
        put("node2/meminfo", "Node 2 MemTotal:     2048 kB\n");
        let found = nodes_in(dir.path());
        let order: Vec<u32> = found.iter().map(|n| n.number).collect();
        assert_eq!(order, [1, 0, 2]);
        assert_eq!(found[2].bytes, Bytes(2 << 20));
        assert!(found[0].has_cpus && !found[1].has_cpus);
    }
}
