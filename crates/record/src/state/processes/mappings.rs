//! What processes map, by looks from outside and by what they report themselves.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, PathBuf};
use std::time::Duration as Wait;

use varve_model::{Address, Bytes, Duration, Pid, Time};
use varve_symbols::{Mapping, OpenFiles};
use varve_sys::{MapEntry, MapLine, thread_cpu_time};
use varve_trace::tables::MappingRow;

use super::{FirstMaps, LOADING, Maps, MapsVersion, Process, Processes, Seen, SharedMapping};
use crate::state::emulator;

/// How long a file system may take: that of a target's user may never answer.
const PATIENCE: Wait = Wait::from_millis(500);
/// Places of unloaded libraries that are kept of one process.
const MAX_UNLOADED: usize = 1 << 12;

/// A look at the mappings of a process that takes so much processor time takes long: there are tens of thousands of them, and while
/// the kernel lists them the process cannot map anything.
const LONG_LOOK: Duration = Duration(5_000_000);
/// After such a look there is none for so many times as long, unless an interval ends.
const LOOK_PAUSES: u64 = 20;

/// For how long the mappings of a process are not looked at after a look that took so much processor time.
fn rest_after(took: Duration) -> Duration {
    match took < LONG_LOOK {
        true => Duration(0),
        false => Duration(took.0.saturating_mul(LOOK_PAUSES)),
    }
}

impl Processes {
    /// A process has just begun, and what it maps will be known without a look from outside if it is over soon: from the
    /// preload library, or from its parent.
    pub(crate) fn begins_to_load(&mut self, pid: Pid, image: Time) {
        if let Some(process) = self.all.get_mut(&pid) {
            process.loads_until = image + LOADING;
        }
    }

    /// The mappings of a process have changed.
    pub(crate) fn maps_changed(&mut self, pid: Pid, time: Time) {
        let Some(process) = self.all.get_mut(&pid) else {
            return;
        };
        process.maps_changed = process.maps_changed.max(time);
        if process.maps == Maps::Current {
            process.maps = Maps::Stale(time);
        }
    }

    /// Reads the mappings of the processes whose mappings have changed, but of those seldom where that takes long.
    pub(crate) fn refresh_maps(&mut self, now: Time) {
        self.refresh_where(now, |process| process.looks_from <= now);
    }

    /// Reads the mappings of all processes whose mappings have changed.
    pub(crate) fn refresh_all_maps(&mut self, now: Time) {
        self.refresh_where(now, |_| true);
    }

    fn refresh_where(&mut self, now: Time, is_due: impl Fn(&Process) -> bool) {
        let stale: Vec<Pid> = self
            .all
            .iter()
            .filter(|(_, p)| {
                matches!(p.maps, Maps::Stale(since) if since <= now)
                    && p.loads_until <= now
                    && p.shares_with.is_none()
                    && is_due(p)
            })
            .map(|(pid, _)| *pid)
            .collect();
        for pid in stale {
            self.refresh_maps_of(pid, now);
        }
    }

    pub(crate) fn refresh_maps_of(&mut self, pid: Pid, now: Time) {
        let began = thread_cpu_time();
        let Ok(text) = varve_sys::maps_text(pid) else {
            return;
        };
        let mut lines: Vec<MapLine<'_>> = text.lines().collect();
        if self.emulated {
            emulator::leave_out(pid, &mut lines);
        }
        // What pages are moved to is the recorder's.
        if let Some(shadow) = self.shadows.get(&pid) {
            lines.retain(|line| !shadow.holds(line.address, line.bytes));
        }
        // A process that is on its way out shows no mappings; what was seen last is what it had.
        if lines.is_empty() {
            return;
        }
        if let Some(process) = self.all.get_mut(&pid) {
            process.maps = Maps::Current;
        }
        self.maps_seen(pid, lines, now);
        if let Some(process) = self.all.get_mut(&pid) {
            process.looks_from = now + rest_after(thread_cpu_time() - began);
        }
    }

    /// Takes all that a process had mapped at a time.
    pub(super) fn maps_seen(&mut self, pid: Pid, mut lines: Vec<MapLine<'_>>, now: Time) {
        let Some(process) = self.all.get_mut(&pid) else {
            return;
        };
        // The kernel hands the list out in pieces: what has changed meanwhile may overlap with what came before.
        if !lines.is_sorted_by(|a, b| a < b) {
            lines.sort_unstable();
            lines.dedup();
        }
        process.refreshed = now;
        // What is found first may have been there, and been touched, before anybody looked.
        let since = match process.mappings.is_empty() {
            true => process.image.min(now),
            false => now,
        };
        let (build_ids, rows) = (&mut self.build_ids, &mut self.mapping_rows);
        build_ids.begin_look();
        let changes = process.mappings.update(&lines, |entry| {
            let build_id = build_ids.of(pid, entry);
            let seen = Seen { since, build_id };
            rows.push(mapping_row(pid, entry, &seen, None));
            seen
        });
        process.changes += u64::from(changes.any);
        for (entry, seen) in &changes.gone {
            rows.push(mapping_row(pid, entry, seen, Some(now)));
        }
    }

    /// Takes what programs reported of their first mappings, where no look from outside came in time.
    pub(crate) fn take_first_maps(&mut self, first: &mut Vec<FirstMaps>) {
        for FirstMaps { pid, time, entries } in first.drain(..) {
            let Some(process) = self.all.get_mut(&pid) else {
                continue;
            };
            if time < process.row.born_ns {
                // The program before the last exec, which ended it.
                let to = Some(process.row.born_ns);
                self.build_ids.begin_look();
                for entry in entries {
                    let build_id = self.build_ids.of(pid, &entry);
                    let seen = Seen {
                        since: time,
                        build_id,
                    };
                    self.mapping_rows.push(mapping_row(pid, &entry, &seen, to));
                }
            } else if process.refreshed < time {
                // A look from outside may have come while it was loading its libraries.
                if process.maps_changed <= time {
                    process.maps = Maps::Current;
                }
                let lines = entries.iter().map(MapEntry::line).collect();
                self.maps_seen(pid, lines, time);
            }
        }
    }

    /// A process unloads a library, of which it says where its code lies, where that is in the file, and the path: it may have come
    /// since the last look.
    pub(crate) fn unloads(
        &mut self,
        pid: Pid,
        time: Time,
        (code, offset): (Range<u64>, u64),
        path: &[u8],
    ) {
        let Some(process) = self.all.get_mut(&pid).filter(|p| time >= p.image) else {
            return;
        };
        if code.is_empty() {
            return;
        }
        // Which file the path is, the process does not say.
        let Some(entry) = entry_of(pid, code, offset, path, process.has_our_root) else {
            return;
        };
        if process.mappings.contains(&entry) {
            return;
        }
        if process.unloaded.len() >= MAX_UNLOADED {
            process.unloaded.clear();
        }
        // It was not there at the last look; and not before what was unloaded last from there.
        let last = process.unloaded.insert(entry.address, time);
        let looked = Some(process.refreshed).filter(|at| *at < time);
        let since = last.max(looked).unwrap_or(process.image).max(process.image);
        self.build_ids.begin_look();
        let build_id = self.build_ids.of(pid, &entry);
        let seen = Seen { since, build_id };
        self.mapping_rows
            .push(mapping_row(pid, &entry, &seen, Some(time)));
    }

    /// Notes the mappings that a forked child had of its parent's: those that it touched and that no look has found. It may
    /// have come too late, or found those of the program that the child runs next, whose event comes after them.
    pub(crate) fn inherit_maps(
        &mut self,
        parent: Pid,
        child: Pid,
        (from, to): (Time, Time),
        touched: &[Range<u64>],
    ) {
        let Some(parent) = self.all.get(&parent) else {
            return;
        };
        let range = |entry: &MapEntry| entry.address.0..(entry.address + entry.bytes).0;
        // As ranges that do not overlap: by address they come in order.
        let mut own: Vec<Range<u64>> = Vec::new();
        for found in self.mappings(child).map(|(e, _)| range(e)) {
            match own.last_mut() {
                Some(last) if found.start <= last.end => last.end = last.end.max(found.end),
                _ => own.push(found),
            }
        }
        let meets = |ranges: &[Range<u64>], Range { start, end }: &Range<u64>| {
            let at = ranges.partition_point(|r| r.end <= *start);
            ranges.get(at).is_some_and(|r| r.start < *end)
        };
        for (entry, seen) in parent.mappings.iter() {
            let place = range(entry);
            if !meets(&own, &place) && meets(touched, &place) {
                let seen = Seen {
                    since: from,
                    build_id: seen.build_id.clone(),
                };
                self.mapping_rows
                    .push(mapping_row(child, entry, &seen, Some(to)));
            }
        }
    }

    pub(super) fn end_mappings(&mut self, pid: Pid, time: Time) {
        if let Some(process) = self.all.get_mut(&pid) {
            process.changes += 1;
            for (entry, seen) in process.mappings.take() {
                self.mapping_rows
                    .push(mapping_row(pid, &entry, &seen, Some(time)));
            }
        }
    }

    /// Which change of the mappings of a process was the last; none for a process that is not known.
    pub(crate) fn maps_version(&self, pid: Pid) -> Option<MapsVersion> {
        let process = self.all.get(&pid)?;
        Some(MapsVersion(process.row.born_ns, process.changes))
    }

    /// The files of code that stay open.
    pub(crate) fn take_files(&mut self) -> OpenFiles {
        self.build_ids.open_modules.take()
    }

    /// How many mappings all processes had as last seen.
    pub(crate) fn count_mappings(&self) -> u64 {
        self.all.values().map(|p| p.mappings.len() as u64).sum()
    }

    /// The mappings of a process as last seen, by address.
    pub(crate) fn mappings(&self, pid: Pid) -> impl Iterator<Item = (&MapEntry, Time)> {
        let known = self.all.get(&pid).into_iter();
        known.flat_map(|p| p.mappings.iter().map(|(e, seen)| (e, seen.since)))
    }

    /// Those of shared memory of files.
    pub(crate) fn shared_mappings(&self, pid: Pid) -> &[SharedMapping] {
        self.all.get(&pid).map_or(&[], |p| p.mappings.shared())
    }

    /// The mappings of a process as what unwinding and decoding look at.
    pub(crate) fn placed(&self, pid: Pid) -> Vec<Mapping> {
        let all = self.mappings(pid);
        all.map(|(entry, _)| placed(pid, entry)).collect()
    }

    /// Those with code: a stack that is unwound looks at no others.
    pub(crate) fn placed_code(&self, pid: Pid) -> Vec<Mapping> {
        let known = self.all.get(&pid).into_iter();
        known
            .flat_map(|p| p.mappings.code())
            .map(|entry| placed(pid, entry))
            .collect()
    }
}

fn placed(pid: Pid, entry: &MapEntry) -> Mapping {
    Mapping {
        pid,
        address: entry.address,
        bytes: entry.bytes,
        perms: entry.perms.clone(),
        offset: Bytes(entry.offset),
        path: entry.path.clone(),
        called: None,
        file: entry.identity(),
        build_id: None,
        // What was drained late is older than the look at the mappings.
        from: Time(0),
        to: None,
    }
}

/// The mapping of a library's code as the kernel would say it; none where the path is no file's in the process.
fn entry_of(
    pid: Pid,
    code: Range<u64>,
    offset: u64,
    path: &[u8],
    has_our_root: bool,
) -> Option<MapEntry> {
    let mut path = PathBuf::from(OsStr::from_bytes(path));
    if !path.is_absolute() {
        let folder = std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?;
        // Without `.` in between.
        path = folder
            .components()
            .chain(path.components().filter(|part| *part != Component::CurDir))
            .collect();
    }
    let name = path.to_string_lossy().into_owned();
    let found = varve_sys::within(PATIENCE, move || {
        varve_sys::file_of_path(pid, &path, has_our_root)
    });
    let (device, inode) = found.ok()?;
    let (major, minor) = (libc::major(device), libc::minor(device));
    Some(MapEntry {
        address: Address(code.start),
        bytes: Bytes(code.end - code.start),
        perms: "r-xp".to_owned(),
        offset,
        device: format!("{major:02x}:{minor:02x}"),
        inode,
        path: name,
    })
}

fn mapping_row(pid: Pid, entry: &MapEntry, seen: &Seen, to: Option<Time>) -> MappingRow {
    MappingRow {
        pid,
        address: entry.address,
        bytes: entry.bytes,
        perms: entry.perms.clone(),
        offset: entry.offset,
        path: entry.path.clone(),
        device: entry.device.clone(),
        inode: entry.inode,
        build_id: seen.build_id.clone(),
        from_ns: seen.since,
        to_ns: to,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ranges::Ranges;

    fn lines(entries: &[MapEntry]) -> Vec<MapLine<'_>> {
        entries.iter().map(MapEntry::line).collect()
    }

    #[test]
    fn a_look_that_finds_nothing_new_changes_nothing() {
        let entries = varve_sys::parse_maps(
            b"1000-3000 rw-p 0 00:00 0\n3000-4000 rw-s 0 00:01 7 /dev/shm/a\n5000-6000 r-xp 0 00:00 0\n",
        );
        let pid = Pid(u32::MAX - 1);
        let mut processes = Processes::default();
        processes.adopt(pid, Pid(1), Time(1));
        processes.maps_seen(pid, lines(&entries), Time(2));
        let version = processes.maps_version(pid);
        processes.mapping_rows.clear();
        // In whatever order, and with what was handed out twice.
        let mut again = lines(&entries);
        again.reverse();
        again.push(again[0]);
        processes.maps_seen(pid, again, Time(3));
        assert!(processes.mapping_rows.is_empty());
        assert_eq!(processes.maps_version(pid), version);
        assert_eq!(processes.shared_mappings(pid).len(), 1);
        assert_eq!(processes.placed_code(pid).len(), 1);
        processes.maps_seen(pid, lines(&entries[..1]), Time(4));
        let rows = processes.mapping_rows.iter();
        let ended: Vec<_> = rows.map(|r| (r.address.0, r.from_ns, r.to_ns)).collect();
        let of = |address| (address, Time(1), Some(Time(4)));
        assert_eq!(ended, [of(0x3000), of(0x5000)]);
        assert_ne!(processes.maps_version(pid), version);
        assert_eq!(processes.shared_mappings(pid), []);
    }

    #[test]
    fn what_lies_in_a_shadow_is_no_mapping_of_the_program() {
        let pid = Pid(std::process::id());
        let address = varve_sys::maps(pid).unwrap()[0].address;
        let listed = |shadow: Ranges| {
            let mut processes = Processes::default();
            processes.adopt(pid, Pid(1), Time(1));
            processes.shadows.insert(pid, shadow);
            processes.refresh_maps_of(pid, Time(2));
            let found = processes.mappings(pid).any(|(e, _)| e.address == address);
            let row = processes.mapping_rows.iter().any(|r| r.address == address);
            assert!(!processes.mapping_rows.is_empty());
            (found, row)
        };
        assert_eq!(listed(Ranges::default()), (true, true));
        let mut shadow = Ranges::default();
        shadow.insert(address, varve_sys::maps(pid).unwrap()[0].bytes);
        assert_eq!(listed(shadow), (false, false));
        // What is a shadow in part only is the program's.
        let mut part = Ranges::default();
        part.insert(address, Bytes(varve_model::PAGE_BYTES));
        let one = varve_sys::maps(pid).unwrap()[0].bytes == Bytes(varve_model::PAGE_BYTES);
        assert_eq!(listed(part), (!one, !one));
    }

    #[test]
    fn a_child_that_was_seen_as_what_it_runs_next_had_what_its_parent_has() {
        let own = varve_sys::maps(Pid(std::process::id())).unwrap();
        let (parent, child) = (Pid(u32::MAX - 2), Pid(u32::MAX - 1));
        let inherited = |seen: &[MapEntry]| {
            let mut processes = Processes::default();
            processes.adopt(parent, Pid(1), Time(1));
            processes.adopt(child, parent, Time(2));
            processes.maps_seen(parent, lines(&own[..2]), Time(1));
            processes.maps_seen(child, lines(seen), Time(3));
            let first = own[0].address.0;
            processes.mapping_rows.clear();
            let touched = first..first + 1;
            let touched = std::slice::from_ref(&touched);
            processes.inherit_maps(parent, child, (Time(2), Time(4)), touched);
            let rows = processes.mapping_rows.into_iter();
            rows.map(|r| (r.pid, r.address)).collect::<Vec<_>>()
        };
        assert_eq!(inherited(&own[2..3]), [(child, own[0].address)]);
        assert_eq!(inherited(&own[..1]), []);
    }

    #[test]
    fn a_look_while_libraries_load_does_not_hide_the_rest() {
        let pid = Pid(std::process::id());
        let adopted = |refreshed: Time| {
            let mut processes = Processes::default();
            processes.adopt(pid, Pid(1), Time(1));
            let all = varve_sys::maps(pid).unwrap();
            processes.maps_seen(pid, lines(&all[..1]), refreshed);
            let first = FirstMaps {
                pid,
                time: Time(7),
                entries: all.clone(),
            };
            processes.take_first_maps(&mut vec![first]);
            (processes.mappings(pid).count(), all.len())
        };
        let (known, all) = adopted(Time(5));
        assert!(known == all && all > 1, "{known} of {all}");
        // A later look knows better.
        assert_eq!(adopted(Time(8)).0, 1);
    }

    #[test]
    fn what_is_unloaded_between_looks_had_been_there() {
        let pid = Pid(std::process::id());
        let mut processes = Processes::default();
        processes.adopt(pid, Pid(1), Time(1));
        let all = varve_sys::maps(pid).unwrap();
        let mut code = all
            .into_iter()
            .filter(|m| m.perms == "r-xp" && m.inode != 0);
        let (known, library) = (code.next().unwrap(), code.next().unwrap());
        let unloads = |processes: &mut Processes, time, of: &MapEntry| {
            let code = of.address.0..of.address.0 + of.bytes.0;
            processes.unloads(pid, Time(time), (code, of.offset), of.path.as_bytes());
        };
        processes.maps_seen(pid, lines(std::slice::from_ref(&known)), Time(5));
        processes.mapping_rows.clear();
        for time in [4, 7, 9] {
            unloads(&mut processes, time, &library);
        }
        // A look knows it; it tells the end as well.
        unloads(&mut processes, 9, &known);
        let rows = processes.mapping_rows.iter();
        let found: Vec<_> = rows
            .map(|r| (r.address, r.from_ns.0, r.to_ns.map(|to| to.0)))
            .collect();
        let at = library.address;
        assert_eq!(
            found,
            [(at, 1, Some(4)), (at, 5, Some(7)), (at, 7, Some(9))]
        );
        // What was told late is of the program before.
        processes.all.get_mut(&pid).unwrap().image = Time(20);
        unloads(&mut processes, 19, &library);
        assert_eq!(processes.mapping_rows.len(), 3);
    }

    #[test]
    fn what_a_process_that_has_ended_unloaded_is_known_where_its_paths_are_ours() {
        let library = varve_sys::maps(Pid(std::process::id())).unwrap();
        let mut code = library
            .into_iter()
            .filter(|m| m.perms == "r-xp" && m.inode != 0);
        let library = code.next().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id());
        child.wait().unwrap();
        for (has_our_root, found) in [(false, 0), (true, 1)] {
            let mut processes = Processes::default();
            processes.adopt(pid, Pid(1), Time(1)).has_our_root = has_our_root;
            let place = library.address.0..library.address.0 + library.bytes.0;
            let path = library.path.as_bytes();
            processes.unloads(pid, Time(4), (place, library.offset), path);
            let rows = &processes.mapping_rows;
            assert_eq!(rows.len(), found);
            assert!(
                rows.iter()
                    .all(|r| r.inode == library.inode && r.device == library.device)
            );
        }
    }

    #[test]
    fn a_look_that_takes_long_is_made_seldom_but_where_an_interval_ends() {
        let short = LONG_LOOK - Duration(1);
        assert_eq!(rest_after(Duration(0)), Duration(0));
        assert_eq!(rest_after(short), Duration(0));
        assert_eq!(rest_after(LONG_LOOK), Duration(100_000_000));
        let pid = Pid(std::process::id());
        let mut processes = Processes::default();
        processes.adopt(pid, Pid(1), Time(1));
        let stale = |processes: &Processes| processes.all[&pid].maps != Maps::Current;
        processes.all.get_mut(&pid).unwrap().looks_from = Time(10);
        processes.refresh_maps(Time(9));
        assert!(stale(&processes));
        processes.refresh_all_maps(Time(9));
        assert!(!stale(&processes));
        processes.maps_changed(pid, Time(9));
        processes.all.get_mut(&pid).unwrap().looks_from = Time(10);
        processes.refresh_maps(Time(10));
        assert!(!stale(&processes));
    }
}
