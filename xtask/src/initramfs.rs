//! A small initramfs: the static init, the modules it loads and what it is to do.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Result, make_dir, read, run};
use crate::kernels::Module;

/// An archive in the kernel's "newc" cpio format (Documentation/driver-api/early-userspace/buffer-format.rst).
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    const FOLDER: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;

    /// Adds an empty folder; parents come first.
    pub(crate) fn folder(&mut self, path: &str) {
        self.entry(path, Self::FOLDER, &[]);
    }

    /// Adds a file that may be executed.
    pub(crate) fn file(&mut self, path: &str, data: &[u8]) {
        self.entry(path, Self::PROGRAM, data);
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let links = if mode == Self::FOLDER { 2 } else { 1 };
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor, namesize, check
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            data.len() as u32,
            0,
            0,
            0,
            0,
            path.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Compiles `tests/kernel/init.c`, unless that was done since it last changed.
pub(crate) fn init_program(repository: &Path, target: &Path) -> Result<PathBuf> {
    let source = repository.join("tests/kernel/init.c");
    let program = target.join("kernels/init");
    let age = |p: &Path| p.metadata().and_then(|m| m.modified()).ok();
    if age(&program).is_none() || age(&program) < age(&source) {
        make_dir(&target.join("kernels"))?;
        // Renamed when complete: another machine may be starting with it.
        let fresh = target.join(format!("kernels/init.{}", std::process::id()));
        run(Command::new("cc")
            .args(["-O2", "-Wall", "-static", "-o"])
            .arg(&fresh)
            .arg(&source))?;
        run(Command::new("mv").arg("-f").arg(&fresh).arg(&program))?;
    }
    Ok(program)
}

/// The archive for one start. `settings` are the `key=value` lines that init.c reads.
pub(crate) fn build(init: &Path, modules: &[Module], settings: &[String]) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for folder in ["dev", "proc", "sys", "modules", "lower", "upper", "new"] {
        archive.folder(folder);
    }
    archive.file("init", &read(init)?);
    let mut conf = String::new();
    for module in modules {
        let path = format!("modules/{}.ko", module.name);
        archive.file(&path, &module.object);
        conf.push_str(&format!("module=/{path}\0"));
    }
    for line in settings {
        conf.push_str(line);
        conf.push('\0');
    }
    archive.file("vm.conf", conf.as_bytes());
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn cpio_reads_the_archive_back() {
        let mut archive = Archive::default();
        archive.folder("modules");
        archive.file("modules/odd.ko", b"12345");
        archive.file("init", b"");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("archive");
        std::fs::write(&path, archive.finish()).expect("written");
        let listed = std::process::Command::new("cpio")
            .arg("-itF")
            .arg(&path)
            .output()
            .expect("cpio runs");
        assert_eq!(
            String::from_utf8_lossy(&listed.stdout),
            "modules\nmodules/odd.ko\ninit\n"
        );
    }
}
