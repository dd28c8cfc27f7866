//! Whether a program loads libraries.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use object::elf::{FileHeader64, PT_INTERP, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, pod};

/// Program headers are looked for in this much of a file's beginning.
const HEAD_BYTES: u64 = 64 << 10;

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
    has_interpreter(&head).unwrap_or(false)
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

fn has_interpreter(head: &[u8]) -> Option<bool> {
    let header = FileHeader64::<Endianness>::parse(head).ok()?;
    let endian = header.endian().ok()?;
    let offset = usize::try_from(header.e_phoff(endian)).ok()?;
    let count = usize::from(header.e_phnum(endian));
    let (headers, _) =
        pod::slice_from_bytes::<ProgramHeader64<Endianness>>(head.get(offset..)?, count).ok()?;
    Some(headers.iter().any(|h| h.p_type(endian) == PT_INTERP))
}

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
