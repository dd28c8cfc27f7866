//! Reading a trace, finished or not.

use std::fs::File;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;
use parquet::schema::types::SchemaDescriptor;
use varve_model::Bytes;

use crate::folder::{Entry, Folder, TablePath};
use crate::guard::{check_counts, check_pages, contained};
use crate::merge::MERGED;
use crate::selection::Selection;
use crate::tables::{CountRow, Frame, Row, SampleRow};
use crate::{Access, Manifest, Scratch, State, TraceError};

/// Rows that a batch holds at most.
pub(crate) const BATCH_ROWS: usize = 1 << 16;
/// Rows that are taken into memory at once at most: whoever expects more reads batches.
const MAX_ROWS_AT_ONCE: usize = 1 << 26;
/// Rows that are taken into memory at once may take one part of so many of what is available.
const ROOM_SHARE: u64 = 8;

/// A trace that is open for reading.
#[derive(Clone, Debug)]
pub struct Trace {
    folder: Folder,
    /// Tables that are read in place of its own.
    scratch: Option<Scratch>,
    /// The part that readers see; None: all.
    part: Option<Arc<Selection>>,
    /// Its manifest.
    pub manifest: Manifest,
}

impl Trace {
    /// Opens a trace folder, and changes nothing in it. Tables are read when they are asked for.
    ///
    /// # Errors
    /// A folder that is not there or is no trace.
    pub fn open(folder: &Path) -> Result<Trace, TraceError> {
        Trace::of(Folder::open(folder)?)
    }

    pub(crate) fn of(folder: Folder) -> Result<Trace, TraceError> {
        Ok(Trace {
            manifest: folder.manifest()?,
            folder,
            scratch: None,
            part: None,
        })
    }

    /// The folder, for messages.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Who may read it besides its owner.
    ///
    /// # Errors
    /// What the system says.
    pub fn access(&self) -> Result<Access, TraceError> {
        let mode = self.folder.directory().mode();
        Ok(Access::of_mode(
            mode.map_err(TraceError::io("open", self.folder()))?,
        ))
    }

    /// The user whom it belongs to.
    ///
    /// # Errors
    /// What the system says.
    pub fn owner(&self) -> Result<u32, TraceError> {
        let owner = self.folder.directory().owner();
        owner.map_err(TraceError::io("open", self.folder()))
    }

    /// The bytes of its manifest, which another process may have written meanwhile.
    ///
    /// # Errors
    /// One that is not there any more or cannot be read.
    pub fn manifest_bytes(&self) -> Result<Vec<u8>, TraceError> {
        self.folder.manifest_bytes()
    }

    /// The file of a whole table, as it is, for who copies it.
    ///
    /// # Errors
    /// Anything but a regular file, and what the system says.
    pub fn table_file(&self, table: &'static str) -> Result<File, TraceError> {
        let entry = Entry::Table(table);
        let opened = self.folder.file(entry);
        opened.map_err(TraceError::io("read", self.folder.path_of(entry)))
    }

    /// Reads the manifest again, which another process may have written.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub fn reread(&mut self) -> Result<(), TraceError> {
        self.manifest = self.folder.manifest()?;
        Ok(())
    }

    /// The trace with the tables of `scratch` in place of its own.
    #[must_use]
    pub fn with(self, scratch: &Scratch) -> Trace {
        Trace {
            scratch: Some(scratch.clone()),
            ..self
        }
    }

    /// The part of the trace that is chosen.
    #[must_use]
    pub fn part(&self, of: Selection) -> Trace {
        Trace {
            part: Some(Arc::new(of)),
            ..self.clone()
        }
    }

    /// All of the trace.
    #[must_use]
    pub fn whole(&self) -> Trace {
        Trace {
            part: None,
            ..self.clone()
        }
    }

    /// The part that readers see, where that is not all.
    pub fn selection(&self) -> Option<&Arc<Selection>> {
        self.part.as_ref()
    }

    /// Keeps others from writing to the trace for as long as this trace lives, or until [`Trace::unlock`].
    ///
    /// # Errors
    /// [`TraceError::Busy`] where somebody writes to it.
    pub fn lock(&self) -> Result<(), TraceError> {
        match self.folder.directory().lock_shared() {
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Err(TraceError::Busy {
                path: self.folder().to_owned(),
                recorder: self.manifest.recorder_pid,
            }),
            // Where there are no locks nobody can be asked.
            _ => Ok(()),
        }
    }

    /// Lets others write to the trace.
    pub fn unlock(&self) {
        self.folder.directory().unlock();
    }

    /// Which folder it is, whatever it is called.
    ///
    /// # Errors
    /// What the system says.
    pub fn identity(&self) -> Result<varve_sys::Identity, TraceError> {
        let identity = self.folder.directory().identity();
        identity.map_err(TraceError::io("open", self.folder()))
    }

    /// Whether a table stands whole.
    ///
    /// # Errors
    /// Something else than a file in its place.
    pub fn is_merged<R: Row>(&self) -> Result<bool, TraceError> {
        let name = R::TABLE.name;
        let is_scratch = self
            .scratch
            .as_ref()
            .is_some_and(|a| a.table(name).is_some());
        Ok(is_scratch || self.folder.is_whole(name)?)
    }

    /// The files of a table, in the order of their rows; none where it is empty.
    ///
    /// # Errors
    /// A table that a recording which ended in order must have left, and that is not there.
    pub fn files<R: Row>(&self) -> Result<Vec<TablePath>, TraceError> {
        let name = R::TABLE.name;
        if let Some(table) = self
            .scratch
            .as_ref()
            .and_then(|scratch| scratch.table(name))
        {
            return Ok(vec![table]);
        }
        let sum = self.manifest.checksums.get(name).copied();
        let file = |entry| TablePath::in_folder(&self.folder, entry, sum);
        // Whatever stands there: a directory in the table's place is damage, not an empty table.
        if self.folder.has(name)? {
            return Ok(vec![file(Entry::Table(name))]);
        }
        let files: Vec<TablePath> = self.folder.parts_of(name)?.into_iter().map(file).collect();
        // Of a trace that is not in order itself, only tables are made that cannot be read without.
        let ended = self.manifest.state != State::Recording && self.scratch.is_none();
        // Version 1 had neither samples nor counts.
        let since_2 = R::TABLE == SampleRow::TABLE || R::TABLE == CountRow::TABLE;
        let is_younger = self.manifest.version < 2 && since_2;
        let was_there = sum.is_some() || (ended && !is_younger && MERGED.contains(&name));
        if files.is_empty() && was_there {
            let path = self.folder.path_of(Entry::Table(name));
            return Err(TraceError::table(path, "it is missing"));
        }
        Ok(files)
    }

    /// The rows of a table, in batches, in the order in which they were recorded.
    pub fn batches<R: Row>(&self) -> Result<Batches<R>, TraceError> {
        let mut files = self.files::<R>()?;
        files.reverse();
        Ok(Batches {
            files,
            open: None,
            among: None,
            part: self.part.clone(),
            room: None,
            row: PhantomData,
        })
    }

    /// The same without the row groups that, by what they say of themselves, hold none of these numbers in
    /// the column. Rows with other numbers may come as well.
    pub fn batches_among<R: Row>(
        &self,
        column: &'static str,
        numbers: RangeInclusive<u64>,
    ) -> Result<Batches<R>, TraceError> {
        Ok(Batches {
            among: Some((column, numbers)),
            ..self.batches()?
        })
    }

    /// All rows of a table at once: for the small tables. They may take an eighth of the memory that this process may still use.
    ///
    /// # Errors
    /// See [`Trace::rows_within`].
    pub fn rows<R: Row>(&self) -> Result<Vec<R>, TraceError> {
        self.rows_within(Bytes(varve_sys::available_memory().0 / ROOM_SHARE))
    }

    /// The same in an amount of memory.
    ///
    /// # Errors
    /// [`TraceError::TableTooLarge`] where they take more, and a table that cannot be read.
    pub fn rows_within<R: Row>(&self, room: Bytes) -> Result<Vec<R>, TraceError> {
        let mut rows = Vec::new();
        let mut batches = self.batches::<R>()?;
        batches.room = Some(Room {
            all: room,
            left: room.0,
        });
        while let Some(batch) = batches.next() {
            rows.extend(batch?);
            if rows.len() > MAX_ROWS_AT_ONCE {
                let path = batches
                    .open
                    .map_or_else(PathBuf::new, |open| open.path.path().to_owned());
                return Err(TraceError::table(
                    path,
                    format!("more than {MAX_ROWS_AT_ONCE} rows are too many to hold"),
                ));
            }
        }
        Ok(rows)
    }

    /// How many rows a table has, from the files' own counts.
    pub fn count<R: Row>(&self) -> Result<u64, TraceError> {
        let mut count = 0;
        for path in self.files::<R>()? {
            let (_, metadata) = open::<R>(&path)?;
            count += rows_of(&metadata);
        }
        Ok(count)
    }
}

/// Opens a table's file and checks that it has the table's columns, and not too many rows to be true.
pub(crate) fn open<R: Row>(path: &TablePath) -> Result<(File, ArrowReaderMetadata), TraceError> {
    let file = path.open()?;
    let path = path.path();
    let metadata = contained(path, || {
        ArrowReaderMetadata::load(&file, Default::default()).map_err(|e| TraceError::table(path, e))
    })?;
    for field in R::schema().fields() {
        if metadata.schema().field_with_name(field.name()).is_err() {
            let what = format!("it has no column `{}`", field.name());
            return Err(TraceError::table(path, what));
        }
    }
    check_counts(&file, metadata.metadata()).map_err(|m| TraceError::table(path, m))?;
    Ok((file, metadata))
}

fn rows_of(metadata: &ArrowReaderMetadata) -> u64 {
    u64::try_from(metadata.metadata().file_metadata().num_rows()).unwrap_or(0)
}

/// A file that is being read, or some row groups of one.
pub(crate) struct OpenTable {
    path: TablePath,
    reader: ParquetRecordBatchReader,
    /// Rows that the footer promises and that did not come yet.
    remaining: u64,
}

impl OpenTable {
    /// Reads the whole file, or the row groups that may hold some numbers.
    fn whole<R: Row>(
        path: TablePath,
        among: Option<&Among>,
        room: Option<Room>,
    ) -> Result<OpenTable, TraceError> {
        let (file, metadata) = open::<R>(&path)?;
        let groups = metadata.metadata().row_groups().iter().enumerate();
        let groups = groups
            .filter(|(_, group)| {
                among.is_none_or(|(column, numbers)| may_hold(group, column, numbers))
            })
            .map(|(i, _)| i)
            .collect();
        OpenTable::groups::<R>(path, file, metadata, groups, room)
    }

    pub(crate) fn groups<R: Row>(
        path: TablePath,
        file: File,
        metadata: ArrowReaderMetadata,
        groups: Vec<usize>,
        room: Option<Room>,
    ) -> Result<OpenTable, TraceError> {
        let bad = |m: String| TraceError::table(path.path(), m);
        let footer = metadata.metadata().clone();
        let remaining = groups
            .iter()
            .map(|g| footer.row_group(*g).num_rows() as u64);
        let remaining = remaining.sum();
        let reader = contained(path.path(), || {
            let mask = projection::<R>(metadata.parquet_schema());
            let most = room.map_or(Bytes(u64::MAX), |room| room.all);
            let pages = check_pages(&file, &footer, &mask, groups.iter().copied(), most);
            let pages = pages.map_err(bad)?;
            if let Some(room) = room.filter(|room| pages.list_bytes > room.left) {
                return Err(room.exceeded_by(&path));
            }
            ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
                .with_projection(mask)
                .with_row_groups(groups)
                .with_batch_size(pages.rows)
                .build()
                .map_err(|e| bad(e.to_string()))
        })?;
        Ok(OpenTable {
            path,
            reader,
            remaining,
        })
    }

    /// The next batch, decoded; `None` at the end. After an error there is nothing more to be had.
    pub(crate) fn next<T>(
        &mut self,
        decode: impl FnOnce(&RecordBatch) -> Result<T, String>,
    ) -> Result<Option<T>, TraceError> {
        let OpenTable {
            path,
            reader,
            remaining,
        } = self;
        let bad = |m: String| TraceError::table(path.path(), m);
        contained(path.path(), || {
            let Some(batch) = reader.next() else {
                return match remaining {
                    0 => Ok(None),
                    rows => Err(bad(format!("its last {rows} rows are missing"))),
                };
            };
            let batch = batch.map_err(|e| bad(e.to_string()))?;
            *remaining = remaining
                .checked_sub(batch.num_rows() as u64)
                .ok_or_else(|| bad("it has more rows than it says".to_owned()))?;
            decode(&batch).map(Some).map_err(bad)
        })
    }
}

/// The columns that this version knows.
pub(crate) fn projection<R: Row>(schema: &SchemaDescriptor) -> ProjectionMask {
    let table = R::schema();
    ProjectionMask::columns(schema, table.fields().iter().map(|f| f.name().as_str()))
}

/// A column, and the numbers that are looked for in it.
type Among = (&'static str, RangeInclusive<u64>);

/// Whether a row group's statistics allow that a column holds one of these numbers.
fn may_hold(group: &RowGroupMetaData, column: &str, numbers: &RangeInclusive<u64>) -> bool {
    let chunk = group
        .columns()
        .iter()
        .find(|c| c.column_path().string() == column);
    let Some(Statistics::Int64(statistics)) = chunk.and_then(|c| c.statistics()) else {
        return true;
    };
    match (statistics.min_opt(), statistics.max_opt()) {
        // Parquet keeps 64-bit numbers as signed ones, whatever their order.
        (Some(least), Some(most)) => {
            least.cast_unsigned() <= *numbers.end() && *numbers.start() <= most.cast_unsigned()
        }
        _ => true,
    }
}

/// The memory that the rows of a table may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    all: Bytes,
    /// Bytes that are not taken yet.
    left: u64,
}

impl Room {
    /// The chosen rows of a batch; none where they take more than is left. A file may be a thousandth of what it unpacks to, so the
    /// batch is measured before rows are made of it.
    fn take<R: Row>(
        &mut self,
        batch: &RecordBatch,
        part: Option<&Selection>,
    ) -> Result<Option<Vec<R>>, String> {
        let bytes = bytes_of::<R>(batch);
        if part.is_none() && bytes > self.left {
            return Ok(None);
        }
        let rows = chosen(R::from_batch(batch)?, part);
        let all = batch.num_rows().max(1) as u128;
        let taken = u128::from(bytes) * rows.len() as u128 / all;
        let Some(left) = self.left.checked_sub(taken as u64) else {
            return Ok(None);
        };
        self.left = left;
        Ok(Some(rows))
    }

    fn exceeded_by(&self, path: &TablePath) -> TraceError {
        TraceError::TableTooLarge {
            path: path.path().to_owned(),
            room: self.all,
        }
    }
}

/// About how much memory the rows of a batch take.
fn bytes_of<R: Row>(batch: &RecordBatch) -> u64 {
    let items = batch.columns().iter().map(|column| {
        let list = column.as_list_opt::<i32>();
        let items = list.filter(|list| matches!(list.value_type(), DataType::Struct(_)));
        items.map_or(0, |list| list.values().len())
    });
    let items: usize = items.sum();
    let own = batch.num_rows() * size_of::<R>() + items * size_of::<Frame>();
    // Text is about as long as it is in the columns.
    (own + batch.get_array_memory_size()) as u64
}

fn chosen<R: Row>(mut rows: Vec<R>, part: Option<&Selection>) -> Vec<R> {
    if let Some(part) = part {
        rows.retain(|row| row.is_chosen(part));
    }
    rows
}

/// The rows of a table, batch by batch.
pub struct Batches<R> {
    files: Vec<TablePath>,
    open: Option<OpenTable>,
    among: Option<Among>,
    part: Option<Arc<Selection>>,
    /// The memory that all rows may take; none where they are not kept.
    room: Option<Room>,
    row: PhantomData<R>,
}

impl<R: Row> Batches<R> {
    fn next_batch(&mut self) -> Result<Option<Vec<R>>, TraceError> {
        loop {
            if let Some(table) = &mut self.open {
                let (room, part) = (&mut self.room, self.part.as_deref());
                let rows = table.next(|batch| match room {
                    Some(room) => room.take::<R>(batch, part),
                    None => Ok(Some(chosen(R::from_batch(batch)?, part))),
                })?;
                match (rows, room) {
                    (Some(Some(rows)), _) => return Ok(Some(rows)),
                    (Some(None), Some(room)) => return Err(room.exceeded_by(&table.path)),
                    _ => {}
                }
                self.open = None;
            }
            let Some(path) = self.files.pop() else {
                return Ok(None);
            };
            self.open = Some(OpenTable::whole::<R>(path, self.among.as_ref(), self.room)?);
        }
    }
}

impl<R: Row> Iterator for Batches<R> {
    type Item = Result<Vec<R>, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.next_batch();
        if batch.is_err() {
            // A damaged table ends here; asking again must not loop.
            self.open = None;
            self.files.clear();
        }
        batch.transpose()
    }
}
