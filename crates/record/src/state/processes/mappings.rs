//! What processes map, by looks from outside and by what they report themselves.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, PathBuf};
use std::time::Duration;

use varve_model::{Address, Bytes, Pid, Time};
use varve_symbols::{Mapping, OpenFiles};
use varve_sys::MapEntry;
use varve_trace::tables::MappingRow;

use super::{FirstMaps, LOADING, Maps, MapsVersion, Processes, Seen};
use crate::state::emulator;

/// How long a file system may take: that of a target's user may never answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Places of unloaded libraries that are kept of one process.
const MAX_UNLOADED: usize = 1 << 12;

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

    /// Reads the mappings of the processes whose mappings have changed.
    pub(crate) fn refresh_maps(&mut self, now: Time) {
        let stale: Vec<Pid> = self
            .all
            .iter()
            .filter(|(_, p)| {
                matches!(p.maps, Maps::Stale(since) if since <= now)
                    && p.loads_until <= now
                    && p.shares_with.is_none()
            })
            .map(|(pid, _)| *pid)
            .collect();
        for pid in stale {
            self.refresh_maps_of(pid, now);
        }
    }

    pub(crate) fn refresh_maps_of(&mut self, pid: Pid, now: Time) {
        let Ok(mut entries) = varve_sys::maps(pid) else {
            return;
        };
        if self.emulated {
            emulator::leave_out(pid, &mut entries);
        }
        // What pages are moved to is the recorder's.
        if let Some(shadow) = self.shadows.get(&pid) {
            entries.retain(|e| !shadow.holds(e.address, e.bytes));
        }
        // A process that is on its way out shows no mappings; what was seen last is what it had.
        if entries.is_empty() {
            return;
        }
        if let Some(process) = self.all.get_mut(&pid) {
            process.maps = Maps::Current;
        }
        self.maps_seen(pid, entries, now);
    }

    /// Takes all that a process had mapped at a time.
    pub(super) fn maps_seen(&mut self, pid: Pid, entries: Vec<MapEntry>, now: Time) {
        let Some(process) = self.all.get_mut(&pid) else {
            return;
        };
        process.refreshes += 1;
        process.refreshed = now;
        let before = std::mem::take(&mut process.mappings);
        // What is found first may have been there, and been touched, before anybody looked.
        let since = match before.is_empty() {
            true => process.image.min(now),
            false => now,
        };
        self.build_ids.begin_look();
        for entry in entries {
            match before.get(&entry) {
                Some(seen) => {
                    process.mappings.insert(entry, seen.clone());
                }
                None => {
                    let build_id = self.build_ids.of(pid, &entry);
                    let seen = Seen { since, build_id };
                    self.mapping_rows
                        .push(mapping_row(pid, &entry, &seen, None));
                    process.mappings.insert(entry, seen);
                }
            }
        }
        for (entry, seen) in &before {
            if !process.mappings.contains_key(entry) {
                self.mapping_rows
                    .push(mapping_row(pid, entry, seen, Some(now)));
            }
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
                self.maps_seen(pid, entries, time);
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
        if process.mappings.contains_key(&entry) {
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
        let own: Vec<Range<u64>> = self.mappings(child).map(|(e, _)| range(e)).collect();
        for (entry, seen) in &parent.mappings {
            let Range { start, end } = range(entry);
            let is_known = own.iter().any(|o| o.start < end && start < o.end);
            let at = touched.partition_point(|t| t.end <= start);
            if !is_known && touched.get(at).is_some_and(|t| t.start < end) {
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
            process.refreshes += 1;
            for (entry, seen) in process.mappings.drain() {
                self.mapping_rows
                    .push(mapping_row(pid, &entry, &seen, Some(time)));
            }
        }
    }

    /// Which look at the mappings of a process was the last; none for a process that is not known.
    pub(crate) fn maps_version(&self, pid: Pid) -> Option<MapsVersion> {
        let process = self.all.get(&pid)?;
        Some(MapsVersion(process.row.born_ns, process.refreshes))
    }

    /// The files of code that stay open.
    pub(crate) fn take_files(&mut self) -> OpenFiles {
        self.build_ids.open_modules.take()
    }

    /// How many mappings all processes had as last seen.
    pub(crate) fn count_mappings(&self) -> u64 {
        self.all.values().map(|p| p.mappings.len() as u64).sum()
    }

    /// The mappings of a process as last seen.
    pub(crate) fn mappings(&self, pid: Pid) -> impl Iterator<Item = (&MapEntry, Time)> {
        let process = self.all.get(&pid);
        process
            .into_iter()
            .flat_map(|p| p.mappings.iter().map(|(e, seen)| (e, seen.since)))
    }

    /// The same as what unwinding and decoding look at.
    pub(crate) fn placed(&self, pid: Pid) -> Vec<Mapping> {
        self.mappings(pid)
            .map(|(entry, _)| Mapping {
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
            })
            .collect()
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
