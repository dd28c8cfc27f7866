//! A trace is read to the rows that it was written from, whether its recorder ended or was killed.

use std::path::Path;

use crate::common::{AnyRow, small};
use serde_json::{Map, Value};
use varve_trace::{State, Trace, TraceFolder, finish_tables};

/// All rows of a trace as JSON; tables without rows are left out.
fn read(folder: &Path) -> Value {
    fn table<R: AnyRow>(trace: &Trace) -> (String, Value) {
        let rows: Vec<R> = trace.rows().unwrap();
        (
            R::TABLE.name.to_owned(),
            rows.iter().map(|r| r.json()).collect(),
        )
    }
    let trace = Trace::open(folder).unwrap();
    let tables = each_table!(table(&trace)).into_iter();
    Value::Object(Map::from_iter(
        tables.filter(|(_, rows)| rows != &Value::Array(vec![])),
    ))
}

#[test]
fn a_trace_is_read_to_the_rows_it_was_written_from() {
    let dir = tempfile::tempdir().unwrap();
    let (finished, killed) = (dir.path().join("finished"), dir.path().join("killed"));
    let expected = small::finished(&finished);
    assert_eq!(read(&finished), expected);
    let state = |folder: &Path| Trace::open(folder).unwrap().manifest.state;
    assert_eq!(state(&finished), State::Finished);
    let expected = small::killed(&killed);
    assert_eq!(read(&killed), expected);
    assert_eq!(state(&killed), State::Recording);
}

#[test]
fn a_killed_trace_can_be_put_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let raw = small::killed(dir.path());
    let folder = TraceFolder::open(dir.path()).unwrap();
    finish_tables(&folder, &mut |_| ()).unwrap();
    let merged = read(dir.path());
    for table in ["intervals", "touches", "births", "deaths", "stacks"] {
        assert_eq!(merged[table], raw[table]);
    }
    // Of the mapping that was written twice, the later row counts.
    let mappings = merged["mappings"].as_array().unwrap();
    assert_eq!(
        (mappings.len(), &mappings[1]["to_ns"]),
        (2, &Value::from(9000))
    );
}
