//! A column chunk of deltas, made here and spliced into the file beside those of the Parquet crate.

use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use parquet::basic::{Compression, Encoding};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use crate::delta::{DeltaEncoder, Word};

/// Bytes of the shortest match that ZSTD may use: the most that its fast strategy knows.
const SHORTEST_MATCH: u32 = 7;
/// Places that ZSTD remembers, as a power of two.
const HASH_LOG: u32 = 10;

/// A chunk that is being made. Pages are compressed as they fill up.
pub(crate) enum DeltaColumn {
    Narrow(Chunk<u32>),
    Wide(Chunk<u64>),
}

impl DeltaColumn {
    /// Whether the column can be written so: it holds unsigned numbers, all of them known.
    pub(crate) fn suits(field: &Field) -> bool {
        !field.is_nullable() && matches!(field.data_type(), DataType::UInt32 | DataType::UInt64)
    }

    /// A chunk of a column that [`DeltaColumn::suits`], in pages of so many rows, compressed at this level.
    pub(crate) fn new(
        column: ColumnDescPtr,
        kind: &DataType,
        page_rows: usize,
        level: i32,
    ) -> Result<DeltaColumn> {
        Ok(match kind {
            DataType::UInt32 => DeltaColumn::Narrow(Chunk::new(column, page_rows, level)?),
            _ => DeltaColumn::Wide(Chunk::new(column, page_rows, level)?),
        })
    }

    pub(crate) fn write(&mut self, array: &ArrayRef) -> Result<()> {
        match self {
            DeltaColumn::Narrow(chunk) => {
                let array = array.as_primitive_opt::<UInt32Type>();
                chunk.write(array.ok_or_else(unexpected)?.values())
            }
            DeltaColumn::Wide(chunk) => {
                let array = array.as_primitive_opt::<UInt64Type>();
                chunk.write(array.ok_or_else(unexpected)?.values())
            }
        }
    }

    /// The chunk's pages, and what is to be said of them in the file's footer.
    pub(crate) fn close(self) -> Result<(Bytes, ColumnCloseResult)> {
        match self {
            DeltaColumn::Narrow(chunk) => chunk.close(),
            DeltaColumn::Wide(chunk) => chunk.close(),
        }
    }
}

fn unexpected() -> ParquetError {
    ParquetError::General("the column holds other numbers than its schema says".to_owned())
}

pub(crate) trait Number: Word {
    fn statistics(range: Option<(Self, Self)>) -> Statistics;
}

impl Number for u32 {
    fn statistics(range: Option<(u32, u32)>) -> Statistics {
        let (min, max) = range.unzip();
        let signed = u32::cast_signed;
        Statistics::int32(min.map(signed), max.map(signed), None, Some(0), false)
    }
}

impl Number for u64 {
    fn statistics(range: Option<(u64, u64)>) -> Statistics {
        let (min, max) = range.unzip();
        let signed = u64::cast_signed;
        Statistics::int64(min.map(signed), max.map(signed), None, Some(0), false)
    }
}

pub(crate) struct Chunk<W> {
    column: ColumnDescPtr,
    page_rows: usize,
    level: i32,
    compressor: Compressor<'static>,
    encoder: DeltaEncoder<W>,
    pages: TrackedWrite<Vec<u8>>,
    unpacked_bytes: usize,
    rows: usize,
    range: Option<(W, W)>,
}

impl<W: Number> Chunk<W> {
    fn new(column: ColumnDescPtr, page_rows: usize, level: i32) -> Result<Self> {
        let mut compressor = Compressor::new(level)?;
        // Random distances have many short matches, each of which takes more bits than the codes that it spares:
        // short ones do not count, and few are looked for. What repeats for long is found all the same.
        compressor.set_parameter(CParameter::MinMatch(SHORTEST_MATCH))?;
        compressor.set_parameter(CParameter::HashLog(HASH_LOG))?;
        Ok(Chunk {
            column,
            page_rows,
            level,
            compressor,
            encoder: DeltaEncoder::new(),
            pages: TrackedWrite::new(Vec::new()),
            unpacked_bytes: 0,
            rows: 0,
            range: None,
        })
    }

    fn write(&mut self, values: &[W]) -> Result<()> {
        let mut values = values;
        while !values.is_empty() {
            let room = self.page_rows - self.encoder.count();
            let (now, later) = values.split_at(values.len().min(room));
            self.encoder.extend(now);
            let (from, to) = now.iter().fold((now[0], now[0]), |(from, to), value| {
                (from.min(*value), to.max(*value))
            });
            self.range = match self.range {
                Some((least, most)) => Some((least.min(from), most.max(to))),
                None => Some((from, to)),
            };
            if self.encoder.count() == self.page_rows {
                self.page()?;
            }
            values = later;
        }
        Ok(())
    }

    /// Ends the page.
    fn page(&mut self) -> Result<()> {
        let rows = self.encoder.count();
        let unpacked = self.encoder.finish();
        let page = Page::DataPage {
            buf: self.compressor.compress(&unpacked)?.into(),
            num_values: u32::try_from(rows)?,
            encoding: Encoding::DELTA_BINARY_PACKED,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let page = CompressedPage::new(page, unpacked.len());
        let written = SerializedPageWriter::new(&mut self.pages).write_page(page)?;
        self.unpacked_bytes += written.uncompressed_size;
        self.rows += rows;
        Ok(())
    }

    fn close(mut self) -> Result<(Bytes, ColumnCloseResult)> {
        // A chunk has a page even if the page has no rows.
        if self.encoder.count() > 0 || self.rows == 0 {
            self.page()?;
        }
        let pages = Bytes::from(self.pages.into_inner()?);
        let level = parquet::basic::ZstdLevel::try_new(self.level)?;
        let metadata = ColumnChunkMetaData::builder(self.column)
            .set_compression(Compression::ZSTD(level))
            .set_encodings(vec![Encoding::DELTA_BINARY_PACKED, Encoding::RLE])
            .set_num_values(self.rows as i64)
            .set_total_compressed_size(pages.len() as i64)
            .set_total_uncompressed_size(self.unpacked_bytes as i64)
            .set_data_page_offset(0)
            .set_statistics(W::statistics(self.range))
            .build()?;
        let close = ColumnCloseResult {
            bytes_written: pages.len() as u64,
            rows_written: self.rows as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        Ok((pages, close))
    }
}
