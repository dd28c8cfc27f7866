//! What is looked at before anything is made: a recording that cannot begin must not cost an earlier
//! trace, nor touch a process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, accessat};
use varve_model::Pid;
use varve_symbols::{OtherLoader, is_sanitized, other_loader};
use varve_sys::{PidFd, SpawnError};

use crate::hold::{Recorder, recorder_of};
use crate::{RecordError, RecordOptions, TargetChoice};

/// Open files that a recording of one small program takes, with some to spare.
const FILES: u64 = 192;

/// How many files may be kept open for the sake of speed, one for each process.
pub(crate) fn spare_files() -> usize {
    let limit = varve_sys::file_limit().unwrap_or(u64::MAX);
    usize::try_from(limit.saturating_sub(FILES - 16)).unwrap_or(usize::MAX)
}

/// Refuses what cannot be recorded.
pub(crate) fn check(options: &RecordOptions) -> Result<(), RecordError> {
    if let Some(limit) = varve_sys::file_limit().filter(|limit| *limit < FILES) {
        return Err(RecordError::FewFiles {
            limit,
            needed: FILES,
        });
    }
    match &options.target {
        TargetChoice::Command(command) => {
            check_program(command.first().map_or(Path::new(""), Path::new))?;
            match recorder_of(Pid(std::process::id())) {
                Some(Recorder::Known(recorder)) => return Err(RecordError::Nested(recorder)),
                Some(Recorder::Hidden) => return Err(RecordError::NestedElsewhere),
                None => {}
            }
        }
        TargetChoice::Attach(pid) => check_process(*pid)?,
    }
    Ok(options.output.check()?)
}

/// Refuses a process that is not there, that is the kernel's, that this recorder depends on, or that
/// is recorded already.
pub(crate) fn check_process(pid: Pid) -> Result<(), RecordError> {
    PidFd::open(pid).map_err(|_| RecordError::NoProcess(pid))?;
    if varve_sys::is_kernel_thread(pid) {
        return Err(RecordError::KernelThread(pid));
    }
    // Its memory went with its executable, and it has not been waited for yet.
    if varve_sys::exe(pid).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
        return Err(RecordError::Ending(pid));
    }
    if crate::target::is_ancestor_of_ours(pid) {
        return Err(RecordError::Ourselves(pid));
    }
    match recorder_of(pid) {
        Some(Recorder::Known(recorder)) => Err(RecordError::Recorded { pid, recorder }),
        Some(Recorder::Hidden) => Err(RecordError::RecordedElsewhere(pid)),
        None => crate::rights::check_process(pid),
    }
}

/// As a shell would: a name with a slash is a path, any other is looked up in `PATH`.
fn check_program(program: &Path) -> Result<(), SpawnError> {
    let refused = |source| {
        Err(SpawnError::Exec {
            program: program.as_os_str().to_owned(),
            source,
        })
    };
    // Without PATH the C library has its own idea, which exec will show.
    let Some(candidates) = candidates(program) else {
        return Ok(());
    };
    let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
    for path in candidates {
        match can_run(&path) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => worst = e,
        }
    }
    refused(worst)
}

/// Where a program may be; nothing where that is not known.
fn candidates(program: &Path) -> Option<Vec<PathBuf>> {
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        return Some(vec![program.to_owned()]);
    }
    if program.as_os_str().is_empty() {
        return Some(Vec::new());
    }
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path);
    Some(folders.map(|folder| folder.join(program)).collect())
}

/// Whether the command gains rights from its file (setuid, setgid, capabilities): the dynamic linker then takes no
/// preload library from the caller.
pub fn gains_rights(command: &[OsString]) -> bool {
    let program = command.first().map(Path::new);
    program
        .and_then(found)
        .is_some_and(|file| has_further_rights(&file))
}

/// The same of a file.
pub(crate) fn has_further_rights(file: &Path) -> bool {
    let Ok(meta) = file.metadata() else {
        return false;
    };
    // The kernel gives none there (`mnt_may_suid`, `task_no_new_privs`).
    let is_ignored = rustix::thread::no_new_privs().unwrap_or(false)
        || rustix::fs::statvfs(file)
            .is_ok_and(|of| of.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    if is_ignored {
        return false;
    }
    let has = |bit: u32| meta.mode() & bit == bit;
    let other_user = has(libc::S_ISUID) && meta.uid() != rustix::process::getuid().as_raw();
    let group_bits = libc::S_ISGID | libc::S_IXGRP;
    let other_group = has(group_bits) && meta.gid() != rustix::process::getgid().as_raw();
    // Root has all capabilities anyway: the kernel does not count it as a gain (`cap_bprm_creds_from_file`).
    let is_root = rustix::process::getuid().is_root();
    other_user || other_group || (!is_root && has_capabilities(file))
}

/// Whether a file gives capabilities to those who run it.
fn has_capabilities(file: &Path) -> bool {
    rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64]).is_ok()
}

/// Whether a file is a 32-bit program (`EI_CLASS` of ELF's header).
pub(crate) fn has_32_bits(path: &Path) -> bool {
    const CLASS: usize = 4;
    const CLASS_32: u8 = 1;
    let mut start = [0; CLASS + 1];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start.starts_with(b"\x7fELF") && start[CLASS] == CLASS_32
}

/// Whether the command is a 32-bit program.
pub(crate) fn has_other_bits(command: &[OsString]) -> bool {
    let program = command.first().map(Path::new);
    program
        .and_then(found)
        .is_some_and(|path| has_32_bits(&path))
}

/// What keeps libraries from a program, as the end of a sentence about it.
pub(crate) const SHORT: &str = "has 32 bits";
pub(crate) const MUSL: &str = "has musl as its C library";
pub(crate) const SANITIZED: &str =
    "is built with a sanitizer, which must stand in front of the allocator alone";

/// Why the command cannot have the library preloaded, as far as its file says: the end of a sentence about the program.
pub fn why_not_loaded(command: &[OsString]) -> Option<&'static str> {
    let path = command.first().map(Path::new).and_then(found)?;
    match other_loader(&path) {
        Some(OtherLoader::Short) => Some(SHORT),
        Some(OtherLoader::Musl) => Some(MUSL),
        None => is_sanitized(&path).then_some(SANITIZED),
    }
}

/// The file that a shell would run for that name.
pub(crate) fn found(program: &Path) -> Option<PathBuf> {
    candidates(program)?
        .into_iter()
        .find(|p| can_run(p).is_ok())
}

fn can_run(path: &Path) -> io::Result<()> {
    if path.metadata()?.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    Ok(accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(program: &str) -> Option<u8> {
        check_program(Path::new(program))
            .err()
            .map(|e| e.exit_code())
    }

    #[test]
    fn programs_are_looked_up_as_in_a_shell() {
        assert_eq!(code("sh"), None);
        assert_eq!(code("/bin/sh"), None);
        assert_eq!(code("no-such-program-anywhere"), Some(127));
        assert_eq!(code("./no-such-program"), Some(127));
        assert_eq!(code(""), Some(127));
        assert_eq!(code("/tmp"), Some(126));
        assert_eq!(code("/etc/passwd"), Some(126));
    }
}
