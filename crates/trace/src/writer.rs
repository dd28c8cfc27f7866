//! Writing tables: rows are gathered in memory and flushed as small whole Parquet files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use crate::reader::part_number;
use crate::table_file::TableFile;
use crate::tables::Row;
use crate::{Manifest, TraceError};

/// The writer of a trace folder.
#[derive(Debug)]
pub struct TraceWriter {
    folder: PathBuf,
    next_part: BTreeMap<&'static str, u32>,
}

impl TraceWriter {
    /// Makes the folder and writes the first manifest.
    ///
    /// # Errors
    /// A folder that holds an earlier trace is replaced; anything else that is in the way stays, and
    /// the call fails.
    pub fn create(folder: &Path, manifest: &Manifest) -> Result<TraceWriter, TraceError> {
        Self::check(folder)?;
        if folder.symlink_metadata().is_ok() {
            remove_tables(folder)?;
        }
        // The old manifest is replaced, not removed: whenever this is cut short, what stands there is
        // an earlier trace without all of its tables, which is neither read as whole nor in the way.
        fs::create_dir_all(folder).map_err(TraceError::io("create", folder))?;
        manifest.write(folder)?;
        let parts = folder.join("parts");
        fs::create_dir_all(&parts).map_err(TraceError::io("create", &parts))?;
        Ok(TraceWriter {
            folder: folder.to_owned(),
            next_part: BTreeMap::new(),
        })
    }

    /// Goes on with a trace whose recorder is gone: what is appended comes after what that had written.
    ///
    /// # Errors
    /// A folder whose parts cannot be listed or made.
    pub fn resume(folder: &Path) -> Result<TraceWriter, TraceError> {
        let parts = folder.join("parts");
        fs::create_dir_all(&parts).map_err(TraceError::io("create", &parts))?;
        let files = part_files(folder)?;
        let mut next_part = BTreeMap::new();
        for table in crate::tables::ALL {
            let numbers = files.iter().filter_map(|f| part_number(f, table.name));
            if let Some(last) = numbers.max() {
                let next = u32::try_from(last + 1).unwrap_or(u32::MAX);
                next_part.insert(table.name, next);
            }
        }
        Ok(TraceWriter {
            folder: folder.to_owned(),
            next_part,
        })
    }

    /// Whether [`TraceWriter::create`] may use the folder; changes nothing.
    ///
    /// # Errors
    /// [`TraceError::Exists`] where something else than a trace is in the way.
    pub fn check(folder: &Path) -> Result<(), TraceError> {
        let is_there = folder.symlink_metadata().is_ok();
        let is_empty = || fs::read_dir(folder).is_ok_and(|mut d| d.next().is_none());
        if is_there && !is_empty() && Manifest::read(folder).is_err() {
            return Err(TraceError::Exists {
                path: folder.to_owned(),
            });
        }
        Ok(())
    }

    /// Takes the trace back, unless it holds something.
    pub fn discard(self) -> Result<(), TraceError> {
        if !self.next_part.is_empty() {
            return Ok(());
        }
        remove_tables(&self.folder)?;
        remove(self.folder.join("manifest.json"))?;
        // What else is in them is not ours, and stays.
        let _ = fs::remove_dir(self.folder.join("parts"));
        let _ = fs::remove_dir(&self.folder);
        Ok(())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes `rows` as the next part of their table; no rows, no part. When this returns, the rows
    /// survive the recorder. On an error nothing of the table is changed.
    pub fn append<R: Row>(&mut self, rows: &[R]) -> Result<(), TraceError> {
        if rows.is_empty() {
            return Ok(());
        }
        let next = self.next_part.entry(R::TABLE.name).or_default();
        let name = format!("{}-{:06}.parquet", R::TABLE.name, *next);
        write_file(&self.folder.join("parts").join(name), rows)?;
        *next += 1;
        Ok(())
    }
}

/// Removes the tables of an earlier trace, and what unfinished writes left; nothing else.
fn remove_tables(folder: &Path) -> Result<(), TraceError> {
    for table in crate::tables::ALL {
        remove(folder.join(format!("{}.parquet", table.name)))?;
        remove(folder.join(format!("{}.new", table.name)))?;
    }
    for part in part_files(folder)? {
        remove(part)?;
    }
    Ok(())
}

fn remove(path: PathBuf) -> Result<(), TraceError> {
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(TraceError::io("remove", path)(e))
        }
        _ => Ok(()),
    }
}

/// Every file in `parts/`, leftovers of unfinished writes included, sorted by name.
pub(crate) fn part_files(folder: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let parts = folder.join("parts");
    let entries = match fs::read_dir(&parts) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(TraceError::io("list", parts)(e)),
    };
    let mut files = Vec::new();
    for entry in entries {
        files.push(entry.map_err(TraceError::io("list", &parts))?.path());
    }
    files.sort();
    Ok(files)
}

/// Writes a whole table in one go, replacing it.
pub fn write_table<R: Row>(folder: &Path, rows: &[R]) -> Result<(), TraceError> {
    write_file(&folder.join(format!("{}.parquet", R::TABLE.name)), rows)
}

fn write_file<R: Row>(path: &Path, rows: &[R]) -> Result<(), TraceError> {
    let mut writer = TableFile::create(path, R::TABLE, R::schema())?;
    writer.write_rows(rows)?;
    writer.close()
}

/// Writes a whole table piece by piece, for tables that are too large to be held.
pub struct TableWriter<R> {
    file: TableFile,
    row: PhantomData<R>,
}

impl<R: Row> TableWriter<R> {
    /// Begins the table. It appears under its name, replacing what is there, when it is closed.
    ///
    /// # Errors
    /// A file that cannot be made in the folder.
    pub fn create(folder: &Path) -> Result<Self, TraceError> {
        let path = folder.join(format!("{}.parquet", R::TABLE.name));
        Ok(TableWriter {
            file: TableFile::create(&path, R::TABLE, R::schema())?,
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

/// Makes the file that is going to be renamed into place. What an earlier attempt left is removed rather
/// than opened: it might be a FIFO, or a link to something else.
pub(crate) fn create_aside(aside: &Path) -> Result<File, TraceError> {
    remove(aside.to_owned())?;
    File::create_new(aside).map_err(TraceError::io("create", aside))
}
