//! What a table that is read as a whole may take of memory.

use std::collections::HashSet;
use std::fs;

use varve_model::{Bytes, Pid, SiteId, Tid, Time};
use varve_trace::tables::{Frame, Row, SiteRow, ThreadRow};
use varve_trace::{Selection, Trace, TraceError, write_table};

use crate::common::{begun, manifest};

const MIB: u64 = 1 << 20;

/// A trace with one table, whose file is far smaller than its rows.
fn trace_of<R: Row>(rows: &[R]) -> (tempfile::TempDir, Trace) {
    let dir = tempfile::tempdir().unwrap();
    let folder = begun(dir.path(), &manifest());
    write_table(&folder, rows).unwrap();
    let file = dir.path().join(format!("{}.parquet", R::TABLE.name));
    assert!(fs::metadata(file).unwrap().len() < MIB);
    let trace = Trace::open(dir.path()).unwrap();
    (dir, trace)
}

#[track_caller]
fn refused<R: Row>(trace: &Trace, room: Bytes) {
    match trace.rows_within::<R>(room).map(|rows| rows.len()) {
        Err(error @ TraceError::TableTooLarge { .. }) => {
            let (name, text) = (R::TABLE.name, error.to_string());
            assert!(text.contains(&format!("{name}.parquet")), "{text}");
            assert!(text.contains(&format!("{} MiB", room.0 / MIB)), "{text}");
            assert!(error.hint().is_some());
        }
        other => panic!("{other:?}"),
    }
}

fn site(number: u32, label: &str, frames: usize) -> SiteRow {
    SiteRow {
        site: SiteId(number),
        label: label.to_owned(),
        frames: vec![Frame::default(); frames],
    }
}

#[test]
fn text_that_is_short_in_the_file_has_its_length_in_memory() {
    let label = "x".repeat(16 << 10);
    let sites: Vec<SiteRow> = (0..4000).map(|i| site(i, &label, 0)).collect();
    let (_dir, trace) = trace_of(&sites);
    // 62 MiB of labels.
    refused::<SiteRow>(&trace, Bytes(40 * MIB));
    refused::<SiteRow>(&trace, Bytes(MIB));
    let rows = trace.rows_within::<SiteRow>(Bytes(256 * MIB)).unwrap();
    assert_eq!(rows, sites);
    // Batches that are not kept take what they take one after the other.
    let all: usize = trace
        .batches::<SiteRow>()
        .unwrap()
        .map(|b| b.unwrap().len())
        .sum();
    assert_eq!(all, 4000);
}

#[test]
fn items_of_lists_count() {
    let (_dir, trace) = trace_of(&[site(1, "", 200_000)]);
    refused::<SiteRow>(&trace, Bytes(8 * MIB));
    // The columns alone would have room.
    let frames = 200_000 * size_of::<Frame>() as u64;
    refused::<SiteRow>(&trace, Bytes(frames));
    let rows = trace.rows_within::<SiteRow>(Bytes(8 * frames)).unwrap();
    assert_eq!(rows[0].frames.len(), 200_000);
}

#[test]
fn rows_that_are_not_chosen_take_nothing() {
    let name = "x".repeat(16 << 10);
    let thread = |tid: u32| ThreadRow {
        pid: Pid(1 + u32::from(tid < 4000)),
        tid: Tid(tid),
        name: name.clone(),
        born_ns: Time(0),
        died_ns: None,
    };
    let threads: Vec<ThreadRow> = (0..4003).map(thread).collect();
    let (_dir, trace) = trace_of(&threads);
    refused::<ThreadRow>(&trace, Bytes(40 * MIB));
    let part = trace.part(Selection {
        pids: Some(HashSet::from([Pid(1)])),
        ..Selection::default()
    });
    let rows = part.rows_within::<ThreadRow>(Bytes(40 * MIB)).unwrap();
    assert_eq!(rows, threads[4000..]);
}
