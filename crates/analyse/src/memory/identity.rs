//! Which mappings are of memory that other processes may map too.

use std::collections::{HashMap, HashSet};

use varve_model::{PAGE_BYTES, Pid, Time};
use varve_trace::tables::MappingRow;

use super::Memory;
use super::maps::Entry;

/// What a mapping maps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Mapped<'a> {
    /// A file, or memory that the kernel keeps as a file without a name.
    Inode(&'a str, u64),
    /// A segment of System V: the kernel shows its identifier in place of an inode.
    Segment(u64),
    /// What the kernel maps into every process.
    Kernel(&'a str),
}

/// Enters all mappings, with the spaces of those that are nobody's own.
pub(super) fn enter(memory: &mut Memory, rows: &[MappingRow]) {
    let writable = Writable::of(rows);
    let mut shared: HashMap<Mapped<'_>, Vec<&MappingRow>> = HashMap::new();
    for row in rows {
        match mapped(row).filter(|_| is_shared(row) || !writable.was_written(row)) {
            Some(mapped) => shared.entry(mapped).or_default().push(row),
            None => push(memory, row, None),
        }
    }
    // Spaces are numbered in an order that does not change from run to run.
    let mut shared: Vec<_> = shared.into_iter().collect();
    shared.sort_by(|a, b| a.0.cmp(&b.0));
    for (mapped, mut rows) in shared {
        rows.sort_by_key(|r| (r.from_ns, r.pid, r.address));
        let mut space = None;
        let mut end = Time(0);
        let mut paths: HashSet<&str> = HashSet::new();
        for row in rows {
            let path = row.path.trim_end_matches(" (deleted)");
            // An inode's number is given anew when its file is gone; while it is mapped it cannot be.
            let is_same = row.from_ns < end || paths.contains(path);
            let of = match space.filter(|_| is_same) {
                Some(of) => of,
                None => {
                    paths.clear();
                    memory.new_space()
                }
            };
            space = Some(of);
            paths.insert(path);
            end = end.max(row.to_ns.unwrap_or(Time(u64::MAX)));
            let at = match mapped {
                Mapped::Kernel(_) => 0,
                _ => row.offset / PAGE_BYTES,
            };
            push(memory, row, Some((of, at)));
        }
    }
}

fn push(memory: &mut Memory, row: &MappingRow, place: Option<(Pid, u64)>) {
    let entries = &mut memory.maps.entry(row.pid.0).or_default().entries;
    entries.push(Entry {
        first: row.address.0 / PAGE_BYTES,
        end: row.address.0.saturating_add(row.bytes.0) / PAGE_BYTES,
        from: row.from_ns,
        to: row.to_ns.unwrap_or(Time(u64::MAX)),
        memory: place,
        exact: false,
    });
}

fn is_shared(row: &MappingRow) -> bool {
    row.perms.ends_with('s')
}

fn mapped(row: &MappingRow) -> Option<Mapped<'_>> {
    let path = row.path.as_str();
    // The first segment after boot has the identifier 0.
    if path.starts_with("/SYSV") {
        return Some(Mapped::Segment(row.inode));
    }
    if row.inode == 0 {
        let of_kernel = path.starts_with("[v") && !path.starts_with("[vsyscall");
        return of_kernel.then_some(Mapped::Kernel(path));
    }
    // Files without a name of their own share one inode, and devices map what they like.
    let device = path.starts_with("/dev/")
        && !["/dev/shm/", "/dev/zero", "/dev/hugepages/"]
            .iter()
            .any(|p| path.starts_with(p));
    if device || path.starts_with("anon_inode:") {
        return None;
    }
    Some(Mapped::Inode(&row.device, row.inode))
}

/// A file in a process: the process, the device and the inode.
type FileKey<'a> = (Pid, &'a str, u64);

/// The private mappings of files that could be written at some time: their pages may be copies.
struct Writable<'a> {
    /// First and last byte of each.
    ranges: HashMap<FileKey<'a>, Vec<(u64, u64)>>,
    /// Where they begin, with the offset there.
    begins: HashSet<(Pid, u64, u64, u64)>,
    /// Where they end, with the offset there.
    ends: HashSet<(Pid, u64, u64, u64)>,
    /// The last offset of each file at which one begins, in any process.
    last_begin: HashMap<(&'a str, u64), u64>,
}

impl<'a> Writable<'a> {
    fn of(rows: &'a [MappingRow]) -> Writable<'a> {
        let mut writable = Writable {
            ranges: HashMap::new(),
            begins: HashSet::new(),
            ends: HashSet::new(),
            last_begin: HashMap::new(),
        };
        for row in rows {
            if row.inode == 0 || is_shared(row) || !row.perms.contains('w') {
                continue;
            }
            let end = row.address.0.saturating_add(row.bytes.0);
            let ranges = writable
                .ranges
                .entry((row.pid, row.device.as_str(), row.inode))
                .or_default();
            if !ranges.contains(&(row.address.0, end)) {
                ranges.push((row.address.0, end));
            }
            let (begin, stop) = (row.offset, row.offset.saturating_add(row.bytes.0));
            let begins = (row.pid, row.address.0, row.inode, begin);
            writable.begins.insert(begins);
            writable.ends.insert((row.pid, end, row.inode, stop));
            let last = writable
                .last_begin
                .entry((row.device.as_str(), row.inode))
                .or_default();
            *last = begin.max(*last);
        }
        writable
    }

    /// Whether a private mapping may hold pages that were written: it could be written itself; or it is what the dynamic
    /// linker wrote before it took the right to write (RELRO), which lies right before the data; or it is the rest of the
    /// room that the linker took for a library, right behind the data, where the variables without a value will lie.
    fn was_written(&self, row: &MappingRow) -> bool {
        if row.perms.contains('w') {
            return row.inode != 0;
        }
        let end = row.address.0.saturating_add(row.bytes.0);
        let offset = row.offset.saturating_add(row.bytes.0);
        // What was seen while a library was being loaded can still be written as a whole: what lies before that is read-only
        // for good. Elsewhere the same file shows where its data begins.
        let data = self.last_begin.get(&(row.device.as_str(), row.inode));
        let before = self.begins.contains(&(row.pid, end, row.inode, offset));
        let behind = (row.pid, row.address.0, row.inode, row.offset);
        if !row.perms.contains('x')
            && (before && data == Some(&offset) || self.ends.contains(&behind))
        {
            return true;
        }
        let ranges = self.ranges.get(&(row.pid, row.device.as_str(), row.inode));
        let mut ranges = ranges.into_iter().flatten();
        ranges.any(|&(first, last)| first < end && row.address.0 < last)
    }
}

#[cfg(test)]
mod tests {
    use varve_model::{Address, Bytes};

    use super::*;

    fn row(pid: u32, address: u64, pages: u64, perms: &str, offset: u64, path: &str) -> MappingRow {
        MappingRow {
            pid: Pid(pid),
            address: Address(address << 12),
            bytes: Bytes(pages << 12),
            perms: perms.into(),
            offset: offset << 12,
            path: path.into(),
            device: "08:01".into(),
            inode: if path.starts_with('/') { 42 } else { 0 },
            build_id: None,
            from_ns: Time(0),
            to_ns: None,
        }
    }

    fn places(rows: &[MappingRow]) -> Vec<Option<(Pid, u64)>> {
        let mut memory = Memory::default();
        enter(&mut memory, rows);
        let place = |r: &MappingRow| {
            let entries = &memory.maps[&r.pid.0].entries;
            let first = r.address.0 >> 12;
            entries
                .iter()
                .find(|e| e.first == first)
                .and_then(|e| e.memory)
        };
        rows.iter().map(place).collect()
    }

    #[test]
    fn what_nobody_can_write_is_the_file() {
        let library = |pid, at| {
            [
                row(pid, at, 2, "r--p", 0, "/l.so"),
                row(pid, at + 2, 8, "r-xp", 2, "/l.so"),
                row(pid, at + 10, 4, "r--p", 10, "/l.so"),
                row(pid, at + 14, 1, "r--p", 13, "/l.so"),
                row(pid, at + 15, 1, "rw-p", 14, "/l.so"),
            ]
        };
        let rows: Vec<MappingRow> = library(1, 100).into_iter().chain(library(2, 900)).collect();
        let found = places(&rows);
        let at: Vec<Option<u64>> = found[..5].iter().map(|p| p.map(|p| p.1)).collect();
        assert_eq!(at, [Some(0), Some(2), Some(10), None, None]);
        assert_eq!(found[..5], found[5..]);
    }

    #[test]
    fn a_look_while_a_library_is_loaded_does_not_make_it_the_processes_own() {
        let early = [
            row(1, 110, 4, "r--p", 10, "/l.so"),
            row(1, 114, 2, "rw-p", 14, "/l.so"),
            row(1, 116, 9, "r--p", 16, "/l.so"),
        ];
        let late = [
            row(2, 910, 4, "r--p", 10, "/l.so"),
            row(2, 914, 1, "r--p", 14, "/l.so"),
            row(2, 915, 1, "rw-p", 15, "/l.so"),
            row(2, 916, 9, "rw-p", 0, ""),
        ];
        let rows: Vec<MappingRow> = early.into_iter().chain(late).collect();
        let found: Vec<Option<u64>> = places(&rows).iter().map(|p| p.map(|p| p.1)).collect();
        // What lies before the data is the file; what the linker writes, and the room behind the data, is not.
        assert_eq!(found, [Some(10), None, None, Some(10), None, None, None]);
    }

    #[test]
    fn anonymous_memory_and_devices_are_not() {
        let mut own = row(1, 10, 4, "rw-p", 0, "");
        assert_eq!(places(&[own.clone()]), [None]);
        own.perms = "rw-s".into();
        own.path = "/dev/dri/card0".into();
        own.inode = 9;
        assert_eq!(places(&[own.clone()]), [None]);
        own.path = "anon_inode:[perf_event]".into();
        assert_eq!(places(&[own.clone()]), [None]);
        own.path = "/dev/zero (deleted)".into();
        assert!(places(&[own.clone()])[0].is_some());
        own.path = "/SYSV00000000 (deleted)".into();
        let mut file = own.clone();
        (file.pid, file.path) = (Pid(2), "/memfd:x (deleted)".into());
        let found = places(&[own.clone(), file]);
        assert_ne!(found[0], found[1]);
        // The first segment after boot.
        own.inode = 0;
        assert!(places(&[own])[0].is_some());
    }

    #[test]
    fn a_number_that_is_given_again_is_another_file() {
        let mut first = row(1, 10, 4, "rw-s", 0, "/tmp/a");
        first.to_ns = Some(Time(50));
        let mut second = row(1, 30, 4, "rw-s", 0, "/tmp/b");
        second.from_ns = Time(60);
        let found = places(&[first.clone(), second.clone()]);
        assert_ne!(found[0], found[1]);
        // The same under two names.
        second.from_ns = Time(40);
        let found = places(&[first, second]);
        assert_eq!(found[0], found[1]);
    }
}
