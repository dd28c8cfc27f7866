//! The records in the ring of an event (`struct perf_event_header`, `enum perf_event_type`).

/// The types of records that the recorder looks at (`PERF_RECORD_*`).
#[allow(missing_docs)]
pub mod kind {
    pub const LOST: u32 = 2;
    pub const SAMPLE: u32 = 9;
    pub const AUX: u32 = 11;
    pub const LOST_SAMPLES: u32 = 13;
    pub const SWITCH: u32 = 14;
    pub const SWITCH_CPU_WIDE: u32 = 15;
}

/// `PERF_RECORD_MISC_SWITCH_OUT`: the thread stops running.
pub const SWITCH_OUT: u16 = 1 << 13;

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its type.
    pub kind: u32,
    /// Flags, and which code was at work.
    pub misc: u16,
    /// What follows the header.
    pub body: &'a [u8],
}

impl Record<'_> {
    /// Whether a program's own code was at work (`PERF_RECORD_MISC_USER`).
    pub fn is_user(&self) -> bool {
        self.misc & 7 == 2
    }
}

/// A record that says it is shorter than its header or longer than the ring's content; what follows it cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged {
    /// The length that it says it has.
    pub size: u16,
}

/// The records of what was copied from a ring, in the byte order of the machine.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Reads from the beginning of a record.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { rest: bytes }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        let (head, _) = self.rest.split_first_chunk::<8>()?;
        let [k0, k1, k2, k3, m0, m1, s0, s1] = *head;
        let size = u16::from_ne_bytes([s0, s1]);
        let Some((record, rest)) = self.rest.split_at_checked(usize::from(size)) else {
            self.rest = &[];
            return Some(Err(Damaged { size }));
        };
        let Some(body) = record.get(8..) else {
            self.rest = &[];
            return Some(Err(Damaged { size }));
        };
        self.rest = rest;
        Some(Ok(Record {
            kind: u32::from_ne_bytes([k0, k1, k2, k3]),
            misc: u16::from_ne_bytes([m0, m1]),
            body,
        }))
    }
}
