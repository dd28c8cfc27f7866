//! A bit for each resident page and interval, and a tenth: no way of touching pages takes more.

use std::fs::{self, File};

use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use varve_model::{Interval, Page, Pid, TouchSource};
use varve_trace::tables::{Row, TouchRow};
use varve_trace::{Output, write_table};

const PAGES: u64 = 65_536;
const INTERVALS: u32 = 12;
const MAX_BITS: f64 = 1.1;

/// The runs of pages that are touched with the given chances, the same on every machine.
fn touches(chance: impl Fn(u64) -> f64) -> Vec<TouchRow> {
    let mut state = 1u64;
    let mut rows: Vec<TouchRow> = Vec::new();
    for interval in 0..INTERVALS {
        let mut end = None;
        for page in 0..PAGES {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            if (z >> 11) as f64 / (1u64 << 53) as f64 >= chance(page) {
                continue;
            }
            match rows.last_mut() {
                Some(last) if end == Some(page) => last.pages += 1,
                _ => rows.push(TouchRow {
                    interval: Interval(interval),
                    pid: Pid(1),
                    page: Page(0x7f_0000_0000 + page),
                    pages: 1,
                    page_bytes: 4096,
                    written: None,
                    source: TouchSource::Scan,
                }),
            }
            end = Some(page + 1);
        }
    }
    rows
}

fn per_page(bytes: u64) -> f64 {
    bytes as f64 * 8.0 / (PAGES * u64::from(INTERVALS)) as f64
}

fn bits(rows: &[TouchRow]) -> f64 {
    let dir = tempfile::tempdir().unwrap();
    write_table(&Output::new(dir.path()).create().unwrap(), rows).unwrap();
    per_page(
        fs::metadata(dir.path().join("touches.parquet"))
            .unwrap()
            .len(),
    )
}

#[test]
fn random_touches_of_any_density_take_no_more() {
    for percent in 1..100 {
        let bits = bits(&touches(|_| f64::from(percent) / 100.0));
        assert!(bits <= MAX_BITS, "{percent} %: {bits:.3} bits");
    }
}

#[test]
fn densities_that_change_take_no_more() {
    for (one, other) in [(0.5, 0.9), (0.3, 0.7), (0.1, 0.6), (0.5, 0.0), (0.5, 1.0)] {
        for pages in [1, 8, 50, 512, 5000] {
            let chance = |page| if page / pages % 2 == 0 { one } else { other };
            let bits = bits(&touches(chance));
            assert!(
                bits <= MAX_BITS,
                "{one} and {other} by {pages} pages: {bits:.3} bits"
            );
        }
    }
}

/// The control: the same rows, written by the Parquet crate alone.
#[test]
fn the_least_of_bits_take_more() {
    let rows = touches(|_| 0.5);
    let batch = TouchRow::to_batch(&TouchRow::packed(&rows)).unwrap();
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).unwrap()))
        .set_data_page_row_count_limit(1 << 18);
    for column in TouchRow::TABLE.growing {
        let column = ColumnPath::from(*column);
        properties = properties
            .set_column_dictionary_enabled(column.clone(), false)
            .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("touches.parquet");
    let file = File::create(&path).unwrap();
    let mut writer =
        ArrowWriter::try_new(file, TouchRow::schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let theirs = per_page(fs::metadata(&path).unwrap().len());
    assert!(theirs > MAX_BITS, "{theirs:.3} bits");
}
