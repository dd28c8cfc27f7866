//! The build id of an ELF file, from no more of the file than its program headers and notes.

use std::io::{Read, Seek};

use object::Endianness;
use object::elf::{
    ELF_NOTE_GNU, FileHeader32, FileHeader64, NT_GNU_BUILD_ID, PN_XNUM, ProgramHeader32,
    ProgramHeader64,
};
use object::read::ReadCache;
use object::read::elf::{FileHeader, ProgramHeader};

use crate::input::BuildId;

/// Linkers write notes of less than a KiB; what says to be larger is not believed.
const MAX_NOTE_BYTES: u64 = 1 << 20;

/// Reads the `NT_GNU_BUILD_ID` note that the program headers of an ELF file lead to, as the loader of a
/// running program could; `None` where there is none and for what is no ELF file.
pub fn read_build_id(file: impl Read + Seek) -> Option<BuildId> {
    let data = ReadCache::new(file);
    match FileHeader64::<Endianness>::parse(&data) {
        Ok(header) => note::<_, FileHeader64<_>, ProgramHeader64<_>>(header, &data),
        Err(_) => {
            let header = FileHeader32::<Endianness>::parse(&data).ok()?;
            note::<_, FileHeader32<_>, ProgramHeader32<_>>(header, &data)
        }
    }
}

fn note<R, F, P>(header: &F, data: &ReadCache<R>) -> Option<BuildId>
where
    R: Read + Seek,
    F: FileHeader<Endian = Endianness, ProgramHeader = P>,
    P: ProgramHeader<Elf = F, Endian = Endianness>,
{
    let endian = header.endian().ok()?;
    // More headers than fit the count: no linker makes that, and the real count is anything.
    if header.e_phnum(endian) == PN_XNUM {
        return None;
    }
    for segment in header.program_headers(endian, data).ok()? {
        if segment.p_filesz(endian).into() > MAX_NOTE_BYTES {
            continue;
        }
        let Ok(Some(mut notes)) = segment.notes(endian, data) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == ELF_NOTE_GNU && note.n_type(endian) == NT_GNU_BUILD_ID {
                return Some(BuildId(note.desc().to_vec()));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Cursor;
    use std::process::Command;

    use super::*;

    /// What binutils read.
    fn told_by_readelf(path: &str) -> Option<String> {
        let output = Command::new("readelf").args(["-n", path]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let (_, rest) = text.split_once("Build ID: ")?;
        rest.split_whitespace().next().map(str::to_owned)
    }

    #[test]
    fn it_is_what_readelf_reads() {
        let own = std::env::current_exe().unwrap();
        for path in ["/bin/sh", own.to_str().unwrap()] {
            let id = read_build_id(File::open(path).unwrap()).map(|id| id.to_string());
            assert_eq!(id, told_by_readelf(path), "{path}");
        }
        assert!(told_by_readelf("/bin/sh").is_some());
    }

    #[test]
    fn what_is_cut_or_no_elf_file_has_none() {
        let bytes = std::fs::read("/bin/sh").unwrap();
        assert!(read_build_id(Cursor::new(&bytes)).is_some());
        for cut in [0, 3, 16, 63, 64, 100, 500] {
            assert_eq!(read_build_id(Cursor::new(&bytes[..cut])), None, "{cut}");
        }
        assert_eq!(read_build_id(Cursor::new("#!/bin/sh\n".repeat(99))), None);
    }

    #[test]
    fn sizes_and_counts_that_cannot_be_are_not_believed() {
        let mut bytes = std::fs::read("/bin/sh").unwrap();
        // e_phnum
        bytes[56..58].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(read_build_id(Cursor::new(&bytes)), None);
        let mut bytes = std::fs::read("/bin/sh").unwrap();
        let headers = u64::from_le_bytes(bytes[32..40].try_into().unwrap()) as usize;
        let count = usize::from(u16::from_le_bytes([bytes[56], bytes[57]]));
        for header in 0..count {
            let size = headers + header * 56 + 32;
            bytes[size..size + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        }
        assert_eq!(read_build_id(Cursor::new(&bytes)), None);
    }
}
