//! The table of touches as columns, for readers that fold over all of it.
//!
//! A long trace has a hundred million touches. Rows would cost ten times their decoding, so here a batch is what
//! Parquet decodes, and batches are units that several threads can decode at once.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::ScalarBuffer;
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use varve_model::{Interval, Pid, TouchSource};

use crate::cell::Cell;
use crate::folder::TablePath;
use crate::reader::{OpenTable, open};
use crate::selection::Selection;
use crate::tables::TouchRow;
use crate::{Trace, TraceError};

/// What of `written` a batch says.
#[derive(Clone, Debug, PartialEq)]
pub enum WrittenColumn {
    /// Null in every row.
    Unknown,
    /// One value for each row.
    Rows(Vec<Option<bool>>),
}

/// Some rows of the table of touches; all columns have the same length. See [`TouchRow`] for their meaning.
#[derive(Clone, Debug)]
pub struct TouchColumns {
    /// The interval.
    pub interval: ScalarBuffer<u32>,
    /// The process.
    pub pid: ScalarBuffer<u32>,
    /// The first page.
    pub page: ScalarBuffer<u64>,
    /// The length of the run.
    pub pages: ScalarBuffer<u32>,
    /// The size of the hardware page.
    pub page_bytes: ScalarBuffer<u32>,
    /// Whether the run was written.
    pub written: WrittenColumn,
    /// The source.
    pub source: Vec<TouchSource>,
}

/// A part of the table that can be decoded by itself: one row group.
#[derive(Clone, Debug)]
pub struct TouchUnit {
    path: TablePath,
    metadata: ArrowReaderMetadata,
    row_group: usize,
    part: Option<Arc<Selection>>,
    /// Its rows.
    pub rows: u64,
}

impl Trace {
    /// The parts of the table of touches, in the order of their rows.
    ///
    /// # Errors
    /// A file that is not a Parquet file.
    pub fn touch_units(&self) -> Result<Vec<TouchUnit>, TraceError> {
        let mut units = Vec::new();
        for path in self.files::<TouchRow>()? {
            let (_, metadata) = open::<TouchRow>(&path)?;
            for (row_group, group) in metadata.metadata().row_groups().iter().enumerate() {
                units.push(TouchUnit {
                    path: path.clone(),
                    metadata: metadata.clone(),
                    row_group,
                    part: self.selection().cloned(),
                    rows: u64::try_from(group.num_rows()).unwrap_or(0),
                });
            }
        }
        Ok(units)
    }
}

impl TouchUnit {
    /// Decodes the unit; `each` returns false to stop.
    ///
    /// # Errors
    /// Columns that are missing or damaged.
    pub fn read(&self, mut each: impl FnMut(TouchColumns) -> bool) -> Result<(), TraceError> {
        let file = self.path.open()?;
        let mut table = OpenTable::groups::<TouchRow>(
            self.path.clone(),
            file,
            self.metadata.clone(),
            vec![self.row_group],
            None,
        )?;
        while let Some(columns) = table.next(TouchColumns::from_batch)? {
            let columns = match &self.part {
                Some(part) => columns.chosen(part),
                None => columns,
            };
            if !each(columns) {
                break;
            }
        }
        Ok(())
    }

    /// The file.
    pub fn path(&self) -> &Path {
        self.path.path()
    }
}

impl TouchColumns {
    /// How many rows.
    pub fn len(&self) -> usize {
        self.page.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.page.is_empty()
    }

    /// The rows of a part of the trace.
    fn chosen(self, of: &Selection) -> TouchColumns {
        let rows: Vec<usize> = (0..self.len())
            .filter(|&i| of.touch_of(Interval(self.interval[i]), Pid(self.pid[i])))
            .collect();
        if rows.len() == self.len() {
            return self;
        }
        let narrow = |from: &ScalarBuffer<u32>| rows.iter().map(|&i| from[i]).collect();
        TouchColumns {
            interval: narrow(&self.interval),
            pid: narrow(&self.pid),
            page: rows.iter().map(|&i| self.page[i]).collect(),
            pages: narrow(&self.pages),
            page_bytes: narrow(&self.page_bytes),
            written: match &self.written {
                WrittenColumn::Unknown => WrittenColumn::Unknown,
                WrittenColumn::Rows(of) => {
                    WrittenColumn::Rows(rows.iter().map(|&i| of[i]).collect())
                }
            },
            source: rows.iter().map(|&i| self.source[i]).collect(),
        }
    }

    fn from_batch(batch: &RecordBatch) -> Result<TouchColumns, String> {
        let column = |name: &str| -> Result<&ArrayRef, String> {
            batch
                .column_by_name(name)
                .ok_or_else(|| format!("the column `{name}` is missing"))
        };
        let narrow = |name: &str| -> Result<ScalarBuffer<u32>, String> {
            let array = whole(column(name)?, name)?
                .as_primitive_opt::<UInt32Type>()
                .ok_or_else(|| format!("the column `{name}` does not hold 32-bit numbers"))?;
            Ok(array.values().clone())
        };
        let page = whole(column("page")?, "page")?
            .as_primitive_opt::<UInt64Type>()
            .ok_or("the column `page` does not hold 64-bit numbers")?;
        let written = column("written")?;
        Ok(TouchColumns {
            interval: narrow("interval")?,
            pid: narrow("pid")?,
            page: page.values().clone(),
            pages: narrow("pages")?,
            page_bytes: narrow("page_bytes")?,
            written: if written.null_count() == written.len() {
                WrittenColumn::Unknown
            } else {
                WrittenColumn::Rows(Cell::from_array(written.as_ref())?)
            },
            source: sources(whole(column("source")?, "source")?)?,
        })
    }
}

fn whole<'a>(array: &'a ArrayRef, name: &str) -> Result<&'a ArrayRef, String> {
    match array.null_count() {
        0 => Ok(array),
        nulls => Err(format!(
            "the column `{name}` has {nulls} nulls where none may be"
        )),
    }
}

/// Words by dictionary code where the file has them so: one comparison of words for each word of the dictionary.
fn sources(array: &ArrayRef) -> Result<Vec<TouchSource>, String> {
    let coded =
        matches!(array.data_type(), DataType::Dictionary(key, _) if **key == DataType::Int8);
    if !coded {
        return Cell::from_array(array.as_ref());
    }
    let array = array.as_dictionary::<Int8Type>();
    let words = array
        .values()
        .as_string_opt::<i32>()
        .ok_or("the column `source` does not hold words")?;
    let words: Vec<Result<TouchSource, String>> = words
        .iter()
        .map(|word| TouchSource::from_str(word.unwrap_or_default()).map_err(|e| e.to_string()))
        .collect();
    array
        .keys()
        .values()
        .iter()
        .map(
            |&code| match usize::try_from(code).ok().and_then(|c| words.get(c)) {
                Some(Ok(source)) => Ok(*source),
                Some(Err(message)) => Err(message.clone()),
                None => Err(format!("the column `source` has no word for code {code}")),
            },
        )
        .collect()
}
