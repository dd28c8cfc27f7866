//! What leaves a trace for other tools.

use std::collections::BTreeMap;

use tempfile::TempDir;
use varve_model::{Interval, Page, Pid, TouchSource};
use varve_report::export::{ExportFormat, export};
use varve_trace::tables::TouchRow;
use varve_trace::{Trace, TraceFolder, write_table};

use crate::made::{Kind, STEP, write};

/// Where there are neither samples nor faults. A run of pages is known to have been touched by the end of its interval, is cut where objects
/// begin and end, and is no event of the program where others may have touched it.
#[test]
fn touches_are_exported_by_object_at_the_end_of_their_interval() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.varve");
    write(&path, Kind::WithoutFaults);
    let touch = |interval: u32, page: u64, written, source| TouchRow {
        interval: Interval(interval),
        pid: Pid(42),
        page: Page(page),
        pages: 6,
        page_bytes: 4096,
        written,
        source,
    };
    let touches = [
        touch(3, 0xfffe, Some(false), TouchSource::Scan),
        touch(3, 0x20000, None, TouchSource::PossiblyOthers),
        touch(7, 0x30010, Some(true), TouchSource::PageFlag),
    ];
    write_table(&TraceFolder::open(&path).unwrap(), &touches).unwrap();
    let mut csv = Vec::new();
    export(&Trace::open(&path).unwrap(), ExportFormat::Csv, &mut csv).unwrap();
    let text = String::from_utf8(csv).unwrap();
    // A run may come in pieces.
    let mut found = BTreeMap::new();
    for line in text.lines().skip(1) {
        let cells: Vec<&str> = line.splitn(12, ',').collect();
        let (object, weight) = cells[11].rsplit_once(',').unwrap();
        let name = object.trim_matches([',', '"']).split(' ').next().unwrap();
        let key = (cells[0].parse().unwrap(), cells[4], cells[8], name);
        let (bytes, pages) = found.entry(key).or_insert((0, 0));
        *bytes += cells[7].parse::<u64>().unwrap();
        *pages += weight.parse::<u64>().unwrap();
    }
    let end = |interval: u64| (interval + 1) * STEP - 300_000;
    let expected = [
        ((end(3), "scan", "false", ""), (2 * 4096, 2)),
        ((end(3), "scan", "false", "matrix"), (4 * 4096, 4)),
        ((end(7), "page_flag", "true", "spare"), (6 * 4096, 6)),
    ];
    assert_eq!(found, expected.into(), "{text}");
}
