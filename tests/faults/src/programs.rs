//! Programs of tests: compiled once for all tests that are run, each of which is a process of its own.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program of a C file, compiled with these options below a folder, or what was compiled there before of the same text with
/// the same options by the same compiler. It is never replaced: it may be what another test records.
///
/// # Panics
/// Where it does not compile.
pub fn compiled(source: &Path, folder: &Path, options: &[&str]) -> PathBuf {
    let text = fs::read(source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    let mut hasher = DefaultHasher::new();
    (text, headers(source), options, compiler()).hash(&mut hasher);
    let folder = folder.join(format!("{:016x}", hasher.finish()));
    let program = folder.join(source.file_stem().expect("a name"));
    if !program.is_file() {
        fs::create_dir_all(&folder).expect("a folder for programs");
        let fresh = tempfile::NamedTempFile::new_in(&folder)
            .expect("a place for the program")
            .into_temp_path();
        let compiled = Command::new("cc")
            .args(options)
            .arg("-o")
            .args([&*fresh, source])
            .status()
            .expect("a C compiler");
        assert!(compiled.success(), "{} does not compile", source.display());
        // A program that its user may not read is one that guards itself.
        let everybody = fs::Permissions::from_mode(0o755);
        fs::set_permissions(&fresh, everybody).expect("a program for everybody");
        // Whole at once, or not there. Another test may have been quicker.
        let placed = fresh.persist_noclobber(&program);
        assert!(placed.is_ok() || program.is_file(), "{placed:?}");
    }
    program.canonicalize().expect("the program's path")
}

/// The headers beside a source, any of which it may include.
fn headers(source: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(source.parent().expect("a folder")).expect("the folder of programs");
    let paths = files.flatten().map(|file| file.path());
    let is_header = |path: &PathBuf| path.extension().is_some_and(|e| e == "h");
    let read = |path: PathBuf| fs::read(&path).ok().map(|text| (path, text));
    paths.filter(is_header).filter_map(read).collect()
}

/// What tells one compiler from another: its place, size and date.
fn compiler() -> Option<(PathBuf, u64, i64)> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).find_map(|p| p.join("cc").canonicalize().ok())?;
    let meta = found.metadata().ok()?;
    Some((found, meta.size(), meta.mtime()))
}
