//! A whole file mapped read-only, for ELF and DWARF files too large to copy.

use std::fs::File;
use std::ops::Deref;
use std::ptr::NonNull;

/// A private, read-only mapping of a whole file, unmapped on drop.
///
/// Pages are read when they are first looked at, and the kernel may drop them again, so a debug file
/// of a gigabyte costs only what is used of it.
///
/// A file that another process *truncates* while it is mapped raises SIGBUS in the reader, as for
/// every mapping on Linux. Linkers and package managers replace files by rename or unlink, which is
/// harmless; callers read small files, the ones that a developer rewrites, into memory instead.
#[derive(Debug)]
pub struct FileMap {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping is read-only and owned by this value alone.
unsafe impl Send for FileMap {}
// SAFETY: as above; shared reads of read-only memory do not race.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps the whole of `file`. An empty file gives an empty map.
    pub fn open(file: &File) -> std::io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).map_err(std::io::Error::other)?;
        if length == 0 {
            return Ok(Self {
                start: NonNull::dangling(),
                length,
            });
        }
        // SAFETY: the kernel chooses a free range (null hint, no MAP_FIXED), so no existing memory changes.
        let pointer = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                rustix::mm::ProtFlags::READ,
                rustix::mm::MapFlags::PRIVATE,
                file,
                0,
            )?
        };
        let start = NonNull::new(pointer.cast::<u8>())
            .ok_or_else(|| std::io::Error::other("mmap answered with a null address"))?;
        Ok(Self { start, length })
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `length` bytes of readable memory until drop (or dangling with length 0).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: the range was mapped by `open`, is owned by this value, and no borrow outlives it.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_holds_the_bytes_of_the_file() -> std::io::Result<()> {
        let map = FileMap::open(&File::open("/proc/self/exe")?)?;
        assert_eq!(map.get(..4), Some(&b"\x7fELF"[..]));
        assert_eq!(map.len() as u64, std::fs::metadata("/proc/self/exe")?.len());
        Ok(())
    }

    #[test]
    fn a_directory_is_an_error() -> std::io::Result<()> {
        assert!(FileMap::open(&File::open("/")?).is_err());
        Ok(())
    }
}
