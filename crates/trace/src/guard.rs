//! What stands between a damaged or hostile file and the decoder.
//!
//! A trace may come from anywhere. The decoders of Parquet and Arrow are careful, but they panic on some
//! files (lengths that do not add up, schemas that contradict the data) and believe every size that a file
//! claims. So a file is looked at before it is decoded, and what still panics becomes an error. What is
//! caught is dropped at once, never used again.

use std::any::Any;
use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;

use parquet::arrow::ProjectionMask;
use parquet::basic::Type;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use varve_model::Bytes;

use crate::TraceError;
use crate::encoding::page_header::PageHeader;
use crate::reader::BATCH_ROWS;

/// The largest page that is unpacked. Writers end a page at 1 MiB or 1024 values, whichever comes later.
const MAX_PAGE_BYTES: u64 = 128 << 20;
/// The most values of a page; writers end it at 262,144 rows.
const MAX_PAGE_VALUES: u64 = 1 << 24;
/// The most items of all lists of a row group.
const MAX_LIST_ITEMS: u64 = 1 << 26;
/// An item of a list takes so much memory at least, in each column of it.
const MIN_ITEM_BYTES: u64 = 8;
/// No table packs more rows into a byte: a page of 262,144 equal rows takes some 50 bytes a column.
const MAX_ROWS_PER_BYTE: u64 = 4096;
/// Rows that a file of any size may have.
const ALWAYS_ROWS: u64 = 1 << 20;
/// Bytes of text that a batch may unpack to, for one column. One short dictionary entry can stand for a
/// long text in every row.
const BATCH_TEXT_BYTES: u64 = 512 << 20;

thread_local! {
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a decoder; its panic is the file's fault, and becomes an error that names the file.
pub(crate) fn contained<T>(
    path: &Path,
    decode: impl FnOnce() -> Result<T, TraceError>,
) -> Result<T, TraceError> {
    static QUIET: Once = Once::new();
    if !std::thread::panicking() {
        // The hook is the whole process's: everybody else's panics go where they went before.
        QUIET.call_once(|| {
            let before = take_hook();
            set_hook(Box::new(move |info| {
                if !CONTAINED.get() {
                    before(info);
                }
            }));
        });
    }
    let outer = CONTAINED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(decode));
    CONTAINED.set(outer);
    result.unwrap_or_else(|panic| {
        let why = format!("its decoder gave up: {}", message(panic.as_ref()));
        Err(TraceError::table(path, why))
    })
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "no reason given",
    }
}

/// Whether the row counts of the footer are possible, and agree.
pub(crate) fn check_counts(file: &File, metadata: &ParquetMetaData) -> Result<(), String> {
    let length = file.metadata().map_err(|e| e.to_string())?.len();
    let most = length.saturating_mul(MAX_ROWS_PER_BYTE) + ALWAYS_ROWS;
    let mut rows = 0u64;
    for group in metadata.row_groups() {
        let group = u64::try_from(group.num_rows()).map_err(|_| "it has fewer than no rows")?;
        rows = rows.saturating_add(group);
    }
    if u64::try_from(metadata.file_metadata().num_rows()) != Ok(rows) {
        return Err("its row groups do not add up to its rows".to_owned());
    }
    if rows > most {
        return Err(format!("it claims {rows} rows in {length} bytes"));
    }
    Ok(())
}

/// What the headers of pages say.
pub(crate) struct Pages {
    /// How many rows may be decoded at once.
    pub(crate) rows: usize,
    /// The least memory that the lists of a row group take, of the group where that is most.
    pub(crate) list_bytes: u64,
}

/// Looks at the header of every page that is going to be read. Text that is decoded at once takes no more than `room`, unless one row
/// does.
pub(crate) fn check_pages(
    file: &File,
    metadata: &ParquetMetaData,
    mask: &ProjectionMask,
    row_groups: impl Iterator<Item = usize>,
    room: Bytes,
) -> Result<Pages, String> {
    let length = file.metadata().map_err(|e| e.to_string())?.len();
    let (mut longest_text, mut list_bytes) = (1, 0);
    for group in row_groups {
        let mut listed = 0_u64;
        for (leaf, chunk) in metadata.row_group(group).columns().iter().enumerate() {
            if mask.leaf_included(leaf) {
                let found = check_chunk(file, chunk, length).map_err(|e| {
                    format!("column `{}`, row group {group}: {e}", chunk.column_path())
                })?;
                if chunk.column_type() == Type::BYTE_ARRAY {
                    longest_text = found.largest.max(longest_text);
                }
                if chunk.column_descr().max_rep_level() > 0 {
                    listed = listed.saturating_add(found.values.saturating_mul(MIN_ITEM_BYTES));
                }
            }
        }
        list_bytes = list_bytes.max(listed);
    }
    let text = BATCH_TEXT_BYTES.min(room.0);
    let rows = usize::try_from(text / longest_text).unwrap_or(BATCH_ROWS);
    Ok(Pages {
        rows: rows.clamp(1, BATCH_ROWS),
        list_bytes,
    })
}

/// What one column of a row group says of itself.
struct Chunk {
    /// Bytes of its largest page.
    largest: u64,
    /// Values of all pages.
    values: u64,
}

/// Checks one column of one row group.
fn check_chunk(file: &File, chunk: &ColumnChunkMetaData, length: u64) -> Result<Chunk, String> {
    let (start, bytes) = chunk.byte_range();
    let end = start
        .checked_add(bytes)
        .filter(|end| *end <= length)
        .ok_or("it reaches past the end of the file")?;
    let (mut at, mut largest, mut values) = (start, 0, 0u64);
    while at < end {
        let (header, size) = page_header(file, at, end)?;
        if header.unpacked > MAX_PAGE_BYTES {
            return Err(format!("a page claims {} bytes", header.unpacked));
        }
        if header.values > MAX_PAGE_VALUES {
            return Err(format!("a page claims {} values", header.values));
        }
        largest = largest.max(header.unpacked);
        values = values.saturating_add(header.values);
        at = at
            .checked_add(size as u64)
            .and_then(|at| at.checked_add(header.packed))
            .filter(|at| *at <= end)
            .ok_or("a page reaches past the end of its column")?;
    }
    if chunk.column_descr().max_rep_level() > 0 && values > MAX_LIST_ITEMS {
        return Err(format!("its lists claim {values} items"));
    }
    Ok(Chunk { largest, values })
}

fn page_header(mut file: &File, at: u64, end: u64) -> Result<(PageHeader, usize), String> {
    // A header is some 20 bytes, unless it carries statistics.
    for most in [64, 64 << 10] {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(at)).map_err(|e| e.to_string())?;
        file.take(most.min(end - at))
            .read_to_end(&mut bytes)
            .map_err(|e| e.to_string())?;
        if let Some(found) = PageHeader::parse(&bytes) {
            return Ok(found);
        }
    }
    Err(format!("there is no page at byte {at}"))
}
