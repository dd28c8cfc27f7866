//! A file that is read where it is looked at, for ELF and DWARF files too large to copy.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Mutex;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::regular::stored_bytes;

/// What is read at once.
const BLOCK: usize = 64 << 10;
/// Larger files are refused: it is the address space that they take.
const MAX_BYTES: u64 = 1 << 40;
/// No more than this is read of a file, as it stays in memory.
const MAX_READ: u64 = 4 << 30;
/// And no more than so many times what it takes on its disk, which compression may make smaller: holes are free for
/// whoever makes a file, but not for whoever reads it.
const MAX_PACKED: u64 = 16;
const ALWAYS_READ: u64 = 16 << 20;

/// A file as memory, of which only what was looked at is there.
///
/// It is read, not mapped: whoever maps a file dies of SIGBUS where somebody makes it shorter. What cannot be read is not
/// there, whatever the reason.
#[derive(Debug)]
pub struct LazyFile {
    start: NonNull<u8>,
    length: usize,
    file: File,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// A bit for each block that was read.
    read: Vec<u64>,
    /// How many bytes may still be read.
    left: u64,
}

// SAFETY: the memory belongs to this value alone; blocks are written under the lock, before anybody gets to see them.
unsafe impl Send for LazyFile {}
// SAFETY: as above.
unsafe impl Sync for LazyFile {}

impl LazyFile {
    /// Makes ready for reading a regular file.
    ///
    /// # Errors
    /// A file that is too large.
    pub fn new(file: File) -> std::io::Result<Self> {
        let bytes = file.metadata()?.len();
        if bytes > MAX_BYTES {
            return Err(std::io::Error::other("it is too large"));
        }
        let length = usize::try_from(bytes).map_err(std::io::Error::other)?;
        let left = stored_bytes(&file)?
            .saturating_mul(MAX_PACKED)
            .clamp(ALWAYS_READ, MAX_READ);
        let mut start = NonNull::dangling();
        if length > 0 {
            // SAFETY: the kernel chooses a free range (null hint, no MAP_FIXED), so no existing memory changes.
            let pointer = unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    length,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )?
            };
            start = NonNull::new(pointer.cast::<u8>())
                .ok_or_else(|| std::io::Error::other("mmap answered with a null address"))?;
        }
        Ok(Self {
            start,
            length,
            file,
            state: Mutex::new(State {
                read: vec![0; length.div_ceil(BLOCK).div_ceil(64)],
                left,
            }),
        })
    }

    /// Whether it is on a mount that this program uses anyway, see [`crate::is_on_own_mount`].
    pub fn is_on_own_mount(&self) -> bool {
        crate::is_on_own_mount(&self.file)
    }

    /// How long the file was when it was opened.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Some bytes of it; None where they cannot be read.
    pub fn get(&self, range: std::ops::Range<usize>) -> Option<&[u8]> {
        if range.start > range.end || range.end > self.length {
            return None;
        }
        if range.is_empty() {
            return Some(&[]);
        }
        let mut state = self.state.lock().ok()?;
        for block in range.start / BLOCK..=(range.end - 1) / BLOCK {
            let (word, bit) = (block / 64, 1 << (block % 64));
            if state.read[word] & bit != 0 {
                continue;
            }
            let first = block * BLOCK;
            let bytes = BLOCK.min(self.length - first);
            state.left = state.left.checked_sub(bytes as u64)?;
            // SAFETY: the block lies within the memory. It is written once, under the lock, and given out only after
            // that; so nobody else has a reference to it.
            let place =
                unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(first), bytes) };
            self.file.read_exact_at(place, first as u64).ok()?;
            state.read[word] |= bit;
        }
        // SAFETY: all blocks of the range were read, and are never written again.
        Some(unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len())
        })
    }
}

impl Drop for LazyFile {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: the range was mapped by `new`, is owned by this value, and no borrow outlives it.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: &[u8]) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("lazy-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let file = File::open(&path).unwrap();
        (path, file)
    }

    #[test]
    fn it_holds_the_bytes_of_the_file() {
        let bytes: Vec<u8> = (0..3 * BLOCK + 7).map(|i| (i / 251) as u8).collect();
        let (path, open) = file("bytes", &bytes);
        let lazy = LazyFile::new(open).unwrap();
        assert_eq!(lazy.len(), bytes.len());
        for range in [BLOCK - 3..BLOCK + 3, 0..1, 0..bytes.len(), 5..5] {
            assert_eq!(lazy.get(range.clone()), Some(&bytes[range]));
        }
        assert_eq!(lazy.get(0..bytes.len() + 1), None);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_that_shrinks_has_no_more_bytes() {
        let (path, open) = file("shrinks", &[7; 4 * BLOCK]);
        let lazy = LazyFile::new(open).unwrap();
        assert_eq!(lazy.get(0..4), Some(&[7; 4][..]));
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        writer.set_len(BLOCK as u64).unwrap();
        assert_eq!(lazy.get(0..BLOCK), Some(&[7; BLOCK][..]));
        assert_eq!(lazy.get(0..2 * BLOCK), None);
        assert_eq!(lazy.get(3 * BLOCK..3 * BLOCK + 1), None);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn holes_are_not_read_for_long() {
        let (path, open) = file("holes", b"\x7fELF");
        let writer = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        writer.set_len(1 << 36).unwrap();
        let lazy = LazyFile::new(open).unwrap();
        assert_eq!(lazy.get(0..4), Some(&b"\x7fELF"[..]));
        assert_eq!(lazy.get(0..1 << 36), None);
        std::fs::remove_file(path).unwrap();
    }
}
