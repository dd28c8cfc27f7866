//! Writing tables: rows are gathered in memory and flushed as small whole Parquet files.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::path::Path;

use crate::folder::Entry;
use crate::table_file::{Place, TableFile};
use crate::tables::Row;
use crate::{Destination, Manifest, Output, TraceError, TraceFolder};

/// Whatever rows can be appended to.
pub trait Append {
    /// Writes `rows` after those of their table that were written before; no rows change nothing.
    ///
    /// # Errors
    /// A file that cannot be written.
    fn append<R: Row>(&mut self, rows: &[R]) -> Result<(), TraceError>;
}

/// The writer of a trace folder.
#[derive(Debug)]
pub struct TraceWriter {
    folder: TraceFolder,
    next_part: BTreeMap<&'static str, u64>,
}

impl TraceWriter {
    /// Makes a private folder that is not there yet and writes the first manifest.
    ///
    /// # Errors
    /// As [`Output::create`] and [`TraceWriter::begin`].
    pub fn create(folder: &Path, manifest: &Manifest) -> Result<TraceWriter, TraceError> {
        TraceWriter::begin(Output::new(folder).create()?, manifest)
    }

    /// Writes the first manifest. Where it cannot be written the folder is taken back.
    ///
    /// # Errors
    /// Files that cannot be made.
    pub fn begin(folder: TraceFolder, manifest: &Manifest) -> Result<TraceWriter, TraceError> {
        let begun = folder.write_manifest(manifest);
        if let Err(error) = begun
            .and_then(|()| folder.make_parts())
            .and_then(|()| folder.reserve())
        {
            let _ = folder.remove_trace();
            return Err(error);
        }
        Ok(TraceWriter {
            folder,
            next_part: BTreeMap::new(),
        })
    }

    /// Goes on with a trace whose recorder is gone: what is appended comes after what that had written.
    ///
    /// # Errors
    /// A folder whose parts cannot be listed or made.
    pub fn resume(folder: TraceFolder) -> Result<TraceWriter, TraceError> {
        folder.make_parts()?;
        let mut next_part = BTreeMap::new();
        for (entry, _) in folder.parts()? {
            if let Entry::Part(table, number) = entry {
                let next = next_part.entry(table).or_insert(0);
                *next = number.saturating_add(1).max(*next);
            }
        }
        Ok(TraceWriter { folder, next_part })
    }

    /// Takes the trace back, unless it holds something.
    ///
    /// # Errors
    /// Files that cannot be removed.
    pub fn discard(self) -> Result<(), TraceError> {
        if !self.next_part.is_empty() {
            return Ok(());
        }
        self.folder.remove_trace()
    }

    /// The folder.
    pub fn folder(&self) -> &TraceFolder {
        &self.folder
    }

    /// The folder, still locked, when nothing more is to be appended.
    pub fn into_folder(self) -> TraceFolder {
        self.folder
    }

    /// Writes `rows` as the next part of their table; no rows, no part. When this returns, the rows
    /// survive the recorder. On an error nothing of the table is changed.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn append<R: Row>(&mut self, rows: &[R]) -> Result<(), TraceError> {
        if rows.is_empty() {
            return Ok(());
        }
        let next = self.next_part.entry(R::TABLE.name).or_default();
        let place = Place::Folder(self.folder.clone(), Entry::Part(R::TABLE.name, *next));
        write_whole(place, rows)?;
        *next += 1;
        Ok(())
    }
}

impl Append for TraceWriter {
    fn append<R: Row>(&mut self, rows: &[R]) -> Result<(), TraceError> {
        TraceWriter::append(self, rows)
    }
}

/// Writes a whole table in one go, replacing it.
///
/// # Errors
/// A file that cannot be written.
pub fn write_table<R: Row>(folder: &TraceFolder, rows: &[R]) -> Result<(), TraceError> {
    write_table_to(&folder.into(), rows)
}

/// The same, wherever it is to go.
///
/// # Errors
/// A file that cannot be written.
pub fn write_table_to<R: Row>(to: &Destination, rows: &[R]) -> Result<(), TraceError> {
    write_whole(to.place(R::TABLE.name), rows)
}

fn write_whole<R: Row>(place: Place, rows: &[R]) -> Result<(), TraceError> {
    let mut writer = TableFile::create(place, R::TABLE, R::schema())?;
    writer.write_rows(rows)?;
    writer.close()
}

/// Writes a whole table piece by piece, for tables that are too large to be held.
pub struct TableWriter<R> {
    file: TableFile,
    row: PhantomData<R>,
}

impl<R: Row> TableWriter<R> {
    /// Begins the table. It is there, replacing what was, when it is closed.
    ///
    /// # Errors
    /// A file that cannot be made.
    pub fn create(to: &Destination) -> Result<Self, TraceError> {
        Ok(TableWriter {
            file: TableFile::create(to.place(R::TABLE.name), R::TABLE, R::schema())?,
            row: PhantomData,
        })
    }

    /// Writes these rows after those that were written before.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn append(&mut self, rows: &[R]) -> Result<(), TraceError> {
        self.file.write_rows(rows)
    }

    /// Ends the table.
    ///
    /// # Errors
    /// A file that cannot be written or renamed.
    pub fn close(self) -> Result<(), TraceError> {
        self.file.close()
    }
}
