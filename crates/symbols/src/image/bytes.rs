//! Bytes of files, and ELF files in them.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use object::ReadRef;
use varve_sys::LazyFile;

/// How long a file system may take: those of the target's user (FUSE), or of a network, may never answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// A file that must not stay open is read whole up to this size.
const MAX_WHOLE: u64 = 64 << 20;
/// Strings in ELF files are looked for in pieces of this size.
const STRING_STEP: u64 = 256;

/// Which files may stay open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// All: nothing of the target runs any more.
    #[default]
    Any,
    /// Those on the recorder's own mounts. An open file makes its mount busy, which a program of the target may be about to unmount; so
    /// others are read whole and closed, those above 64 MiB as soon as their tables are read.
    OwnMounts,
}

/// The bytes of one file.
pub(crate) enum Image {
    /// In memory.
    Owned(Vec<u8>),
    /// Read where it is looked at.
    Lazy(LazyFile),
}

/// An ELF file in an image.
pub(crate) type Elf<'a> = object::File<'a, &'a Image>;

impl<'a> ReadRef<'a> for &'a Image {
    fn len(self) -> Result<u64, ()> {
        Ok(self.len() as u64)
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        let end = offset.checked_add(size).ok_or(())?;
        let place = |at: u64| usize::try_from(at).map_err(|_| ());
        self.get(place(offset)?..place(end)?).ok_or(())
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let (mut step, most) = (STRING_STEP, range.end.checked_sub(range.start).ok_or(())?);
        loop {
            let bytes = self.read_bytes_at(range.start, step.min(most))?;
            if let Some(end) = bytes.iter().position(|byte| *byte == delimiter) {
                return Ok(&bytes[..end]);
            }
            if step >= most {
                return Err(());
            }
            step *= 8;
        }
    }
}

impl Image {
    /// Opens a regular file by whatever way.
    pub(super) fn by(
        keep: Keep,
        open: impl FnOnce() -> std::io::Result<File> + Send + 'static,
    ) -> std::io::Result<Self> {
        varve_sys::within(PATIENCE, move || {
            let file = open()?;
            let bytes = file.metadata()?.len();
            if keep == Keep::OwnMounts && bytes <= MAX_WHOLE && !varve_sys::is_on_own_mount(&file) {
                // Twice that at most, where it grows meanwhile.
                let mut whole = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
                file.take(2 * MAX_WHOLE).read_to_end(&mut whole)?;
                return Ok(Self::Owned(whole));
            }
            let lazy = LazyFile::new(file)?;
            // A file system that answers this will answer more.
            let _ = lazy.get(0..lazy.len().min(4));
            Ok(Self::Lazy(lazy))
        })
    }

    /// Opens a regular file.
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        Self::open_and(Keep::Any, path)
    }

    pub(super) fn open_and(keep: Keep, path: &Path) -> std::io::Result<Self> {
        let path = path.to_owned();
        Self::by(keep, move || varve_sys::open_regular(&path))
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Owned(bytes) => bytes.len(),
            Self::Lazy(file) => file.len(),
        }
    }

    /// Some of the bytes; None where they cannot be read.
    pub(crate) fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        match self {
            Self::Owned(bytes) => bytes.get(range),
            Self::Lazy(file) => file.get(range),
        }
    }

    /// All of them.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.get(0..self.len())
    }
}

/// Parses an ELF file; other formats are refused.
pub(crate) fn parse(data: &Image) -> Option<Elf<'_>> {
    let file = object::File::parse(data).ok()?;
    matches!(file.format(), object::BinaryFormat::Elf).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_or_device_is_no_image() {
        assert!(Image::open(Path::new("/")).is_err());
        assert!(Image::open(Path::new("/dev/zero")).is_err());
    }
}
