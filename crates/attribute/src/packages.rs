//! Which packages brought files, by the database of the recording's machine.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use varve_symbols::{BuildId, is_build};

/// The packages that have installed these files, by path; a file that is not on this machine, or is another build here, is in none.
pub(crate) fn packages_of(files: &BTreeMap<&str, &BuildId>) -> HashMap<String, String> {
    let same = |(path, id): &(&&str, &&BuildId)| is_build(Path::new(path), id);
    let asked: Vec<&str> = files.iter().filter(same).map(|(path, _)| *path).collect();
    if asked.is_empty() {
        return HashMap::new();
    }
    let wanted = asked.iter().flat_map(|path| names(path)).collect();
    let found = in_lists(Path::new(LISTS), &wanted);
    asked
        .into_iter()
        .filter_map(|path| {
            let package = names(path).find_map(|name| found.get(name))?;
            Some((path.to_owned(), package.clone()))
        })
        .collect()
}

/// What a package may call a file: it may have put it below `/lib` where that is a link to `/usr/lib`.
fn names(path: &str) -> impl Iterator<Item = &str> {
    [Some(path), path.strip_prefix("/usr")]
        .into_iter()
        .flatten()
}

/// The lists of installed files, one of each package (dpkg(1), FILES). `dpkg-query --search` reads all of the database for the same: 90 ms of
/// 825 packages, where reading their lists takes 15.
const LISTS: &str = "/var/lib/dpkg/info";

/// A list is no larger: the largest, of a kernel's headers, have a megabyte.
const MAX_LIST: u64 = 64 << 20;

/// The content of a list. What is no regular file, such as a FIFO, is none, and is not waited for.
fn read_list(path: &Path) -> Option<Vec<u8>> {
    let about = fs::metadata(path).ok()?;
    let is_list = about.is_file() && about.len() <= MAX_LIST;
    is_list.then(|| fs::read(path).ok()).flatten()
}

/// The lines of a text, of which the last need not end.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = memchr::memchr_iter(b'\n', text).chain(Some(text.len()));
    let mut from = 0;
    ends.map(move |end| &text[std::mem::replace(&mut from, end + 1)..end])
}

/// The packages in whose lists these paths are. Lists are called `PACKAGE.list` or `PACKAGE:ARCHITECTURE.list` and have a path on each line.
fn in_lists(folder: &Path, wanted: &HashSet<&str>) -> HashMap<String, String> {
    let mut found = HashMap::new();
    let Ok(files) = fs::read_dir(folder) else {
        return found;
    };
    let mut lists: Vec<PathBuf> = files.flatten().map(|file| file.path()).collect();
    lists.retain(|path| path.extension().is_some_and(|end| end == "list"));
    lists.sort_unstable();
    // A machine has hundreds of thousands of lines, few of which are as long as one that is wanted.
    let mut lengths = vec![false; wanted.iter().map(|path| path.len() + 1).max().unwrap_or(0)];
    wanted.iter().for_each(|path| lengths[path.len()] = true);
    for list in lists {
        let name = list.file_stem().and_then(|name| name.to_str());
        let Some(package) = name.and_then(|name| name.split(':').next()) else {
            continue;
        };
        // Names of files need not be text.
        let text = read_list(&list).unwrap_or_default();
        let lines = lines(&text).filter(|line| lengths.get(line.len()) == Some(&true));
        for path in lines.filter_map(|line| str::from_utf8(line).ok()) {
            if wanted.contains(path) {
                found
                    .entry(path.to_owned())
                    .or_insert_with(|| package.to_owned());
            }
        }
    }
    found
}

/// The servers of debug files of this machine's distribution; those of elfutils, which ask all others, where it is not known to have some
/// of its own (<https://sourceware.org/elfutils/Debuginfod.html>).
pub(crate) fn debug_servers() -> &'static str {
    const OWN: [(&str, &str); 5] = [
        ("debian", "https://debuginfod.debian.net"),
        ("ubuntu", "https://debuginfod.ubuntu.com"),
        ("fedora", "https://debuginfod.fedoraproject.org"),
        ("arch", "https://debuginfod.archlinux.org"),
        ("opensuse", "https://debuginfod.opensuse.org"),
    ];
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let id = text.lines().find_map(|line| line.strip_prefix("ID="));
    let id = id.unwrap_or_default().trim_matches('"');
    let own = OWN.iter().find(|(name, _)| id.starts_with(name));
    own.map_or("https://debuginfod.elfutils.org", |(_, url)| *url)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn lines_are_all_there() {
        for text in ["", "\n", "a", "a\n", "\nab\n\nc", "a\nb\n\n"] {
            let found: Vec<&[u8]> = lines(text.as_bytes()).collect();
            let wanted: Vec<&[u8]> = text.split('\n').map(str::as_bytes).collect();
            assert_eq!(found, wanted, "{text:?}");
        }
    }

    #[test]
    fn packages_are_known_by_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).unwrap();
        write("libc6:amd64.list", b"/.\n/lib\n/lib/libc.so.6\n");
        write("libc6-i386.list", b"/lib/libc.so.6\n");
        write("odd.list", b"/usr/\xff\n/usr/bin/odd");
        write("ruby3.1.md5sums", b"/usr/bin/ruby3.1\n");
        // Neither is a list.
        let fifo = folder.path().join("fifo.list");
        let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        fs::create_dir(folder.path().join("folder.list")).unwrap();
        let wanted = ["/lib/libc.so.6", "/usr/bin/odd", "/usr/bin/ruby3.1", "/li"];
        let found = in_lists(folder.path(), &wanted.into());
        assert_eq!(found.len(), 2);
        assert_eq!(found["/usr/bin/odd"], "odd");
        // Both have it; the first by name is taken.
        assert_eq!(found["/lib/libc.so.6"], "libc6-i386");
        assert!(in_lists(&folder.path().join("none"), &wanted.into()).is_empty());
    }

    /// As Debian's own tool says it.
    #[test]
    fn packages_are_those_of_the_database() {
        let all = fs::read_to_string("/var/lib/dpkg/info/coreutils.list").unwrap_or_default();
        let asked = |path: &&str| Path::new(path).is_file();
        let paths: Vec<&str> = all.lines().filter(asked).take(20).collect();
        let said = Command::new("dpkg-query")
            .arg("--search")
            .args(&paths)
            .output();
        let said = said.map(|done| done.stdout).unwrap_or_default();
        let found = in_lists(Path::new(LISTS), &paths.iter().copied().collect());
        for line in String::from_utf8_lossy(&said).lines() {
            let Some((package, path)) = line.split_once(": ") else {
                continue;
            };
            assert_eq!(found[path], package, "{line}");
        }
        assert_eq!(found.len(), paths.len());
    }
}
