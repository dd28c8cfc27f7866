//! Lists of slots, each of which stands in one at most; all operations take the same time however many there are.

use crate::stream::Slot;

const NONE: u32 = u32::MAX;

/// Lists of slots.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    before: Vec<u32>,
    after: Vec<u32>,
    heads: Vec<u32>,
    tails: Vec<u32>,
}

impl Lists {
    /// So many empty lists.
    pub(crate) fn new(slots: u32, lists: usize) -> Lists {
        Lists {
            before: vec![NONE; slots as usize],
            after: vec![NONE; slots as usize],
            heads: vec![NONE; lists],
            tails: vec![NONE; lists],
        }
    }

    /// Puts a slot that stands in none at the head of a list.
    #[inline]
    pub(crate) fn push(&mut self, list: usize, slot: Slot) {
        let head = std::mem::replace(&mut self.heads[list], slot);
        self.before[slot as usize] = NONE;
        self.after[slot as usize] = head;
        match head {
            NONE => self.tails[list] = slot,
            head => self.before[head as usize] = slot,
        }
    }

    /// Takes a slot out of the list in which it stands.
    #[inline]
    pub(crate) fn remove(&mut self, list: usize, slot: Slot) {
        let (before, after) = (self.before[slot as usize], self.after[slot as usize]);
        match before {
            NONE => self.heads[list] = after,
            before => self.after[before as usize] = after,
        }
        match after {
            NONE => self.tails[list] = before,
            after => self.before[after as usize] = before,
        }
    }

    /// The last slot of a list.
    #[inline]
    pub(crate) fn tail(&self, list: usize) -> Option<Slot> {
        Some(self.tails[list]).filter(|&slot| slot != NONE)
    }

    /// Takes the last slot of a list.
    #[inline]
    pub(crate) fn pop(&mut self, list: usize) -> Option<Slot> {
        let slot = self.tail(list)?;
        self.remove(list, slot);
        Some(slot)
    }
}
