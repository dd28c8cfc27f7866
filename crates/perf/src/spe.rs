//! The packets of Arm's Statistical Profiling Extension, as they lie in an event's AUX buffer.
//!
//! Arm Architecture Reference Manual (DDI 0487), chapter D17, "Statistical Profiling Extension Sample Record Specification". A
//! record is a run of packets that ends with a time or an end packet. A packet is a header of one byte, or two of the extended
//! form, and a payload of 1, 2, 4 or 8 bytes as bits 5 and 4 of the header say.

use varve_model::{Address, MemoryLevel};

/// A sampled operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// The instruction.
    pub ip: Option<Address>,
    /// The exception level that it ran at: 0 for a program's own code.
    pub exception_level: Option<u8>,
    /// The virtual address of its access, without a tag.
    pub address: Option<Address>,
    /// Whether it wrote; none for what is no load or store.
    pub write: Option<bool>,
    /// Cycles from its dispatch to its end.
    pub latency_cycles: Option<u32>,
    /// CONTEXTIDR_EL1, which is the thread's number in kernels with `CONFIG_PID_IN_CONTEXTIDR`.
    pub context: Option<u32>,
    /// What happened to it: the bits of the events packet.
    pub events: u64,
    /// When it was sampled, in ticks of the system counter.
    pub ticks: Option<u64>,
}

impl Operation {
    /// Where the data came from, as far as events show it on every processor: data source packets mean what each
    /// implementation likes.
    pub fn level(&self) -> Option<MemoryLevel> {
        let has = |bit: u32| self.events >> bit & 1 == 1;
        let (l1, l1_refill, last_level, last_level_miss) = (has(2), has(3), has(8), has(9));
        match () {
            () if l1 && !l1_refill => Some(MemoryLevel::L1),
            () if last_level && !last_level_miss => Some(MemoryLevel::L3),
            () => None,
        }
    }
}

/// What a buffer ends with, or what is wrong with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftover {
    /// Bytes that are no packet: all that come before the next one that is.
    pub unknown: usize,
    /// Records that were not whole.
    pub cut: usize,
}

/// One packet: its header, the index within its kind, the payload.
enum Packet {
    Padding,
    End,
    Time(u64),
    Events(u64),
    Source,
    Context(u64),
    Operation(u8, u64),
    Address(u8, u64),
    Counter(u8, u64),
}

/// Reads the packets of a buffer whose first byte lies so many bytes behind an aligned one.
///
/// Gives what could not be read.
pub fn decode(bytes: &[u8], misaligned: usize, each: &mut dyn FnMut(Operation)) -> Leftover {
    let mut left = Leftover::default();
    let mut record = Operation::default();
    let (mut at, mut any) = (0, false);
    // After something unknown nothing is taken for a part of a record before the next one begins.
    let mut is_lost = false;
    while at < bytes.len() {
        let Some((packet, length)) = packet(&bytes[at..], misaligned + at) else {
            left.unknown += 1;
            is_lost = true;
            at += 1;
            continue;
        };
        at += length;
        let ends = matches!(packet, Packet::End | Packet::Time(_));
        any |= !matches!(packet, Packet::Padding);
        match packet {
            Packet::Padding | Packet::End | Packet::Source => {}
            Packet::Time(ticks) => record.ticks = Some(ticks),
            Packet::Events(events) => record.events = events,
            Packet::Context(context) => record.context = Some(context as u32),
            Packet::Operation(1, payload) => record.write = Some(payload & 1 == 1),
            Packet::Operation(..) => {}
            Packet::Address(0, payload) => {
                record.ip = Some(untagged(payload));
                record.exception_level = Some((payload >> 61 & 3) as u8);
            }
            Packet::Address(2, payload) => record.address = Some(untagged(payload)),
            Packet::Address(..) => {}
            Packet::Counter(0, payload) => record.latency_cycles = Some(payload as u32),
            Packet::Counter(..) => {}
        }
        if ends {
            if is_lost {
                left.cut += 1;
            } else {
                each(record);
            }
            (record, any, is_lost) = (Operation::default(), false, false);
        }
    }
    left.cut += usize::from(any || is_lost);
    left
}

/// The lower 56 bits, with the sign of the highest of them.
fn untagged(payload: u64) -> Address {
    let sign = if payload >> 55 & 1 == 1 {
        0xff << 56
    } else {
        0
    };
    Address(payload & (u64::MAX >> 8) | sign)
}

/// The packet at the beginning, and its length; none where there is none.
fn packet(bytes: &[u8], position: usize) -> Option<(Packet, usize)> {
    let first = *bytes.first()?;
    match first {
        0x00 => return Some((Packet::Padding, 1)),
        0x01 => return Some((Packet::End, 1)),
        _ => {}
    }
    let payload = |header: u8, behind: usize| -> Option<(u64, usize)> {
        let length = 1 << (header >> 4 & 3);
        let bytes = bytes.get(behind..behind + length)?;
        let mut value = [0; 8];
        value[..length].copy_from_slice(bytes);
        Some((u64::from_le_bytes(value), behind + length))
    };
    if first == 0x71 {
        let (ticks, length) = payload(first, 1)?;
        return Some((Packet::Time(ticks), length));
    }
    match first & 0xcf {
        0x42 => {
            let (events, length) = payload(first, 1)?;
            return Some((Packet::Events(events), length));
        }
        0x43 => return Some((Packet::Source, payload(first, 1)?.1)),
        _ => {}
    }
    match first & 0xfc {
        0x64 => {
            let (context, length) = payload(first, 1)?;
            return Some((Packet::Context(context), length));
        }
        0x48 => {
            let (operation, length) = payload(first, 1)?;
            return Some((Packet::Operation(first & 3, operation), length));
        }
        _ => {}
    }
    // The extended form has the upper bits of the index in its first byte.
    let (header, upper, behind) = if first & 0xfc == 0x20 {
        let second = *bytes.get(1)?;
        if second == 0 {
            let alignment = 2usize << (first & 15);
            let length = alignment - position % alignment;
            return (length <= bytes.len()).then_some((Packet::Padding, length));
        }
        (second, (first & 3) << 3, 2)
    } else {
        (first, 0, 1)
    };
    let index = upper | header & 7;
    let (value, length) = payload(header, behind)?;
    match header & 0xf8 {
        0xb0 => Some((Packet::Address(index, value), length)),
        0x98 => Some((Packet::Counter(index, value), length)),
        _ => None,
    }
}
