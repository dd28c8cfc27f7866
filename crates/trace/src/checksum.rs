//! Whether a table is what was written: a bit that was turned on a disk or on the way may leave a Parquet file that reads
//! well and says something else.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

/// What is read at once.
const PIECE_BYTES: usize = 1 << 18;

/// What a whole table's file was when it was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// The file's length.
    pub bytes: u64,
    /// CRC-32 of its content, as in gzip and zip (ISO 3309).
    pub crc32: u32,
}

impl Checksum {
    /// Reads a file to its end.
    pub(crate) fn of(mut file: File) -> io::Result<Checksum> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut hasher = Hasher::new();
        let mut bytes = 0;
        loop {
            match file.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => {
                    hasher.update(&piece[..read]);
                    bytes += read as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Checksum {
            bytes,
            crc32: hasher.finalize(),
        })
    }

    /// What is wrong with a file that should be this, if anything.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn differs(self, file: File) -> io::Result<Option<String>> {
        let bytes = file.metadata()?.len();
        // One that is far too long is not read through.
        if bytes != self.bytes {
            return Ok(Some(format!(
                "it has {bytes} bytes, and had {} when it was written",
                self.bytes
            )));
        }
        let is_same = Checksum::of(file)? == self;
        Ok((!is_same)
            .then(|| "its content is not what was written: its checksum differs".to_owned()))
    }
}

/// Tables that have been found to be what was written, by all who read a trace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verified(Arc<Mutex<BTreeSet<&'static str>>>);

impl Verified {
    pub(crate) fn has(&self, table: &'static str) -> bool {
        self.tables().contains(table)
    }

    pub(crate) fn add(&self, table: &'static str) {
        self.tables().insert(table);
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn one_bit_is_seen_and_so_is_one_byte_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table");
        let file_of = |content: &[u8]| {
            File::create(&path).unwrap().write_all(content).unwrap();
            File::open(&path).unwrap()
        };
        // The check value of the CRC catalogue for CRC-32/ISO-HDLC.
        let sum = Checksum::of(file_of(b"123456789")).unwrap();
        assert_eq!((sum.bytes, sum.crc32), (9, 0xcbf4_3926));
        assert_eq!(sum.differs(file_of(b"123456789")).unwrap(), None);
        for other in [&b"123456788"[..], b"1234567890", b"12345678", b""] {
            assert!(sum.differs(file_of(other)).unwrap().is_some());
        }
        let mut long = vec![7; 3 * PIECE_BYTES + 5];
        let sum = Checksum::of(file_of(&long)).unwrap();
        long[2 * PIECE_BYTES + 1] ^= 0x10;
        assert!(sum.differs(file_of(&long)).unwrap().is_some());
    }
}
