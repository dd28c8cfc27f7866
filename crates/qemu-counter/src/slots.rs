//! One slot for each virtual processor of the emulator, which is one thread of the program.

use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use varve_qemu_counter_abi::layout as at;

use crate::api::PluginId;
use crate::{control, file};

/// What one thread did to one page: the words of `layout::ENTRY_BYTES`.
#[repr(C)]
pub(crate) struct Entry {
    /// Page + 1.
    pub(crate) key: u64,
    /// Reads and writes.
    pub(crate) counts: [u64; 2],
    first: u64,
}

/// The state of one thread. Only that thread uses it.
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// The table, of `2^(64 - shift)` entries and one more.
    pub(crate) entries: *mut Entry,
    pub(crate) shift: u32,
    used: u32,
    /// Accesses that are left of the block that was claimed.
    pub(crate) left: u64,
    interval: u64,
    /// The segment's offset; 0 where there is none yet.
    segment: u64,
    /// The first byte of the operand of which pieces are coming, the first byte after it, and where the
    /// next piece begins.
    pub(crate) whole: u64,
    pub(crate) whole_end: u64,
    pub(crate) next_piece: u64,
}

/// A table without room, for slots that have none: every search in it fails.
struct Nothing(UnsafeCell<[Entry; 3]>);

// SAFETY: nobody writes to it.
unsafe impl Sync for Nothing {}

const NO_ENTRY: Entry = Entry {
    key: 0,
    counts: [0, 0],
    first: 0,
};
static NOTHING: Nothing = Nothing(UnsafeCell::new([NO_ENTRY; 3]));

/// More threads at one time than this are not counted.
const MAX: usize = 1 << 16;

pub(crate) struct Slots(UnsafeCell<[Slot; MAX]>);

// SAFETY: each slot is used by one thread; see `slot`.
unsafe impl Sync for Slots {}

/// All zero at first, so that the library stays small; [`vcpu_changes`] makes a slot usable.
static SLOTS: Slots = Slots(UnsafeCell::new(
    [const {
        Slot {
            entries: null_mut(),
            shift: 0,
            used: 0,
            left: 0,
            interval: 0,
            segment: 0,
            whole: 0,
            whole_end: 0,
            next_piece: 0,
        }
    }; MAX],
));

/// The slot of a virtual processor that the emulator has announced.
#[inline(always)]
pub(crate) fn slot(vcpu: u32) -> Option<*mut Slot> {
    // SAFETY: the index lies in the array; no reference to it is made.
    ((vcpu as usize) < MAX).then(|| unsafe { SLOTS.0.get().cast::<Slot>().add(vcpu as usize) })
}

/// A processor was made for a new thread, or its thread has ended: whoever uses it next begins anew. The number of
/// one that has ended is used again.
pub(crate) extern "C" fn vcpu_changes(_: PluginId, vcpu: u32) {
    MAX_VCPU.fetch_max(vcpu, Ordering::Relaxed);
    if let Some(slot) = slot(vcpu) {
        // SAFETY: the thread does not run yet, or does not run the program any more.
        unsafe { (*slot).empty() };
    }
}

static MAX_VCPU: AtomicU32 = AtomicU32::new(0);

/// After a fork: the child's thread begins anew, and the others are not there.
pub(crate) fn forget_all() {
    for vcpu in 0..=MAX_VCPU.load(Ordering::Relaxed) {
        if let Some(slot) = slot(vcpu) {
            // SAFETY: the child has one thread, which is here.
            unsafe { (*slot).empty() };
        }
    }
}

impl Slot {
    fn empty(&mut self) {
        self.no_table();
        self.left = 0;
        self.interval = 0;
        self.used = 0;
        self.whole_end = 0;
        self.next_piece = 0;
    }

    /// The next access will find nothing and begin a segment.
    fn no_table(&mut self) {
        self.entries = NOTHING.0.get().cast();
        self.shift = 63;
        self.segment = 0;
    }

    /// Takes the next accesses of the interval that runs, which may be another than before.
    #[cold]
    #[inline(never)]
    pub(crate) fn next_block(&mut self) {
        let (left, interval) = control::claim();
        self.left = left;
        if interval != self.interval {
            self.interval = interval;
            self.no_table();
        }
    }

    /// The entry of a page that was not found where it would be at best; null where there is no room for it.
    #[cold]
    #[inline(never)]
    pub(crate) fn search(&mut self, page: u64) -> *mut Entry {
        if self.segment == 0 && !self.begin_segment() {
            return null_mut();
        }
        let mut entry = self.find(page);
        // SAFETY: `find` returns an entry of the table.
        if unsafe { (*entry).key } == 0 {
            let capacity = 1u64 << (64 - self.shift);
            if u64::from(self.used) >= capacity / 2 {
                // A table that cannot grow is filled; one entry stays empty, for searches to end.
                if !self.grow() && u64::from(self.used) >= capacity - 1 {
                    return null_mut();
                }
                entry = self.find(page);
            }
            self.used += 1;
            file::word(self.segment + at::SEGMENT_USED)
                .store(u64::from(self.used), Ordering::Relaxed);
            // SAFETY: as above.
            unsafe {
                (*entry).first = control::stamp();
                (*entry).key = page + 1;
            }
        }
        entry
    }

    /// The entry of the page, or the empty one where it belongs.
    fn find(&self, page: u64) -> *mut Entry {
        let mask = (1u64 << (64 - self.shift)) - 1;
        let mut at = place(page, self.shift);
        loop {
            // SAFETY: the table has `mask + 1` entries, one of which is empty, so that this ends.
            let entry = unsafe { self.entries.add(at as usize) };
            // SAFETY: as above.
            let key = unsafe { (*entry).key };
            if key == page + 1 || key == 0 {
                return entry;
            }
            at = (at + 1) & mask;
        }
    }

    fn begin_segment(&mut self) -> bool {
        let Some(base) = file::base() else {
            return false;
        };
        file::note_path(base);
        // As large as the last one was in the end: intervals are much alike.
        let log2 = (2 * self.used.max(1)).ilog2().max(FIRST_LOG2 - 1) + 1;
        let bytes = (at::ENTRY_BYTES << log2) + at::ENTRY_BYTES;
        let Some(offset) = file::allocate(at::SEGMENT_BYTES + bytes) else {
            return false;
        };
        let table = offset + at::SEGMENT_BYTES;
        // SAFETY: no arguments.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u64;
        file::word(offset + at::SEGMENT_TID).store(tid, Ordering::Relaxed);
        file::word(offset + at::SEGMENT_INTERVAL).store(self.interval, Ordering::Relaxed);
        file::word(offset + at::SEGMENT_TABLE).store(table | u64::from(log2), Ordering::Relaxed);
        let list = file::word(at::AT_SEGMENTS);
        let linked = list.fetch_update(Ordering::AcqRel, Ordering::Acquire, |newest| {
            file::word(offset + at::SEGMENT_NEXT).store(newest, Ordering::Relaxed);
            Some(offset)
        });
        debug_assert!(linked.is_ok());
        self.segment = offset;
        self.used = 0;
        self.shift = 64 - log2;
        // SAFETY: the table was allocated above.
        self.entries = unsafe { base.add(table as usize).cast() };
        true
    }

    /// Moves to a larger table. The segment shows the old one until the new one is whole.
    fn grow(&mut self) -> bool {
        let old_log2 = 64 - self.shift;
        let log2 = old_log2 + if old_log2 < 12 { 2 } else { 1 };
        let Some(base) = file::base() else {
            return false;
        };
        let Some(table) = file::allocate((at::ENTRY_BYTES << log2) + at::ENTRY_BYTES) else {
            return false;
        };
        let old = self.entries;
        self.shift = 64 - log2;
        // SAFETY: the table was allocated above.
        self.entries = unsafe { base.add(table as usize).cast() };
        for i in 0..1usize << old_log2 {
            // SAFETY: the old table has that many entries, the new one has room for all of them, and they
            // do not overlap.
            unsafe {
                let entry = old.add(i);
                if (*entry).key != 0 {
                    self.find((*entry).key - 1)
                        .copy_from_nonoverlapping(entry, 1);
                }
            }
        }
        let shown = file::word(self.segment + at::SEGMENT_TABLE);
        let before = shown.swap(table | u64::from(log2), Ordering::AcqRel);
        file::give_back(before & !63, at::ENTRY_BYTES << old_log2);
        true
    }
}

/// The first table of a thread: 2 KiB.
const FIRST_LOG2: u32 = 6;

/// Where the search for a page begins. Multiplying by the golden ratio keeps neighbours apart, so that the pages
/// of an array hardly ever meet.
#[inline(always)]
pub(crate) fn place(page: u64, shift: u32) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> shift
}
