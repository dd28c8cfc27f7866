//! The program's mappings, read without an allocator.

use super::ranges::Range;
use crate::sys;

/// One mapping, as far as handlers care.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) range: Range,
    /// Private, anonymous, readable and writable, not executable.
    pub(crate) is_plain: bool,
}

/// Hands on each mapping in order, from a file that was opened once.
pub(crate) fn each(file: &sys::ReadFile, mut entry: impl FnMut(Entry)) {
    file.rewind();
    let mut text = [0u64; 4096];
    let mut line = Line::default();
    loop {
        let count = file.read(&mut text);
        if count == 0 {
            return;
        }
        let bytes = text.iter().flat_map(|w| w.to_ne_bytes()).take(count);
        for byte in bytes {
            if let Some(found) = line.take(byte) {
                entry(found);
            }
        }
    }
}

/// A line that is being read: `START-END PERMS OFFSET DEVICE INODE PATH`.
#[derive(Default)]
struct Line {
    field: u8,
    start: u64,
    end: u64,
    permissions: [u8; 4],
    seen: usize,
    inode: u64,
}

impl Line {
    fn take(&mut self, byte: u8) -> Option<Entry> {
        match byte {
            b'\n' => {
                let entry = Entry {
                    range: Range {
                        start: self.start,
                        end: self.end,
                    },
                    is_plain: self.permissions == *b"rw-p" && self.inode == 0,
                };
                *self = Line::default();
                return Some(entry);
            }
            b'-' if self.field == 0 => self.field = 1,
            b' ' if self.field < 6 => self.field += 1,
            _ => match self.field {
                0 => self.start = self.start << 4 | digit(byte),
                1 => self.end = self.end << 4 | digit(byte),
                2 => {
                    if let Some(place) = self.permissions.get_mut(self.seen) {
                        *place = byte;
                        self.seen += 1;
                    }
                }
                5 => self.inode = self.inode.wrapping_mul(10) + digit(byte),
                _ => {}
            },
        }
        None
    }
}

fn digit(byte: u8) -> u64 {
    u64::from(match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        _ => 0,
    })
}
