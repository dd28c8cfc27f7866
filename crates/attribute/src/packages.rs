//! Which packages brought files, by the database of the recording's machine.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use varve_symbols::{BuildId, is_build};

/// The packages that have installed these files, by path; a file that is not on this machine, or is another build here, is in none.
pub(crate) fn packages_of(files: &BTreeMap<&str, &BuildId>) -> HashMap<String, String> {
    let same = |(path, id): &(&&str, &&BuildId)| is_build(Path::new(path), id);
    // What Debian's tool takes for a pattern is no path to it.
    let is_plain =
        |path: &str| path.starts_with('/') && !path.contains(['*', '?', '[', '\\', '\n']);
    let asked: Vec<&str> = files
        .iter()
        .filter(same)
        .map(|(path, _)| *path)
        .filter(|path| is_plain(path))
        .collect();
    if asked.is_empty() {
        return HashMap::new();
    }
    // Packages may have put a file below `/lib` where that is a link to `/usr/lib`.
    let merged = asked.iter().filter_map(|path| path.strip_prefix("/usr"));
    let done = Command::new("dpkg-query")
        .arg("--search")
        .args(&asked)
        .args(merged)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    // It ends with an error where one of the paths is in no package.
    let text = done.map(|done| done.stdout).unwrap_or_default();
    let found = parse(&String::from_utf8_lossy(&text));
    asked
        .into_iter()
        .filter_map(|path| {
            let merged = path.strip_prefix("/usr").unwrap_or(path);
            let package = found.get(path).or_else(|| found.get(merged))?;
            Some((path.to_owned(), package.clone()))
        })
        .collect()
}

/// Packages by path, from lines such as `libc6:amd64, libc6-dev: /lib/x.so`.
fn parse(text: &str) -> HashMap<String, String> {
    let lines = text.lines().filter(|line| !line.starts_with("diversion "));
    let files = lines.filter_map(|line| line.split_once(": "));
    files
        .filter_map(|(packages, path)| {
            let first = packages.split(", ").next()?;
            let name = first.split(':').next()?;
            Some((path.to_owned(), name.to_owned()))
        })
        .collect()
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
    use super::*;

    #[test]
    fn packages_are_known_by_their_files() {
        let text = "diversion by dash from: /bin/sh\n\
                    libc6:amd64, libc6-i386: /lib/x86_64-linux-gnu/libc.so.6\n\
                    ruby3.1: /usr/bin/ruby3.1\n";
        let found = parse(text);
        assert_eq!(found["/lib/x86_64-linux-gnu/libc.so.6"], "libc6");
        assert_eq!(found["/usr/bin/ruby3.1"], "ruby3.1");
        assert_eq!(found.len(), 2);
    }
}
