//! A trace folder that is being written: locked, its writer's own, and closed to others unless it is shared.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use varve_sys::{Directory, Identity, Kind};

use crate::folder::{Entry, Folder, PARTS};
use crate::{Access, Checksum, Manifest, Trace, TraceError};

/// A file that keeps room for the manifest while a trace is made.
const RESERVE: &str = "reserve";
/// The room: two manifests of the longest that are seen.
const RESERVE_BYTES: usize = 64 << 10;

/// What is done about a folder that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It is left alone, and nothing is written. An empty one is used.
    Refuse,
    /// An earlier trace is replaced; anything else is left alone.
    Replace,
    /// A number is added to the name, the first from 2 on that is free.
    Number,
}

/// Where a new trace is to be written.
#[derive(Clone, Debug)]
pub struct Output {
    /// The folder.
    pub path: PathBuf,
    /// What is done where it is there already.
    pub existing: Existing,
    /// Who may read it.
    pub access: Access,
}

/// A path as the folder that it lies in and its name there.
fn split(path: &Path) -> (PathBuf, Option<&std::ffi::OsStr>) {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    (parent, path.file_name())
}

/// Why a trace cannot be written into the folder above it.
fn above(path: &Path, parent: &Path) -> impl FnOnce(io::Error) -> TraceError {
    let (path, parent) = (path.to_owned(), parent.to_owned());
    move |e| match e.kind() {
        io::ErrorKind::NotFound => TraceError::NoParent { path, parent },
        _ => TraceError::io("enter", parent)(e),
    }
}

impl Output {
    /// A private folder that must not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> Output {
        Output {
            path: path.into(),
            existing: Existing::Refuse,
            access: Access::Private,
        }
    }

    /// Whether [`Output::create`] may begin; changes nothing.
    ///
    /// # Errors
    /// What would keep it from that, as far as it can be known now.
    pub fn check(&self) -> Result<(), TraceError> {
        let (parent, _) = split(&self.path);
        Directory::passage(&parent).map_err(above(&self.path, &parent))?;
        if self.existing == Existing::Number {
            return Ok(());
        }
        match TraceFolder::open_there(&self.path)? {
            Some(folder) => folder.check(self.existing),
            None => Ok(()),
        }
    }

    /// Makes the folder, or takes the one that is there. An earlier trace that is to be replaced loses its tables;
    /// its manifest stays until there is a new one, so that it is neither read as whole nor in the way.
    ///
    /// # Errors
    /// A folder that is there and must stay, and one that cannot be made.
    pub fn create(&self) -> Result<TraceFolder, TraceError> {
        let (parent, name) = split(&self.path);
        let within = Directory::passage(&parent).map_err(above(&self.path, &parent))?;
        let within = Arc::new(within);
        let Some(name) = name else {
            return Err(TraceError::NotOurs {
                path: self.path.clone(),
            });
        };
        let mut number = 1u32;
        let mut path = self.path.clone();
        loop {
            if number > 1 {
                path = numbered(&self.path, number);
            }
            let name = path.file_name().unwrap_or(name);
            match within.make_folder(name) {
                Ok(()) => {
                    let made = TraceFolder::open_in(&within, &path)?;
                    let made = made.ok_or_else(|| TraceError::Gone { path: path.clone() })?;
                    // Whoever may write the folder above can put another in its place.
                    made.check(Existing::Refuse)?;
                    return made.claimed(self.access);
                }
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(TraceError::io("create", path)(e));
                }
                Err(_) if self.existing == Existing::Number => {
                    number = number.checked_add(1).ok_or(TraceError::Exists {
                        path: self.path.clone(),
                    })?;
                }
                Err(_) => {
                    let there = TraceFolder::open_in(&within, &path)?;
                    let mut there = there.ok_or_else(|| TraceError::Gone { path: path.clone() })?;
                    there.check(self.existing)?;
                    if there.is_empty()? {
                        // Whoever made it said who may enter it.
                        there.access = self.access;
                        there.require_own()?;
                        return Ok(there);
                    }
                    let there = there.claimed(self.access)?;
                    there.remove_tables()?;
                    return Ok(there);
                }
            }
        }
    }
}

/// `solver.varve` as `solver-2.varve`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// A trace folder that is being written. It is locked for as long as this lives, or a copy of it.
#[derive(Clone, Debug)]
pub struct TraceFolder {
    folder: Folder,
    access: Access,
    /// The folder that it was made in.
    above: Arc<Directory>,
    identity: Identity,
}

impl TraceFolder {
    /// Opens a trace to go on with it, where nobody reads or writes it.
    ///
    /// # Errors
    /// [`TraceError::Busy`] and [`TraceError::IsRead`] where somebody does, and folders that are not to be written.
    pub fn open(path: &Path) -> Result<TraceFolder, TraceError> {
        let found = TraceFolder::open_there(path)?.ok_or_else(|| {
            let source = io::ErrorKind::NotFound.into();
            TraceError::io("open", path)(source)
        })?;
        found.folder.manifest()?;
        let access = Access::of_mode(found.mode()?);
        found.claimed(access)
    }

    /// The folder where it is there, locked and its owner's.
    fn open_there(path: &Path) -> Result<Option<TraceFolder>, TraceError> {
        let (parent, name) = split(path);
        let within = match Directory::passage(&parent) {
            Ok(within) => Arc::new(within),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(TraceError::io("open", parent)(e)),
        };
        if name.is_none() {
            return Err(TraceError::NotOurs {
                path: path.to_owned(),
            });
        }
        TraceFolder::open_in(&within, path)
    }

    fn open_in(within: &Arc<Directory>, path: &Path) -> Result<Option<TraceFolder>, TraceError> {
        let cannot = |action| TraceError::io(action, path);
        let name = path.file_name().unwrap_or_default();
        let directory = match within.folder(name) {
            Ok(directory) => directory,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                return Err(match within.kind(name) {
                    Ok(Some(Kind::Link)) => TraceError::Foreign {
                        path: path.to_owned(),
                        what: Kind::Link.as_str(),
                    },
                    _ => TraceError::NotOurs {
                        path: path.to_owned(),
                    },
                });
            }
            Err(e) => return Err(cannot("open")(e)),
        };
        // A folder of somebody else's changes under whoever writes into it.
        let owner = directory.owner().map_err(cannot("open"))?;
        if owner != varve_sys::effective_user() {
            return Err(TraceError::Owner {
                path: path.to_owned(),
                owner,
            });
        }
        let identity = directory.identity().map_err(cannot("open"))?;
        let folder = Folder::of(directory, path);
        lock(&folder)?;
        Ok(Some(TraceFolder {
            folder,
            access: Access::Private,
            above: Arc::clone(within),
            identity,
        }))
    }

    fn mode(&self) -> Result<u32, TraceError> {
        let mode = self.folder.directory().mode();
        mode.map_err(TraceError::io("open", self.path()))
    }

    fn is_empty(&self) -> Result<bool, TraceError> {
        let names = self.folder.directory().names();
        Ok(names
            .map_err(TraceError::io("list", self.path()))?
            .is_empty())
    }

    /// Whether a new trace may be written here.
    fn check(&self, existing: Existing) -> Result<(), TraceError> {
        if self.is_empty()? {
            return Ok(());
        }
        let path = self.path().to_owned();
        // One that this version cannot read is a trace all the same.
        let manifest = self.folder.manifest_bytes();
        if !manifest.is_ok_and(|text| Manifest::is_one(&text)) {
            return Err(TraceError::NotOurs { path });
        }
        if existing != Existing::Replace {
            return Err(TraceError::Exists { path });
        }
        for (entry, name) in self.entries()? {
            let at = self.folder.path_in(entry, &name);
            let Some(directory) = self.directory_of(entry)? else {
                continue;
            };
            match directory.kind(&name) {
                Ok(None | Some(Kind::File)) => {}
                Ok(Some(kind)) => {
                    return Err(TraceError::Foreign {
                        path: at,
                        what: kind.as_str(),
                    });
                }
                Err(e) => return Err(TraceError::io("open", at)(e)),
            }
        }
        Ok(())
    }

    /// A folder that somebody made for something, into which others may not write.
    fn require_own(&self) -> Result<(), TraceError> {
        if self.mode()? & 0o022 == 0 {
            return Ok(());
        }
        let path = self.path().to_owned();
        let source = io::Error::new(
            io::ErrorKind::PermissionDenied,
            "others than its owner may write into it",
        );
        Err(TraceError::io("write a trace into", path)(source))
    }

    /// From here on nobody else may write into it.
    fn claimed(mut self, access: Access) -> Result<TraceFolder, TraceError> {
        self.access = access;
        close(self.folder.directory(), access, self.path())?;
        if let Some(parts) = self.folder.parts_folder()? {
            close(&parts, access, &self.path().join(PARTS))?;
        }
        Ok(self)
    }

    /// Where it was opened, for messages.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Where the folder is now if somebody moved it, and whether it is anywhere.
    pub fn moved(&self) -> Option<Moved> {
        let name = self.path().file_name().unwrap_or_default();
        let found = self.above.folder(name).and_then(|found| found.identity());
        if found.is_ok_and(|found| found == self.identity) {
            return None;
        }
        match self.folder.directory().current_path() {
            Some(path) => Some(Moved::To(path)),
            None => Some(Moved::Removed),
        }
    }

    /// Which folder it is, whatever it is called.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// What it holds.
    ///
    /// # Errors
    /// A manifest that cannot be read.
    pub fn trace(&self) -> Result<Trace, TraceError> {
        Trace::of(self.folder.clone())
    }

    /// Makes the folder of parts.
    pub(crate) fn make_parts(&self) -> Result<(), TraceError> {
        let path = || self.path().join(PARTS);
        match self.folder.directory().make_folder(PARTS) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.cannot("create", path(), e));
            }
            _ => {}
        }
        match self.folder.parts_folder()? {
            Some(parts) => close(&parts, self.access, &path()),
            None => Err(TraceError::Gone { path: path() }),
        }
    }

    /// The folder of an entry; none where that is the folder of parts, which is not there.
    fn directory_of(&self, entry: Entry) -> Result<Option<Arc<Directory>>, TraceError> {
        match entry.is_part() {
            true => Ok(self.folder.parts_folder()?.map(Arc::new)),
            false => Ok(Some(self.folder.shared_directory())),
        }
    }

    /// The folder of an entry; an error where that is gone.
    fn directory_for(&self, entry: Entry) -> Result<Arc<Directory>, TraceError> {
        let directory = self.directory_of(entry)?;
        directory.ok_or_else(|| self.gone(self.path().join(PARTS)))
    }

    /// Makes the file that is going to be renamed into place.
    pub(crate) fn create_temporary(&self, entry: Entry) -> Result<File, TraceError> {
        let name = entry.temporary();
        let path = self.folder.path_in(entry, &name);
        let cannot = |e| self.cannot("create", path.clone(), e);
        let directory = self.directory_for(entry)?;
        // What an earlier attempt left. Anything but a file stays, and is in the way.
        directory.remove_file(&name).map_err(cannot)?;
        directory
            .create(&name, self.access.of_files())
            .map_err(cannot)
    }

    /// Gives a file that is whole its name.
    pub(crate) fn commit(&self, entry: Entry) -> Result<(), TraceError> {
        let (from, to) = (entry.temporary(), entry.name());
        let path = self.folder.path_in(entry, &from);
        // It was made here: whoever removed it may be about to remove the folder, wherever that is now.
        let cannot = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => self.gone(path.clone()),
            _ => self.cannot("rename", path.clone(), e),
        };
        let directory = self.directory_for(entry)?;
        directory.rename(&from, &to).map_err(cannot)
    }

    /// Takes a file back that did not become whole.
    pub(crate) fn drop_temporary(&self, entry: Entry) {
        if let Ok(Some(directory)) = self.directory_of(entry) {
            let _ = directory.remove_file(entry.temporary());
        }
    }

    /// A full disk must be known as such, and a folder that is gone too.
    pub(crate) fn cannot(&self, action: &'static str, path: PathBuf, e: io::Error) -> TraceError {
        if e.kind() == io::ErrorKind::NotFound && self.moved() == Some(Moved::Removed) {
            return self.gone(path);
        }
        TraceError::io(action, path)(e)
    }

    /// Something in it was removed, or it was itself.
    fn gone(&self, path: PathBuf) -> TraceError {
        let path = match self.moved() {
            Some(Moved::Removed) => self.path().to_owned(),
            _ => path,
        };
        TraceError::Gone { path }
    }

    pub(crate) fn path_of(&self, entry: Entry) -> PathBuf {
        self.folder.path_of(entry)
    }

    pub(crate) fn parts(&self) -> Result<Vec<(Entry, bool)>, TraceError> {
        self.folder.parts()
    }

    /// Every name of a table that may be there, whole or not.
    fn entries(&self) -> Result<Vec<(Entry, String)>, TraceError> {
        let tables = crate::tables::ALL.iter().map(|t| Entry::Table(t.name));
        let tables = tables.flat_map(|e| [(e, e.name()), (e, e.temporary())]);
        let parts = self.parts()?.into_iter().map(|(entry, is_whole)| {
            let name = if is_whole {
                entry.name()
            } else {
                entry.temporary()
            };
            (entry, name)
        });
        Ok(tables.chain(parts).collect())
    }

    /// Removes the tables and what unfinished writes left; nothing else.
    pub(crate) fn remove_tables(&self) -> Result<(), TraceError> {
        for (entry, name) in self.entries()? {
            self.remove(entry, &name)?;
        }
        Ok(())
    }

    /// Removes the parts of a table, and the folder of parts with the last of them.
    pub(crate) fn remove_parts(&self, table: &str) -> Result<(), TraceError> {
        for (entry, is_whole) in self.parts()? {
            if matches!(entry, Entry::Part(of, _) if of == table) {
                let name = if is_whole {
                    entry.name()
                } else {
                    entry.temporary()
                };
                self.remove(entry, &name)?;
            }
        }
        self.remove_empty_parts();
        Ok(())
    }

    /// Removes the folder of parts if there is nothing in it.
    pub fn remove_empty_parts(&self) {
        let parts = self.folder.parts_folder().ok().flatten();
        if let Some(identity) = parts.and_then(|parts| parts.identity().ok()) {
            // What else is in it is not ours, and stays.
            let _ = self.folder.directory().remove_folder(PARTS, identity);
        }
    }

    fn remove(&self, entry: Entry, name: &str) -> Result<(), TraceError> {
        let Some(directory) = self.directory_of(entry)? else {
            return Ok(());
        };
        let removed = directory.remove_file(name);
        removed.map_err(|e| self.cannot("remove", self.folder.path_in(entry, name), e))?;
        Ok(())
    }

    /// What the files of its whole tables are, for its manifest.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn checksums(&self) -> Result<BTreeMap<String, Checksum>, TraceError> {
        self.folder.checksums()
    }

    /// Writes the manifest under a temporary name and renames it into place.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write_manifest(&self, manifest: &Manifest) -> Result<(), TraceError> {
        let path = self.path_of(Entry::Manifest);
        let mut text =
            serde_json::to_vec_pretty(manifest).map_err(|source| TraceError::BadManifest {
                path: path.clone(),
                source,
            })?;
        text.push(b'\n');
        let mut file = self.create_temporary(Entry::Manifest)?;
        if let Err(e) = file.write_all(&text) {
            self.drop_temporary(Entry::Manifest);
            return Err(self.cannot("write", path, e));
        }
        self.commit(Entry::Manifest)
    }

    /// The same, on a full disk with the room that is kept for it: no table may be written after this.
    ///
    /// # Errors
    /// As [`TraceFolder::write_manifest`].
    pub fn write_last_manifest(&self, manifest: &Manifest) -> Result<(), TraceError> {
        match self.write_manifest(manifest) {
            Err(e) if e.is_disk_full() && self.release_reserve() => self.write_manifest(manifest),
            written => written,
        }
    }

    /// Keeps room for the manifest: on a disk that is full it is to say why the recording ended.
    pub(crate) fn reserve(&self) -> Result<(), TraceError> {
        let path = self.path().join(RESERVE);
        let directory = self.folder.directory();
        // A killed recorder left it. Anything but a file stays, and is in the way.
        let removed = directory.remove_file(RESERVE);
        let made = removed.and_then(|_| directory.create(RESERVE, self.access.of_files()));
        let made = made.and_then(|mut file| file.write_all(&[0; RESERVE_BYTES]));
        match made {
            // Where no file may be that large (`ulimit -f`), room is not what lacks.
            Err(e) if e.kind() == io::ErrorKind::FileTooLarge => {
                self.release_reserve();
                Ok(())
            }
            made => made.map_err(|e| self.cannot("write", path, e)),
        }
    }

    /// Gives that room back; whether there was any.
    pub fn release_reserve(&self) -> bool {
        matches!(self.folder.directory().remove_file(RESERVE), Ok(true))
    }

    /// Removes everything that the format names, and the folder if nothing else is in it.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub fn remove_trace(&self) -> Result<(), TraceError> {
        self.remove_tables()?;
        for name in [Entry::Manifest.temporary(), Entry::Manifest.name()] {
            self.remove(Entry::Manifest, &name)?;
        }
        self.release_reserve();
        self.remove_empty_parts();
        let name = self.path().file_name().unwrap_or_default();
        let _ = self.above.remove_folder(name, self.identity);
        Ok(())
    }
}

/// What became of a folder while it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It is here now.
    To(PathBuf),
    /// It is gone, with all that was in it.
    Removed,
}

/// Sets who may enter a folder, which must be one's own and which nobody else may write to.
fn close(directory: &Directory, access: Access, path: &Path) -> Result<(), TraceError> {
    let owner = directory.owner().map_err(TraceError::io("open", path))?;
    if owner != varve_sys::effective_user() {
        let path = path.to_owned();
        return Err(TraceError::Owner { path, owner });
    }
    let set = directory.set_mode(access.of_folders());
    // Some file systems know of no permissions; what they show counts.
    match (set, directory.mode()) {
        (Err(e), Ok(mode)) if mode & 0o022 != 0 => {
            Err(TraceError::io("set the permissions of", path)(e))
        }
        _ => Ok(()),
    }
}

/// Locks a folder against all who read or write it.
fn lock(folder: &Folder) -> Result<(), TraceError> {
    let path = folder.path();
    let directory = folder.directory();
    match directory.lock() {
        Ok(()) => Ok(()),
        Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(TraceError::io("lock", path)(e)),
        // Many may read a trace at once, and each would let another one do so.
        Err(_) if directory.lock_shared().is_ok() => {
            directory.unlock();
            Err(TraceError::IsRead {
                path: path.to_owned(),
            })
        }
        Err(_) => Err(TraceError::Busy {
            path: path.to_owned(),
            recorder: folder.manifest().ok().and_then(|m| m.recorder_pid),
        }),
    }
}
