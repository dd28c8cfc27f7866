//! Which functions an executable or library defines, by name, and where their code lies in the file.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::Path;

use object::{Object, ObjectSection, ObjectSegment, ObjectSymbol, ObjectSymbolTable, SymbolKind};

use crate::functions;
use crate::image::{self, Elf, Image};

/// More of a function's code is not read.
const MAX_CODE: u64 = 16 << 10;

/// A function in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinedFunction {
    /// Bytes from the file's beginning.
    pub offset: u64,
    /// The address in the file's own address space.
    pub address: u64,
    /// Its code, as far as the file says how long it is, 16 KiB at most.
    pub code: Vec<u8>,
}

/// What a file says of its functions, of the names that were asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DefinedFunctions {
    /// Those that other files find, by name.
    pub exported: HashMap<String, DefinedFunction>,
    /// All that the file has names for, also those that only its own code finds; empty where it is stripped.
    pub own: HashMap<String, DefinedFunction>,
    /// Names that it expects others to define.
    pub imported: HashSet<String>,
    /// Libraries that it names, in order.
    pub needed: Vec<String>,
    /// Its name as a library.
    pub soname: Option<String>,
    /// Whether it has no table of its own symbols.
    pub is_stripped: bool,
}

/// Whether a program, by its file, is built with a sanitizer that stands in front of the allocator: it exports the sanitizer's start, or needs a
/// library that is one. False where the file cannot be read.
pub fn is_sanitized(path: &Path) -> bool {
    let Ok(image) = Image::open(path) else {
        return false;
    };
    let Some(file) = image::parse(&image) else {
        return false;
    };
    let needed = libraries(&file).0;
    let mut needs = needed
        .iter()
        .flat_map(|name| SANITIZERS.map(|of| name.starts_with(of)));
    needs.any(|is_one| is_one)
        || file.dynamic_symbols().any(|symbol| {
            !symbol.is_undefined() && symbol.name().is_ok_and(|name| STARTS.contains(&name))
        })
}

/// The libraries of gcc's and clang's sanitizers, with versions or names of machines behind.
const SANITIZERS: [&str; 8] = [
    "libasan.so",
    "libhwasan.so",
    "liblsan.so",
    "libtsan.so",
    "libclang_rt.asan",
    "libclang_rt.hwasan",
    "libclang_rt.memprof",
    "libclang_rt.tsan",
];
/// What these define, and what clang puts into programs.
const STARTS: [&str; 6] = [
    "__asan_init",
    "__hwasan_init",
    "__lsan_init",
    "__memprof_init",
    "__msan_init",
    "__tsan_init",
];

/// Whether an executable is made by Go's compiler, whose runtime has an allocator of its own; also where it is stripped. False where the file cannot be read.
pub fn is_go(path: &Path) -> bool {
    let Ok(image) = Image::open(path) else {
        return false;
    };
    image::parse(&image).is_some_and(|file| {
        let mut sections = GO_SECTIONS.iter();
        sections.any(|name| file.section_by_name(name).is_some())
    })
}

/// What Go's linker writes about the build, which no tool strips.
const GO_SECTIONS: [&str; 2] = [".go.buildinfo", ".note.go.buildid"];

/// Reads the symbol tables of an ELF file for x86-64.
///
/// # Errors
/// Where it cannot be read, or is no such file.
pub fn defined_functions(
    path: &Path,
    wanted: &dyn Fn(&str) -> bool,
) -> io::Result<DefinedFunctions> {
    let image = Image::open(path)?;
    let unfit = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    let file = image::parse(&image).ok_or_else(|| unfit("it is no ELF file"))?;
    if file.architecture() != object::Architecture::X86_64 || !file.is_64() {
        return Err(unfit("it is not for x86-64"));
    }
    let segments: Vec<Segment> = file.segments().map(segment).collect();
    let mut found = DefinedFunctions {
        is_stripped: file.section_by_name(".symtab").is_none(),
        ..DefinedFunctions::default()
    };
    for symbol in file.dynamic_symbols() {
        let Some(name) = symbol.name().ok().filter(|name| wanted(name)) else {
            continue;
        };
        if symbol.is_undefined() {
            found.imported.insert(name.to_owned());
        } else if let Some(function) = function(&symbol, &image, &segments) {
            found.exported.entry(name.to_owned()).or_insert(function);
        }
    }
    for symbol in file.symbols() {
        let Some(name) = symbol.name().ok().filter(|name| wanted(name)) else {
            continue;
        };
        if let Some(function) = function(&symbol, &image, &segments) {
            found.own.entry(name.to_owned()).or_insert(function);
        }
    }
    (found.needed, found.soname) = libraries(&file);
    Ok(found)
}

/// A part of a file in memory.
struct Segment {
    address: u64,
    offset: u64,
    /// As far as the file has it.
    bytes: u64,
}

fn segment<'a>(of: impl ObjectSegment<'a>) -> Segment {
    let (offset, bytes) = of.file_range();
    Segment {
        address: of.address(),
        offset,
        bytes,
    }
}

fn function<'a>(
    symbol: &impl ObjectSymbol<'a>,
    image: &Image,
    segments: &[Segment],
) -> Option<DefinedFunction> {
    if symbol.is_undefined() || symbol.kind() != SymbolKind::Text || symbol.address() == 0 {
        return None;
    }
    let address = symbol.address();
    let segment = segments.iter().find(|segment| {
        let inside = address.checked_sub(segment.address);
        inside.is_some_and(|inside| inside < segment.bytes)
    })?;
    let inside = address - segment.address;
    let offset = segment.offset.checked_add(inside)?;
    let bytes = symbol.size().min(MAX_CODE).min(segment.bytes - inside);
    let place = |at: u64| usize::try_from(at).ok();
    let range: Range<usize> = place(offset)?..place(offset.checked_add(bytes)?)?;
    Some(DefinedFunction {
        offset,
        address,
        code: image.get(range)?.to_vec(),
    })
}

/// Finds the code around an address of a file, as its unwind table bounds it.
pub struct CodeReader {
    file: functions::File,
    segments: Vec<Segment>,
    /// Functions of its own that it calls through the linker's table: by the place in that.
    linked: HashMap<u64, u64>,
}

/// A stretch of code of one entry in the unwind table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Bytes from the file's beginning.
    pub offset: u64,
    /// The address in the file's own address space.
    pub address: u64,
    /// The code.
    pub code: Vec<u8>,
}

impl CodeReader {
    /// Opens a file; none where it is no ELF file.
    pub fn open(path: &Path) -> Option<CodeReader> {
        let image = Image::open(path).ok()?;
        let (segments, linked) = {
            let elf = image::parse(&image)?;
            (elf.segments().map(segment).collect(), linked(&elf))
        };
        Some(CodeReader {
            file: functions::File::of(image)?,
            segments,
            linked,
        })
    }

    /// The function of this file to which code at an address jumps at once through the linker's table; none where it does not. Another file may define a
    /// function of that name, which is called then.
    pub fn behind_stub(&self, address: u64) -> Option<u64> {
        let segment = self.segments.iter().find(|segment| {
            let inside = address.checked_sub(segment.address);
            inside.is_some_and(|inside| inside.saturating_add(STUB_BYTES) <= segment.bytes)
        })?;
        let start = usize::try_from(segment.offset + (address - segment.address)).ok()?;
        let code = self.file.image().get(start..start + STUB_BYTES as usize)?;
        // endbr64, bnd: both may be there or not.
        let marked = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
        let jump = marked.strip_prefix(&[0xf2]).unwrap_or(marked);
        let distance = jump.strip_prefix(&[0xff, 0x25])?.first_chunk::<4>()?;
        let behind = address + (code.len() - jump.len()) as u64 + 6;
        let place = behind.wrapping_add_signed(i32::from_le_bytes(*distance).into());
        self.linked.get(&place).copied()
    }

    /// The stretch that has this address; none where no table says it, or it is longer than 16 KiB.
    pub fn around(&self, address: u64) -> Option<Stretch> {
        let range = self.file.unwound(address)?;
        let bytes = range.end.checked_sub(range.start)?;
        if !range.contains(&address) || bytes > MAX_CODE {
            return None;
        }
        let segment = self.segments.iter().find(|segment| {
            let inside = range.start.checked_sub(segment.address);
            inside.is_some_and(|inside| inside.saturating_add(bytes) <= segment.bytes)
        })?;
        let offset = segment.offset + (range.start - segment.address);
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(usize::try_from(bytes).ok()?)?;
        Some(Stretch {
            offset,
            address: range.start,
            code: self.file.image().get(start..end)?.to_vec(),
        })
    }
}

/// Bytes of a stub that are looked at.
const STUB_BYTES: u64 = 11;

/// Places that the dynamic linker fills with the addresses of functions that this file defines itself, and those.
fn linked(file: &Elf<'_>) -> HashMap<u64, u64> {
    let (Some(relocations), Some(symbols)) =
        (file.dynamic_relocations(), file.dynamic_symbol_table())
    else {
        return HashMap::new();
    };
    let known = relocations.filter_map(|(place, relocation)| {
        let object::RelocationTarget::Symbol(index) = relocation.target() else {
            return None;
        };
        let symbol = symbols.symbol_by_index(index).ok()?;
        (symbol.address() != 0 && !symbol.is_undefined()).then(|| (place, symbol.address()))
    });
    known.collect()
}

impl std::fmt::Debug for CodeReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CodeReader").finish_non_exhaustive()
    }
}

const DT_NEEDED: u64 = 1;
const DT_SONAME: u64 = 14;

/// The libraries that a file names, and its own name as one.
fn libraries(file: &Elf<'_>) -> (Vec<String>, Option<String>) {
    let data = |name: &str| file.section_by_name(name).and_then(|s| s.data().ok());
    let (Some(entries), Some(strings)) = (data(".dynamic"), data(".dynstr")) else {
        return (Vec::new(), None);
    };
    let text = |at: u64| {
        let rest = strings.get(usize::try_from(at).ok()?..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    let mut needed = Vec::new();
    let mut soname = None;
    for entry in entries.chunks_exact(16) {
        match word(&entry[..8]) {
            DT_NEEDED => needed.extend(text(word(&entry[8..]))),
            DT_SONAME => soname = text(word(&entry[8..])),
            _ => {}
        }
    }
    (needed, soname)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_imports_malloc_and_the_c_library_exports_it() {
        let wanted = |name: &str| ["malloc", "free"].contains(&name);
        let shell = defined_functions(Path::new("/bin/sh"), &wanted).expect("a shell");
        assert!(shell.imported.contains("malloc"));
        assert!(shell.needed.iter().any(|name| name == "libc.so.6"));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("own mappings");
        let libc = maps.lines().find(|line| line.ends_with("libc.so.6"));
        let libc = libc
            .and_then(|line| line.split_whitespace().last())
            .expect("the C library");
        let libc = defined_functions(Path::new(libc), &wanted).expect("it is readable");
        assert_eq!(libc.soname.as_deref(), Some("libc.so.6"));
        let malloc = &libc.exported["malloc"];
        assert!(!malloc.code.is_empty() && malloc.offset > 0);
        assert!(libc.imported.is_empty());
    }

    #[test]
    fn what_is_no_program_is_an_error() {
        let wanted = |_: &str| true;
        assert!(defined_functions(Path::new("/etc/passwd"), &wanted).is_err());
        assert!(defined_functions(Path::new("/nowhere"), &wanted).is_err());
    }
}
