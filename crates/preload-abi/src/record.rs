//! What the preload library reports to the recorder, and how it stands in the ring.

use crate::layout::{COMMITTED, Head, header_word};

/// The most frames of one call stack.
pub const MAX_FRAMES: usize = 256;
/// Words of a record before its frames, at most.
pub(crate) const FIXED_WORDS: usize = 10;

/// Which function made a heap object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum AllocKind {
    /// `malloc`, and C++ `operator new` where it calls `malloc`.
    Malloc = 1,
    /// `calloc`.
    Calloc = 2,
    /// `realloc`.
    Realloc = 3,
    /// `reallocarray`.
    ReallocArray = 4,
    /// `memalign`.
    Memalign = 5,
    /// `aligned_alloc`.
    AlignedAlloc = 6,
    /// `posix_memalign`.
    PosixMemalign = 7,
    /// `valloc`.
    Valloc = 8,
    /// `pvalloc`.
    Pvalloc = 9,
}

/// Which call changed the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MapOperation {
    /// `mmap`, `mmap64`.
    Mmap = 1,
    /// `munmap`.
    Munmap = 2,
    /// `mremap`.
    Mremap = 3,
    /// `brk`; `address` is the new break, `old_address` the one before.
    Brk = 4,
    /// `sbrk`; as for `Brk`.
    Sbrk = 5,
}

/// Why a process has a new ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StartCause {
    /// A program started (exec).
    Exec = 1,
    /// A process forked without exec; it inherits its parent's objects.
    Fork = 2,
}

/// What memory of the library's own is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OwnMemory {
    /// The ring.
    Ring = 1,
    /// The library's private heap.
    Heap = 2,
    /// Tables of live objects, owned pages and known stacks.
    Table = 3,
}

macro_rules! from_code {
    ($type:ident: $($variant:ident)*) => {
        impl $type {
            fn from_code(code: u8) -> Option<Self> {
                $(if code == $type::$variant as u8 { return Some($type::$variant); })*
                None
            }
        }
    };
}
from_code!(AllocKind: Malloc Calloc Realloc ReallocArray Memalign AlignedAlloc PosixMemalign Valloc Pvalloc);
from_code!(MapOperation: Mmap Munmap Mremap Brk Sbrk);
from_code!(StartCause: Exec Fork);
from_code!(OwnMemory: Ring Heap Table);

/// The frames of a call stack: absolute instruction addresses, innermost first. The first is the
/// caller of the interposed function; all are return addresses.
pub type Frames<'a> = &'a [u64];

/// One record: when, by whom, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// CLOCK_MONOTONIC nanoseconds.
    pub time_ns: u64,
    /// The thread (kernel thread id).
    pub tid: u32,
    /// The call stack, by the process's own numbering; 0 for none.
    pub site: u32,
    /// What happened.
    pub event: Event<'a>,
}

/// What happened. Addresses are virtual addresses of the process, sizes are bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The first record of every ring.
    Init {
        /// The process.
        pid: u32,
        /// Its parent.
        parent: u32,
        /// Why there is a new ring.
        cause: StartCause,
    },
    /// A heap object of at least the smallest recorded size was born. A reallocation is a `Free`
    /// of the old object and an `Alloc` of the new one. It ends the pool ownership of every page
    /// that lies fully within it.
    Alloc {
        /// Its first byte.
        address: u64,
        /// The bytes that the program asked for.
        bytes: u64,
        /// By which function.
        kind: AllocKind,
    },
    /// A recorded heap object died.
    Free {
        /// Its first byte, as in its `Alloc`.
        address: u64,
    },
    /// The first small object on a page without an owner: until further notice the page is a pool
    /// of small objects that is named after this record's site and thread.
    PageOwner {
        /// The page number, address >> 12.
        page: u64,
    },
    /// The call stack that this record's `site` stands for.
    Stack {
        /// Innermost first.
        frames: Frames<'a>,
    },
    /// A thread's stack, reported from the thread itself when it starts.
    ThreadStack {
        /// The lowest address, guard not included.
        low: u64,
        /// Bytes from there up.
        bytes: u64,
        /// Bytes of the guard area below `low`.
        guard: u64,
    },
    /// The program changed its address space through the C library; only calls that succeeded.
    Map {
        /// Which call.
        operation: MapOperation,
        /// Where the range starts after the call.
        address: u64,
        /// Its length as asked for (for `Munmap` and `Mmap`) or after the call (`Mremap`).
        bytes: u64,
        /// Where it started before (`Mremap`), the break before (`Brk`, `Sbrk`), else 0.
        old_address: u64,
        /// Its length before (`Mremap`), else 0.
        old_bytes: u64,
        /// `PROT_*` bits of `Mmap`, else 0.
        protection: u32,
        /// `MAP_*` bits of `Mmap`, `MREMAP_*` bits of `Mremap`, else 0.
        flags: u32,
        /// The descriptor given to `Mmap`, -1 for none.
        fd: i32,
        /// The file offset given to `Mmap`, else 0.
        offset: u64,
    },
    /// Memory of the preload library itself, not of the program.
    PreloadMapping {
        /// Its first byte.
        address: u64,
        /// Its length.
        bytes: u64,
        /// What it is for.
        purpose: OwnMemory,
    },
    /// A piece of `/proc/self/maps` as it was when the program began: a program that lives shorter than
    /// a look from outside takes would leave no other trace of what it mapped. Pieces come in order.
    MapsText {
        /// The text's bytes in the order of memory; zero bytes at the end do not belong to it.
        text: Frames<'a>,
        /// Whether the text ends here.
        last: bool,
    },
    /// A block was allocated that is one of the sampled ones; its [`Event::Free`] follows.
    Sampled {
        /// Its first byte.
        address: u64,
        /// What was asked for.
        bytes: u64,
    },
    /// A library is about to be unloaded: it may have come since the last look from outside.
    Unloads {
        /// Where its code begins.
        start: u64,
        /// Where it ends.
        end: u64,
        /// Where that is in the file.
        offset: u64,
        /// The file's path, as the loader was asked for it, bytes as in [`Event::MapsText`].
        path: Frames<'a>,
    },
}

pub(crate) const PAD: u8 = 0xff;
/// Room that a thread made for a record and left.
pub(crate) const VOID: u8 = 0xfe;
const INIT: u8 = 1;
const ALLOC: u8 = 2;
const FREE: u8 = 3;
const PAGE_OWNER: u8 = 4;
const STACK: u8 = 5;
const THREAD_STACK: u8 = 6;
const MAP: u8 = 7;
const PRELOAD_MAPPING: u8 = 8;
const MAPS_TEXT: u8 = 9;
const UNLOADS: u8 = 10;
const SAMPLED: u8 = 11;

/// A record as words: the fixed part, then frames that are borrowed, not copied.
pub(crate) struct Encoded<'a> {
    pub(crate) kind: u8,
    pub(crate) detail: u8,
    /// The words after the first.
    pub(crate) fixed: [u64; FIXED_WORDS - 1],
    pub(crate) fixed_words: usize,
    pub(crate) frames: Frames<'a>,
}

impl<'a> Record<'a> {
    #[inline]
    pub(crate) fn encode(&self) -> Encoded<'a> {
        let mut fixed = [0u64; FIXED_WORDS - 1];
        fixed[0] = self.time_ns;
        fixed[1] = u64::from(self.tid) | (u64::from(self.site) << 32);
        let mut frames: Frames<'a> = &[];
        let body = &mut fixed[2..];
        let (kind, detail, body_words) = match self.event {
            Event::Init { pid, parent, cause } => {
                body[0] = u64::from(pid) | (u64::from(parent) << 32);
                (INIT, cause as u8, 1)
            }
            Event::Alloc {
                address,
                bytes,
                kind,
            } => {
                body[0] = address;
                body[1] = bytes;
                (ALLOC, kind as u8, 2)
            }
            Event::Free { address } => {
                body[0] = address;
                (FREE, 0, 1)
            }
            Event::PageOwner { page } => {
                body[0] = page;
                (PAGE_OWNER, 0, 1)
            }
            Event::Stack { frames: list } => {
                frames = &list[..list.len().min(MAX_FRAMES)];
                (STACK, 0, 0)
            }
            Event::ThreadStack { low, bytes, guard } => {
                body[0] = low;
                body[1] = bytes;
                body[2] = guard;
                (THREAD_STACK, 0, 3)
            }
            Event::Map {
                operation,
                address,
                bytes,
                old_address,
                old_bytes,
                protection,
                flags,
                fd,
                offset,
            } => {
                body[0] = address;
                body[1] = bytes;
                body[2] = old_address;
                body[3] = old_bytes;
                body[4] = u64::from(protection) | (u64::from(flags) << 32);
                body[5] = u64::from(fd as u32);
                body[6] = offset;
                (MAP, operation as u8, 7)
            }
            Event::PreloadMapping {
                address,
                bytes,
                purpose,
            } => {
                body[0] = address;
                body[1] = bytes;
                (PRELOAD_MAPPING, purpose as u8, 2)
            }
            Event::MapsText { text, last } => {
                frames = &text[..text.len().min(MAX_FRAMES)];
                (MAPS_TEXT, u8::from(last), 0)
            }
            Event::Sampled { address, bytes } => {
                body[0] = address;
                body[1] = bytes;
                (SAMPLED, 0, 2)
            }
            Event::Unloads {
                start,
                end,
                offset,
                path,
            } => {
                body[..3].copy_from_slice(&[start, end, offset]);
                frames = &path[..path.len().min(MAX_FRAMES)];
                (UNLOADS, 0, 3)
            }
        };
        Encoded {
            kind,
            detail,
            fixed,
            fixed_words: 2 + body_words,
            frames,
        }
    }

    /// Reads one record from its words; `None` if they are not a record.
    pub(crate) fn decode(words: &'a [u64]) -> Option<Self> {
        let head = Head::parse(*words.first()?);
        if head.state != COMMITTED || head.bytes != words.len() * 8 {
            return None;
        }
        let time_ns = *words.get(1)?;
        let who = *words.get(2)?;
        let body = words.get(3..)?;
        let exactly = |count: usize| (body.len() == count).then_some(());
        let event = match head.kind {
            INIT => {
                exactly(1)?;
                Event::Init {
                    pid: body[0] as u32,
                    parent: (body[0] >> 32) as u32,
                    cause: StartCause::from_code(head.detail)?,
                }
            }
            ALLOC => {
                exactly(2)?;
                Event::Alloc {
                    address: body[0],
                    bytes: body[1],
                    kind: AllocKind::from_code(head.detail)?,
                }
            }
            SAMPLED => {
                exactly(2)?;
                Event::Sampled {
                    address: body[0],
                    bytes: body[1],
                }
            }
            FREE => {
                exactly(1)?;
                Event::Free { address: body[0] }
            }
            PAGE_OWNER => {
                exactly(1)?;
                Event::PageOwner { page: body[0] }
            }
            MAPS_TEXT => {
                if body.len() > MAX_FRAMES {
                    return None;
                }
                Event::MapsText {
                    text: body,
                    last: head.detail != 0,
                }
            }
            STACK if body.len() > MAX_FRAMES => return None,
            STACK => Event::Stack { frames: body },
            UNLOADS => {
                let (fixed, path) = body.split_at_checked(3)?;
                if path.len() > MAX_FRAMES {
                    return None;
                }
                Event::Unloads {
                    start: fixed[0],
                    end: fixed[1],
                    offset: fixed[2],
                    path,
                }
            }
            THREAD_STACK => {
                exactly(3)?;
                Event::ThreadStack {
                    low: body[0],
                    bytes: body[1],
                    guard: body[2],
                }
            }
            MAP => {
                exactly(7)?;
                Event::Map {
                    operation: MapOperation::from_code(head.detail)?,
                    address: body[0],
                    bytes: body[1],
                    old_address: body[2],
                    old_bytes: body[3],
                    protection: body[4] as u32,
                    flags: (body[4] >> 32) as u32,
                    fd: body[5] as u32 as i32,
                    offset: body[6],
                }
            }
            PRELOAD_MAPPING => {
                exactly(2)?;
                Event::PreloadMapping {
                    address: body[0],
                    bytes: body[1],
                    purpose: OwnMemory::from_code(head.detail)?,
                }
            }
            _ => return None,
        };
        Some(Record {
            time_ns,
            tid: who as u32,
            site: (who >> 32) as u32,
            event,
        })
    }
}

impl Encoded<'_> {
    pub(crate) fn words(&self) -> usize {
        1 + self.fixed_words + self.frames.len()
    }

    pub(crate) fn head(&self, state: u64) -> u64 {
        header_word(state, self.kind, self.detail, self.words())
    }
}
