//! What the kernel's own reclaim makes of a program whose memory is limited: which pages leave, and which come back.
//!
//! A model of Linux's two lists (`mm/vmscan.c`, `mm/workingset.c`; the multi-generational LRU is another). New pages begin on the
//! inactive list. Pages leave at its end unless they were accessed since they were looked at last: then they go round once more, and
//! to the active list the second time. The active list gives pages back to the inactive one, whether they were accessed or not, while
//! that is the shorter. A page that comes back is active at once where fewer pages left meanwhile than the active list holds.
//! Only what is touched again costs a read, and only what leaves a write.

use crate::lists::Lists;
use crate::replay::Owned;
use crate::stream::{Slot, Stream};
use varve_model::ObjectKind;

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;
/// Pages that the kernel looks at, and takes away, at once (`SWAP_CLUSTER_MAX`).
const BATCH: u64 = 32;
/// Pages of a GiB, for which the kernel computes how short the inactive list may be.
const GIB_PAGES: u64 = 1 << 18;
/// How often all pages are looked at before the kernel gives up.
const MAX_ROUNDS: u64 = 16;

/// Pages that moved between memory and swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Paged {
    /// Pages that were read.
    pub reads: u64,
    /// Those of them whose neighbour was read just before.
    pub near_reads: u64,
    /// Pages that were written.
    pub writes: u64,
    /// How often nothing could leave: the kernel kills a program then.
    pub stuck: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Never made, or given back.
    Nowhere,
    Swapped,
    Inactive,
    Active,
    /// Kept in memory, whatever happens.
    Kept,
}

struct Reclaim {
    room: u64,
    lists: Lists,
    place: Vec<Place>,
    accessed: Vec<bool>,
    /// Whether it was found accessed once.
    referenced: Vec<bool>,
    /// The clock of pages that left, when each page did.
    left_at: Vec<u64>,
    clock: u64,
    held: [u64; 2],
    kept: u64,
    last_read: Slot,
    paged: Paged,
}

impl Reclaim {
    fn new(slots: u32, room: u64) -> Reclaim {
        let slots_long = slots as usize;
        Reclaim {
            room,
            lists: Lists::new(slots, 2),
            place: vec![Place::Nowhere; slots_long],
            accessed: vec![false; slots_long],
            referenced: vec![false; slots_long],
            left_at: vec![0; slots_long],
            clock: 0,
            held: [0; 2],
            kept: 0,
            last_read: Slot::MAX,
            paged: Paged::default(),
        }
    }

    fn put(&mut self, list: usize, slot: Slot) {
        self.lists.push(list, slot);
        self.held[list] += 1;
        self.place[slot as usize] = match list {
            INACTIVE => Place::Inactive,
            _ => Place::Active,
        };
    }

    fn pop(&mut self, list: usize) -> Option<Slot> {
        let slot = self.lists.pop(list)?;
        self.held[list] -= 1;
        Some(slot)
    }

    #[inline]
    fn touch(&mut self, slot: Slot, is_kept: bool) {
        let at = slot as usize;
        match self.place[at] {
            Place::Inactive | Place::Active => self.accessed[at] = true,
            Place::Kept => {}
            from => {
                self.make_room();
                self.accessed[at] = true;
                self.referenced[at] = false;
                let mut list = INACTIVE;
                if from == Place::Swapped {
                    self.paged.reads += 1;
                    self.paged.near_reads += u64::from(self.last_read.wrapping_add(1) == slot);
                    self.last_read = slot;
                    if self.clock - self.left_at[at] <= self.held[ACTIVE] {
                        list = ACTIVE;
                        self.clock += 1;
                    }
                }
                match is_kept {
                    true => {
                        self.place[at] = Place::Kept;
                        self.kept += 1;
                    }
                    false => self.put(list, slot),
                }
            }
        }
    }

    fn make_room(&mut self) {
        if self.held[INACTIVE] + self.held[ACTIVE] + self.kept < self.room {
            return;
        }
        if !self.shrink() {
            self.paged.stuck += 1;
        }
    }

    /// Whether the active list has to give pages back (`inactive_is_low`).
    fn is_low(&self) -> bool {
        let gib = (self.held[INACTIVE] + self.held[ACTIVE]) / GIB_PAGES;
        let ratio = match gib {
            0 => 1,
            gib => (10 * gib).isqrt(),
        };
        self.held[INACTIVE] * ratio < self.held[ACTIVE]
    }

    fn shrink(&mut self) -> bool {
        let (mut gone, mut looked) = (0, 0);
        let most = MAX_ROUNDS * (self.held[INACTIVE] + self.held[ACTIVE]);
        while gone < BATCH && looked < most {
            if self.is_low() {
                for _ in 0..BATCH {
                    let Some(slot) = self.pop(ACTIVE) else { break };
                    self.accessed[slot as usize] = false;
                    self.put(INACTIVE, slot);
                }
            }
            for _ in 0..BATCH {
                let Some(slot) = self.pop(INACTIVE) else {
                    break;
                };
                looked += 1;
                let at = slot as usize;
                if std::mem::take(&mut self.accessed[at]) {
                    match std::mem::replace(&mut self.referenced[at], true) {
                        false => self.put(INACTIVE, slot),
                        true => {
                            self.referenced[at] = false;
                            self.clock += 1;
                            self.put(ACTIVE, slot);
                        }
                    }
                    continue;
                }
                self.place[at] = Place::Swapped;
                self.left_at[at] = self.clock;
                self.clock += 1;
                self.paged.writes += 1;
                gone += 1;
            }
        }
        gone > 0
    }

    fn free(&mut self, slot: Slot) {
        let at = slot as usize;
        match std::mem::replace(&mut self.place[at], Place::Nowhere) {
            Place::Inactive => {
                self.lists.remove(INACTIVE, slot);
                self.held[INACTIVE] -= 1;
            }
            Place::Active => {
                self.lists.remove(ACTIVE, slot);
                self.held[ACTIVE] -= 1;
            }
            Place::Kept => self.kept -= 1,
            Place::Nowhere | Place::Swapped => {}
        }
    }
}

/// Whether pages of a group count for the limit: a file's are the first user's who read them, and need no swap.
fn counts(kind: Option<ObjectKind>) -> bool {
    kind != Some(ObjectKind::File)
}

/// Replays a program in so many pages of memory. The pages of groups in `kept` never leave.
pub fn paged(stream: &Stream, room: u64, kept: &[bool]) -> Paged {
    let mut reclaim = Reclaim::new(stream.slots(), room.max(1));
    let counted: Vec<bool> = stream.groups.iter().map(|g| counts(g.kind)).collect();
    let mut owned = Owned::new(stream);
    let mut freed = stream.freed.iter().peekable();
    for interval in 0..stream.intervals().len() {
        while let Some(change) = freed.next_if(|c| c.interval as usize <= interval) {
            for slot in change.first..change.end {
                reclaim.free(slot);
            }
        }
        owned.go_to(interval);
        for run in stream.runs(interval) {
            for slot in run.first..run.end {
                let group = owned.group[slot as usize] as usize;
                if counted.get(group).copied().unwrap_or(true) {
                    reclaim.touch(slot, kept.get(group).copied().unwrap_or(false));
                }
            }
        }
    }
    reclaim.paged
}
