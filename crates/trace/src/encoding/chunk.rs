//! Column chunks that are made here and spliced into the file beside those of the Parquet crate.

use std::hash::Hash;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, Field};
use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

use crate::encoding::delta::{DeltaEncoder, Word};
use crate::encoding::dictionary::DictionaryEncoder;

/// Rows of a data page at most.
pub(crate) const PAGE_ROWS: usize = 1 << 18;
/// Bytes of the shortest match that ZSTD may use: the most that its fast strategy knows.
const MIN_MATCH: u32 = 7;
/// Places that ZSTD remembers, as a power of two.
const HASH_LOG: u32 = 10;

/// A chunk that is being made. Pages are compressed as they fill up.
pub(crate) enum Chunk {
    GrowingNarrow(DeltaChunk<u32>),
    GrowingWide(DeltaChunk<u64>),
    Numbers(DictionaryChunk<u32>),
    Words(WordChunk),
}

impl Chunk {
    /// A chunk of the column, if it is of a kind that is made here.
    pub(crate) fn new(
        field: &Field,
        is_growing: bool,
        column: &ColumnDescPtr,
        level: ZstdLevel,
    ) -> Result<Option<Chunk>> {
        if field.is_nullable() {
            return Ok(None);
        }
        let pages = || Pages::new(ColumnDescPtr::clone(column), level);
        Ok(Some(match (field.data_type(), is_growing) {
            (DataType::UInt32, true) => Chunk::GrowingNarrow(DeltaChunk::new(pages()?)),
            (DataType::UInt64, true) => Chunk::GrowingWide(DeltaChunk::new(pages()?)),
            (DataType::UInt32, false) => Chunk::Numbers(DictionaryChunk::new(pages()?)),
            (DataType::Dictionary(key, word), _)
                if **key == DataType::Int8 && **word == DataType::Utf8 =>
            {
                Chunk::Words(WordChunk {
                    words: Vec::new(),
                    keys: DictionaryChunk::new(pages()?),
                })
            }
            _ => return Ok(None),
        }))
    }

    pub(crate) fn write(&mut self, array: &ArrayRef) -> Result<()> {
        let numbers = || {
            array
                .as_primitive_opt::<UInt32Type>()
                .ok_or_else(unexpected)
        };
        match self {
            Chunk::GrowingNarrow(chunk) => chunk.write(numbers()?.values()),
            Chunk::Numbers(chunk) => chunk.write(numbers()?.values()),
            Chunk::GrowingWide(chunk) => {
                let numbers = array.as_primitive_opt::<UInt64Type>();
                chunk.write(numbers.ok_or_else(unexpected)?.values())
            }
            Chunk::Words(chunk) => chunk.write(array),
        }
    }

    /// The chunk's pages, and what is to be said of them in the file's footer.
    pub(crate) fn close(self) -> Result<(Bytes, ColumnCloseResult)> {
        match self {
            Chunk::GrowingNarrow(chunk) => chunk.close(),
            Chunk::GrowingWide(chunk) => chunk.close(),
            Chunk::Numbers(chunk) => {
                let entries = chunk.encoder.entries();
                let plain = entries.iter().flat_map(|n| n.to_le_bytes()).collect();
                let statistics = u32::statistics(range(entries, None));
                chunk.close(plain, statistics)
            }
            Chunk::Words(chunk) => chunk.close(),
        }
    }
}

fn unexpected() -> ParquetError {
    ParquetError::General("the column holds something else than its schema says".to_owned())
}

/// The pages of a chunk, compressed.
struct Pages {
    column: ColumnDescPtr,
    level: ZstdLevel,
    compressor: Compressor<'static>,
    out: TrackedWrite<Vec<u8>>,
    unpacked_bytes: usize,
    rows: usize,
}

impl Pages {
    fn new(column: ColumnDescPtr, level: ZstdLevel) -> Result<Pages> {
        let mut compressor = Compressor::new(level.compression_level())?;
        // Random distances have many short matches, each of which takes more bits than the codes that it spares:
        // short ones do not count, and few are looked for. What repeats for long is found all the same.
        compressor.set_parameter(CParameter::MinMatch(MIN_MATCH))?;
        compressor.set_parameter(CParameter::HashLog(HASH_LOG))?;
        Ok(Pages {
            column,
            level,
            compressor,
            out: TrackedWrite::new(Vec::new()),
            unpacked_bytes: 0,
            rows: 0,
        })
    }

    fn data(&mut self, rows: usize, unpacked: &[u8], encoding: Encoding) -> Result<()> {
        let page = Page::DataPage {
            buf: self.compressor.compress(unpacked)?.into(),
            num_values: u32::try_from(rows)?,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let page = CompressedPage::new(page, unpacked.len());
        let written = SerializedPageWriter::new(&mut self.out).write_page(page)?;
        self.unpacked_bytes += written.uncompressed_size;
        self.rows += rows;
        Ok(())
    }

    /// The page of a dictionary, which stands before all others.
    fn dictionary(&mut self, entries: usize, unpacked: &[u8]) -> Result<Vec<u8>> {
        let page = Page::DictionaryPage {
            buf: self.compressor.compress(unpacked)?.into(),
            num_values: u32::try_from(entries)?,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        let page = CompressedPage::new(page, unpacked.len());
        let mut out = TrackedWrite::new(Vec::new());
        let written = SerializedPageWriter::new(&mut out).write_page(page)?;
        self.unpacked_bytes += written.uncompressed_size;
        out.into_inner()
    }

    fn close(
        self,
        dictionary: Option<Vec<u8>>,
        statistics: Statistics,
    ) -> Result<(Bytes, ColumnCloseResult)> {
        let encodings = match dictionary {
            Some(_) => vec![Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY],
            None => vec![Encoding::RLE, Encoding::DELTA_BINARY_PACKED],
        };
        let dictionary_offset = dictionary.as_ref().map(|_| 0);
        let mut bytes = dictionary.unwrap_or_default();
        let data_offset = bytes.len() as i64;
        bytes.append(&mut self.out.into_inner()?);
        let metadata = ColumnChunkMetaData::builder(self.column)
            .set_compression(Compression::ZSTD(self.level))
            .set_encodings(encodings)
            .set_num_values(self.rows as i64)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(self.unpacked_bytes as i64)
            .set_dictionary_page_offset(dictionary_offset)
            .set_data_page_offset(data_offset)
            .set_statistics(statistics)
            .build()?;
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: self.rows as u64,
            metadata,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        Ok((bytes.into(), close))
    }
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

/// The least and the most of the values and of those before.
fn range<V: Copy + Ord>(values: &[V], before: Option<(V, V)>) -> Option<(V, V)> {
    let first = before.or_else(|| values.first().map(|v| (*v, *v)))?;
    Some(values.iter().fold(first, |(least, most), value| {
        (least.min(*value), most.max(*value))
    }))
}

pub(crate) struct DeltaChunk<W> {
    pages: Pages,
    encoder: DeltaEncoder<W>,
    range: Option<(W, W)>,
}

impl<W: Number> DeltaChunk<W> {
    fn new(pages: Pages) -> Self {
        DeltaChunk {
            pages,
            encoder: DeltaEncoder::new(),
            range: None,
        }
    }

    fn write(&mut self, values: &[W]) -> Result<()> {
        let mut values = values;
        while !values.is_empty() {
            let room = PAGE_ROWS - self.encoder.count();
            let (now, later) = values.split_at(values.len().min(room));
            self.encoder.extend(now);
            self.range = range(now, self.range);
            if self.encoder.count() == PAGE_ROWS {
                self.page()?;
            }
            values = later;
        }
        Ok(())
    }

    fn page(&mut self) -> Result<()> {
        let rows = self.encoder.count();
        let page = self.encoder.finish();
        self.pages.data(rows, &page, Encoding::DELTA_BINARY_PACKED)
    }

    fn close(mut self) -> Result<(Bytes, ColumnCloseResult)> {
        if self.encoder.count() > 0 {
            self.page()?;
        }
        self.pages.close(None, W::statistics(self.range))
    }
}

pub(crate) struct DictionaryChunk<V> {
    pages: Pages,
    encoder: DictionaryEncoder<V>,
}

impl<V: Copy + Eq + Hash> DictionaryChunk<V> {
    fn new(pages: Pages) -> Self {
        DictionaryChunk {
            pages,
            encoder: DictionaryEncoder::new(),
        }
    }

    fn write(&mut self, values: &[V]) -> Result<()> {
        let mut values = values;
        while !values.is_empty() {
            let room = PAGE_ROWS - self.encoder.count();
            let (now, later) = values.split_at(values.len().min(room));
            self.encoder.extend(now);
            if self.encoder.count() == PAGE_ROWS {
                self.page()?;
            }
            values = later;
        }
        Ok(())
    }

    fn page(&mut self) -> Result<()> {
        let rows = self.encoder.count();
        let page = self.encoder.finish();
        self.pages.data(rows, &page, Encoding::RLE_DICTIONARY)
    }

    /// `plain` are the dictionary's entries.
    fn close(
        mut self,
        plain: Vec<u8>,
        statistics: Statistics,
    ) -> Result<(Bytes, ColumnCloseResult)> {
        if self.encoder.count() > 0 {
            self.page()?;
        }
        let entries = self.encoder.entries().len();
        let dictionary = self.pages.dictionary(entries, &plain)?;
        self.pages.close(Some(dictionary), statistics)
    }
}

/// A column of words that comes as numbers of words.
pub(crate) struct WordChunk {
    words: Vec<String>,
    keys: DictionaryChunk<i8>,
}

impl WordChunk {
    fn write(&mut self, array: &ArrayRef) -> Result<()> {
        let array = array
            .as_dictionary_opt::<Int8Type>()
            .ok_or_else(unexpected)?;
        let words = array
            .values()
            .as_string_opt::<i32>()
            .ok_or_else(unexpected)?;
        let words = words.iter().map(|word| word.unwrap_or_default());
        if self.words.is_empty() {
            self.words = words.map(str::to_owned).collect();
        } else if !words.eq(self.words.iter()) {
            return Err(unexpected());
        }
        match array.null_count() {
            0 => self.keys.write(array.keys().values()),
            _ => Err(unexpected()),
        }
    }

    fn close(self) -> Result<(Bytes, ColumnCloseResult)> {
        let mut plain = Vec::new();
        let mut used = Vec::new();
        for key in self.keys.encoder.entries() {
            let word = usize::try_from(*key).ok().and_then(|k| self.words.get(k));
            let word = word.ok_or_else(unexpected)?;
            plain.extend_from_slice(&u32::try_from(word.len())?.to_le_bytes());
            plain.extend_from_slice(word.as_bytes());
            used.push(word.as_str());
        }
        let (min, max) = range(&used, None).unzip();
        let word = |word: &str| ByteArray::from(word);
        let statistics = Statistics::byte_array(min.map(word), max.map(word), None, Some(0), false);
        self.keys.close(plain, statistics)
    }
}
