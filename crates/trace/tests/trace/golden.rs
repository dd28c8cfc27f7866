//! Traces of every format version stay readable: `tests/golden/VERSION` holds one of each.

#[path = "common/golden_rows.rs"]
mod golden_rows;

use std::path::Path;

use crate::common::AnyRow;
use serde_json::{Map, Value};
use varve_trace::{State, Trace};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden");

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

fn expected(version: &Path, name: &str) -> Value {
    let text = std::fs::read(version.join(format!("{name}.json"))).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn every_version_is_read_to_the_rows_it_was_written_from() {
    for version in 1..=varve_trace::FORMAT_VERSION {
        let version = Path::new(GOLDEN).join(format!("v{version}"));
        for (name, state) in [("finished", State::Finished), ("killed", State::Recording)] {
            let folder = version.join(name);
            assert_eq!(
                read(&folder),
                expected(&version, name),
                "{}",
                folder.display()
            );
            assert_eq!(Trace::open(&folder).unwrap().manifest.state, state);
        }
    }
}

/// The committed files are what the generator writes: by rows, since other versions of the libraries pack
/// them differently.
#[test]
fn the_newest_version_is_current() {
    let dir = tempfile::tempdir().unwrap();
    golden_rows::write(dir.path());
    let version = Path::new(GOLDEN).join(format!("v{}", varve_trace::FORMAT_VERSION));
    for name in ["finished", "killed"] {
        assert_eq!(read(&dir.path().join(name)), expected(&version, name));
        assert_eq!(expected(dir.path(), name), expected(&version, name));
        let manifest = |folder: &Path| Trace::open(&folder.join(name)).unwrap().manifest;
        assert_eq!(manifest(dir.path()), manifest(&version));
    }
}

#[test]
fn a_killed_trace_of_every_version_can_be_put_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let from = Path::new(GOLDEN).join("v1/killed");
    let parts = dir.path().join("parts");
    std::fs::create_dir(&parts).unwrap();
    std::fs::copy(from.join("manifest.json"), dir.path().join("manifest.json")).unwrap();
    for entry in std::fs::read_dir(from.join("parts")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, parts.join(path.file_name().unwrap())).unwrap();
    }
    let folder = varve_trace::TraceFolder::open(dir.path()).unwrap();
    varve_trace::finish_tables(&folder, &mut |_| ()).unwrap();
    let (merged, raw) = (read(dir.path()), read(&from));
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
