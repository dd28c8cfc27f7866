//! `RLE_DICTIONARY`, for columns of few different values.
//!
//! The Parquet crate looks every value up in a hash table; here a value that is that of the row before costs a
//! comparison. Codes of up to eight bits divide a byte, for the reason given in [`crate::encoding::delta`].
//!
//! Source: Parquet's `Encodings.md`, "Run Length Encoding / Bit-Packing Hybrid".

use std::collections::HashMap;
use std::hash::Hash;

use crate::encoding::delta::push_varint;

/// Values that are packed together.
const GROUP: usize = 8;
/// Groups of a packed run: what a one-byte header can say.
const MAX_GROUPS: usize = 63;
/// As many equal values become a run of their own.
const LONG: u32 = 16;

/// Encodes a column's values page by page; the dictionary is that of all pages.
#[derive(Debug)]
pub(crate) struct DictionaryEncoder<V> {
    codes: HashMap<V, u32>,
    entries: Vec<V>,
    last: Option<(V, u32)>,
    /// Codes of the page and how often each occurs in a row.
    runs: Vec<(u32, u32)>,
    count: usize,
}

impl<V: Copy + Eq + Hash> DictionaryEncoder<V> {
    pub(crate) fn new() -> Self {
        DictionaryEncoder {
            codes: HashMap::new(),
            entries: Vec::new(),
            last: None,
            runs: Vec::new(),
            count: 0,
        }
    }

    /// Values of the page so far.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The values that occurred, in the order of their codes.
    pub(crate) fn entries(&self) -> &[V] {
        &self.entries
    }

    pub(crate) fn extend(&mut self, values: &[V]) {
        for same in values.chunk_by(|a, b| a == b) {
            let code = self.code(same[0]);
            let times = same.len() as u32;
            match self.runs.last_mut() {
                Some(last) if last.0 == code => last.1 += times,
                _ => self.runs.push((code, times)),
            }
        }
        self.count += values.len();
    }

    fn code(&mut self, value: V) -> u32 {
        if let Some((last, code)) = self.last
            && last == value
        {
            return code;
        }
        let entries = &mut self.entries;
        let code = *self.codes.entry(value).or_insert_with(|| {
            entries.push(value);
            entries.len() as u32 - 1
        });
        self.last = Some((value, code));
        code
    }

    /// The encoded page; the next one begins, with the same dictionary.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        let width = width(self.entries.len());
        let mut out = Hybrid {
            page: vec![width as u8],
            width,
            waiting: Vec::with_capacity(GROUP * MAX_GROUPS),
        };
        for &(code, times) in &self.runs {
            out.push(code, times);
        }
        self.runs.clear();
        self.count = 0;
        out.finish()
    }
}

/// Bits of a code.
fn width(entries: usize) -> u32 {
    match usize::BITS - entries.saturating_sub(1).leading_zeros() {
        0 => 0,
        bits @ 1..=8 => bits.next_power_of_two(),
        bits => bits,
    }
}

struct Hybrid {
    page: Vec<u8>,
    width: u32,
    /// Codes to be packed: whole groups, save at a page's end.
    waiting: Vec<u32>,
}

impl Hybrid {
    fn push(&mut self, code: u32, mut times: u32) {
        // What fills the group that is begun, or all of it where it would not be long then.
        let missing = (GROUP - self.waiting.len() % GROUP) % GROUP;
        let packed = match times >= missing as u32 + LONG {
            true => missing as u32,
            false => times,
        };
        for _ in 0..packed {
            self.waiting.push(code);
            if self.waiting.len() == GROUP * MAX_GROUPS {
                self.pack();
            }
        }
        times -= packed;
        if times > 0 {
            self.pack();
            push_varint(&mut self.page, u64::from(times) << 1);
            let bytes = self.width.div_ceil(8) as usize;
            self.page.extend_from_slice(&code.to_le_bytes()[..bytes]);
        }
    }

    fn pack(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let groups = self.waiting.len().div_ceil(GROUP);
        self.waiting.resize(groups * GROUP, 0);
        push_varint(&mut self.page, (groups as u64) << 1 | 1);
        let (mut bits, mut held) = (0u64, 0);
        for code in self.waiting.drain(..) {
            bits |= u64::from(code) << held;
            held += self.width;
            while held >= 8 {
                self.page.push(bits as u8);
                bits >>= 8;
                held -= 8;
            }
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.pack();
        self.page
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::{Int8Type, UInt32Type};
    use arrow_array::{
        Array, ArrayRef, DictionaryArray, Int8Array, RecordBatch, StringArray, UInt32Array,
    };
    use arrow_schema::{DataType, Field, Schema, SchemaRef};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::table_file::{Place, TableFile};
    use crate::tables::Table;

    const WORDS: [&str; 4] = ["scan", "", "página", "sticky"];

    fn schema() -> SchemaRef {
        let words = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        Arc::new(Schema::new(vec![
            Field::new("number", DataType::UInt32, false),
            Field::new("word", words, false),
        ]))
    }

    fn word(number: u32) -> usize {
        (number % 5 % 4) as usize
    }

    /// Writes the numbers and a word for each, in batches, and reads them back with the Parquet crate's decoder.
    fn check(numbers: &[u32], batch: usize) {
        let dir = tempfile::tempdir().unwrap();
        let scratch = crate::Scratch::new(dir.path());
        let table = Table {
            name: "numbers",
            growing: &[],
        };
        let mut file =
            TableFile::create(Place::Scratch(scratch.clone(), table.name), table, schema())
                .unwrap();
        let words = Arc::new(StringArray::from_iter_values(WORDS));
        for numbers in numbers.chunks(batch) {
            let keys = Int8Array::from_iter_values(numbers.iter().map(|n| word(*n) as i8));
            let of_numbers = DictionaryArray::<Int8Type>::new(keys, words.clone());
            let columns: Vec<ArrayRef> = vec![
                Arc::new(UInt32Array::from(numbers.to_vec())),
                Arc::new(of_numbers),
            ];
            file.write_batch(&RecordBatch::try_new(schema(), columns).unwrap())
                .unwrap();
        }
        file.close().unwrap();
        let file = scratch.table(table.name).unwrap().open().unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        for group in reader.metadata().row_groups() {
            for column in group.columns() {
                let mut encodings = column.encodings();
                assert!(encodings.any(|e| e == parquet::basic::Encoding::RLE_DICTIONARY));
            }
        }
        let (mut read, mut read_words) = (Vec::new(), Vec::new());
        for batch in reader.build().unwrap() {
            let batch = batch.unwrap();
            read.extend_from_slice(batch.column(0).as_primitive::<UInt32Type>().values());
            let words = batch.column(1).as_dictionary::<Int8Type>();
            let texts = words.values().as_string::<i32>();
            let keys = words.keys().values();
            read_words.extend(keys.iter().map(|k| texts.value(*k as usize).to_owned()));
            assert_eq!(words.null_count(), 0);
        }
        assert_eq!(read, numbers);
        assert!(
            read_words
                .iter()
                .zip(numbers)
                .all(|(w, n)| w == WORDS[word(*n)])
        );
        assert_eq!(read_words.len(), numbers.len());
    }

    #[test]
    fn runs_of_all_lengths_come_back() {
        check(&[], 1);
        for count in [1, 7, 8, 9, 15, 16, 17, 23, 24, 25, 503, 504, 505, 3000] {
            check(&vec![7; count], 100);
            let numbers: Vec<u32> = (0..count as u32).flat_map(|i| [i % 3; 5]).collect();
            check(&numbers, 1000);
            let runs: Vec<u32> = (0..40)
                .flat_map(|i| vec![i % 2; (i as usize % 9) * count / 8])
                .collect();
            check(&runs, 999);
        }
    }

    #[test]
    fn dictionaries_of_all_sizes_come_back() {
        for entries in [1, 2, 3, 4, 5, 16, 17, 256, 257, 600, 70_000] {
            let numbers: Vec<u32> = (0..entries * 2)
                .map(|i| (i % entries) * 59_999 + i / 7 % 2)
                .collect();
            check(&numbers, 50_000);
        }
    }

    #[test]
    fn pages_and_row_groups_end_where_they_must() {
        let numbers: Vec<u32> = (0..(1 << 20) + (1 << 18) + 3)
            .map(|i: u32| i / 100_000 * i % 37)
            .collect();
        check(&numbers, 100_000);
    }

    #[test]
    fn one_value_for_a_whole_page_is_one_run() {
        let mut encoder = DictionaryEncoder::new();
        encoder.extend(&vec![1u32; 1 << 18]);
        // Width 0, then the header of a run: 2^18 << 1 takes three bytes.
        assert_eq!(encoder.finish(), [0, 0x80, 0x80, 0x20]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_runs_come_back(
            runs in vec((prop_oneof![4 => 0u32..3, 2 => 0u32..400, 1 => any::<u32>()],
                         prop_oneof![4 => 1usize..4, 1 => 1usize..100]), 0..1500),
            batch in 1usize..4000,
        ) {
            let numbers: Vec<u32> = runs.iter().flat_map(|(n, times)| vec![*n; *times]).collect();
            check(&numbers, batch);
        }
    }
}
