//! One path under which each dynamic loader finds what it can load.
//!
//! What is to be preloaded is inherited by programs that cannot load the library. The loader of the GNU C library puts a word of its own
//! in the place of `$LIB` (ld.so(8), "Dynamic string tokens"): that of 32-bit programs finds a library that has nothing in it, which it loads
//! without a word, where it would complain of another one on the program's standard error. musl's loader knows no such tokens, and passes over what
//! it does not find.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use super::preload::own_folder;

/// What the loader puts something in the place of.
pub(crate) const TOKEN: &str = "$LIB";

/// What that is for programs that can load the library: Debian's, that of most others, and that of those which have no other.
const WORDS: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "lib"];
/// For 32-bit programs: of i386, and of x86-64's instructions with 32-bit addresses.
const SHORT_WORDS: [(&str, u16); 4] = [
    ("lib/i386-linux-gnu", EM_386),
    ("lib32", EM_386),
    ("lib/x86_64-linux-gnux32", EM_X86_64),
    ("libx32", EM_X86_64),
];
const EM_386: u16 = 3;
const EM_X86_64: u16 = 62;

/// Makes a folder with a link to a library for each word. The path to be preloaded, which has the token in it.
pub(crate) fn make(folder: &Path, library: &Path) -> io::Result<PathBuf> {
    let name = library.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    own_folder(folder)?;
    for word in WORDS {
        let place = folders(folder, word)?.join(name);
        if word == "lib" && is_short() {
            put(&place, &empty_library(EM_386))?;
        } else if fs::read_link(&place).ok().as_deref() != Some(library) {
            let fresh = place.with_extension(format!("{}.tmp", std::process::id()));
            let linked = symlink(library, &fresh).and_then(|()| fs::rename(&fresh, &place));
            if linked.is_err() {
                let _ = fs::remove_file(&fresh);
            }
            linked?;
        }
    }
    for (word, machine) in SHORT_WORDS {
        put(&folders(folder, word)?.join(name), &empty_library(machine))?;
    }
    Ok(folder.join(TOKEN).join(name))
}

/// Where a 64-bit program finds the library, as far as links are followed one after the other.
pub(crate) fn places(library: &Path) -> Vec<PathBuf> {
    let text = library.to_string_lossy();
    if !text.contains(TOKEN) {
        return vec![library.to_owned()];
    }
    let mut places = vec![PathBuf::from(text.replace(TOKEN, WORDS[0]))];
    places.extend(fs::read_link(&places[0]));
    places
}

/// Whether the word `lib` is that of 32-bit programs: there are two folders, one beside the other, as Fedora and openSUSE have them.
fn is_short() -> bool {
    let long = Path::new("/usr/lib64");
    let is_apart = fs::symlink_metadata(long).is_ok_and(|found| found.is_dir());
    is_apart && long.join("libc.so.6").exists()
}

fn folders(above: &Path, word: &str) -> io::Result<PathBuf> {
    let mut folder = above.to_owned();
    for part in Path::new(word) {
        folder.push(part);
        own_folder(&folder)?;
    }
    Ok(folder)
}

fn put(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|known| known == content) {
        return Ok(());
    }
    let fresh = path.with_extension(format!("{}.tmp", std::process::id()));
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true);
        options.mode(0o644).open(&fresh)?.write_all(content)?;
        fs::rename(&fresh, path)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// A 32-bit library that defines nothing and needs nothing (System V ABI, "Object Files"; its Intel386 supplement).
fn empty_library(machine: u16) -> Vec<u8> {
    const HEADER: u32 = 52;
    const PROGRAM_HEADER: u32 = 32;
    const SYMBOL: u32 = 16;
    let program_headers = 3;
    let strings = HEADER + program_headers * PROGRAM_HEADER;
    let symbols = strings + 4;
    let hash = symbols + SYMBOL;
    let dynamic = hash + 16;
    let entries: [(u32, u32); 6] = [
        (4, hash),
        (5, strings),
        (6, symbols),
        (10, 1),
        (11, SYMBOL),
        (0, 0),
    ];
    let end = dynamic + entries.len() as u32 * 8;
    let mut bytes: Vec<u8> = Vec::new();
    // Little-endian, 32 bits, a shared object.
    bytes.extend([0x7f, b'E', b'L', b'F', 1, 1, 1, 0]);
    bytes.extend([0; 8]);
    bytes.extend(3u16.to_le_bytes());
    bytes.extend(machine.to_le_bytes());
    let words = |bytes: &mut Vec<u8>, words: &[u32]| {
        words
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
    };
    words(&mut bytes, &[1, 0, HEADER, 0, 0]);
    let halves = [HEADER, PROGRAM_HEADER, program_headers, 40, 0, 0];
    halves
        .iter()
        .for_each(|half| bytes.extend((*half as u16).to_le_bytes()));
    // What is loaded, which the loader writes addresses to; where its section is; a stack that is not executed.
    let (read, write) = (4, 2);
    words(&mut bytes, &[1, 0, 0, 0, end, end, read | write, 4096]);
    let size = end - dynamic;
    words(
        &mut bytes,
        &[2, dynamic, dynamic, dynamic, size, size, read | write, 4],
    );
    words(&mut bytes, &[0x6474_e551, 0, 0, 0, 0, 0, read | write, 16]);
    // An empty string, the symbol that stands for none, and a hash table of one bucket with that.
    words(&mut bytes, &[0]);
    words(&mut bytes, &[0; SYMBOL as usize / 4]);
    words(&mut bytes, &[1, 1, 0, 0]);
    for (tag, value) in entries {
        words(&mut bytes, &[tag, value]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn each_word_leads_to_what_its_programs_can_load() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join("libx.so");
        fs::write(&library, b"content").unwrap();
        let folder = dir.path().join("made");
        let path = make(&folder, &library).unwrap();
        assert_eq!(path, folder.join("$LIB/libx.so"));
        let with = |word: &str| path.to_string_lossy().replace(TOKEN, word);
        assert_eq!(fs::read(with("lib64")).unwrap(), b"content");
        assert_eq!(
            places(&path),
            [PathBuf::from(with(WORDS[0])), library.clone()]
        );
        let short = with("lib/i386-linux-gnu");
        let made = fs::metadata(&short).unwrap();
        assert_eq!(made.mode() & 0o777, 0o644);
        // Nothing is made twice, and what is damaged is made again.
        assert_eq!(make(&folder, &library).unwrap(), path);
        assert_eq!(fs::metadata(&short).unwrap().ino(), made.ino());
        fs::write(&short, b"").unwrap();
        make(&folder, &library).unwrap();
        assert_eq!(fs::read(&short).unwrap(), empty_library(EM_386));
    }

    #[test]
    fn the_empty_library_is_one() {
        use object::Object;
        use object::read::elf::{ElfFile32, ProgramHeader};
        let bytes = empty_library(EM_386);
        let file = ElfFile32::<object::Endianness>::parse(&*bytes).unwrap();
        assert_eq!(file.kind(), object::ObjectKind::Dynamic);
        assert_eq!(file.architecture(), object::Architecture::I386);
        assert_eq!(file.dynamic_symbols().count(), 0);
        let headers = file.elf_program_headers().iter();
        let kinds: Vec<_> = headers.map(|header| header.p_type(file.endian())).collect();
        let [load, dynamic, stack] = [
            object::elf::PT_LOAD,
            object::elf::PT_DYNAMIC,
            object::elf::PT_GNU_STACK,
        ];
        assert_eq!(kinds, [load, dynamic, stack]);
    }
}
