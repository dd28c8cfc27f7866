//! One table as a Parquet file.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnPath;

use crate::encoding::chunk::{Chunk, PAGE_ROWS};
use crate::folder::Entry;
use crate::tables::{Row, Table, TouchRow};
use crate::{Scratch, TraceError, TraceFolder};

/// Rows of a row group.
const ROW_GROUP_ROWS: usize = 1 << 20;
/// A row group ends when it takes this much memory, however few its rows are: it is written when it ends.
const ROW_GROUP_BYTES: usize = 8 << 20;
/// Rows that are turned into columns at once: the columns stand in memory beside the rows.
const WRITE_ROWS: usize = 1 << 14;

/// Where a table is going to be.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Folder(TraceFolder, Entry),
    Scratch(Scratch, &'static str),
}

impl Place {
    pub(crate) fn table(folder: &TraceFolder, table: &'static str) -> Place {
        Place::Folder(folder.clone(), Entry::Table(table))
    }

    fn create(&self) -> Result<File, TraceError> {
        match self {
            Place::Folder(folder, entry) => folder.create_temporary(*entry),
            Place::Scratch(scratch, _) => scratch.file(),
        }
    }

    /// What it is called in messages.
    fn path(&self) -> PathBuf {
        match self {
            Place::Folder(folder, entry) => folder.path_of(*entry),
            Place::Scratch(scratch, table) => scratch.path_of(table),
        }
    }

    fn commit(&self, file: Arc<File>) -> Result<(), TraceError> {
        match self {
            Place::Folder(folder, entry) => folder.commit(*entry),
            Place::Scratch(scratch, table) => {
                scratch.keep(table, file);
                Ok(())
            }
        }
    }

    /// A full disk must not be made fuller by what nobody will read.
    fn abandon(&self) {
        if let Place::Folder(folder, entry) = self {
            folder.drop_temporary(*entry);
        }
    }

    /// Keeps the system's own error where there is one, so that a full disk is known as such.
    fn error(&self, error: ParquetError) -> TraceError {
        let error = match error {
            ParquetError::External(inner) => match inner.downcast::<io::Error>() {
                Ok(e) => return self.io(*e),
                Err(e) => ParquetError::External(e),
            },
            e => e,
        };
        TraceError::table(self.path(), error)
    }

    fn io(&self, error: io::Error) -> TraceError {
        match self {
            Place::Folder(folder, entry) => folder.cannot("write", folder.path_of(*entry), error),
            Place::Scratch(scratch, _) => TraceError::Scratch {
                folder: scratch.folder().to_owned(),
                source: error,
            },
        }
    }
}

/// A Parquet file that appears under its name only when it is whole.
///
/// It is what the Parquet crate's own `ArrowWriter` is, but for the columns that [`Chunk`] makes.
pub(crate) struct TableFile {
    place: Place,
    file: Arc<File>,
    table: Table,
    schema: SchemaRef,
    writer: SerializedFileWriter<Arc<File>>,
    factory: ArrowRowGroupWriterFactory,
    /// The row group that is being gathered.
    group: Option<Group>,
    groups: usize,
}

struct Group {
    columns: Vec<Column>,
    rows: usize,
}

/// One field; a nested one has several writers.
enum Column {
    Ours(Box<Chunk>),
    Theirs(Vec<ArrowColumnWriter>),
}

impl TableFile {
    pub(crate) fn create(
        place: Place,
        table: Table,
        schema: SchemaRef,
    ) -> Result<Self, TraceError> {
        let file = Arc::new(place.create()?);
        let bad = |e| place.error(e);
        let mut properties = properties(table);
        add_encoded_arrow_schema_to_metadata(&schema, &mut properties);
        let parquet = ArrowSchemaConverter::new().convert(&schema).map_err(bad)?;
        let root = parquet.root_schema_ptr();
        let writer = SerializedFileWriter::new(Arc::clone(&file), root, Arc::new(properties));
        let writer = writer.map_err(|e| {
            place.abandon();
            place.error(e)
        })?;
        let factory = ArrowRowGroupWriterFactory::new(&writer, Arc::clone(&schema));
        Ok(TableFile {
            place,
            file,
            table,
            schema,
            writer,
            factory,
            group: None,
            groups: 0,
        })
    }

    pub(crate) fn write_rows<R: Row>(&mut self, rows: &[R]) -> Result<(), TraceError> {
        for rows in rows.chunks(WRITE_ROWS) {
            let batch = R::to_batch(&R::packed(rows))
                .map_err(|m| TraceError::table(self.place.path(), m))?;
            if let Err(e) = self.write_batch(&batch) {
                self.place.abandon();
                return Err(self.place.error(e));
            }
        }
        Ok(())
    }

    pub(crate) fn close(mut self) -> Result<(), TraceError> {
        let closed = self.close_group().and_then(|()| self.writer.finish());
        let Self { place, file, .. } = self;
        match closed {
            Ok(_) => place.commit(file),
            Err(e) => {
                place.abandon();
                Err(place.error(e))
            }
        }
    }

    pub(crate) fn write_batch(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let mut written = 0;
        while written < batch.num_rows() {
            let mut group = match self.group.take() {
                Some(group) => group,
                None => self.new_group()?,
            };
            let rows = (batch.num_rows() - written).min(ROW_GROUP_ROWS - group.rows);
            group.write(&self.schema, &batch.slice(written, rows))?;
            written += rows;
            let full = group.rows == ROW_GROUP_ROWS || group.memory_size() > ROW_GROUP_BYTES;
            self.group = Some(group);
            if full {
                self.close_group()?;
            }
        }
        Ok(())
    }

    fn new_group(&self) -> Result<Group, ParquetError> {
        let mut leaves = self.factory.create_column_writers(self.groups)?.into_iter();
        let parquet = self.writer.schema_descr();
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        let mut leaf = 0;
        for (at, field) in self.schema.fields().iter().enumerate() {
            let width = (leaf..parquet.num_columns())
                .take_while(|leaf| parquet.get_column_root_idx(*leaf) == at)
                .count();
            let of_field: Vec<ArrowColumnWriter> = leaves.by_ref().take(width).collect();
            let is_growing = self.table.growing.contains(&field.name().as_str());
            let chunk = match width {
                1 => Chunk::new(field, is_growing, &parquet.column(leaf), level(self.table))?,
                _ => None,
            };
            columns.push(match chunk {
                Some(chunk) => Column::Ours(Box::new(chunk)),
                None => Column::Theirs(of_field),
            });
            leaf += width;
        }
        Ok(Group { columns, rows: 0 })
    }

    fn close_group(&mut self) -> Result<(), ParquetError> {
        let Some(group) = self.group.take() else {
            return Ok(());
        };
        self.groups += 1;
        let mut out = self.writer.next_row_group()?;
        for column in group.columns {
            match column {
                Column::Ours(column) => {
                    let (pages, close) = column.close()?;
                    out.append_column(&pages, close)?;
                }
                Column::Theirs(leaves) => {
                    for leaf in leaves {
                        leaf.close()?.append_to_row_group(&mut out)?;
                    }
                }
            }
        }
        out.close()?;
        Ok(())
    }
}

impl Group {
    fn write(&mut self, schema: &SchemaRef, batch: &RecordBatch) -> Result<(), ParquetError> {
        for ((column, field), array) in self
            .columns
            .iter_mut()
            .zip(schema.fields())
            .zip(batch.columns())
        {
            match column {
                Column::Ours(column) => column.write(array)?,
                Column::Theirs(leaves) => {
                    for (leaf, values) in leaves.iter_mut().zip(compute_leaves(field, array)?) {
                        leaf.write(&values)?;
                    }
                }
            }
        }
        self.rows += batch.num_rows();
        Ok(())
    }

    /// Without the columns that are made here: of those there is at most a page that is not compressed.
    fn memory_size(&self) -> usize {
        let of = |column: &Column| match column {
            Column::Ours(_) => 0,
            Column::Theirs(leaves) => leaves.iter().map(ArrowColumnWriter::memory_size).sum(),
        };
        self.columns.iter().map(of).sum()
    }
}

fn level(table: Table) -> ZstdLevel {
    // Level 3 finds matches in random touches, which cost more than they save.
    ZstdLevel::try_new(if table == TouchRow::TABLE { 1 } else { 3 }).unwrap_or_default()
}

fn properties(table: Table) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(level(table)))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        // Columns that are made here have none.
        .set_offset_index_disabled(true)
        // A page every 20,000 rows, the default, costs a twentieth of a bit for each page and interval.
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS));
    for column in table.growing {
        let path = ColumnPath::from(*column);
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    properties.build()
}
