//! `struct perf_event_attr`, and the samples that follow from it.

use crate::bytes::Bytes;

/// `PERF_SAMPLE_*`: what an event's samples hold, one bit each.
#[allow(missing_docs)]
pub mod sample_bit {
    pub const IP: u64 = 1;
    pub const TID: u64 = 1 << 1;
    pub const TIME: u64 = 1 << 2;
    pub const ADDR: u64 = 1 << 3;
    pub const READ: u64 = 1 << 4;
    pub const CALLCHAIN: u64 = 1 << 5;
    pub const ID: u64 = 1 << 6;
    pub const CPU: u64 = 1 << 7;
    pub const PERIOD: u64 = 1 << 8;
    pub const STREAM_ID: u64 = 1 << 9;
    pub const RAW: u64 = 1 << 10;
    pub const BRANCH_STACK: u64 = 1 << 11;
    pub const REGS_USER: u64 = 1 << 12;
    pub const STACK_USER: u64 = 1 << 13;
    pub const WEIGHT: u64 = 1 << 14;
    pub const DATA_SRC: u64 = 1 << 15;
    pub const IDENTIFIER: u64 = 1 << 16;
    pub const WEIGHT_STRUCT: u64 = 1 << 24;
}

/// What an event's samples hold.
#[derive(Clone, Debug, Default)]
pub struct Attr {
    kind: u32,
    config: u64,
    fixed_period: Option<u64>,
    sample: u64,
    read: u64,
    has_trailer: bool,
    branches_have_index: bool,
    user_registers: u32,
}

/// What is known of a sample.
#[derive(Clone, Debug, Default)]
pub struct Body<'a> {
    /// The instruction.
    pub ip: Option<u64>,
    /// The process.
    pub pid: Option<u32>,
    /// The thread.
    pub tid: Option<u32>,
    /// The time by the event's clock, in nanoseconds.
    pub time: Option<u64>,
    /// The address that was accessed; 0 where it is not known.
    pub address: Option<u64>,
    /// The CPU.
    pub cpu: Option<u32>,
    /// How many events the sample stands for.
    pub period: Option<u64>,
    /// The call chain.
    pub chain: Chain<'a>,
    /// What the PMU has to say beside.
    pub raw: Option<&'a [u8]>,
    /// The latency, in cycles.
    pub weight: Option<u64>,
    /// `union perf_mem_data_src`.
    pub data_source: Option<u64>,
}

/// Addresses of a call chain.
#[derive(Clone, Debug, Default)]
pub struct Chain<'a>(Option<Bytes<'a>>);

impl Iterator for Chain<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0.as_mut()?.u64()
    }
}

/// What stands at the end of records that are no samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trailer {
    /// The thread that ran.
    pub tid: Option<u32>,
    /// Its process.
    pub pid: Option<u32>,
    /// The time by the event's clock, in nanoseconds.
    pub time: Option<u64>,
    /// How long it is.
    pub bytes: usize,
}

impl Attr {
    /// The description of an event that was opened with these bits of [`sample_bit`] and with `sample_id_all`.
    pub fn of(sample: u64) -> Attr {
        Attr {
            sample,
            has_trailer: true,
            ..Attr::default()
        }
    }

    /// Reads `struct perf_event_attr`; none where the bytes are too few.
    pub fn read(bytes: &[u8], big: bool) -> Option<Attr> {
        let at =
            |offset: usize, length: usize| Bytes::new(bytes.get(offset..)?, big).number(length);
        let flags = at(40, 8)?;
        // Bit fields begin at the low end where numbers do, at the high end else.
        let flag = |bit: u32| flags >> (if big { 63 - bit } else { bit }) & 1 == 1;
        Some(Attr {
            kind: u32::try_from(at(0, 4)?).ok()?,
            config: at(8, 8)?,
            // Bit 10 says that this is a frequency.
            fixed_period: Some(at(16, 8)?).filter(|_| !flag(10)),
            sample: at(24, 8)?,
            read: at(32, 8)?,
            has_trailer: flag(18),
            branches_have_index: at(72, 8).unwrap_or(0) & 1 << 17 != 0,
            user_registers: at(80, 8).unwrap_or(0).count_ones(),
        })
    }

    fn has(&self, bit: u64) -> bool {
        self.sample & bit != 0
    }

    /// How many events each of its samples stands for, where that is the same for all.
    pub const fn fixed_period(&self) -> Option<u64> {
        self.fixed_period
    }

    /// What is counted, as perf calls it: `cycles`, `page-faults`, `raw 0x1cd`.
    pub fn event(&self) -> String {
        const HARDWARE: [&str; 10] = [
            "cycles",
            "instructions",
            "cache-references",
            "cache-misses",
            "branches",
            "branch-misses",
            "bus-cycles",
            "stalled-cycles-frontend",
            "stalled-cycles-backend",
            "ref-cycles",
        ];
        const SOFTWARE: [&str; 12] = [
            "cpu-clock",
            "task-clock",
            "page-faults",
            "context-switches",
            "cpu-migrations",
            "minor-faults",
            "major-faults",
            "alignment-faults",
            "emulation-faults",
            "dummy",
            "bpf-output",
            "cgroup-switches",
        ];
        let names: &[&str] = match self.kind {
            0 => &HARDWARE,
            1 => &SOFTWARE,
            _ => &[],
        };
        let at = usize::try_from(self.config).ok();
        match (at.and_then(|at| names.get(at)), self.kind) {
            (Some(name), _) => (*name).to_owned(),
            (None, 2) => format!("tracepoint {}", self.config),
            (None, 4) => format!("raw {:#x}", self.config),
            (None, kind) => format!("event {:#x} of type {kind}", self.config),
        }
    }

    /// The number of the event, of a sample of any event of a file: all have it in the same place.
    pub fn id_of_sample(&self, body: &[u8], big: bool) -> Option<u64> {
        let mut cursor = Bytes::new(body, big);
        if !self.has(sample_bit::IDENTIFIER) {
            let before = [
                sample_bit::IP,
                sample_bit::TID,
                sample_bit::TIME,
                sample_bit::ADDR,
            ];
            let before = before.iter().filter(|b| self.has(**b)).count() * 8;
            if !self.has(sample_bit::ID) {
                return None;
            }
            cursor.take(before)?;
        }
        cursor.u64()
    }

    /// The number of the event that wrote a record which is no sample: all events of a file have it in the same place, as
    /// counted from the record's end.
    pub fn id_of_record(&self, body: &[u8], big: bool) -> Option<u64> {
        let behind = match () {
            () if !self.has_trailer => return None,
            () if self.has(sample_bit::IDENTIFIER) => 0,
            () if self.has(sample_bit::ID) => {
                let behind = [sample_bit::STREAM_ID, sample_bit::CPU];
                behind.iter().filter(|b| self.has(**b)).count() * 8
            }
            () => return None,
        };
        let start = body.len().checked_sub(behind + 8)?;
        Bytes::new(body.get(start..)?, big).u64()
    }

    /// What stands at the end of a record that is no sample.
    pub fn trailer(&self, body: &[u8], big: bool) -> Trailer {
        if !self.has_trailer {
            return Trailer::default();
        }
        let order = [
            sample_bit::TID,
            sample_bit::TIME,
            sample_bit::ID,
            sample_bit::STREAM_ID,
            sample_bit::CPU,
            sample_bit::IDENTIFIER,
        ];
        let bytes = order.iter().filter(|b| self.has(**b)).count() * 8;
        let mut trailer = Trailer {
            bytes,
            ..Trailer::default()
        };
        let start = body.len().checked_sub(bytes);
        let Some(rest) = start.and_then(|start| body.get(start..)) else {
            return trailer;
        };
        let mut cursor = Bytes::new(rest, big);
        if self.has(sample_bit::TID) {
            (trailer.pid, trailer.tid) = (cursor.u32(), cursor.u32());
        }
        if self.has(sample_bit::TIME) {
            trailer.time = cursor.u64();
        }
        trailer
    }

    /// Takes a sample apart; none where it is cut short.
    pub fn sample<'a>(&self, body: &'a [u8], big: bool) -> Option<Body<'a>> {
        let mut cursor = Bytes::new(body, big);
        let mut found = Body::default();
        if self.has(sample_bit::IDENTIFIER) {
            cursor.u64()?;
        }
        if self.has(sample_bit::IP) {
            found.ip = Some(cursor.u64()?);
        }
        if self.has(sample_bit::TID) {
            found.pid = Some(cursor.u32()?);
            found.tid = Some(cursor.u32()?);
        }
        if self.has(sample_bit::TIME) {
            found.time = Some(cursor.u64()?);
        }
        if self.has(sample_bit::ADDR) {
            found.address = Some(cursor.u64()?);
        }
        for bit in [sample_bit::ID, sample_bit::STREAM_ID] {
            if self.has(bit) {
                cursor.u64()?;
            }
        }
        if self.has(sample_bit::CPU) {
            found.cpu = Some(cursor.u32()?);
            cursor.u32()?;
        }
        if self.has(sample_bit::PERIOD) {
            found.period = Some(cursor.u64()?);
        }
        if self.has(sample_bit::READ) {
            self.skip_read(&mut cursor)?;
        }
        if self.has(sample_bit::CALLCHAIN) {
            let bytes = sized(&mut cursor, 8)?;
            found.chain = Chain(Some(Bytes::new(bytes, big)));
        }
        if self.has(sample_bit::RAW) {
            let length = cursor.u32()?;
            found.raw = Some(cursor.take(length as usize)?);
        }
        if self.has(sample_bit::BRANCH_STACK) {
            let count = cursor.u64()?;
            if self.branches_have_index {
                cursor.u64()?;
            }
            cursor.take(usize::try_from(count.checked_mul(24)?).ok()?)?;
        }
        if self.has(sample_bit::REGS_USER) && cursor.u64()? != 0 {
            cursor.take(self.user_registers as usize * 8)?;
        }
        if self.has(sample_bit::STACK_USER) && !sized(&mut cursor, 1)?.is_empty() {
            cursor.u64()?;
        }
        if self.has(sample_bit::WEIGHT) {
            found.weight = Some(cursor.u64()?);
        } else if self.has(sample_bit::WEIGHT_STRUCT) {
            // The latency is the low 32 bits in either byte order.
            found.weight = Some(cursor.u64()? & 0xffff_ffff);
        }
        if self.has(sample_bit::DATA_SRC) {
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
