//! A ring from bytes, read as the recorder reads it, and written to in between as a target might.
//!
//! The first byte says how the ring is read; the rest is what the target wrote over the memory.

use std::fs::File;
use std::os::unix::fs::FileExt;

use varve_preload_abi::RingReader;

/// The smallest ring.
const CAPACITY: usize = 16 << 10;

pub(crate) fn run(bytes: &[u8]) {
    let [how, content @ ..] = bytes else {
        return;
    };
    let (mut reader, memory) = RingReader::create(CAPACITY).expect("a ring");
    let memory = File::from(memory);
    let whole = content.len().min(reader.bytes());
    memory
        .write_all_at(&content[..whole], 0)
        .expect("the ring's memory");
    for turn in 0..4 {
        let mut records = 0u64;
        let each = |record: &varve_preload_abi::Record<'_>| {
            records += 1;
            let _ = format!("{record:?}");
        };
        let drained = match how & (1 << turn) {
            0 => reader.drain(each),
            _ => reader.drain_rest(each),
        };
        match drained {
            Ok(drained) => {
                assert_eq!(drained.records, records);
                assert!(drained.bytes <= CAPACITY as u64);
            }
            Err(_) => break,
        }
        // Something is written over it, the head perhaps.
        if how & 0x10 != 0 {
            let shorter = &content[..whole - usize::from(how & 0xf) * 97 % whole.max(1)];
            let _ = memory.write_all_at(shorter, 0);
        }
    }
}
