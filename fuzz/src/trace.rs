//! A trace folder from bytes, read in every way there is.
//!
//! The bytes are a series of files: the number of a name (one byte), a length (three bytes, little-endian)
//! and so much content, or as much as is left.

use std::fs;
use std::path::Path;

use varve_trace::tables::{self, Row};
use varve_trace::{Trace, TraceError, TraceFolder, finish_tables};

/// Batches of one table that are read: streaming a long table is slow, not wrong.
const BATCHES: usize = 16;

/// The files that a folder may hold, by number.
pub(crate) fn names() -> Vec<String> {
    let tables = tables::ALL.iter().map(|table| table.name);
    let forms = tables.flat_map(|table| {
        [
            format!("{table}.parquet"),
            format!("parts/{table}-000000.parquet"),
            format!("parts/{table}-000001.parquet"),
        ]
    });
    ["manifest.json".to_owned()]
        .into_iter()
        .chain(forms)
        .collect()
}

/// The bytes for some files; what has no number is left out.
#[allow(dead_code)]
pub(crate) fn pack(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, content) in files {
        if let Some(number) = names().iter().position(|n| n == name) {
            bytes.push(number as u8);
            bytes.extend(&(content.len() as u32).to_le_bytes()[..3]);
            bytes.extend(content);
        }
    }
    bytes
}

/// Makes the folder that the bytes describe; an earlier one of the same path is gone.
#[allow(dead_code)]
pub(crate) fn unpack(mut bytes: &[u8], folder: &Path) {
    let names = names();
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder.join("parts")).expect("scratch folder");
    while let [number, a, b, c, rest @ ..] = bytes {
        let length = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
        let (content, after) = rest.split_at(length.min(rest.len()));
        let name = &names[usize::from(*number) % names.len()];
        fs::write(folder.join(name), content).expect("scratch file");
        bytes = after;
    }
}

/// Reads everything; errors are what is to be expected.
#[allow(dead_code)]
pub(crate) fn run(bytes: &[u8], folder: &Path) {
    unpack(bytes, folder);
    let Ok(trace) = Trace::open(folder) else {
        return;
    };
    read::<tables::IntervalRow>(&trace);
    read::<tables::TouchRow>(&trace);
    read::<tables::FaultRow>(&trace);
    read::<tables::SampleRow>(&trace);
    read::<tables::CountRow>(&trace);
    read::<tables::ObjectRow>(&trace);
    read::<tables::SiteRow>(&trace);
    read::<tables::SymbolRow>(&trace);
    read::<tables::MappingRow>(&trace);
    read::<tables::ThreadRow>(&trace);
    read::<tables::ProcessRow>(&trace);
    read::<tables::CounterRow>(&trace);
    read::<tables::OperationRow>(&trace);
    read::<tables::OperationTimeRow>(&trace);
    read::<tables::OperationChargeRow>(&trace);
    read::<tables::HeapMemoryRow>(&trace);
    read::<tables::LossRow>(&trace);
    read::<tables::BirthRow>(&trace);
    read::<tables::DeathRow>(&trace);
    read::<tables::MarkRow>(&trace);
    read::<tables::BegunMarkRow>(&trace);
    read::<tables::EndedMarkRow>(&trace);
    read::<tables::StackRow>(&trace);
    let columns = read_columns(&trace);
    if columns.is_ok_and(|rows| rows < 1 << 16) {
        let open = TraceFolder::open(folder);
        let _ = open.and_then(|open| finish_tables(&open, &mut |_| ()));
    }
}

#[allow(dead_code)]
fn read<R: Row>(trace: &Trace) {
    let _ = trace.count::<R>();
    if let Ok(batches) = trace.batches::<R>() {
        for batch in batches.take(BATCHES) {
            if batch.is_err() {
                break;
            }
        }
    }
}

/// The touches as columns; how many rows.
pub(crate) fn read_columns(trace: &Trace) -> Result<usize, TraceError> {
    let mut rows = 0;
    for unit in trace.touch_units()? {
        unit.read(|columns| {
            rows += columns.len();
            rows < BATCHES << 16
        })?;
    }
    Ok(rows)
}
