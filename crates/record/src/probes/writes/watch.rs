//! Which pages were written, on kernels without soft-dirty bits: userfaultfd's write protection.
//!
//! The preload library hands over a userfaultfd of each process. Here its mappings are registered with
//! it, and at each boundary every page of them that has content is protected; the kernel takes the
//! protection of a page off when it is written. What a walk finds at the end of an interval means:
//!
//! | the mapping | the page's entry | written |
//! |---|---|---|
//! | protected at the interval's start, the same since | still protected, never pinned | no |
//! | the same | not protected, dirty: it was written, or came to be within the interval by a write | yes |
//! | any other, of a process that we watch | not protected, dirty, and a fault reported a write | yes |
//! | everything else | | not known |
//!
//! What the kernel makes writable on a program's behalf counts as written, as it does with soft-dirty
//! bits: `mlock`, `MADV_POPULATE_WRITE`, a pin for a device to write to.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;

use varve_bpf::{Bitmap, Leaf, Mapping, MappingCall, Region};
use varve_model::{Address, Bytes, Pid};
use varve_preload_abi::RING_NAME;
use varve_sys::{MapEntry, UserFault};

use crate::state::found::{Found, When};
use crate::state::ranges::Ranges;

/// Written pages that faults may report in one interval of one process; more are not known. 8 MiB in
/// the recorder.
const MAX_FAULTS: usize = 1 << 19;

/// The processes whose writes are watched.
#[derive(Debug)]
pub(crate) struct WriteWatch {
    watched: HashMap<Pid, Watched>,
    /// Mapping events that were lost: what they would have reported is not known.
    lost: u64,
    /// Whether there ever was one.
    pub(crate) any: bool,
}

#[derive(Debug)]
struct Watched {
    fault: UserFault,
    /// Mappings may have changed since they were registered.
    stale: bool,
    registered: Ranges,
    /// What of it was protected at the start of the interval that runs, and was not replaced since.
    guarded: Ranges,
    /// Pages that were pinned at that moment: a device may write to them past any protection.
    pinned: HashMap<Address, Bitmap>,
    /// Pages that faults say were written, in the interval that runs and in the next.
    faults: HashSet<u64>,
    faults_next: HashSet<u64>,
}

impl WriteWatch {
    /// Nobody yet.
    pub(crate) fn new() -> WriteWatch {
        WriteWatch {
            watched: HashMap::new(),
            lost: 0,
            any: false,
        }
    }

    /// Takes what a process has handed over.
    pub(crate) fn take(&mut self, pid: Pid, fault: OwnedFd) {
        if let Ok(fault) = UserFault::adopt(fault) {
            self.any = true;
            self.watched.insert(pid, Watched::new(fault));
        }
    }

    /// Registers what is new. `known` names the target's processes.
    pub(crate) fn refresh(&mut self, known: impl Fn(Pid) -> bool) {
        self.watched.retain(|pid, _| known(*pid));
        for (pid, watched) in &mut self.watched {
            if std::mem::take(&mut watched.stale) {
                watched.register(&varve_sys::maps(*pid).unwrap_or_default());
            }
        }
    }

    /// A call that changed mappings: what it made is not protected.
    pub(crate) fn mapping(&mut self, pid: Pid, mapping: &Mapping<'_>) {
        let Some(watched) = self.watched.get_mut(&pid) else {
            return;
        };
        let Ok(result) = u64::try_from(mapping.result) else {
            return;
        };
        watched.stale = true;
        match mapping.call {
            MappingCall::Map { bytes, .. } => watched.forget(Address(result), bytes),
            MappingCall::Unmap { address, bytes } => watched.forget(address, bytes),
            MappingCall::Remap {
                old_address,
                old_bytes,
                new_bytes,
                ..
            } => {
                watched.forget(old_address, old_bytes);
                watched.forget(Address(result), new_bytes);
            }
            MappingCall::Brk { before, .. } => {
                let (low, high) = (before.0.min(result), before.0.max(result));
                watched.forget(Address(low), Bytes(high - low));
            }
            // Its size is not known.
            MappingCall::ShmAttach { .. } | MappingCall::ShmDetach { .. } => watched.forget_all(),
        }
    }

    /// A process runs another program or ended: its old memory is gone.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.watched.remove(&pid);
    }

    /// So many mapping events were lost in all.
    pub(crate) fn lost(&mut self, total: u64) {
        if total > self.lost {
            self.lost = total;
            self.watched.values_mut().for_each(Watched::forget_all);
        }
    }

    /// A fault reported a write in the interval that runs, or in the next.
    pub(crate) fn fault(&mut self, pid: Pid, address: Address, next: bool) {
        if let Some(watched) = self.watched.get_mut(&pid) {
            let faults = if next {
                &mut watched.faults_next
            } else {
                &mut watched.faults
            };
            if faults.len() < MAX_FAULTS {
                faults.insert(address.page().0);
            }
        }
    }

    /// Leaves of a region only what is known of writes.
    pub(crate) fn judge(&self, pid: Pid, when: When, region: &mut Region) {
        match self.watched.get(&pid) {
            Some(watched) => watched.judge(region),
            None => unknown(region),
        }
        if when.is_vanishing() {
            // They may have come back since.
            region.intact = [0; 8];
        }
        if when == When::VanishingNext {
            region.written = [0; 8];
        }
    }

    /// The next interval begins with these processes protected, and these regions as they were.
    pub(crate) fn boundary(&mut self, protected: &HashSet<Pid>, found: &[Found]) {
        for (pid, watched) in &mut self.watched {
            watched.guarded = if protected.contains(pid) {
                watched.registered.clone()
            } else {
                Ranges::default()
            };
            watched.faults = std::mem::take(&mut watched.faults_next);
            watched.pinned.clear();
        }
        for found in found {
            if let Some(watched) = self.watched.get_mut(&found.pid) {
                let pinned = found.regions.iter().filter(|r| r.pinned != [0; 8]);
                watched
                    .pinned
                    .extend(pinned.map(|r| (r.base, pages_of(r, &r.pinned))));
            }
        }
    }
}

impl Watched {
    fn new(fault: UserFault) -> Watched {
        Watched {
            fault,
            stale: true,
            registered: Ranges::default(),
            guarded: Ranges::default(),
            pinned: HashMap::new(),
            faults: HashSet::new(),
            faults_next: HashSet::new(),
        }
    }

    fn register(&mut self, maps: &[MapEntry]) {
        for entry in maps.iter().filter(|m| is_writable_memory(m)) {
            if self.registered.holds(entry.address, entry.bytes) {
                continue;
            }
            // Refused: it belongs to a userfaultfd of the program's own, or is of a kind that the kernel
            // cannot protect.
            if self.fault.register(entry.address, entry.bytes).is_ok() {
                self.registered.insert(entry.address, entry.bytes);
            }
        }
    }

    fn forget(&mut self, address: Address, bytes: Bytes) {
        self.registered.remove(address, bytes);
        self.guarded.remove(address, bytes);
    }

    fn forget_all(&mut self) {
        self.registered.clear();
        self.guarded.clear();
        self.stale = true;
    }

    fn judge(&self, region: &mut Region) {
        let first = region.base.page().0;
        if region.leaf != Leaf::Small {
            let whole = self.guarded.holds(region.base, region.leaf.bytes());
            let pages = region.leaf.bytes().0 >> 12;
            let is_reported = || {
                self.faults
                    .iter()
                    .any(|p| (first..first + pages).contains(p))
            };
            let known = region.leaf == Leaf::Huge2M && !region.hugetlb && region.sticky == [0; 8];
            let pinned = region.pinned[0] != 0 || self.pinned.contains_key(&region.base);
            if !known || !whole || pinned {
                region.intact = [0; 8];
            }
            if !known || (region.written[0] != 0 && !whole && !is_reported()) {
                region.written = [0; 8];
            }
            return;
        }
        let guarded = self.guarded.pages_of(region.base);
        let pinned = self.pinned.get(&region.base);
        for i in 0..8 {
            let was_pinned = pinned.map_or(0, |p| p[i]);
            region.intact[i] &= guarded[i] & !region.pinned[i] & !was_pinned;
            let mut beyond = region.written[i] & !guarded[i];
            region.written[i] &= guarded[i];
            while beyond != 0 && !self.faults.is_empty() {
                let bit = beyond & beyond.wrapping_neg();
                beyond ^= bit;
                let page = first + i as u64 * 64 + u64::from(bit.trailing_zeros());
                if self.faults.contains(&page) {
                    region.written[i] |= bit;
                }
            }
        }
    }
}

fn unknown(region: &mut Region) {
    region.written = [0; 8];
    region.intact = [0; 8];
}

/// The 4 KiB pages for bits of a region, should a huge page be split.
fn pages_of(region: &Region, bits: &Bitmap) -> Bitmap {
    if region.leaf == Leaf::Small {
        *bits
    } else {
        [u64::MAX; 8]
    }
}

/// Whether a mapping is memory that the program can write, or may make writable without a call that we
/// hear of.
fn is_writable_memory(entry: &MapEntry) -> bool {
    // A program that calls memory of its own so has its writes not known.
    let name = entry.path.strip_prefix("/memfd:");
    if name.is_some_and(|name| name.starts_with(RING_NAME)) {
        return false;
    }
    let of_kernel = entry.path.starts_with("[v");
    let is_file = entry.identity().is_some();
    let anonymous = !is_file && !of_kernel;
    anonymous || (is_file && entry.perms.as_bytes().get(1) == Some(&b'w'))
}

#[cfg(test)]
mod tests {
    use varve_preload_abi::operations::OPERATIONS_NAME;
    use varve_preload_abi::placing::PLACING_NAME;

    use super::*;

    fn watched() -> Option<Watched> {
        // Kernels without it have nothing to test here.
        UserFault::create().ok().map(Watched::new)
    }

    fn region(written: u64, intact: u64, pinned: u64) -> Region {
        let first = |word| [word, 0, 0, 0, 0, 0, 0, 0];
        Region {
            accessed: first(u64::MAX),
            pinned: first(pinned),
            written: first(written),
            intact: first(intact),
            present: 64,
            ..Region::untouched(Address(4 << 21), Leaf::Small)
        }
    }

    fn judged(watched: &Watched, written: u64, intact: u64, pinned: u64) -> (u64, u64) {
        let mut region = region(written, intact, pinned);
        watched.judge(&mut region);
        (region.written[0], region.intact[0])
    }

    #[test]
    fn only_what_was_protected_is_known() {
        let Some(mut w) = watched() else { return };
        assert_eq!(judged(&w, 0b0011, 0b1100, 0), (0, 0));
        w.guarded.insert(Address((4 << 21) + 4096), Bytes(2 * 4096));
        assert_eq!(judged(&w, 0b0011, 0b1100, 0), (0b0010, 0b0100));
        // A fault reported a write to the first page, which need not have been protected.
        w.faults.insert(4 << 9);
        assert_eq!(judged(&w, 0b0011, 0b1100, 0), (0b0011, 0b0100));
        assert_eq!(judged(&w, 0, 0b1101, 0), (0, 0b0100));
    }

    #[test]
    fn what_is_or_was_pinned_may_have_been_written() {
        let Some(mut w) = watched() else { return };
        w.guarded.insert(Address(4 << 21), Bytes(1 << 21));
        assert_eq!(judged(&w, 0, 0b1111, 0b0001), (0, 0b1110));
        w.pinned
            .insert(Address(4 << 21), [0b0100, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(judged(&w, 0, 0b1111, 0b0001), (0, 0b1010));
    }

    #[test]
    fn a_huge_page_is_known_as_a_whole() {
        let Some(mut w) = watched() else { return };
        w.guarded.insert(Address(4 << 21), Bytes((1 << 21) - 4096));
        let mut huge = region(0, 1, 0);
        huge.leaf = Leaf::Huge2M;
        let mut part = huge;
        w.judge(&mut part);
        assert_eq!(part.intact[0], 0);
        w.guarded.insert(Address(4 << 21), Bytes(1 << 21));
        w.judge(&mut huge);
        assert_eq!(huge.intact[0], 1);
    }

    #[test]
    fn program_text_and_rings_are_not_watched() {
        let entry = |perms: &str, inode, path: &str| MapEntry {
            address: Address(1 << 21),
            bytes: Bytes(4096),
            perms: perms.into(),
            offset: 0,
            device: if inode == 0 { "00:00" } else { "00:01" }.into(),
            inode,
            path: path.into(),
        };
        let is = |e: &MapEntry| is_writable_memory(e);
        assert!(is(&entry("rw-p", 0, "[heap]")));
        assert!(is(&entry("---p", 0, "")));
        assert!(is(&entry("rw-p", 7, "/bin/x")));
        assert!(!is(&entry("r-xp", 7, "/bin/x")));
        assert!(!is(&entry("r--p", 0, "[vvar]")));
        assert!(!is(&entry("rw-s", 8, "/memfd:varve-ring (deleted)")));
    }

    #[test]
    fn memory_shared_with_a_target_is_known_as_the_recorders() {
        for name in [RING_NAME, OPERATIONS_NAME, PLACING_NAME] {
            let path = format!("/memfd:{name} (deleted)");
            assert!(varve_model::is_recorders(&path), "{path}");
        }
    }
}
