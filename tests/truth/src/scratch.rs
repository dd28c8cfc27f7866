//! Folders of tests: they go with a test that passes, and stay where one fails.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// How many folders of a case are kept until it is known how it ends, the latest: some record hundreds of times.
const KEPT: usize = 4;

thread_local! {
    /// Folders that are done with, of a case whose end is not known yet.
    static UNJUDGED: RefCell<Option<VecDeque<TempDir>>> = const { RefCell::new(None) };
}

/// A folder for what a test records, its trace and its messages. It is removed when it is dropped, but for that of a test that
/// fails: this one stays, and standard error says where.
pub struct Scratch(Option<TempDir>);

impl Scratch {
    /// A new folder in this one, of a name of its own.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn new_in(parent: &Path, prefix: &str) -> io::Result<Scratch> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix).tempdir_in(parent).map(Self::of)
    }

    /// A new folder among the temporary ones.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn new(prefix: &str) -> io::Result<Scratch> {
        Self::new_in(&std::env::temp_dir(), prefix)
    }

    fn of(folder: TempDir) -> Scratch {
        Scratch(Some(folder))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.as_ref().map_or(Path::new(""), TempDir::path)
    }
}

impl fmt::Debug for Scratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path().fmt(f)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(folder) = self.0.take() else {
            return;
        };
        if std::thread::panicking() {
            let kept = folder.keep();
            eprintln!("kept: {}", kept.display());
            return;
        }
        UNJUDGED.with_borrow_mut(|unjudged| {
            let Some(unjudged) = unjudged else {
                return;
            };
            unjudged.push_back(folder);
            if unjudged.len() > KEPT {
                unjudged.pop_front();
            }
        });
    }
}

/// Runs a case that says how it ended; where `has_failed`, its latest folders stay, and these are they.
pub(crate) fn judged<R>(
    case: impl FnOnce() -> R,
    has_failed: impl FnOnce(&R) -> bool,
) -> (R, Vec<PathBuf>) {
    UNJUDGED.set(Some(VecDeque::new()));
    let ended = case();
    let folders = UNJUDGED.take().unwrap_or_default();
    if !has_failed(&ended) {
        return (ended, Vec::new());
    }
    (ended, folders.into_iter().map(TempDir::keep).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_folders_of_a_case_stay_where_it_fails() -> io::Result<()> {
        let parent = tempfile::tempdir()?;
        let case = || -> io::Result<Vec<PathBuf>> {
            let made = (0..6).map(|_| Scratch::new_in(parent.path(), "case-"));
            made.map(|folder| Ok(folder?.path().to_owned())).collect()
        };
        for has_failed in [false, true] {
            let (made, kept) = judged(case, |_| has_failed);
            let made = made?;
            let wanted = if has_failed { &made[2..] } else { &[] };
            assert_eq!(kept, wanted);
            let there: Vec<&PathBuf> = made.iter().filter(|folder| folder.exists()).collect();
            assert_eq!(there, wanted.iter().collect::<Vec<_>>());
        }
        Ok(())
    }

    #[test]
    fn a_folder_stays_where_its_test_panics() -> io::Result<()> {
        let parent = tempfile::tempdir()?;
        drop(Scratch::new_in(parent.path(), "passes-")?);
        let folder = Scratch::new_in(parent.path(), "fails-")?;
        let fails = std::thread::spawn(move || {
            let _folder = folder;
            panic!("as it is meant to");
        });
        assert!(fails.join().is_err());
        let left: Vec<_> = std::fs::read_dir(parent.path())?.flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        Ok(())
    }
}
