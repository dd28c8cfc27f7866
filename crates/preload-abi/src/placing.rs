//! The memory through which a process whose objects are placed and `varve tier apply` know of each other.
//!
//! There is one for all processes of a target. Whoever applies a plan makes it, writes what is to be done with the objects of each place of
//! the plan, and answers once for each call stack which place it is ([`crate::channel::Kind::Site`]). Processes place their objects
//! themselves, as only a process can lock its memory or bind it to a node, and list them here.
//!
//! # Layout
//! All words are native-endian u64. A header of [`HEADER_BYTES`]; [`SLOTS`] questions of [`SLOT_WORDS`] words; [`MAX_PLACES`] places of
//! [`PLACE_WORDS`] words; [`ENTRIES`] objects of [`ENTRY_WORDS`] words, found by their process and address within [`WINDOW`] entries.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use crate::memory::Memory;
use crate::record::MAX_FRAMES;

/// The environment variable that says that objects are placed: the size of the smallest, in bytes.
pub const PLACING_VARIABLE: &str = "VARVE_PLACING";

/// The name of the memory: `/memfd:NAME` in lists of mappings.
pub const PLACING_NAME: &str = "varve-placing";

/// Bytes of the header.
pub const HEADER_BYTES: usize = 4096;
/// Questions that are asked at one time at most.
pub const SLOTS: usize = 16;
/// Words of a question: whether it is taken, the object's address and size, what it is, the number of frames, and those.
pub const SLOT_WORDS: usize = 8 + MAX_FRAMES;
/// Places of a plan at most.
pub const MAX_PLACES: usize = 4096;
/// Words of a place.
pub const PLACE_WORDS: usize = 8;
/// Objects that are known at one time at most; a power of two.
pub const ENTRIES: usize = 1 << 16;
/// Words of an object.
pub const ENTRY_WORDS: usize = 8;
/// How far from where its hash says an object may stand.
pub const WINDOW: usize = 64;

const AT_SLOTS: usize = HEADER_BYTES;
const AT_PLACES: usize = AT_SLOTS + SLOTS * SLOT_WORDS * 8;
const AT_ENTRIES: usize = AT_PLACES + MAX_PLACES * PLACE_WORDS * 8;
/// Bytes of all.
pub const MEMORY_BYTES: usize = (AT_ENTRIES + ENTRIES * ENTRY_WORDS * 8).next_multiple_of(4096);

/// Words of the header, as offsets.
pub mod header {
    /// Bytes that may be locked, all processes together.
    pub const LOCK_LIMIT: usize = 0;
    /// Bytes that are.
    pub const LOCKED: usize = 64;
    /// Objects that were to be locked and did not fit into the limit.
    pub const OVER_LIMIT: usize = 128;
    /// Calls that the kernel refused, and the error number of the last.
    pub const REFUSED: usize = 136;
    /// See above.
    pub const REFUSED_WHY: usize = 144;
    /// Stacks that nobody said the place of in time.
    pub const UNANSWERED: usize = 152;
    /// Objects for which there was no entry.
    pub const NO_ROOM: usize = 160;
    /// Objects whose call stack could not be had.
    pub const STACKLESS: usize = 168;
    /// Objects that were looked at.
    pub const LOOKED_AT: usize = 176;
    /// What processes were ever asked to place as they begin.
    pub const WANTED: usize = 184;
}

/// What is done with the objects of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// They are listed, nothing else.
    List,
    /// Their pages stay in memory from their first touch on (`mlock2` with `MLOCK_ONFAULT`), as far as the limit goes.
    Keep,
    /// That they were used is no reason to keep them (`MADV_SEQUENTIAL`).
    Yield,
    /// Their pages come from this node where it has some (`MPOL_PREFERRED`).
    Bind(u32),
}

impl Action {
    /// As a word.
    #[must_use]
    pub fn word(self) -> u64 {
        match self {
            Action::List => 1,
            Action::Keep => 2,
            Action::Yield => 3,
            Action::Bind(node) => 4 | u64::from(node) << 8,
        }
    }

    /// From a word.
    #[must_use]
    pub fn of(word: u64) -> Option<Action> {
        match word & 0xff {
            1 => Some(Action::List),
            2 => Some(Action::Keep),
            3 => Some(Action::Yield),
            4 => Some(Action::Bind((word >> 8) as u32)),
            _ => None,
        }
    }
}

/// Words of a place, as offsets in it.
pub mod place {
    /// [`super::Action::word`].
    pub const ACTION: usize = 0;
    /// The part of each object, bytes from its beginning.
    pub const FROM: usize = 8;
    /// One past the last of it.
    pub const TO: usize = 16;
    /// Bytes of its objects that are there.
    pub const LIVE: usize = 24;
    /// The same at the most.
    pub const PEAK: usize = 32;
    /// Objects that were ever there.
    pub const OBJECTS: usize = 40;
    /// Objects of which the kernel refused what was to be done, or that were beyond the limit.
    pub const FAILED: usize = 48;
}

/// Words of a question, as offsets in it.
pub mod slot {
    /// 0: free.
    pub const TAKEN: usize = 0;
    /// The object's address.
    pub const ADDRESS: usize = 8;
    /// Its size.
    pub const BYTES: usize = 16;
    /// Whether it is a mapping of a file: 1.
    pub const IS_FILE: usize = 24;
    /// How many frames there are.
    pub const FRAMES: usize = 32;
    /// The frames.
    pub const FIRST_FRAME: usize = 64;
}

/// Words of an object, as offsets in it.
pub mod entry {
    /// A state and a process: `state << 32 | pid`.
    pub const STATE: usize = 0;
    /// Where it begins.
    pub const ADDRESS: usize = 8;
    /// Its size.
    pub const BYTES: usize = 16;
    /// The place's number.
    pub const PLACE: usize = 24;
    /// What the plan places of it: the first byte.
    pub const FROM: usize = 32;
    /// One past the last.
    pub const TO: usize = 40;
    /// With how many bytes of that, from the first one, it was done; 0 where it was refused.
    pub const DONE: usize = 48;

    /// Nothing stands there.
    pub const EMPTY: u64 = 0;
    /// Somebody writes it.
    pub const CLAIMED: u64 = 1;
    /// It is there.
    pub const LIVE: u64 = 2;
    /// Its process is to place it as it begins.
    pub const WANTED: u64 = 3;
}

/// Where a word of a question is.
#[must_use]
pub fn slot_at(slot: usize, word: usize) -> usize {
    AT_SLOTS + slot % SLOTS * SLOT_WORDS * 8 + word
}

/// Where a word of a place is.
#[must_use]
pub fn place_at(place: usize, word: usize) -> usize {
    AT_PLACES + place % MAX_PLACES * PLACE_WORDS * 8 + word
}

/// Where a word of an object is.
#[must_use]
pub fn entry_at(entry: usize, word: usize) -> usize {
    AT_ENTRIES + entry % ENTRIES * ENTRY_WORDS * 8 + word
}

/// Where the entries begin among which an object is.
#[must_use]
pub fn first_entry(pid: u32, address: u64) -> usize {
    let mixed = (address >> 4 ^ u64::from(pid) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize % ENTRIES
}

/// An object as a process has listed it. The process may have written anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedObject {
    /// The process, in its own numbers.
    pub pid: u32,
    /// The place's number.
    pub place: usize,
    /// Where it begins.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// What the plan places of it: the first byte.
    pub from: u64,
    /// One past the last.
    pub to: u64,
    /// With how many bytes of that, from the first one, it was done.
    pub done: u64,
}

/// The memory, on the side of whoever applies a plan.
#[derive(Debug)]
pub struct Placements {
    memory: Memory,
    file: OwnedFd,
}

impl Placements {
    /// Makes it. Only what is written to takes room.
    ///
    /// # Errors
    /// Where there is no memory or descriptor for it.
    pub fn create() -> io::Result<Placements> {
        let (memory, file) = Memory::create(PLACING_NAME, MEMORY_BYTES)?;
        Ok(Placements { memory, file })
    }

    /// Of a file that somebody else made: what a process has mapped under the name [`PLACING_NAME`].
    ///
    /// # Errors
    /// Where it is no such memory, or may still be cut.
    pub fn open(file: OwnedFd) -> io::Result<Placements> {
        // SAFETY: asks for integers of a descriptor; the struct is one of integers.
        let is_fit = unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            let seals = libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS);
            libc::fstat(file.as_raw_fd(), &raw mut found) == 0
                && found.st_size == MEMORY_BYTES as i64
                && seals >= 0
                && seals & libc::F_SEAL_SHRINK != 0
        };
        if !is_fit {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = Memory::of(&file, MEMORY_BYTES)?;
        Ok(Placements { memory, file })
    }

    /// What processes are given.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// A word.
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        self.memory.word(at)
    }

    /// The value of a word.
    #[must_use]
    pub fn get(&self, at: usize) -> u64 {
        self.word(at).load(std::sync::atomic::Ordering::Acquire)
    }

    /// Sets a word.
    pub fn set(&self, at: usize, value: u64) {
        self.word(at)
            .store(value, std::sync::atomic::Ordering::Release);
    }

    /// The objects that are there, of all processes.
    pub fn objects(&self) -> impl Iterator<Item = PlacedObject> + '_ {
        (0..ENTRIES).filter_map(|index| {
            let word = |which| self.get(entry_at(index, which));
            let state = word(entry::STATE);
            let object = PlacedObject {
                pid: state as u32,
                place: word(entry::PLACE) as usize,
                address: word(entry::ADDRESS),
                bytes: word(entry::BYTES),
                from: word(entry::FROM),
                to: word(entry::TO),
                done: word(entry::DONE),
            };
            // It may have gone while it was read, and another may have come.
            let is_whole = state >> 32 == entry::LIVE && word(entry::STATE) == state;
            is_whole.then_some(object)
        })
    }

    /// Forgets the objects of a process: it is over, or runs another program.
    pub fn forget(&self, pid: u32) {
        for index in 0..ENTRIES {
            let state = self.get(entry_at(index, entry::STATE));
            if state == 0 || state as u32 != pid {
                continue;
            }
            let bytes = self.get(entry_at(index, entry::DONE));
            if state >> 32 == entry::LIVE && bytes > 0 {
                let place = self.get(entry_at(index, entry::PLACE)) as usize;
                lower(self.word(place_at(place, place::LIVE)), bytes);
                if Action::of(self.get(place_at(place, place::ACTION))) == Some(Action::Keep) {
                    lower(self.word(header::LOCKED), bytes);
                }
            }
            self.set(entry_at(index, entry::STATE), 0);
        }
    }

    /// Asks a process that begins to place something that is there: static data, its stack, a mapped file.
    pub fn want(&self, pid: u32, place: usize, address: u64, bytes: u64) -> bool {
        self.word(header::WANTED)
            .fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        let first = first_entry(pid, address);
        for index in first..first + WINDOW {
            if self.get(entry_at(index, entry::STATE)) != 0 {
                continue;
            }
            self.set(entry_at(index, entry::ADDRESS), address);
            self.set(entry_at(index, entry::BYTES), bytes);
            self.set(entry_at(index, entry::PLACE), place as u64);
            self.set(entry_at(index, entry::DONE), 0);
            self.set(
                entry_at(index, entry::STATE),
                entry::WANTED << 32 | u64::from(pid),
            );
            return true;
        }
        false
    }
}

/// Takes from a sum, which anybody may have changed, without going below zero.
pub fn lower(sum: &AtomicU64, by: u64) {
    use std::sync::atomic::Ordering::Relaxed;
    let _ = sum.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(by)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_is_read_as_it_was_written() {
        for action in [Action::List, Action::Keep, Action::Yield, Action::Bind(77)] {
            assert_eq!(Action::of(action.word()), Some(action));
        }
        assert_eq!(Action::of(0), None);
    }

    #[test]
    fn what_a_process_listed_is_found_and_forgotten() {
        let placements = Placements::create().unwrap();
        assert!(placements.want(7, 3, 0x1000, 64));
        assert_eq!(placements.objects().count(), 0);
        let at = first_entry(7, 0x1000);
        placements.set(entry_at(at, entry::STATE), entry::LIVE << 32 | 7);
        let found: Vec<PlacedObject> = placements.objects().collect();
        assert_eq!((found.len(), found[0].place, found[0].pid), (1, 3, 7));
        placements.forget(8);
        assert_eq!(placements.objects().count(), 1);
        placements.forget(7);
        assert_eq!(placements.objects().count(), 0);
    }
}
