//! One table as a Parquet file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
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

use crate::TraceError;
use crate::chunk::{Chunk, PAGE_ROWS};
use crate::tables::{Row, Table, TouchRow};
use crate::writer::create_aside;

/// Rows of a row group.
const ROW_GROUP_ROWS: usize = 1 << 20;
/// A row group ends when it takes this much memory, however few its rows are: it is written when it ends.
const ROW_GROUP_BYTES: usize = 8 << 20;
/// Rows that are turned into columns at once: the columns stand in memory beside the rows.
const WRITE_ROWS: usize = 1 << 14;

/// A Parquet file that appears under its name only when it is whole.
///
/// It is what the Parquet crate's own `ArrowWriter` is, but for the columns that [`Chunk`] makes.
pub(crate) struct TableFile {
    path: PathBuf,
    aside: PathBuf,
    table: Table,
    schema: SchemaRef,
    writer: SerializedFileWriter<File>,
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
    pub(crate) fn create(path: &Path, table: Table, schema: SchemaRef) -> Result<Self, TraceError> {
        let aside = path.with_extension("new");
        let file = create_aside(&aside)?;
        let bad = |e| parquet_error(&aside, e);
        let mut properties = properties(table);
        add_encoded_arrow_schema_to_metadata(&schema, &mut properties);
        let parquet = ArrowSchemaConverter::new().convert(&schema).map_err(bad)?;
        let root = parquet.root_schema_ptr();
        let writer = SerializedFileWriter::new(file, root, Arc::new(properties)).map_err(bad)?;
        let factory = ArrowRowGroupWriterFactory::new(&writer, Arc::clone(&schema));
        Ok(TableFile {
            path: path.to_owned(),
            aside,
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
            let batch =
                R::to_batch(&R::packed(rows)).map_err(|m| TraceError::table(&self.path, m))?;
            self.write_batch(&batch)
                .map_err(|e| parquet_error(&self.aside, e))?;
        }
        Ok(())
    }

    pub(crate) fn close(mut self) -> Result<(), TraceError> {
        let closed = self.close_group().and_then(|()| self.writer.finish());
        let Self { path, aside, .. } = self;
        if let Err(e) = closed {
            // A full disk must not be made fuller by what nobody will read.
            let _ = fs::remove_file(&aside);
            return Err(parquet_error(&aside, e));
        }
        fs::rename(&aside, &path).map_err(TraceError::io("rename", &aside))
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

/// Keeps the system's own error where there is one, so that a full disk is known as such.
pub(crate) fn parquet_error(path: &Path, error: ParquetError) -> TraceError {
    match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(e) => TraceError::io("write", path)(*e),
            Err(e) => TraceError::table(path, e),
        },
        e => TraceError::table(path, e),
    }
}
