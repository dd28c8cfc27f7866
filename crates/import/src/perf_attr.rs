//! `struct perf_event_attr`, and the samples that follow from it.

use crate::bytes::Bytes;

/// `PERF_SAMPLE_*`.
mod bit {
    pub(super) const IP: u64 = 1;
    pub(super) const TID: u64 = 1 << 1;
    pub(super) const TIME: u64 = 1 << 2;
    pub(super) const ADDR: u64 = 1 << 3;
    pub(super) const READ: u64 = 1 << 4;
    pub(super) const CALLCHAIN: u64 = 1 << 5;
    pub(super) const ID: u64 = 1 << 6;
    pub(super) const CPU: u64 = 1 << 7;
    pub(super) const PERIOD: u64 = 1 << 8;
    pub(super) const STREAM_ID: u64 = 1 << 9;
    pub(super) const RAW: u64 = 1 << 10;
    pub(super) const BRANCH_STACK: u64 = 1 << 11;
    pub(super) const REGS_USER: u64 = 1 << 12;
    pub(super) const STACK_USER: u64 = 1 << 13;
    pub(super) const WEIGHT: u64 = 1 << 14;
    pub(super) const DATA_SRC: u64 = 1 << 15;
    pub(super) const IDENTIFIER: u64 = 1 << 16;
    pub(super) const WEIGHT_STRUCT: u64 = 1 << 24;
}

/// What an event's samples hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attr {
    sample: u64,
    read: u64,
    has_trailer: bool,
    branches_have_index: bool,
    user_registers: u32,
}

/// What is known of a sample.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body<'a> {
    pub(crate) ip: Option<u64>,
    pub(crate) pid: Option<u32>,
    pub(crate) tid: Option<u32>,
    pub(crate) time: Option<u64>,
    pub(crate) address: Option<u64>,
    pub(crate) cpu: Option<u32>,
    pub(crate) chain: Chain<'a>,
    pub(crate) raw: Option<&'a [u8]>,
    pub(crate) weight: Option<u64>,
    pub(crate) data_source: Option<u64>,
}

/// Addresses of a call chain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chain<'a>(Option<Bytes<'a>>);

impl Iterator for Chain<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0.as_mut()?.u64()
    }
}

/// What stands at the end of records that are no samples.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trailer {
    pub(crate) time: Option<u64>,
    /// How long it is.
    pub(crate) bytes: usize,
}

impl Attr {
    /// None where the bytes are too few.
    pub(crate) fn read(bytes: &[u8], big: bool) -> Option<Attr> {
        let at =
            |offset: usize, length: usize| Bytes::new(bytes.get(offset..)?, big).number(length);
        let flags = at(40, 8)?;
        Some(Attr {
            sample: at(24, 8)?,
            read: at(32, 8)?,
            // Bit 18, counted from the low end where bit fields begin there, from the high end else.
            has_trailer: flags >> (if big { 63 - 18 } else { 18 }) & 1 == 1,
            branches_have_index: at(72, 8).unwrap_or(0) & 1 << 17 != 0,
            user_registers: at(80, 8).unwrap_or(0).count_ones(),
        })
    }

    fn has(&self, bit: u64) -> bool {
        self.sample & bit != 0
    }

    /// The number of the event, of a sample of any event of a file: all have it in the same place.
    pub(crate) fn id_of_sample(&self, body: &[u8], big: bool) -> Option<u64> {
        let mut cursor = Bytes::new(body, big);
        if !self.has(bit::IDENTIFIER) {
            let before = [bit::IP, bit::TID, bit::TIME, bit::ADDR];
            let before = before.iter().filter(|b| self.has(**b)).count() * 8;
            if !self.has(bit::ID) {
                return None;
            }
            cursor.take(before)?;
        }
        cursor.u64()
    }

    pub(crate) fn trailer(&self, body: &[u8], big: bool) -> Trailer {
        if !self.has_trailer {
            return Trailer::default();
        }
        let order = [
            bit::TID,
            bit::TIME,
            bit::ID,
            bit::STREAM_ID,
            bit::CPU,
            bit::IDENTIFIER,
        ];
        let bytes = order.iter().filter(|b| self.has(**b)).count() * 8;
        let time = || {
            let start = body.len().checked_sub(bytes)? + usize::from(self.has(bit::TID)) * 8;
            Bytes::new(&body[start..], big).u64()
        };
        Trailer {
            time: if self.has(bit::TIME) { time() } else { None },
            bytes,
        }
    }

    /// Takes a sample apart; none where it is cut short.
    pub(crate) fn sample<'a>(&self, body: &'a [u8], big: bool) -> Option<Body<'a>> {
        let mut cursor = Bytes::new(body, big);
        let mut found = Body::default();
        if self.has(bit::IDENTIFIER) {
            cursor.u64()?;
        }
        if self.has(bit::IP) {
            found.ip = Some(cursor.u64()?);
        }
        if self.has(bit::TID) {
            found.pid = Some(cursor.u32()?);
            found.tid = Some(cursor.u32()?);
        }
        if self.has(bit::TIME) {
            found.time = Some(cursor.u64()?);
        }
        if self.has(bit::ADDR) {
            found.address = Some(cursor.u64()?);
        }
        for bit in [bit::ID, bit::STREAM_ID] {
            if self.has(bit) {
                cursor.u64()?;
            }
        }
        if self.has(bit::CPU) {
            found.cpu = Some(cursor.u32()?);
            cursor.u32()?;
        }
        if self.has(bit::PERIOD) {
            cursor.u64()?;
        }
        if self.has(bit::READ) {
            self.skip_read(&mut cursor)?;
        }
        if self.has(bit::CALLCHAIN) {
            let bytes = sized(&mut cursor, 8)?;
            found.chain = Chain(Some(Bytes::new(bytes, big)));
        }
        if self.has(bit::RAW) {
            let length = cursor.u32()?;
            found.raw = Some(cursor.take(length as usize)?);
        }
        if self.has(bit::BRANCH_STACK) {
            let count = cursor.u64()?;
            if self.branches_have_index {
                cursor.u64()?;
            }
            cursor.take(usize::try_from(count.checked_mul(24)?).ok()?)?;
        }
        if self.has(bit::REGS_USER) && cursor.u64()? != 0 {
            cursor.take(self.user_registers as usize * 8)?;
        }
        if self.has(bit::STACK_USER) && !sized(&mut cursor, 1)?.is_empty() {
            cursor.u64()?;
        }
        if self.has(bit::WEIGHT) {
            found.weight = Some(cursor.u64()?);
        } else if self.has(bit::WEIGHT_STRUCT) {
            // The latency is the low 32 bits in either byte order.
            found.weight = Some(cursor.u64()? & 0xffff_ffff);
        }
        if self.has(bit::DATA_SRC) {
            found.data_source = Some(cursor.u64()?);
        }
        Some(found)
    }

    fn skip_read(&self, cursor: &mut Bytes<'_>) -> Option<()> {
        let has = |bit: u32| usize::from(self.read >> bit & 1 == 1);
        let (times, each) = (has(0) + has(1), 1 + has(2) + has(4));
        if self.read >> 3 & 1 == 1 {
            let count = usize::try_from(cursor.u64()?).ok()?;
            let words = count.checked_mul(each)?.checked_add(times)?;
            cursor.take(words.checked_mul(8)?)?;
        } else {
            cursor.take((times + each) * 8)?;
        }
        Some(())
    }
}

/// As many items as a number says, of `item` bytes each.
fn sized<'a>(cursor: &mut Bytes<'a>, item: u64) -> Option<&'a [u8]> {
    let count = cursor.u64()?;
    cursor.take(usize::try_from(count.checked_mul(item)?).ok()?)
}
