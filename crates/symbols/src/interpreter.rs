//! Whether a program loads libraries.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use object::elf::{FileHeader64, PT_INTERP, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, pod};

/// Program headers are looked for in this much of a file's beginning.
const HEAD_BYTES: u64 = 64 << 10;
/// `ELFCLASS32`.
const CLASS_32: u8 = 1;

/// Whether an executable names a dynamic loader, so that preloaded libraries come along. False for
/// static programs, for what is not a 64-bit ELF file and for what cannot be read.
pub fn loads_libraries(path: &Path) -> bool {
    let Ok(mut file) = varve_sys::open_regular(path) else {
        return false;
    };
    let mut head = Vec::new();
    if file.seek(SeekFrom::Start(0)).is_err()
        || file.take(HEAD_BYTES).read_to_end(&mut head).is_err()
    {
        return false;
    }
    interpreter_in(&head).is_some()
}

/// A loader that cannot load libraries for the GNU C library on x86-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherLoader {
    /// That of 32-bit programs.
    Short,
    /// That of musl.
    Musl,
}

/// Whether a program is loaded by another loader than that of the 64-bit GNU C library, by its file; none also where it loads no
/// libraries, or is not to be read.
pub fn other_loader(path: &Path) -> Option<OtherLoader> {
    let mut head = Vec::new();
    let file = varve_sys::open_regular(path).ok()?;
    file.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    if head.starts_with(&[0x7f, b'E', b'L', b'F', CLASS_32]) {
        return Some(OtherLoader::Short);
    }
    let loader = interpreter_in(&head)?;
    let name = loader.rsplit(|byte| *byte == b'/').next()?;
    name.starts_with(b"ld-musl").then_some(OtherLoader::Musl)
}

/// The path that the program header of the loader leads to.
fn interpreter_in(head: &[u8]) -> Option<&[u8]> {
    let header = FileHeader64::<Endianness>::parse(head).ok()?;
    let endian = header.endian().ok()?;
    let offset = usize::try_from(header.e_phoff(endian)).ok()?;
    let count = usize::from(header.e_phnum(endian));
    let (headers, _) =
        pod::slice_from_bytes::<ProgramHeader64<Endianness>>(head.get(offset..)?, count).ok()?;
    let loader = headers.iter().find(|h| h.p_type(endian) == PT_INTERP)?;
    let start = usize::try_from(loader.p_offset(endian)).ok()?;
    let bytes = head.get(start..)?;
    bytes.split(|byte| *byte == 0).next()
}

/// Whether a program is itself a dynamic loader, which loads what is to be preloaded when it is run as a command
/// (`ld.so PROGRAM`), although it names no loader. By its name, as that of a file that nobody loads by another.
pub fn is_loader(path: &Path) -> bool {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let names = LOADERS.iter();
    names.into_iter().any(|loader| name.starts_with(loader))
}

/// How the files of dynamic loaders are called, with versions behind.
pub(crate) const LOADERS: [&str; 3] = ["ld-linux", "ld-musl", "ld.so"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_of_a_shell_is_a_loader_and_the_shell_is_none() {
        let data = std::fs::read("/bin/sh").expect("a shell");
        let head = &data[..data.len().min(HEAD_BYTES as usize)];
        let header = FileHeader64::<Endianness>::parse(head).expect("ELF");
        let endian = header.endian().expect("an order of bytes");
        let headers = header.program_headers(endian, head).expect("headers");
        let named = headers
            .iter()
            .find_map(|h| h.interpreter(endian, head).ok()?);
        let named = std::str::from_utf8(named.expect("a loader")).expect("a plain name");
        assert!(is_loader(Path::new(named)), "{named}");
        assert!(!loads_libraries(Path::new(named)), "{named}");
        assert!(!is_loader(Path::new("/bin/sh")));
        assert!(!is_loader(Path::new("/nowhere")));
    }

    #[test]
    fn a_shell_loads_libraries_and_a_text_does_not() {
        assert!(loads_libraries(Path::new("/bin/sh")));
        assert!(!loads_libraries(Path::new("/etc/passwd")));
        assert!(!loads_libraries(Path::new("/nowhere")));
    }
}
