//! `DELTA_BINARY_PACKED`, with widths that a byte compressor can see through.
//!
//! The encoding stores each number as its distance from the one before, less the smallest distance of a
//! block, in as many bits as the largest of a miniblock needs; those bits are the writer's choice, and any
//! reader takes what it finds. The least of bits are mostly odd ones: nothing then starts where a byte does,
//! and ZSTD, which comes after, sees noise. Here a width divides a byte or is a multiple of one, so that
//! equal distances are equal bytes and short codes follow from how often they occur.
//!
//! Source: Parquet's `Encodings.md`, "Delta Encoding". Distances wrap around, so a block's smallest distance
//! may be taken as signed or as unsigned, whichever makes the numbers that are left smaller: where a column
//! grows but for a jump back once in a while, only the miniblock of the jump is wide.

/// Values of a block; it costs a byte or more for its smallest distance.
const BLOCK: usize = 1024;
/// Values of a miniblock, the least that the format allows: a jump makes that many values wide.
const MINIBLOCK: usize = 32;
const MINIBLOCKS: usize = BLOCK / MINIBLOCK;
/// Where so many of the latest miniblocks fit two bits, they take one or two from then on. Else they take four
/// like the others: bytes of two kinds would each spoil the code of the other.
const NARROW_FROM: f64 = 0.7;
/// Where so few do, that ends.
const NARROW_TO: f64 = 0.5;
/// How much the latest block counts for that share.
const NARROW_WEIGHT: f64 = 0.125;

/// An integer as Parquet stores it.
pub(crate) trait Word: Copy + Ord {
    /// How wide it is.
    const BITS: u32;
    /// The distance from `before`, which wraps around at the width.
    fn distance(self, before: Self) -> u64;
    /// The value as the signed integer that Parquet takes it for.
    fn signed(self) -> i64;
}

impl Word for u32 {
    const BITS: u32 = 32;

    fn distance(self, before: u32) -> u64 {
        u64::from(self.wrapping_sub(before))
    }

    fn signed(self) -> i64 {
        i64::from(self.cast_signed())
    }
}

impl Word for u64 {
    const BITS: u32 = 64;

    fn distance(self, before: u64) -> u64 {
        self.wrapping_sub(before)
    }

    fn signed(self) -> i64 {
        self.cast_signed()
    }
}

/// Encodes the values of one page as they come.
#[derive(Debug)]
pub(crate) struct DeltaEncoder<W> {
    first: Option<W>,
    last: Option<W>,
    count: usize,
    pending: Vec<u64>,
    blocks: Vec<u8>,
    /// The share of miniblocks that fit two bits, of late.
    share: Option<f64>,
    is_narrow: bool,
}

impl<W: Word> DeltaEncoder<W> {
    pub(crate) fn new() -> Self {
        DeltaEncoder {
            first: None,
            last: None,
            count: 0,
            pending: Vec::with_capacity(BLOCK),
            blocks: Vec::new(),
            share: None,
            is_narrow: false,
        }
    }

    /// Values so far.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn extend(&mut self, values: &[W]) {
        let mut values = values;
        let mut last = match (self.last, values.split_first()) {
            (Some(last), _) => last,
            (None, Some((first, rest))) => {
                self.first = Some(*first);
                self.count += 1;
                values = rest;
                *first
            }
            (None, None) => return,
        };
        self.count += values.len();
        while !values.is_empty() {
            let (now, later) = values.split_at(values.len().min(BLOCK - self.pending.len()));
            self.pending.extend(now.iter().map(|value| {
                let distance = value.distance(last);
                last = *value;
                distance
            }));
            if self.pending.len() == BLOCK {
                self.block();
            }
            values = later;
        }
        self.last = Some(last);
    }

    /// The encoded page; the encoder starts anew.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        if !self.pending.is_empty() {
            self.block();
        }
        let mut page = Vec::with_capacity(self.blocks.len() + 32);
        push_varint(&mut page, BLOCK as u64);
        push_varint(&mut page, MINIBLOCKS as u64);
        push_varint(&mut page, self.count as u64);
        push_varint(&mut page, zigzag(self.first.map_or(0, W::signed)));
        page.append(&mut self.blocks);
        (self.first, self.last, self.count) = (None, None, 0);
        page
    }

    fn block(&mut self) {
        let values = self.pending.len();
        let mut left = [0; BLOCK];
        left[..values].copy_from_slice(&self.pending);
        self.pending.clear();
        let least = smallest::<W>(&left[..values]);
        let base = least.cast_unsigned();
        for value in &mut left[..values] {
            *value = value.wrapping_sub(base) & mask::<W>();
        }
        push_varint(&mut self.blocks, zigzag(least));
        let miniblocks = values.div_ceil(MINIBLOCK);
        let mut widths = [0; MINIBLOCKS];
        for (width, values) in widths.iter_mut().zip(left.chunks_exact(MINIBLOCK)) {
            *width = bits(values);
        }
        let fitting = widths[..miniblocks].iter().filter(|w| **w <= 2).count();
        let fitting = fitting as f64 / miniblocks as f64;
        let share = match self.share {
            Some(before) => before + NARROW_WEIGHT * (fitting - before),
            None => fitting,
        };
        self.share = Some(share);
        self.is_narrow = share
            > if self.is_narrow {
                NARROW_TO
            } else {
                NARROW_FROM
            };
        let min_width = if self.is_narrow { 1 } else { 4 };
        for width in &mut widths {
            *width = rounded(*width, min_width);
        }
        self.blocks.extend(widths.iter().map(|w| *w as u8));
        for (width, values) in widths.iter().zip(left.chunks_exact(MINIBLOCK)) {
            pack(&mut self.blocks, values, *width);
        }
    }
}

fn mask<W: Word>() -> u64 {
    u64::MAX >> (64 - W::BITS)
}

/// The distance that a block is based on.
fn smallest<W: Word>(distances: &[u64]) -> i64 {
    let extend = |d: u64| (d << (64 - W::BITS)).cast_signed() >> (64 - W::BITS);
    let unsigned = distances.iter().copied().min().map_or(0, extend);
    if distances.iter().fold(0, |all, d| all | d) >> (W::BITS - 1) == 0 {
        return unsigned;
    }
    let signed = distances.iter().copied().map(extend).min().unwrap_or(0);
    let cost = |base: i64| -> u32 {
        let base = base.cast_unsigned();
        let miniblocks = distances.chunks(MINIBLOCK);
        miniblocks
            .map(|values| {
                let all = values
                    .iter()
                    .fold(0, |all, d| all | (d.wrapping_sub(base) & mask::<W>()));
                rounded(64 - all.leading_zeros(), 4)
            })
            .sum()
    };
    match cost(unsigned) < cost(signed) {
        true => unsigned,
        false => signed,
    }
}

/// Bits that the largest of them needs.
fn bits(values: &[u64]) -> u32 {
    64 - values.iter().fold(0, |all, v| all | v).leading_zeros()
}

/// The width that is used for values of so many bits: a power of two, so that the wide ones, which are rare,
/// have long runs of zeros.
fn rounded(bits: u32, least: u32) -> u32 {
    match bits {
        0 => 0,
        bits => bits.next_power_of_two().max(least),
    }
}

/// Appends a miniblock; `width` is 0 or a power of two up to 64.
fn pack(out: &mut Vec<u8>, values: &[u64], width: u32) {
    match width {
        0 => {}
        1 | 2 | 4 => {
            let in_byte = (8 / width) as usize;
            out.extend(values.chunks_exact(in_byte).map(|values| {
                let values = values.iter().rev();
                values.fold(0u8, |byte, value| byte << width | *value as u8)
            }));
        }
        8 => out.extend(values.iter().map(|value| *value as u8)),
        _ => {
            let bytes = (width / 8) as usize;
            for value in values {
                out.extend_from_slice(&value.to_le_bytes()[..bytes]);
            }
        }
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// LEB128.
pub(crate) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::{UInt32Type, UInt64Type};
    use arrow_array::{ArrayRef, RecordBatch, UInt32Array, UInt64Array};
    use arrow_schema::{DataType, Field, Schema, SchemaRef};
    use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::table_file::{Place, TableFile};
    use crate::tables::Table;

    const TABLE: Table = Table {
        name: "numbers",
        growing: &["narrow", "wide"],
    };

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("narrow", DataType::UInt32, false),
            Field::new("wide", DataType::UInt64, false),
        ]))
    }

    /// Writes the numbers, in batches of so many, and reads them back with the Parquet crate's own decoder.
    fn there_and_back(numbers: &[u64], batch: usize) -> (Vec<u32>, Vec<u64>) {
        let dir = tempfile::tempdir().unwrap();
        let scratch = crate::Scratch::new(dir.path());
        let place = Place::Scratch(scratch.clone(), TABLE.name);
        let mut file = TableFile::create(place, TABLE, schema()).unwrap();
        for numbers in numbers.chunks(batch) {
            let narrow: ArrayRef = Arc::new(UInt32Array::from_iter_values(
                numbers.iter().map(|n| *n as u32),
            ));
            let wide: ArrayRef = Arc::new(UInt64Array::from(numbers.to_vec()));
            file.write_batch(&RecordBatch::try_new(schema(), vec![narrow, wide]).unwrap())
                .unwrap();
        }
        file.close().unwrap();
        let file = scratch.table(TABLE.name).unwrap().open().unwrap();
        let metadata = ArrowReaderMetadata::load(&file, Default::default()).unwrap();
        for group in metadata.metadata().row_groups() {
            for column in group.columns() {
                assert!(
                    column
                        .encodings()
                        .any(|e| e == parquet::basic::Encoding::DELTA_BINARY_PACKED)
                );
            }
        }
        let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
        let (mut narrow, mut wide) = (Vec::new(), Vec::new());
        for batch in reader.build().unwrap() {
            let batch = batch.unwrap();
            narrow.extend_from_slice(batch.column(0).as_primitive::<UInt32Type>().values());
            wide.extend_from_slice(batch.column(1).as_primitive::<UInt64Type>().values());
        }
        (narrow, wide)
    }

    fn check(numbers: &[u64], batch: usize) {
        let (narrow, wide) = there_and_back(numbers, batch);
        assert_eq!(wide, numbers);
        assert_eq!(
            narrow,
            numbers.iter().map(|n| *n as u32).collect::<Vec<_>>()
        );
    }

    #[test]
    fn blocks_whole_and_begun_come_back() {
        for count in [0, 1, 2, 31, 32, 33, 34, 1023, 1024, 1025, 1026, 2049, 5000] {
            check(&(0..count).collect::<Vec<_>>(), 1000);
            check(&(0..count).rev().collect::<Vec<_>>(), 1);
        }
    }

    #[test]
    fn every_width_comes_back() {
        for width in 0..64u32 {
            for (up, down) in [(1u64 << width, 0u64), ((1 << width) - 1, 1 << width >> 1)] {
                let mut last = 1u64 << 63;
                let numbers: Vec<u64> = (0..100)
                    .map(|i| {
                        let step = if i % 3 == 0 { up } else { down.wrapping_neg() };
                        last = last.wrapping_add(step);
                        last
                    })
                    .collect();
                check(&numbers, 64);
            }
        }
    }

    #[test]
    fn extremes_come_back() {
        let ends = [0, u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 31, (1 << 31) - 1];
        let numbers: Vec<u64> = (0..ends.len() * ends.len())
            .flat_map(|i| [ends[i / ends.len()], ends[i % ends.len()]])
            .collect();
        check(&numbers, 7);
    }

    #[test]
    fn pages_and_row_groups_end_where_they_must() {
        let numbers: Vec<u64> = (0..(1 << 20) + (1 << 18) + 3)
            .map(|i| i * 3 % 1_000_003)
            .collect();
        check(&numbers, 100_000);
    }

    #[test]
    fn a_jump_back_widens_one_miniblock() {
        let mut encoder = DeltaEncoder::new();
        let rising: Vec<u64> = (0..1025).map(|i| (1 << 40) + i + i / 2).collect();
        encoder.extend(&rising);
        let plain = encoder.finish().len();
        let mut back = rising.clone();
        for value in &mut back[500..] {
            *value -= 1 << 35;
        }
        encoder.extend(&back);
        assert_eq!(encoder.finish().len() - plain, 32 * 8 - 32 / 8);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_numbers_come_back(
            steps in vec((0u32..64, any::<u64>(), any::<bool>()), 0..3000),
            batch in 1usize..4000,
        ) {
            let mut last = 0u64;
            let numbers: Vec<u64> = steps.iter().map(|(width, bits, back)| {
                let step = bits >> width;
                last = if *back { last.wrapping_sub(step) } else { last.wrapping_add(step) };
                last
            }).collect();
            check(&numbers, batch);
        }

        #[test]
        fn rising_numbers_come_back(
            steps in vec(prop_oneof![40 => 1u64..4, 8 => 1u64..300, 1 => any::<u64>()], 0..6000),
        ) {
            let numbers: Vec<u64> = steps.iter().scan(0u64, |last, step| {
                *last = last.wrapping_add(*step);
                Some(*last)
            }).collect();
            check(&numbers, 6000);
        }
    }
}
