//! Whether a program loads libraries.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use object::elf::{FileHeader64, PT_INTERP, ProgramHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, pod};
use varve_model::{CLibrary, c_library};

/// Bytes of a 64-bit ELF header.
const HEADER_BYTES: usize = 64;
/// `ELFCLASS32`.
const CLASS_32: u8 = 1;
/// The kernel takes no longer path of a loader (`PATH_MAX`).
const MAX_PATH: u64 = 4096;

/// Whether an executable names a dynamic loader, so that preloaded libraries come along. False for
/// static programs, for what is not a 64-bit ELF file and for what cannot be read.
pub fn loads_libraries(path: &Path) -> bool {
    let file = varve_sys::open_regular(path).ok();
    file.and_then(|file| interpreter_in(&file)).is_some()
}

/// Whether an executable names the loader of the 64-bit GNU C library on x86-64, by the name that this has everywhere. False for what cannot
/// be read.
pub fn names_gnu_loader(path: &Path) -> bool {
    let file = varve_sys::open_regular(path).ok();
    let loader = file.and_then(|file| interpreter_in(&file));
    loader.is_some_and(|loader| file_name(&loader).starts_with(b"ld-linux-x86-64.so"))
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
    let file = varve_sys::open_regular(path).ok()?;
    let mut start = [0; 5];
    file.read_exact_at(&mut start, 0).ok()?;
    if start == [0x7f, b'E', b'L', b'F', CLASS_32] {
        return Some(OtherLoader::Short);
    }
    let loader = interpreter_in(&file)?;
    file_name(&loader)
        .starts_with(b"ld-musl")
        .then_some(OtherLoader::Musl)
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// The path that the program header of the loader leads to, wherever in the file it stands: tools that change it put the new one at the end.
fn interpreter_in(file: &File) -> Option<Vec<u8>> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0).ok()?;
    let header = FileHeader64::<Endianness>::parse(&header[..]).ok()?;
    let endian = header.endian().ok()?;
    let count = usize::from(header.e_phnum(endian));
    let mut headers = vec![0; count * size_of::<ProgramHeader64<Endianness>>()];
    file.read_exact_at(&mut headers, header.e_phoff(endian))
        .ok()?;
    let (headers, _) =
        pod::slice_from_bytes::<ProgramHeader64<Endianness>>(&headers, count).ok()?;
    let loader = headers.iter().find(|h| h.p_type(endian) == PT_INTERP)?;
    let bytes = loader.p_filesz(endian).min(MAX_PATH);
    let mut path = vec![0; usize::try_from(bytes).ok()?];
    file.read_exact_at(&mut path, loader.p_offset(endian))
        .ok()?;
    path.split(|byte| *byte == 0).next().map(<[u8]>::to_vec)
}

/// Whether a program is itself a dynamic loader, which loads what is to be preloaded when it is run as a command
/// (`ld.so PROGRAM`), although it names no loader. By its name, as that of a file that nobody loads by another.
pub fn is_loader(path: &Path) -> bool {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    c_library(&name) == Some(CLibrary::Loader)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_of_a_shell_is_a_loader_and_the_shell_is_none() {
        let shell = File::open("/bin/sh").expect("a shell");
        let named = interpreter_in(&shell).expect("a loader");
        let named = std::str::from_utf8(&named).expect("a plain name");
        assert!(is_loader(Path::new(named)), "{named}");
        assert!(!loads_libraries(Path::new(named)), "{named}");
        assert!(!is_loader(Path::new("/bin/sh")));
        assert!(!is_loader(Path::new("/nowhere")));
    }

    #[test]
    fn a_loader_that_is_named_at_the_end_of_a_large_file_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("moved");
        let mut data = std::fs::read("/bin/sh").expect("a shell");
        let headers =
            usize::try_from(u64::from_le_bytes(data[32..40].try_into().unwrap())).unwrap();
        let count = usize::from(u16::from_le_bytes(data[56..58].try_into().unwrap()));
        let loader = (0..count)
            .map(|n| headers + 56 * n)
            .find(|at| data[*at..*at + 4] == 3u32.to_le_bytes())
            .expect("PT_INTERP");
        data.resize(data.len().max(1 << 20), 0);
        let end = data.len() as u64;
        data[loader + 8..loader + 16].copy_from_slice(&end.to_le_bytes());
        let name = b"/nix/store/glibc/lib/ld-linux-x86-64.so.2\0";
        data[loader + 32..loader + 40].copy_from_slice(&(name.len() as u64).to_le_bytes());
        data.extend_from_slice(name);
        std::fs::write(&path, &data).expect("room");
        assert!(loads_libraries(&path) && names_gnu_loader(&path));
        // A header that leads nowhere.
        data.truncate(1 << 20);
        std::fs::write(&path, &data).expect("room");
        assert!(!loads_libraries(&path) && !names_gnu_loader(&path));
    }

    #[test]
    fn a_shell_loads_libraries_and_a_text_does_not() {
        assert!(loads_libraries(Path::new("/bin/sh")));
        assert!(!loads_libraries(Path::new("/etc/passwd")));
        assert!(!loads_libraries(Path::new("/nowhere")));
    }
}
