//! What kind of program a file is, as the kernel would look at it.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// A file that is to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// It is not there, or is not to be run.
    Missing,
    /// An executable for x86-64.
    Native,
    /// A script: its interpreter, and the one argument that its first line gives.
    Script(PathBuf, Option<OsString>),
    /// An executable that gains rights by its file: under an emulator it would not.
    GainsRights,
    /// Something else.
    Other,
}

/// How deep interpreters may be scripts themselves, as in the kernel.
const MAX_SCRIPTS: usize = 5;
/// What the kernel reads of a first line.
const FIRST_LINE: u64 = 256;

impl Program {
    /// Looks at a file. Whether this user may run it is not asked beyond the file's own mode.
    pub fn of(path: &Path) -> Program {
        // Looked at before it is opened, and without waiting: another file may come to its place.
        let Ok(about) = std::fs::metadata(path) else {
            return Program::Missing;
        };
        let mode = about.permissions().mode();
        if !about.is_file() || mode & 0o111 == 0 {
            return Program::Missing;
        }
        let mut head = Vec::new();
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path);
        let read = file.and_then(|f| f.take(FIRST_LINE).read_to_end(&mut head));
        if read.is_err() {
            return Program::Other;
        }
        if let Some(line) = head.strip_prefix(b"#!") {
            return script(line);
        }
        // 64-bit, little-endian, x86-64.
        let native =
            head.len() > 20 && head.starts_with(b"\x7fELF\x02\x01") && head[18..20] == [62, 0];
        if !native {
            Program::Other
        } else if mode & 0o6000 != 0 {
            Program::GainsRights
        } else {
            Program::Native
        }
    }

    /// Follows scripts to the executable that runs them: what kind it is, its path, and the whole command line.
    pub fn resolve(path: &Path, arguments: &[OsString]) -> (Program, PathBuf, Vec<OsString>) {
        let mut path = path.to_owned();
        let mut arguments = arguments.to_vec();
        for _ in 0..MAX_SCRIPTS {
            match Program::of(&path) {
                Program::Script(interpreter, option) => {
                    let mut next = vec![interpreter.clone().into_os_string()];
                    next.extend(option);
                    next.push(path.into_os_string());
                    next.extend(arguments.into_iter().skip(1));
                    arguments = next;
                    path = interpreter;
                }
                kind => return (kind, path, arguments),
            }
        }
        (Program::Missing, path, arguments)
    }
}

fn script(line: &[u8]) -> Program {
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let line = line.trim_ascii();
    let end = line
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(line.len());
    let (name, option) = line.split_at(end);
    let option = option.trim_ascii();
    if name.is_empty() {
        return Program::Other;
    }
    let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    Program::Script(
        text(name).into(),
        (!option.is_empty()).then(|| text(option)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_are_read_as_the_kernel_does() {
        let script = |line: &[u8]| super::script(line);
        let sh = |option: Option<&str>| Program::Script("/bin/sh".into(), option.map(Into::into));
        assert_eq!(script(b" /bin/sh\n"), sh(None));
        assert_eq!(script(b"/bin/sh -e -x \nrest"), sh(Some("-e -x")));
        assert_eq!(script(b"\n"), Program::Other);
    }

    #[test]
    fn this_test_is_a_program() {
        let own = std::env::current_exe().unwrap_or_default();
        assert_eq!(Program::of(&own), Program::Native);
        assert_eq!(Program::of(Path::new("/etc/passwd")), Program::Missing);
        assert_eq!(Program::of(Path::new("/no/such")), Program::Missing);
    }
}
