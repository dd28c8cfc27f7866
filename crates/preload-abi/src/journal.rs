//! What a fault handler notes so that others can follow changes of mappings in its place, should it be ended.
//!
//! The kernel says each change once, to whoever reads it. So the handler has it written here, and takes it out when it has
//! followed it. The journal lies in the memory of the program, which may write there what it likes: it concerns that memory
//! alone.

/// Changes that one read brings at most.
pub const HEARD: usize = 16;
/// Changes that wait to be followed at most.
pub const WAITING: usize = 64 << 10;

/// `struct uffd_msg` of `linux/userfaultfd.h`: the event in the lowest byte of the first word, then what it is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Change {
    /// Which event; 0 where nothing is noted.
    pub event: u64,
    /// What the kernel says of it.
    pub words: [u64; 3],
}

/// The journal. Zeroes are an empty one.
#[derive(Debug)]
#[repr(C)]
pub struct Journal {
    /// What the last read brought, until it stands below.
    pub heard: [Change; HEARD],
    /// The first of `waiting`, which is a ring.
    pub first: u64,
    /// How many are waiting; the first may be half done.
    pub count: u64,
    /// Changes in their order.
    pub waiting: [Change; WAITING],
}

impl Journal {
    /// Bytes before `waiting`, as words.
    pub const HEAD_WORDS: usize = std::mem::offset_of!(Journal, waiting) / 8;
}
