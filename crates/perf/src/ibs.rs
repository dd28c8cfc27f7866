//! What AMD's Instruction-Based Sampling says of an operation, in the raw part of a sample (`PERF_SAMPLE_RAW` of `ibs_op`).
//!
//! It is a word of capabilities and then the registers MSRC001_1033 and on, as `perf_ibs_handle_irq` in
//! `arch/x86/events/amd/ibs.c` copies them: IbsOpCtl, IbsOpRip, IbsOpData, IbsOpData2, IbsOpData3, IbsDcLinAd,
//! IbsDcPhysAd and more. Their bits are those of the Processor Programming Reference. Kernels before 6.1 leave the address and the
//! data source of a sample empty: then this is where they stand.

use varve_model::{Address, Bytes as Length, MemoryLevel};

use crate::Bytes;

/// An operation that accessed memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// Whether it wrote; an operation that did both wrote.
    pub write: bool,
    /// The linear address, where the processor had it.
    pub address: Option<Address>,
    /// How many bytes.
    pub bytes: Option<Length>,
    /// Cycles from the miss of the data cache to its end; none for a hit, and stores have none.
    pub latency_cycles: Option<u32>,
    /// Where the data came from.
    pub level: Option<MemoryLevel>,
}

impl Operation {
    /// None where the bytes are too few, or the operation accessed no memory.
    pub fn from_raw(raw: &[u8]) -> Option<Operation> {
        let mut cursor = Bytes::new(raw, false);
        let capabilities = cursor.u32()?;
        let mut registers = [0; 6];
        for register in &mut registers {
            *register = cursor.u64()?;
        }
        let [_control, _rip, _data, data2, data3, linear] = registers;
        let bit = |position: u32| data3 >> position & 1 == 1;
        let (load, store, missed) = (bit(0), bit(1), bit(7));
        if !load && !store {
            return None;
        }
        // A power of two, from 1 on; wider than 32 bytes has a name of its own.
        let bytes = match data3 >> 22 & 15 {
            0 => None,
            width @ 1..=7 => Some(Length(1 << (width - 1))),
            _ => None,
        };
        let level = match (load, missed) {
            (true, false) => Some(MemoryLevel::L1),
            // L2Miss clear: the data was there.
            (true, true) if !bit(20) => Some(MemoryLevel::L2),
            (true, true) => level(data2, capabilities),
            // Of stores the processor says nothing.
            (false, _) => None,
        };
        Some(Operation {
            write: store,
            address: bit(17).then_some(Address(linear)),
            bytes,
            latency_cycles: (load && missed).then_some((data3 >> 32 & 0xffff) as u32),
            level,
        })
    }
}

/// `IBS_CAPS_ZEN4`: data sources have five bits.
const EXTENDED: u32 = 1 << 11;

/// Where the data of a miss came from (`perf_ibs_get_data_src` of the kernel's driver).
fn level(data2: u64, capabilities: u32) -> Option<MemoryLevel> {
    use MemoryLevel::*;
    let is_remote = data2 >> 4 & 1 == 1;
    let dram = if is_remote { RemoteDram } else { LocalDram };
    let low = data2 & 7;
    if capabilities & EXTENDED != 0 {
        return Some(match (data2 >> 6 & 3) << 3 | low {
            1 => L3,
            2 | 5 => RemoteCache,
            3 => dram,
            6 => Pmem,
            7 => Io,
            8 => Cxl,
            _ => return None,
        });
    }
    Some(match low {
        2 => L3,
        3 => dram,
        4 => RemoteCache,
        7 => Io,
        _ => return None,
    })
}
