//! Tables that are made in order to read a trace, and that are no part of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::folder::TablePath;
use crate::table_file::{Place, TableFile};
use crate::tables::Row;
use crate::writer::Append;
use crate::{TraceError, TraceFolder};

/// Temporary tables, in files without names: they are gone with the process, however it ends, and nobody else can
/// open them.
#[derive(Clone, Debug)]
pub struct Scratch {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    tables: Mutex<BTreeMap<&'static str, Arc<File>>>,
}

impl Scratch {
    /// Tables in this folder, such as [`std::env::temp_dir`] names it.
    pub fn new(folder: &Path) -> Scratch {
        Scratch {
            inner: Arc::new(Inner {
                folder: folder.to_owned(),
                tables: Mutex::default(),
            }),
        }
    }

    /// A file for a table.
    pub(crate) fn file(&self) -> Result<File, TraceError> {
        let folder = &self.inner.folder;
        varve_sys::unnamed_file(folder).map_err(|source| TraceError::Scratch {
            folder: folder.clone(),
            source,
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// What a table is called in messages.
    pub(crate) fn path_of(&self, table: &str) -> PathBuf {
        self.inner.folder.join(format!("{table}.parquet"))
    }

    /// Takes a table that is whole.
    pub(crate) fn keep(&self, table: &'static str, file: Arc<File>) {
        self.tables().insert(table, file);
    }

    /// A table, where it was made.
    pub(crate) fn table(&self, table: &str) -> Option<TablePath> {
        let file = self.tables().get(table).map(Arc::clone)?;
        Some(TablePath::unnamed(self.path_of(table), file))
    }

    fn tables(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Arc<File>>> {
        self.inner
            .tables
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes tables of a [`Scratch`] piece by piece.
pub struct ScratchWriter {
    scratch: Scratch,
    open: BTreeMap<&'static str, TableFile>,
}

impl ScratchWriter {
    /// Begins without tables.
    pub fn new(scratch: &Scratch) -> ScratchWriter {
        ScratchWriter {
            scratch: scratch.clone(),
            open: BTreeMap::new(),
        }
    }

    /// Begins a table, which may stay empty.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub fn begin<R: Row>(&mut self) -> Result<(), TraceError> {
        if !self.open.contains_key(R::TABLE.name) {
            let place = Place::Scratch(self.scratch.clone(), R::TABLE.name);
            let file = TableFile::create(place, R::TABLE, R::schema())?;
            self.open.insert(R::TABLE.name, file);
        }
        Ok(())
    }

    /// Ends the tables: from here on they are read in place of the trace's own.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn close(self) -> Result<(), TraceError> {
        self.open.into_values().try_for_each(TableFile::close)
    }
}

impl Append for ScratchWriter {
    fn append<R: Row>(&mut self, rows: &[R]) -> Result<(), TraceError> {
        self.begin::<R>()?;
        match self.open.get_mut(R::TABLE.name) {
            Some(file) => file.write_rows(rows),
            None => Ok(()),
        }
    }
}

/// Where the tables of a trace go when it is put in order.
#[derive(Clone, Debug)]
pub enum Destination {
    /// Into the trace itself.
    Trace(TraceFolder),
    /// Beside it, for whoever may only read it.
    Scratch(Scratch),
}

impl Destination {
    pub(crate) fn place(&self, table: &'static str) -> Place {
        match self {
            Destination::Trace(folder) => Place::table(folder, table),
            Destination::Scratch(scratch) => Place::Scratch(scratch.clone(), table),
        }
    }

    /// Removes the parts of a table that stands whole; those of a trace that is only read stay.
    ///
    /// # Errors
    /// Parts that cannot be removed.
    pub fn remove_parts(&self, table: &str) -> Result<(), TraceError> {
        match self {
            Destination::Trace(folder) => folder.remove_parts(table),
            Destination::Scratch(_) => Ok(()),
        }
    }
}

impl From<&TraceFolder> for Destination {
    fn from(folder: &TraceFolder) -> Destination {
        Destination::Trace(folder.clone())
    }
}

impl From<&Scratch> for Destination {
    fn from(scratch: &Scratch) -> Destination {
        Destination::Scratch(scratch.clone())
    }
}
