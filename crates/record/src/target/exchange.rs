//! Whether the allocator of a command can be exchanged by a library that is preloaded, as far as its file says.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use varve_symbols::{
    OtherLoader, is_go, is_loader, is_sanitized, loads_libraries, names_gnu_loader, other_loader,
};

use super::preflight::{MUSL, SANITIZED, SHORT, found, has_further_rights};
use crate::probes::operations::allocator_within;

/// A program whose allocator cannot be exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedAllocator {
    /// Its file; of a script that of its interpreter.
    pub program: PathBuf,
    /// The script that it runs.
    pub script: Option<PathBuf>,
    /// Why.
    pub why: WhyFixed,
}

/// What keeps an allocator that is preloaded from a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhyFixed {
    /// It loads no libraries.
    Static,
    /// It is a 32-bit program.
    Short,
    /// Its C library is musl.
    Musl,
    /// It gains rights by its file.
    Rights,
    /// Go made it.
    Go,
    /// A sanitizer stands in front of its allocator.
    Sanitizer,
    /// It has an allocator in itself, of this name where that is known.
    Own(Option<String>),
}

impl WhyFixed {
    /// The end of a sentence about the program.
    pub fn in_words(&self) -> String {
        match self {
            WhyFixed::Static => "is static and loads no library".to_owned(),
            WhyFixed::Short => SHORT.to_owned(),
            WhyFixed::Musl => MUSL.to_owned(),
            WhyFixed::Rights => {
                "gains rights by its file (setuid, setgid or capabilities), so that the loader takes no library from its caller".to_owned()
            }
            WhyFixed::Go => "is made by Go, whose runtime has its own allocator".to_owned(),
            WhyFixed::Sanitizer => SANITIZED.to_owned(),
            WhyFixed::Own(Some(name)) => format!("has an allocator in itself ({name})"),
            WhyFixed::Own(None) => "has an allocator in itself".to_owned(),
        }
    }
}

/// Why the allocator of a command cannot be exchanged; none where it can, or where only running it can show it.
pub fn fixed_allocator(command: &[OsString]) -> Option<FixedAllocator> {
    let file = command.first().map(Path::new).and_then(found)?;
    let (program, script) = match interpreted(&file) {
        Some(interpreter) => (interpreter, Some(file)),
        None => (file, None),
    };
    let why = why_fixed(&program)?;
    Some(FixedAllocator {
        program,
        script,
        why,
    })
}

/// Whether the loader can be asked what it would load into a command, which does not run then (`LD_TRACE_LOADED_OBJECTS`, ld.so(8)). A program
/// that another loader loads, or none, would run; and one that gains rights, of which the loader takes no such wish.
pub fn can_ask_loader(command: &[OsString]) -> bool {
    let Some(file) = command.first().map(Path::new).and_then(found) else {
        return false;
    };
    let program = interpreted(&file).unwrap_or(file);
    names_gnu_loader(&program) && !has_further_rights(&program)
}

fn why_fixed(program: &Path) -> Option<WhyFixed> {
    // It need not be readable for that.
    if has_further_rights(program) {
        return Some(WhyFixed::Rights);
    }
    // A text without an interpreter's name is run by the shell.
    if !starts_with(program, ELF) {
        return None;
    }
    match other_loader(program) {
        Some(OtherLoader::Short) => return Some(WhyFixed::Short),
        Some(OtherLoader::Musl) => return Some(WhyFixed::Musl),
        None => {}
    }
    if is_go(program) {
        return Some(WhyFixed::Go);
    }
    if !loads_libraries(program) && !is_loader(program) {
        // What is packed names its loader only once it is unpacked.
        return (!is_packed(program)).then_some(WhyFixed::Static);
    }
    if is_sanitized(program) {
        return Some(WhyFixed::Sanitizer);
    }
    // The loader has one for itself, and loads programs that find theirs in a library.
    let own = allocator_within(program).filter(|_| !is_loader(program))?;
    let name = own.strip_suffix(')').and_then(|o| o.rsplit_once(" ("));
    Some(WhyFixed::Own(name.map(|(_, name)| name.to_owned())))
}

const ELF: &[u8] = b"\x7fELF";
/// So much of a script's first line the kernel reads (`BINPRM_BUF_SIZE`).
const LINE_BYTES: u64 = 256;
/// An interpreter may be a script itself; so often the kernel follows.
const MAX_SCRIPTS: usize = 5;

fn head(file: &Path) -> Vec<u8> {
    let mut head = Vec::new();
    // What cannot be read is no script, and the kernel will say why it does not run.
    if let Ok(file) = varve_sys::open_regular(file) {
        let _ = file.take(LINE_BYTES).read_to_end(&mut head);
    }
    head
}

fn starts_with(file: &Path, magic: &[u8]) -> bool {
    head(file).starts_with(magic)
}

/// Whether a program is packed by UPX, whose mark stands behind the program headers.
fn is_packed(file: &Path) -> bool {
    head(file).windows(4).any(|bytes| bytes == b"UPX!")
}

/// The program that runs a script; none where the file is none.
fn interpreted(file: &Path) -> Option<PathBuf> {
    let mut program = interpreter(file)?;
    for _ in 1..MAX_SCRIPTS {
        match interpreter(&program) {
            Some(next) => program = next,
            None => break,
        }
    }
    Some(program)
}

/// What a file names behind `#!`; where that is `env`, the program that `env` looks up.
fn interpreter(file: &Path) -> Option<PathBuf> {
    let head = head(file);
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|byte| matches!(byte, b'\n' | 0)).next()?;
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t' | b'\r'))
        .filter(|word| !word.is_empty());
    let named = Path::new(OsStr::from_bytes(words.next()?));
    if named.file_name() != Some(OsStr::new("env")) {
        return Some(named.to_owned());
    }
    let mut programs = words.filter(|word| !word.starts_with(b"-") && !word.contains(&b'='));
    let program = programs
        .next()
        .map(|word| Path::new(OsStr::from_bytes(word)));
    program.and_then(found).or_else(|| Some(named.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn made(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        let permissions = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&path, permissions).unwrap();
        path
    }

    fn why(path: &Path) -> Option<WhyFixed> {
        fixed_allocator(&[path.into()]).map(|fixed| fixed.why)
    }

    #[test]
    fn an_ordinary_program_and_a_script_of_it_can_be_given_another_allocator() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(fixed_allocator(&["sh".into()]), None);
        for text in ["#!/bin/sh\n", "#! /usr/bin/env -S A=1 sh\n", "exit 0\n"] {
            assert_eq!(why(&made(folder.path(), "script", text.as_bytes())), None);
        }
        assert_eq!(fixed_allocator(&["/nowhere/at/all".into()]), None);
        assert_eq!(fixed_allocator(&[]), None);
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let short = made(folder.path(), "short", b"\x7fELF\x01\x01\x01");
        assert_eq!(why(&short), Some(WhyFixed::Short));
        let script = format!("#!{}\n", short.display());
        let script = made(folder.path(), "script", script.as_bytes());
        let of_script = format!("#!{} -x\n", script.display());
        let outer = made(folder.path(), "outer", of_script.as_bytes());
        for file in [script, outer] {
            let fixed = fixed_allocator(&[file.clone().into()]).unwrap();
            assert_eq!((fixed.program, fixed.script), (short.clone(), Some(file)));
        }
    }

    #[test]
    fn a_header_without_a_loader_is_that_of_a_static_program() {
        let folder = tempfile::tempdir().unwrap();
        let mut header = [0u8; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        assert_eq!(
            why(&made(folder.path(), "static", &header)),
            Some(WhyFixed::Static)
        );
    }
}
