//! What was asked for, by the block's address, and which thread's cache line it is on.
//!
//! Allocators say how much of a block can be used; the shadow ([`heap`]) says what was asked for. Pieces of it cover 1 GiB of addresses each and are
//! backed only where they are touched. A block that begins where none had been before is *fresh*.
//!
//! Once two threads have allocated, the shadow has a byte for each cache line too, with the number of the thread that allocated in it
//! last: a block that gets a part of another thread's line is found where it begins.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering, fence};

use varve_preload_abi::operations::heap::{
    self, FREED, FREED_ELSEWHERE, Fields, GRANULE, LARGE, LINE, MAX_EXCESS, NEVER, SPAN,
    SPAN_GRANULES, SPAN_LINES, TAIL, halves,
};

use super::{attach, room};
use crate::{process, sys};

const SPANS: usize = ((1 << 47) / SPAN) as usize;

#[repr(C)]
struct Piece {
    granules: [AtomicU8; SPAN_GRANULES],
    lines: [AtomicU8; SPAN_LINES],
}

const _: () = assert!(size_of::<Piece>() as u64 == heap::PIECE_BYTES);

static PIECES: [AtomicPtr<Piece>; SPANS] = [const { AtomicPtr::new(null_mut()) }; SPANS];

/// Threads that have allocated so far.
static THREADS: AtomicU32 = AtomicU32::new(0);
/// Whether they are several: lines are of interest from then on.
static HAS_LINES: AtomicBool = AtomicBool::new(false);

/// The number of a thread in the bytes of lines: 0 is the first one, who alone allocates as long as nothing is written there. Of more than 256 threads
/// some have the same, and what they share is not seen.
pub(super) fn number_thread() -> u8 {
    let before = THREADS.fetch_add(1, Ordering::Relaxed);
    if before > 0 {
        HAS_LINES.store(true, Ordering::Relaxed);
    }
    before as u8
}

#[inline]
fn piece(address: u64) -> Option<&'static Piece> {
    let entry = PIECES.get((address / SPAN) as usize)?;
    // SAFETY: entries are null or point to a zeroed mapping of a `Piece` that is never unmapped.
    unsafe { entry.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn make_piece(address: u64) -> Option<&'static Piece> {
    const MADV_NOHUGEPAGE: usize = 15;
    let entry = PIECES.get((address / SPAN) as usize)?;
    if !room::take_piece() {
        return None;
    }
    let memory = sys::map_anonymous(size_of::<Piece>())?;
    let fresh: *mut Piece = memory.as_ptr().cast();
    match entry.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // A confined program may be ended for a call that it does not make itself.
            if !process::is_confined() {
                let range = [fresh as usize, size_of::<Piece>(), MADV_NOHUGEPAGE, 0, 0, 0];
                // SAFETY: advice on the mapping just made: it is touched thinly.
                unsafe { sys::call(libc::SYS_madvise, range) };
            }
            attach::note_shadow(fresh as u64, address / SPAN * SPAN);
            // SAFETY: the mapping is zeroed, page-aligned, as large as a `Piece`, and stays.
            Some(unsafe { &*fresh })
        }
        Err(other) => {
            // SAFETY: nobody else has seen this mapping.
            unsafe { sys::unmap(memory, size_of::<Piece>()) };
            // SAFETY: as in `piece`.
            NonNull::new(other).map(|other| unsafe { other.as_ref() })
        }
    }
}

/// Unmaps a piece that says something of the addresses from `first` on, when nobody looks at it any more.
pub(super) fn forget_piece(piece: u64, first: u64) {
    if let Some(entry) = PIECES.get((first / SPAN) as usize) {
        entry.store(null_mut(), Ordering::Release);
    }
    if let Some(piece) = NonNull::new(piece as *mut u8) {
        process::forget_own_memory(piece);
    }
    // SAFETY: a mapping of this module's own, which no thread uses, as the caller has seen to.
    unsafe { sys::unmap_at(piece, heap::PIECE_BYTES) };
}

#[inline]
fn index(address: u64) -> usize {
    (address % SPAN / GRANULE) as usize
}

/// Which half of a byte is a block's of 8 bytes.
#[inline]
fn half(address: u64) -> usize {
    (address >> 3 & 1) as usize
}

/// Replaces half a byte; what it was.
fn set_half(byte: &AtomicU8, half: usize, value: u8) -> u8 {
    let mut before = byte.load(Ordering::Relaxed);
    loop {
        let mut both = halves::split(before);
        let was = std::mem::replace(&mut both[half & 1], value);
        let after = halves::join(both);
        let (done, other) = (Ordering::Relaxed, Ordering::Relaxed);
        match byte.compare_exchange_weak(before, after, done, other) {
            Ok(_) => return was,
            Err(now) => before = now,
        }
    }
}

/// How a block begins.
#[derive(Clone, Copy, Default)]
pub(super) struct Begun {
    /// None had been there before.
    pub(super) fresh: bool,
    /// A part of its cache lines is of another thread's blocks that live.
    pub(super) shares: bool,
    /// What was there had been freed by another thread than allocated it.
    pub(super) passed: bool,
    /// What lived there, which nobody saw freed.
    pub(super) unseen: Option<Unseen>,
    /// There is no room to note it.
    pub(super) unknown: bool,
}

/// A block of which nobody saw the end. The sizes are right to within a granule where the block after it is of another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unseen {
    pub(super) requested: usize,
    pub(super) usable: usize,
    /// Two of 8 bytes may have shared a granule.
    pub(super) blocks: usize,
}

/// Notes a block that a thread of this number has allocated.
#[inline(always)]
pub(super) fn set(address: u64, usable: usize, requested: usize, thread: u8) -> Begun {
    let Some(piece) = piece(address).or_else(|| make_piece(address)) else {
        return Begun {
            unknown: true,
            ..Begun::default()
        };
    };
    let at = index(address);
    let byte = &piece.granules[at];
    let mut begun = Begun::default();
    if usable <= 8 {
        let before = byte.load(Ordering::Relaxed);
        if heap::begins(before).is_some() {
            begun.unseen = Some(piece.forget(address, before, usable));
        }
        let was = set_half(byte, half(address), halves::of(requested));
        begun.fresh = was == halves::NONE;
        if let Some(requested) = halves::requested(was) {
            begun.unseen = Some(Unseen {
                requested,
                usable: 8,
                blocks: 1,
            });
        }
    } else {
        let before = byte.load(Ordering::Relaxed);
        if heap::begins(before).is_some() || halves::live(before) > 0 {
            begun.unseen = Some(piece.forget(address, before, usable));
        }
        let excess = usable - requested.min(usable);
        let fields = Fields::of(address, usable, excess > MAX_EXCESS);
        let first = heap::of_excess(excess, fields.is_alone());
        byte.store(first.unwrap_or(LARGE), Ordering::Relaxed);
        if !fields.is_alone() {
            piece.write_fields(at, fields, requested);
        }
        begun.fresh = before == NEVER;
        begun.passed = before == FREED_ELSEWHERE;
    }
    if HAS_LINES.load(Ordering::Relaxed) {
        begun.shares = piece.takes_lines(address, usable, thread);
    }
    begun
}

/// Forgets a block that a thread of this number frees; what was asked for, where it was noted.
#[inline(always)]
pub(super) fn take(address: u64, usable: usize, thread: u8) -> Option<usize> {
    let piece = piece(address)?;
    let at = index(address);
    let byte = &piece.granules[at];
    if usable <= 8 {
        return halves::requested(set_half(byte, half(address), halves::GONE));
    }
    let noted = byte.load(Ordering::Relaxed);
    let excess = heap::excess_of(noted);
    if excess.is_none() && noted != LARGE {
        return None;
    }
    let freed = match HAS_LINES.load(Ordering::Relaxed) && piece.is_anothers(address, thread) {
        true => FREED_ELSEWHERE,
        false => FREED,
    };
    byte.store(freed, Ordering::Relaxed);
    let fields = Fields::of(address, usable, noted == LARGE);
    match excess {
        Some(excess) => {
            if !fields.is_alone() {
                piece.clear_fields(at, fields);
            }
            usable.checked_sub(excess)
        }
        None => Some(piece.clear_fields(at, fields)),
    }
}

impl Piece {
    /// Forgets the block that lives where one of so many usable bytes begins now.
    #[cold]
    #[inline(never)]
    fn forget(&self, address: u64, noted: u8, next_usable: usize) -> Unseen {
        let at = index(address);
        let Some(is_alone) = heap::begins(noted) else {
            let sizes = halves::split(noted).map(halves::requested);
            let blocks = sizes.iter().flatten().count();
            return Unseen {
                requested: sizes.iter().flatten().sum(),
                usable: blocks * 8,
                blocks,
            };
        };
        let next = Fields::of(address, next_usable, false);
        let is_of_one_size = match is_alone {
            true => next.is_alone(),
            false => self.granules_at(at) == next.granules,
        };
        let usable = match (is_of_one_size, is_alone) {
            (true, _) => next_usable,
            (false, true) => GRANULE as usize,
            (false, false) => self.granules_at(at) * GRANULE as usize,
        };
        let fields = Fields::of(address, usable, noted == LARGE);
        let cleared = match is_alone {
            true => 0,
            false => self.clear_fields(at, fields),
        };
        let requested = match heap::excess_of(noted) {
            Some(excess) => usable.saturating_sub(excess),
            None => cleared,
        };
        Unseen {
            requested,
            usable,
            blocks: 1,
        }
    }

    /// The granules that the further bytes of a block say it has.
    fn granules_at(&self, at: usize) -> usize {
        let mut bytes = [0; 1 + heap::MAX_FIELDS];
        for (byte, granule) in bytes.iter_mut().zip(&self.granules[at..]) {
            *byte = granule.load(Ordering::Relaxed);
        }
        heap::granules_at(&bytes, 1).unwrap_or(1) as usize
    }

    /// Writes the bytes behind a block's first.
    #[inline(always)]
    fn write_fields(&self, at: usize, fields: Fields, requested: usize) {
        if fields.count_bytes() == 1 && fields.requested_bytes() == 0 {
            self.write(at + 1, fields.granules as u8);
        } else {
            self.write_long(at, fields, requested);
        }
        if HAS_LINES.load(Ordering::Relaxed)
            && let Some(tail) = fields.tail()
        {
            self.write(at + tail, TAIL);
        }
    }

    #[inline(never)]
    fn write_long(&self, at: usize, fields: Fields, requested: usize) {
        let mut place = at + 1;
        let mut put = |byte: u8| {
            self.write(place, byte);
            place += 1;
        };
        match fields.count_bytes() {
            1 => put(fields.granules as u8),
            _ => {
                put(0);
                let count = u32::try_from(fields.granules).unwrap_or(u32::MAX);
                count.to_ne_bytes().into_iter().for_each(&mut put);
            }
        }
        let number = (requested as u64).to_le_bytes().into_iter();
        number.take(fields.requested_bytes()).for_each(put);
    }

    /// Frees the bytes behind a block's first; what was asked for, where they said it.
    #[inline(always)]
    fn clear_fields(&self, at: usize, fields: Fields) -> usize {
        let requested = match fields.count_bytes() == 1 && fields.requested_bytes() == 0 {
            true => {
                self.write(at + 1, FREED);
                0
            }
            false => self.clear_long(at, fields),
        };
        if HAS_LINES.load(Ordering::Relaxed)
            && let Some(tail) = fields.tail()
            && self
                .granules
                .get(at + tail)
                .is_some_and(|b| b.load(Ordering::Relaxed) == TAIL)
        {
            self.write(at + tail, FREED);
        }
        requested
    }

    #[inline(never)]
    fn clear_long(&self, at: usize, fields: Fields) -> usize {
        let mut number = [0; 8];
        let skipped = 1 + fields.count_bytes();
        let places = self.granules.iter().skip(at + skipped);
        for (place, digit) in places.zip(&mut number[..fields.requested_bytes()]) {
            *digit = place.swap(FREED, Ordering::Relaxed);
        }
        let places = self.granules.iter().skip(at + 1);
        places
            .take(fields.count_bytes())
            .for_each(|place| place.store(FREED, Ordering::Relaxed));
        u64::from_le_bytes(number) as usize
    }

    #[inline]
    fn write(&self, at: usize, byte: u8) {
        // A block at the end of a span goes on in the next one, where none of this is looked for.
        if let Some(place) = self.granules.get(at) {
            place.store(byte, Ordering::Relaxed);
        }
    }

    #[inline]
    fn line(&self, address: u64) -> &AtomicU8 {
        &self.lines[(address % SPAN / LINE) as usize]
    }

    /// Whether another thread was the last to allocate where a block begins.
    #[inline]
    fn is_anothers(&self, address: u64, thread: u8) -> bool {
        self.line(address).load(Ordering::Relaxed) != thread
    }

    /// A thread takes the first and the last line of a block, which is noted; whether another block lives on one that was another thread's.
    #[inline(always)]
    fn takes_lines(&self, address: u64, usable: usize, thread: u8) -> bool {
        let last = address + usable.max(1) as u64 - 1;
        let mut shares = self.takes(address, thread) && self.has_other(address, (address, last));
        if last / LINE != address / LINE && last / SPAN == address / SPAN {
            shares |= self.takes(last, thread) && self.has_other(last, (address, last));
        }
        shares
    }

    /// Takes the line of an address; whether it was another thread's.
    #[inline(always)]
    fn takes(&self, address: u64, thread: u8) -> bool {
        let line = self.line(address);
        if line.load(Ordering::Relaxed) == thread {
            return false;
        }
        line.store(thread, Ordering::Relaxed);
        true
    }

    /// Whether a block lives on a line beside one from its first to its last byte.
    #[cold]
    #[inline(never)]
    fn has_other(&self, line: u64, (first, last): (u64, u64)) -> bool {
        // Of two threads that note their blocks at once one sees the other's.
        fence(Ordering::SeqCst);
        let start = line / LINE * LINE;
        let granules = (0..LINE / GRANULE).map(|i| start + i * GRANULE);
        let lives = |address: u64| {
            let byte = self.granules[index(address)].load(Ordering::Relaxed);
            let is_own = (first / GRANULE..=last / GRANULE).contains(&(address / GRANULE));
            match is_own {
                // Half of it may be another's.
                true => halves::live(byte) == 2,
                false => heap::is_live(byte),
            }
        };
        granules.into_iter().any(lives)
    }
}
