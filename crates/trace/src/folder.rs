//! A trace folder that is open for reading: everything in it is reached through its descriptor, under names that the
//! format knows, and never through a link.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_sys::{Directory, Kind};

use crate::checksum::Verified;
use crate::{Checksum, Manifest, TraceError};

/// The folder of the parts of tables.
pub(crate) const PARTS: &str = "parts";
/// The largest manifest that is read. A real one has some kilobytes.
const MAX_MANIFEST_BYTES: u64 = 64 << 20;

/// A file that the format names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entry {
    /// What was recorded.
    Manifest,
    /// A whole table.
    Table(&'static str),
    /// A part of a table.
    Part(&'static str, u64),
}

impl Entry {
    /// The name in its folder.
    pub(crate) fn name(self) -> String {
        match self {
            Entry::Manifest => "manifest.json".to_owned(),
            Entry::Table(table) => format!("{table}.parquet"),
            Entry::Part(table, number) => format!("{table}-{number:06}.parquet"),
        }
    }

    /// The name that it has until it is whole.
    pub(crate) fn temporary(self) -> String {
        match self {
            Entry::Manifest => "manifest.json.new".to_owned(),
            Entry::Table(table) => format!("{table}.new"),
            Entry::Part(table, number) => format!("{table}-{number:06}.new"),
        }
    }

    pub(crate) const fn is_part(self) -> bool {
        matches!(self, Entry::Part(..))
    }
}

/// The part of a table that a file of `parts/` is, and whether it is whole.
fn part(name: &str) -> Option<(Entry, bool)> {
    let (stem, is_whole) = match (name.strip_suffix(".parquet"), name.strip_suffix(".new")) {
        (Some(stem), _) => (stem, true),
        (None, Some(stem)) => (stem, false),
        _ => return None,
    };
    let (of, number) = stem.rsplit_once('-')?;
    let table = crate::tables::ALL.iter().find(|t| t.name == of)?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let entry = Entry::Part(
        table.name,
        is_number.then(|| number.parse().ok()).flatten()?,
    );
    // Anything else that reads as the same number is not what a recorder wrote.
    let written = if is_whole {
        entry.name()
    } else {
        entry.temporary()
    };
    (written == name).then_some((entry, is_whole))
}

/// An open trace folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    directory: Arc<Directory>,
    path: PathBuf,
    verified: Verified,
}

impl Folder {
    /// Opens a folder, which may be named by a link.
    ///
    /// # Errors
    /// [`TraceError::NotATrace`] where something else stands there.
    pub(crate) fn open(path: &Path) -> Result<Folder, TraceError> {
        match Directory::open(path) {
            Ok(directory) => Ok(Folder::of(directory, path)),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => Err(TraceError::NotATrace {
                path: path.to_owned(),
            }),
            Err(e) => Err(TraceError::io("open", path)(e)),
        }
    }

    pub(crate) fn of(directory: Directory, path: &Path) -> Folder {
        Folder {
            directory: Arc::new(directory),
            path: path.to_owned(),
            verified: Verified::default(),
        }
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    pub(crate) fn shared_directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// For messages alone.
    pub(crate) fn path_of(&self, entry: Entry) -> PathBuf {
        self.path_in(entry, &entry.name())
    }

    pub(crate) fn path_in(&self, entry: Entry, name: &str) -> PathBuf {
        if entry.is_part() {
            self.path.join(PARTS).join(name)
        } else {
            self.path.join(name)
        }
    }

    /// The folder of parts, if there is one.
    ///
    /// # Errors
    /// Something else in its place, a link among it.
    pub(crate) fn parts_folder(&self) -> Result<Option<Directory>, TraceError> {
        let path = || self.path.join(PARTS);
        match self.directory.folder(PARTS) {
            Ok(parts) => Ok(Some(parts)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => Err(self.foreign(PARTS, path())),
            Err(e) => Err(TraceError::io("open", path())(e)),
        }
    }

    pub(crate) fn foreign(&self, name: &str, path: PathBuf) -> TraceError {
        let kind = self.directory.kind(name).ok().flatten();
        TraceError::Foreign {
            path,
            what: kind.map_or("something else", Kind::as_str),
        }
    }

    /// Opens a file of the trace.
    pub(crate) fn file(&self, entry: Entry) -> io::Result<File> {
        if !entry.is_part() {
            return self.directory.file(entry.name());
        }
        self.directory.folder(PARTS)?.file(entry.name())
    }

    /// Whether anything stands where a whole table stands.
    pub(crate) fn has(&self, table: &'static str) -> Result<bool, TraceError> {
        let entry = Entry::Table(table);
        let kind = self.directory.kind(entry.name());
        let kind = kind.map_err(TraceError::io("open", self.path_of(entry)))?;
        Ok(kind.is_some())
    }

    /// Whether a whole table is there.
    ///
    /// # Errors
    /// Something else than a file in its place: to take that for the table would be to lose its parts.
    pub(crate) fn is_whole(&self, table: &'static str) -> Result<bool, TraceError> {
        let entry = Entry::Table(table);
        match self.directory.kind(entry.name()) {
            Ok(None) => Ok(false),
            Ok(Some(Kind::File)) => Ok(true),
            Ok(Some(_)) => Err(self.foreign(&entry.name(), self.path_of(entry))),
            Err(e) => Err(TraceError::io("open", self.path_of(entry))(e)),
        }
    }

    /// The parts of all tables, and whether each is whole, in the order of tables and rows.
    pub(crate) fn parts(&self) -> Result<Vec<(Entry, bool)>, TraceError> {
        let Some(parts) = self.parts_folder()? else {
            return Ok(Vec::new());
        };
        let names = parts.names();
        let names = names.map_err(TraceError::io("list", self.path.join(PARTS)))?;
        let known = names.iter().filter_map(|name| part(name.to_str()?));
        let mut known: Vec<(Entry, bool)> = known.collect();
        known.sort_unstable();
        Ok(known)
    }

    /// The whole parts of one table, in the order of their rows.
    pub(crate) fn parts_of(&self, table: &str) -> Result<Vec<Entry>, TraceError> {
        let all = self.parts()?.into_iter();
        let whole = all
            .filter(|(_, is_whole)| *is_whole)
            .map(|(entry, _)| entry);
        Ok(whole
            .filter(|e| matches!(e, Entry::Part(of, _) if *of == table))
            .collect())
    }

    /// What the whole tables' files are.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn checksums(&self) -> Result<BTreeMap<String, Checksum>, TraceError> {
        let mut sums = BTreeMap::new();
        for table in crate::tables::ALL {
            if self.is_whole(table.name)? {
                let entry = Entry::Table(table.name);
                let sum = self.file(entry).and_then(Checksum::of);
                let sum = sum.map_err(TraceError::io("read", self.path_of(entry)))?;
                sums.insert(table.name.to_owned(), sum);
            }
        }
        Ok(sums)
    }

    /// Reads the manifest.
    pub(crate) fn manifest(&self) -> Result<Manifest, TraceError> {
        let path = self.path_of(Entry::Manifest);
        Manifest::parse(&self.manifest_bytes()?, &self.path, &path)
    }

    /// The manifest as it is written.
    pub(crate) fn manifest_bytes(&self) -> Result<Vec<u8>, TraceError> {
        let path = self.path_of(Entry::Manifest);
        let file = match self.file(Entry::Manifest) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                return Err(TraceError::NotATrace {
                    path: self.path.clone(),
                });
            }
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => {
                return Err(self.foreign(&Entry::Manifest.name(), path));
            }
            Err(e) => return Err(TraceError::io("read", path)(e)),
        };
        read_bounded(file).map_err(TraceError::io("read", &path))
    }
}

fn read_bounded(file: File) -> io::Result<Vec<u8>> {
    if file.metadata()?.len() > MAX_MANIFEST_BYTES {
        return Err(io::Error::other("it is too long for a manifest"));
    }
    let mut text = Vec::new();
    file.take(MAX_MANIFEST_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// A file of a table that is to be read.
#[derive(Clone, Debug)]
pub struct TablePath {
    path: PathBuf,
    place: TablePlace,
}

#[derive(Clone, Debug)]
enum TablePlace {
    /// What it must be where that is known.
    Folder(Folder, Entry, Option<Checksum>),
    Unnamed(Arc<File>),
}

impl TablePath {
    pub(crate) fn in_folder(folder: &Folder, entry: Entry, sum: Option<Checksum>) -> TablePath {
        TablePath {
            path: folder.path_of(entry),
            place: TablePlace::Folder(folder.clone(), entry, sum),
        }
    }

    pub(crate) fn unnamed(path: PathBuf, file: Arc<File>) -> TablePath {
        TablePath {
            path,
            place: TablePlace::Unnamed(file),
        }
    }

    /// What it is called in messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens it, with a position of its own. The first who does so sees whether it is what was written.
    ///
    /// # Errors
    /// Anything but a regular file, another content than was written, and what the system says.
    pub fn open(&self) -> Result<File, TraceError> {
        let opened = match &self.place {
            TablePlace::Folder(folder, entry, sum) => {
                self.verify(folder, *entry, *sum)?;
                folder.file(*entry)
            }
            TablePlace::Unnamed(file) => varve_sys::reopen(file),
        };
        opened.map_err(|e| self.cannot_open(e))
    }

    fn cannot_open(&self, error: io::Error) -> TraceError {
        match error.kind() {
            io::ErrorKind::InvalidInput => TraceError::table(&self.path, error),
            _ => TraceError::io("open", &self.path)(error),
        }
    }

    fn verify(
        &self,
        folder: &Folder,
        entry: Entry,
        sum: Option<Checksum>,
    ) -> Result<(), TraceError> {
        let (Some(sum), Entry::Table(table)) = (sum, entry) else {
            return Ok(());
        };
        if folder.verified.has(table) {
            return Ok(());
        }
        let file = folder.file(entry).map_err(|e| self.cannot_open(e))?;
        let wrong = sum
            .differs(file)
            .map_err(TraceError::io("read", &self.path))?;
        if let Some(wrong) = wrong {
            return Err(TraceError::table(&self.path, wrong));
        }
        folder.verified.add(table);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_a_recorder_gives_are_parts() {
        assert_eq!(
            part("touches-000017.parquet"),
            Some((Entry::Part("touches", 17), true))
        );
        assert_eq!(
            part("deaths-1000000.new"),
            Some((Entry::Part("deaths", 1_000_000), false))
        );
        for other in [
            "touches-17.parquet",
            "touches-000017.parquet.bak",
            "touches-.new",
            "touches-+00017.new",
            "thesis-000017.parquet",
            "touches.parquet",
            "notes.new",
            "-000001.new",
        ] {
            assert_eq!(part(other), None, "{other}");
        }
    }
}
