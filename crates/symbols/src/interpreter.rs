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
    fn a_shell_loads_libraries_and_a_text_does_not() {
        assert!(loads_libraries(Path::new("/bin/sh")));
        assert!(!loads_libraries(Path::new("/etc/passwd")));
        assert!(!loads_libraries(Path::new("/nowhere")));
    }
}
