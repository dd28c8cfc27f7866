//! Which of several objects at one place owns it.

use varve_model::ObjectKind;

/// How far inside others an object lies; a higher layer hides the lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer(u8);

impl Layer {
    /// What the kernel says of the mapping.
    pub const MAPPING: Self = Self(0);
    /// A segment of an ELF file.
    pub const SEGMENT: Self = Self(1);
    /// A mapping with a known call site.
    pub const SITE: Self = Self(2);
    /// A thread's stack, inside the mapping that the thread library made.
    pub const STACK: Self = Self(3);
    /// Pages of small heap objects.
    pub const POOL: Self = Self(4);
    /// A heap object.
    pub const HEAP: Self = Self(5);

    /// A variable that lies in `depth` others.
    pub const fn variable(depth: u8) -> Self {
        Self(Self::HEAP.0.saturating_add(1).saturating_add(depth))
    }

    /// The higher hides the lower.
    pub(crate) const fn rank(self) -> u8 {
        self.0
    }

    /// Its number in a trace.
    pub const fn number(self) -> u32 {
        self.0 as u32
    }

    /// The layer of that number; numbers that are too high are taken for the innermost.
    pub const fn from_number(number: u32) -> Self {
        Self(if number > u8::MAX as u32 {
            u8::MAX
        } else {
            number as u8
        })
    }

    /// The layer of an object that was born in the recording.
    pub const fn of(kind: ObjectKind, pool: bool) -> Self {
        match (kind, pool) {
            (_, true) => Self::POOL,
            (ObjectKind::Heap, false) => Self::HEAP,
            (ObjectKind::Stack, false) => Self::STACK,
            (ObjectKind::Static, false) => Self::variable(0),
            (ObjectKind::Mapping | ObjectKind::File | ObjectKind::Recorder, false) => Self::SITE,
        }
    }
}
