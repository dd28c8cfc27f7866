//! Whether two runs did the same, as far as can be seen from outside.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::run::Ended;
use crate::error::{Doing, Result, read};

/// Letters of a line that a message shows.
const SHOWN: usize = 90;

/// What is different first in `other`: exit code, output, files in the order of their names. `None` if nothing is.
pub(super) fn first_difference(one: &Ended, other: &Ended) -> Result<Option<String>> {
    if other.given_up {
        return Ok(Some("it did not end in time".to_owned()));
    }
    if one.code != other.code {
        return Ok(Some(format!(
            "exit code {} instead of {}",
            other.code, one.code
        )));
    }
    let outputs = [("stdout", "standard output"), ("stderr", "standard error")];
    for (name, called) in outputs {
        if name == "stderr" && !(one.has_own_stderr && other.has_own_stderr) {
            continue;
        }
        let (one, other) = (
            read(&one.folder.join(name))?,
            read(&other.folder.join(name))?,
        );
        if let Some(difference) = of_texts(&one, &other) {
            return Ok(Some(format!("{called}, {difference}")));
        }
    }
    of_folders(&one.folder.join("files"), &other.folder.join("files"))
}

/// The first line or, where it is no text, byte that differs.
fn of_texts(one: &[u8], other: &[u8]) -> Option<String> {
    if one == other {
        return None;
    }
    let (Ok(one), Ok(other)) = (std::str::from_utf8(one), std::str::from_utf8(other)) else {
        let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
        let sizes = (one.len(), other.len());
        return Some(format!(
            "byte {} ({} bytes instead of {})",
            same + 1,
            sizes.1,
            sizes.0
        ));
    };
    // Split at line ends only, so that a missing last one is a difference.
    let (mut one, mut other) = (one.split('\n'), other.split('\n'));
    for line in 1.. {
        let (was, is) = (one.next(), other.next());
        if was != is {
            return Some(format!(
                "line {line}: {} instead of {}",
                shown(is),
                shown(was)
            ));
        }
        if was.is_none() {
            break;
        }
    }
    None
}

fn shown(line: Option<&str>) -> String {
    match line {
        None => "its end".to_owned(),
        Some(line) if line.chars().count() > SHOWN => {
            format!("`{}...`", line.chars().take(SHOWN).collect::<String>())
        }
        Some(line) => format!("`{line}`"),
    }
}

/// What a name in a folder stands for.
#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Folder,
    File,
    Link(PathBuf),
    Other,
}

/// Names below a folder, each with its kind and permissions.
type Listing = BTreeMap<PathBuf, (Kind, u32)>;

fn of_folders(one: &Path, other: &Path) -> Result<Option<String>> {
    let (was, is) = (listing(one)?, listing(other)?);
    let names = was
        .keys()
        .chain(is.keys().filter(|name| !was.contains_key(*name)));
    for name in names {
        let called = name.display();
        match (was.get(name), is.get(name)) {
            (Some(_), None) => return Ok(Some(format!("the file {called} is missing"))),
            (None, Some(_)) => return Ok(Some(format!("there is a file {called}"))),
            (Some(was), Some(is)) if was != is => {
                return Ok(Some(format!(
                    "the file {called} is {is:?} instead of {was:?}"
                )));
            }
            (Some((Kind::File, _)), _) => {
                if let Some(difference) =
                    of_texts(&read(&one.join(name))?, &read(&other.join(name))?)
                {
                    return Ok(Some(format!("the file {called}, {difference}")));
                }
            }
            _ => {}
        }
    }
    Ok(None)
}

fn listing(folder: &Path) -> Result<Listing> {
    let mut found = Listing::new();
    let mut left = vec![folder.to_owned()];
    while let Some(next) = left.pop() {
        let doing = || format!("read the folder {}", next.display());
        for entry in fs::read_dir(&next).doing(doing)? {
            let path = entry.doing(doing)?.path();
            let what = fs::symlink_metadata(&path).doing(doing)?;
            let kind = if what.is_dir() {
                left.push(path.clone());
                Kind::Folder
            } else if what.is_file() {
                Kind::File
            } else if what.is_symlink() {
                Kind::Link(fs::read_link(&path).doing(doing)?)
            } else {
                Kind::Other
            };
            let name = path.strip_prefix(folder).unwrap_or(&path).to_owned();
            found.insert(name, (kind, what.permissions().mode() & 0o7777));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{of_folders, of_texts};

    #[test]
    fn the_first_different_line_is_shown() {
        assert_eq!(of_texts(b"a\nb\n", b"a\nb\n"), None);
        let said = of_texts(b"a\nb\n", b"a\nc\n").expect("they differ");
        assert_eq!(said, "line 2: `c` instead of `b`");
        let said = of_texts(b"a\n", b"a").expect("they differ");
        assert_eq!(said, "line 2: its end instead of ``");
        let said = of_texts(b"a\n\xff1", b"a\n\xff23").expect("they differ");
        assert_eq!(said, "byte 4 (5 bytes instead of 4)");
    }

    #[test]
    fn files_differ_by_presence_permissions_and_contents() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        for root in [&one, &other] {
            fs::create_dir_all(root.join("below")).expect("folders");
            fs::write(root.join("below/same"), "same").expect("a file");
        }
        let differ = || of_folders(&one, &other).expect("readable");
        assert_eq!(differ(), None);
        fs::write(other.join("below/same"), "other").expect("a file");
        assert!(differ().is_some_and(|said| said.contains("below/same, line 1")));
        fs::write(other.join("below/same"), "same").expect("a file");
        fs::write(other.join("more"), "").expect("a file");
        assert_eq!(differ().as_deref(), Some("there is a file more"));
        fs::write(one.join("more"), "").expect("a file");
        std::os::unix::fs::symlink("more", one.join("link")).expect("a link");
        assert_eq!(differ().as_deref(), Some("the file link is missing"));
        std::os::unix::fs::symlink("less", other.join("link")).expect("a link");
        assert!(differ().is_some_and(|said| said.starts_with("the file link is")));
    }
}
