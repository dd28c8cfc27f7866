//! A ring file from bytes, read as the recorder reads it, and written to in between as a target might.
//!
//! The first byte says how the ring is read; the rest is the file. Unless the first byte's top bit is set,
//! the words that any ring must have are put right, so that what follows is reached.

use std::fs;
use std::path::Path;

use varve_agent_ring::{HEADER_BYTES, RingReader, VERSION};

/// The smallest ring that a reader takes.
const CAPACITY: usize = 16 << 10;

pub(crate) fn run(bytes: &[u8], path: &Path) {
    let [how, content @ ..] = bytes else {
        return;
    };
    let mut file = content.to_vec();
    if how & 0x80 == 0 {
        file.resize(HEADER_BYTES + CAPACITY, 0);
        file[..8].copy_from_slice(b"VARVERNG");
        file[8..16].copy_from_slice(&u64::from(VERSION).to_ne_bytes());
        file[24..32].copy_from_slice(&(CAPACITY as u64).to_ne_bytes());
    }
    fs::write(path, &file).expect("scratch file");
    let Ok(mut reader) = RingReader::open(path) else {
        return;
    };
    for turn in 0..4 {
        let mut records = 0u64;
        let each = |record: &varve_agent_ring::Record<'_>| {
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
                assert!(drained.bytes <= file.len() as u64);
            }
            Err(_) => break,
        }
        // The head moves on, or the file shrinks.
        if how & 0x10 != 0 {
            let longer = &file[..file.len() - usize::from(how & 0xf) * 97 % file.len()];
            let _ = fs::write(path, longer);
        }
    }
}
