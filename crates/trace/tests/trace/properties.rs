//! Whatever rows go in come out, however they were split and wherever a merge was cut short.

use std::fs;
use std::path::Path;

use crate::common::{AnyRow, begun, manifest, rows};
use proptest::collection::vec;
use proptest::prelude::*;
use varve_trace::{
    Destination, Existing, Output, Trace, TraceFolder, TraceWriter, finish_tables, tables,
    write_table,
};

/// Tables in which a later row about the same thing replaces the earlier one.
const LATEST: [&str; 3] = ["mappings", "threads", "processes"];

fn round_trip<R: AnyRow>(seeds: &[u64], folder: &TraceFolder) {
    let expected: Vec<R> = rows(seeds);
    write_table(folder, &expected).unwrap();
    let trace = folder.trace().unwrap();
    let read = trace.rows::<R>().unwrap();
    assert_eq!(lines(&read), lines(&expected));
    assert_eq!(trace.count::<R>().unwrap(), read.len() as u64);
}

/// Appends rows in parts that end at `cuts`.
fn append<R: AnyRow>(writer: &mut TraceWriter, seeds: &[u64], cuts: &[usize]) {
    let rows: Vec<R> = rows(seeds);
    let mut from = 0;
    for to in cuts
        .iter()
        .map(|c| c % (rows.len() + 1))
        .chain([rows.len()])
    {
        if to >= from {
            writer.append(&rows[from..to]).unwrap();
            from = to;
        }
    }
}

/// Rows as text. Writing may cut a short run of touched pages into its pages: they are compared as such.
fn lines<R: AnyRow>(rows: &[R]) -> Vec<String> {
    let mut lines = Vec::new();
    for row in rows {
        let json = row.json();
        let pages = json["pages"].as_u64().unwrap_or(u64::MAX);
        if R::TABLE.name == "touches" && json["page_bytes"] == 4096 && pages <= 640 {
            let first = json["page"].as_u64().unwrap();
            for page in 0..pages {
                let mut json = json.clone();
                json["page"] = first.wrapping_add(page).into();
                json["pages"] = 1.into();
                lines.push(json.to_string());
            }
        } else {
            lines.push(json.to_string());
        }
    }
    lines
}

/// The table as it stands, as text.
fn text<R: AnyRow>(folder: &Path) -> Vec<String> {
    lines::<R>(&Trace::open(folder).unwrap().rows().unwrap())
}

fn recorded<R: AnyRow>(seeds: &[u64]) -> Vec<String> {
    lines::<R>(&rows(seeds))
}

/// What a merge must leave of `before`: the tables of which the last row counts may lose repeated rows.
fn check_merged<R: AnyRow>(seeds: &[u64], folder: &Path) {
    let (mut before, mut after) = (recorded::<R>(seeds), text::<R>(folder));
    if LATEST.contains(&R::TABLE.name) {
        before.sort();
        before.dedup();
        after.sort();
        // Rows from different seeds may speak of the same thing only by rare chance of equal extremes;
        // then fewer rows are right, but none may be new or doubled.
        let unique = after.windows(2).all(|w| w[0] != w[1]);
        assert!(unique, "{} has a row twice", R::TABLE.name);
        assert!(after.iter().all(|row| before.contains(row)));
        let keys = keys_of::<R>(seeds);
        assert_eq!(after.len(), keys, "{}", R::TABLE.name);
    } else {
        assert_eq!(after, before, "{}", R::TABLE.name);
    }
}

/// How many things the rows of a table speak of.
fn keys_of<R: AnyRow>(seeds: &[u64]) -> usize {
    let columns: &[&str] = match R::TABLE.name {
        "mappings" => &["pid", "from_ns", "address", "bytes", "offset", "path"],
        "threads" => &["pid", "tid", "born_ns"],
        _ => &["pid", "born_ns"],
    };
    let mut keys: Vec<String> = rows::<R>(seeds)
        .iter()
        .map(|row| {
            let row = row.json();
            columns.iter().map(|c| format!("{}|", row[c])).collect()
        })
        .collect();
    keys.sort();
    keys.dedup();
    keys.len()
}

/// Every file of a trace, to be put back.
fn snapshot(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let parts = folder.join("parts");
    for folder in [folder.to_owned(), parts] {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for path in entries.map(|e| e.unwrap().path()).filter(|p| p.is_file()) {
            let content = fs::read(&path).unwrap();
            files.push((path, content));
        }
    }
    files
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn every_table_is_tested() {
    fn name_of<R: AnyRow>() -> &'static str {
        R::TABLE.name
    }
    let names = each_table!(name_of());
    assert_eq!(
        names.to_vec(),
        tables::ALL.iter().map(|t| t.name).collect::<Vec<_>>()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn rows_round_trip(seeds in vec(any::<u64>(), 0..40)) {
        let dir = tempfile::tempdir().unwrap();
        let folder = begun(dir.path(), &manifest());
        each_table!(round_trip(&seeds, &folder));
    }

    #[test]
    fn parts_are_the_table(
        seeds in vec(any::<u64>(), 0..40),
        mut cuts in vec(any::<usize>(), 0..6),
    ) {
        cuts.sort_by_key(|c| c % (seeds.len() + 1));
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("t");
        let mut writer = TraceWriter::create(&folder, &manifest()).unwrap();
        each_table!(append(&mut writer, &seeds, &cuts));
        fn same<R: AnyRow>(seeds: &[u64], folder: &Path) {
            assert_eq!(text::<R>(folder), recorded::<R>(seeds));
        }
        each_table!(same(&seeds, &folder));
        finish_tables(writer.folder(), &mut |_| ()).unwrap();
        each_table!(check_merged(&seeds, &folder));
        finish_tables(writer.folder(), &mut |_| ()).unwrap();
        each_table!(check_merged(&seeds, &folder));
    }

    /// A merge writes `TABLE.new`, renames it to `TABLE.parquet`, and removes the parts one after the
    /// other. So a merge that was cut short leaves: some tables done; for one, a `.new` of any content, or
    /// a whole table beside some of its parts.
    #[test]
    fn a_merge_may_be_cut_short_anywhere(
        seeds in vec(any::<u64>(), 1..30),
        mut cuts in vec(any::<usize>(), 1..6),
        kept in vec(any::<bool>(), 100),
        merged in vec(any::<bool>(), 20),
    ) {
        cuts.sort_by_key(|c| c % (seeds.len() + 1));
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("t");
        let mut writer = TraceWriter::create(&folder, &manifest()).unwrap();
        each_table!(append(&mut writer, &seeds, &cuts));
        let parts = snapshot(&folder.join("parts"));
        finish_tables(writer.folder(), &mut |_| ()).unwrap();

        let mut flags = kept.iter().cycle();
        for (i, table) in tables::ALL.iter().enumerate() {
            let whole = folder.join(format!("{}.parquet", table.name));
            if !whole.is_file() {
                continue;
            }
            let torn = folder.join(format!("{}.new", table.name));
            let prefix = format!("{}-", table.name);
            let of_table = parts.iter().filter(|(p, _)| name(p).starts_with(&prefix));
            fs::create_dir_all(folder.join("parts")).unwrap();
            if merged[i % merged.len()] {
                for (path, content) in of_table {
                    if *flags.next().unwrap() {
                        fs::write(path, content).unwrap();
                    }
                }
            } else {
                let content = fs::read(&whole).unwrap();
                fs::write(&torn, &content[..content.len() / 2]).unwrap();
                fs::remove_file(&whole).unwrap();
                for (path, content) in of_table {
                    fs::write(path, content).unwrap();
                }
            }
        }
        finish_tables(writer.folder(), &mut |_| ()).unwrap();
        each_table!(check_merged(&seeds, &folder));
        for raw in ["births", "deaths", "stacks", "generated", "objects", "sites", "symbols", "begun_marks", "ended_marks", "marks"] {
            Destination::from(writer.folder()).remove_parts(raw).unwrap();
        }
        prop_assert!(!folder.join("parts").exists());
        let left = snapshot(&folder);
        prop_assert!(left.iter().all(|(p, _)| !name(p).ends_with(".new")), "{left:?}");
    }
}

#[test]
fn parts_beyond_a_million_stay_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("t");
    let mut writer = TraceWriter::create(&folder, &manifest()).unwrap();
    for seed in 0..3 {
        writer.append(&rows::<tables::TouchRow>(&[seed])).unwrap();
    }
    let parts = folder.join("parts");
    for (from, to) in [(2, "1000000"), (1, "999999"), (0, "999998")] {
        let from = parts.join(format!("touches-00000{from}.parquet"));
        fs::rename(from, parts.join(format!("touches-{to}.parquet"))).unwrap();
    }
    assert_eq!(
        text::<tables::TouchRow>(&folder),
        recorded::<tables::TouchRow>(&[0, 1, 2])
    );
}

#[test]
fn an_ended_trace_without_one_of_its_tables_is_not_read_as_whole() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("t");
    let mut writer = TraceWriter::create(&folder, &manifest()).unwrap();
    writer.append(&rows::<tables::TouchRow>(&[1, 2])).unwrap();
    finish_tables(writer.folder(), &mut |_| ()).unwrap();
    let mut ended = manifest();
    ended.state = varve_trace::State::Finished;
    ended.derive_completeness();
    writer.folder().write_manifest(&ended).unwrap();
    assert!(
        Trace::open(&folder)
            .unwrap()
            .rows::<tables::FaultRow>()
            .unwrap()
            .is_empty()
    );
    fs::remove_file(folder.join("touches.parquet")).unwrap();
    let trace = Trace::open(&folder).unwrap();
    let error = trace.rows::<tables::TouchRow>().unwrap_err().to_string();
    assert!(
        error.contains("touches.parquet") && error.contains("missing"),
        "{error}"
    );
    assert!(trace.touch_units().is_err());
    drop(writer);
    // It does not stand in the way of the next recording either.
    let mut output = Output::new(&folder);
    assert!(output.create().is_err());
    output.existing = Existing::Replace;
    TraceWriter::begin(output.create().unwrap(), &manifest()).unwrap();
}
