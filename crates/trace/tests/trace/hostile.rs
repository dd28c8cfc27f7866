//! Files that are damaged, or made to do harm: an error that names the file, and nothing worse.
#![allow(clippy::type_complexity)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{AnyRow, Source, begun, manifest, rows};
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use varve_trace::tables::{Row, SiteRow, StackRow, SymbolRow, TouchRow};
use varve_trace::{
    Existing, Manifest, Output, State, Trace, TraceError, TraceFolder, TraceWriter, finish_tables,
    write_table,
};

/// Kilobytes of address space that reading a hostile file may take. The test itself needs some 100 MiB,
/// and an allocator may reserve more than it uses.
const ADDRESS_SPACE: u64 = 3 << 20;

/// Runs a test of this module in a process of its own that gets no more memory than it may need, and no more time:
/// what cannot be allocated aborts, and a test that was aborted, hangs or was not found by its name has failed.
fn bounded(test: &str, body: impl FnOnce()) {
    const INSIDE: &str = "VARVE_TEST_BOUNDED";
    const DONE: i32 = 71;
    if std::env::var_os(INSIDE).is_some() {
        body();
        std::process::exit(DONE);
    }
    let test = &format!("hostile::{test}");
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -v $0 && exec \"$1\" --exact \"$2\""])
        .arg(ADDRESS_SPACE.to_string())
        .arg(std::env::current_exe().unwrap())
        .arg(test)
        .env(INSIDE, "1")
        .spawn()
        .unwrap();
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert_eq!(status.code(), Some(DONE), "{test}: {status}");
            return;
        }
        if began.elapsed() > Duration::from_secs(600) {
            child.kill().unwrap();
            panic!("{test} hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A trace folder with a manifest and nothing else.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    begun(dir.path(), &manifest());
    dir
}

/// Reads a table in every way; the error where there is one.
fn read<R: AnyRow>(folder: &Path) -> Result<Vec<R>, TraceError> {
    let trace = Trace::open(folder)?;
    let rows = trace.rows::<R>();
    let _ = trace.count::<R>();
    if R::TABLE == TouchRow::TABLE {
        let columns = crate::fuzzed::target::read_columns(&trace);
        assert_eq!(rows.is_ok(), columns.is_ok(), "{rows:?} {columns:?}");
    }
    rows
}

#[track_caller]
fn refused<R: AnyRow>(folder: &Path, file: &str) -> String {
    let error = read::<R>(folder).unwrap_err().to_string();
    assert!(error.contains(file), "{error} does not name {file}");
    error
}

fn write_batch(path: &Path, columns: Vec<(&str, ArrayRef, bool)>) {
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, array, nullable)| Field::new(*name, array.data_type().clone(), *nullable))
        .collect();
    let arrays = columns.into_iter().map(|c| c.1).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    write_raw(path, &batch);
}

fn write_raw(path: &Path, batch: &RecordBatch) {
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_data_page_size_limit(1 << 30)
        .set_dictionary_page_size_limit(1 << 30)
        .build();
    let file = fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// One change to some bytes.
fn mutate(bytes: &mut Vec<u8>, source: &mut Source) {
    let length = bytes.len();
    // The footer is where lengths, counts and schemas are.
    let at = match source.below(3) {
        0 => source.below(length),
        1 => length.saturating_sub(1 + source.below(length.min(1500))),
        _ => source.below(length.min(200)),
    };
    let run = 1 + source.below(16).min(length - at - 1);
    match source.below(9) {
        0 | 1 => bytes[at] ^= 1 << source.below(8),
        2 => bytes[at] = source.next() as u8,
        3 => bytes[at..at + run].fill(0xff),
        4 => bytes[at..at + run].fill(0),
        5 => bytes.truncate(at),
        6 => drop(bytes.drain(at..at + run)),
        7 => {
            let copy = bytes[at..at + run].to_vec();
            bytes.splice(at..at, copy);
        }
        _ => bytes[at] = bytes[at].wrapping_add(1),
    }
}

#[test]
fn mutations_of_every_table() {
    bounded("mutations_of_every_table", || {
        fn mutations<R: AnyRow>() -> (usize, usize) {
            let dir = folder();
            let mut source = Source::new(R::TABLE.name.len() as u64);
            let seeds: Vec<u64> = (0..50).collect();
            let name = format!("{}.parquet", R::TABLE.name);
            let open = TraceFolder::open(dir.path()).unwrap();
            write_table::<R>(&open, &rows(&seeds)).unwrap();
            let path = dir.path().join(&name);
            let whole = fs::read(&path).unwrap();
            let (mut refusals, mut panics) = (0, 0);
            for _ in 0..100 {
                let mut bytes = whole.clone();
                for _ in 0..1 + source.below(3) {
                    if bytes.len() > 1 {
                        mutate(&mut bytes, &mut source);
                    }
                }
                fs::write(&path, &bytes).unwrap();
                if let Err(error) = read::<R>(dir.path()) {
                    let error = error.to_string();
                    assert!(error.contains(&name), "{error}");
                    refusals += 1;
                    panics += usize::from(error.contains("its decoder gave up"));
                }
            }
            (refusals, panics)
        }
        let found = each_table!(mutations());
        for (refusals, _) in found {
            assert!(refusals > 30, "the mutations hardly do anything: {found:?}");
        }
        println!("refused, of which by a panic that was caught: {found:?}");
    });
}

#[test]
fn every_cut_is_refused() {
    let dir = folder();
    let open = TraceFolder::open(dir.path()).unwrap();
    write_table(&open, &rows::<TouchRow>(&[1, 2, 3])).unwrap();
    let path = dir.path().join("touches.parquet");
    let whole = fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        refused::<TouchRow>(dir.path(), "touches.parquet");
    }
}

#[test]
fn columns_that_are_missing_renamed_or_of_another_type_are_refused() {
    let dir = folder();
    let path = dir.path().join("touches.parquet");
    let good = TouchRow::to_batch(&rows(&[1, 2, 3])).unwrap();
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["1", "2", "3"]));
    for column in 0..good.num_columns() {
        let name = good.schema().field(column).name().clone();
        let all = || {
            let schema = good.schema();
            let each = schema.fields().iter().zip(good.columns());
            each.map(|(f, c)| (f.name().clone(), c.clone(), f.is_nullable()))
                .collect::<Vec<_>>()
        };
        let write = |columns: Vec<(String, ArrayRef, bool)>| {
            write_batch(
                &path,
                columns
                    .iter()
                    .map(|(n, c, o)| (n.as_str(), c.clone(), *o))
                    .collect(),
            );
        };
        let mut missing = all();
        missing.remove(column);
        write(missing);
        assert!(refused::<TouchRow>(dir.path(), "touches.parquet").contains(&name));
        let mut renamed = all();
        renamed[column].0.push('2');
        write(renamed);
        assert!(refused::<TouchRow>(dir.path(), "touches.parquet").contains(&name));
        for other in [&numbers, &texts] {
            let mut retyped = all();
            retyped[column].1 = other.clone();
            write(retyped);
            refused::<TouchRow>(dir.path(), "touches.parquet");
        }
        // Nulls where none may be; in `written` they may.
        let mut with_null = all();
        with_null[column].1 = arrow_array::new_null_array(good.column(column).data_type(), 3);
        with_null[column].2 = true;
        write(with_null);
        assert_eq!(
            read::<TouchRow>(dir.path()).is_ok(),
            name == "written",
            "{name}"
        );
    }
    // A column that is wrong is wrong without rows too; one too many is not.
    write_batch(
        &path,
        vec![(
            "page",
            Arc::new(UInt64Array::from(Vec::<u64>::new())),
            false,
        )],
    );
    refused::<TouchRow>(dir.path(), "touches.parquet");
    let mut columns: Vec<(String, ArrayRef, bool)> = Vec::new();
    for (field, column) in good.schema().fields().iter().zip(good.columns()).rev() {
        columns.push((field.name().clone(), column.clone(), field.is_nullable()));
    }
    columns.push(("future".to_owned(), texts, false));
    write_batch(
        &path,
        columns
            .iter()
            .map(|(n, c, o)| (n.as_str(), c.clone(), *o))
            .collect(),
    );
    assert_eq!(
        read::<TouchRow>(dir.path()).unwrap(),
        rows::<TouchRow>(&[1, 2, 3])
    );
}

#[test]
fn null_lists_and_null_items_are_refused() {
    let dir = folder();
    let path = dir.path().join("stacks.parquet");
    let good = StackRow::to_batch(&rows(&[1, 2])).unwrap();
    let list = |null_list: bool| -> ArrayRef {
        let mut list =
            arrow_array::builder::ListBuilder::new(arrow_array::builder::UInt64Builder::new());
        list.append_value([Some(1), if null_list { Some(2) } else { None }]);
        list.append(!null_list);
        Arc::new(list.finish())
    };
    for null_list in [true, false] {
        let schema = good.schema();
        let columns = schema.fields().iter().zip(good.columns());
        let columns = columns.map(|(f, c)| match f.name().as_str() {
            "frames" => ("frames", list(null_list), true),
            name => (name, c.clone(), f.is_nullable()),
        });
        write_batch(&path, columns.collect());
        refused::<StackRow>(dir.path(), "stacks.parquet");
    }
}

#[test]
fn words_that_are_unknown_are_refused_and_plain_words_are_read() {
    let dir = folder();
    let path = dir.path().join("touches.parquet");
    let good = TouchRow::to_batch(&rows(&[1, 2])).unwrap();
    for (word, known) in [("scan", true), ("telepathy", false), ("", false)] {
        let schema = good.schema();
        let columns = schema.fields().iter().zip(good.columns());
        let columns = columns.map(|(f, c)| match f.name().as_str() {
            "source" => (
                "source",
                Arc::new(StringArray::from(vec!["scan", word])) as ArrayRef,
                false,
            ),
            name => (name, c.clone(), f.is_nullable()),
        });
        write_batch(&path, columns.collect());
        assert_eq!(read::<TouchRow>(dir.path()).is_ok(), known, "{word}");
    }
}

/// Small files that unpack to much.
#[test]
fn bombs_are_bounded() {
    bounded("bombs_are_bounded", || {
        let dir = folder();
        // One page of more than a hundred megabytes of equal numbers.
        let path = dir.path().join("stacks.parquet");
        let items = 20 << 20;
        let one = UInt64Array::from(vec![7; items]);
        let frames = arrow_array::ListArray::new(
            Arc::new(Field::new("item", DataType::UInt64, true)),
            arrow_buffer::OffsetBuffer::from_lengths([items]),
            Arc::new(one),
            None,
        );
        let number = || Arc::new(UInt32Array::from(vec![1])) as ArrayRef;
        write_batch(
            &path,
            vec![
                ("site", number(), false),
                ("pid", number(), false),
                ("time_ns", Arc::new(UInt64Array::from(vec![1])), false),
                ("frames", Arc::new(frames), false),
                (
                    "first_is_return",
                    Arc::new(arrow_array::BooleanArray::from(vec![true])),
                    false,
                ),
            ],
        );
        assert!(fs::metadata(&path).unwrap().len() < 1 << 20);
        let error = refused::<StackRow>(dir.path(), "stacks.parquet");
        assert!(error.contains("claim"), "{error}");

        // A text of 10 MiB, once in the file, in every one of 100 rows.
        let path = dir.path().join("symbols.parquet");
        let long = "x".repeat(10 << 20);
        let names = arrow_array::DictionaryArray::<arrow_array::types::Int32Type>::new(
            arrow_array::Int32Array::from(vec![0; 100]),
            Arc::new(StringArray::from(vec![long.as_str()])),
        );
        drop(long);
        let numbers = || Arc::new(UInt64Array::from(vec![1; 100])) as ArrayRef;
        let texts = || Arc::new(StringArray::from(vec![None::<&str>; 100])) as ArrayRef;
        let modules = Arc::new(StringArray::from(vec!["m"; 100]));
        write_batch(
            &path,
            vec![
                ("pid", Arc::new(UInt32Array::from(vec![1; 100])), false),
                ("address", numbers(), false),
                ("bytes", numbers(), false),
                ("name", Arc::new(names), false),
                ("module", modules, false),
                ("file", texts(), true),
                (
                    "line",
                    arrow_array::new_null_array(&DataType::UInt32, 100),
                    true,
                ),
            ],
        );
        assert!(fs::metadata(&path).unwrap().len() < 1 << 20);
        let trace = Trace::open(dir.path()).unwrap();
        // Batch by batch: whoever asks for all of it at once asks for all of it.
        for batch in trace.batches::<SymbolRow>().unwrap().take(3) {
            match batch {
                Ok(rows) => assert!(rows.len() <= 52, "{}", rows.len()),
                Err(error) => assert!(error.to_string().contains("symbols.parquet"), "{error}"),
            }
        }
    });
}

#[test]
fn claimed_row_counts_must_be_possible() {
    let dir = folder();
    let path = dir.path().join("deaths.parquet");
    // Equal rows pack into next to nothing if pages are made as large as can be.
    let batch = RecordBatch::try_from_iter([
        (
            "object",
            Arc::new(UInt64Array::from(vec![1; 30_000_000])) as ArrayRef,
        ),
        ("died_ns", Arc::new(UInt64Array::from(vec![1; 30_000_000]))),
    ])
    .unwrap();
    let properties = WriterProperties::builder()
        .set_data_page_row_count_limit(16_000_000)
        .set_max_row_group_row_count(Some(1 << 30));
    let file = fs::File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let error = refused::<varve_trace::tables::DeathRow>(dir.path(), "deaths.parquet");
    assert!(error.contains("claim"), "{error}");
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    use std::os::unix::fs::symlink;
    let fifo = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    let cases: [(&str, &dyn Fn(&Path)); 6] = [
        ("directory", &|p| fs::create_dir(p).unwrap()),
        ("fifo", &fifo),
        ("loop", &|p| symlink(p, p).unwrap()),
        ("dangling", &|p| symlink("/nonexistent/file", p).unwrap()),
        ("device", &|p| symlink("/dev/zero", p).unwrap()),
        ("empty", &|p| fs::write(p, b"").unwrap()),
    ];
    for (what, make) in cases {
        for place in ["touches.parquet", "parts/touches-000000.parquet"] {
            let dir = folder();
            fs::create_dir(dir.path().join("parts")).unwrap();
            make(&dir.path().join(place));
            let error = refused::<TouchRow>(dir.path(), place);
            assert!(
                TraceFolder::open(dir.path())
                    .and_then(|open| finish_tables(&open, &mut |_| ()))
                    .is_err(),
                "{what}: {error}"
            );
        }
        let dir = tempfile::tempdir().unwrap();
        make(&dir.path().join("manifest.json"));
        let error = Trace::open(dir.path()).unwrap_err().to_string();
        // Where a link leads nowhere there is no manifest.
        assert!(error.contains("manifest.json"), "{what}: {error}");
        for existing in [Existing::Refuse, Existing::Replace] {
            let mut output = Output::new(dir.path());
            output.existing = existing;
            assert!(output.check().is_err(), "{what}");
            assert!(output.create().is_err(), "{what}");
        }

        let dir = folder();
        make(&dir.path().join("parts"));
        if what != "directory" {
            refused::<TouchRow>(dir.path(), "parts");
        }
    }
}

/// Whatever stands in the way stays there.
#[cfg(unix)]
#[test]
fn a_merge_follows_no_link_that_the_folder_holds() {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    let folder = dir.path().join("t");
    let mut writer = TraceWriter::create(&folder, &manifest()).unwrap();
    writer.append(&rows::<TouchRow>(&[1, 2])).unwrap();
    for temporary in [
        "touches.new",
        "faults.new",
        "mappings.new",
        "manifest.json.new",
    ] {
        let at = folder.join(temporary);
        if temporary == "faults.new" {
            assert!(Command::new("mkfifo").arg(&at).status().unwrap().success());
        } else {
            std::os::unix::fs::symlink(&victim, &at).unwrap();
        }
        let done = finish_tables(writer.folder(), &mut |_| ());
        let done = done.and_then(|()| writer.folder().write_manifest(&manifest()));
        let error = done.unwrap_err().to_string();
        assert!(error.contains(temporary), "{error}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
        assert!(at.symlink_metadata().is_ok(), "{temporary} is gone");
        fs::remove_file(&at).unwrap();
    }
    finish_tables(writer.folder(), &mut |_| ()).unwrap();
    assert_eq!(
        read::<TouchRow>(&folder).unwrap(),
        rows::<TouchRow>(&[1, 2])
    );
}

/// A turned bit may leave a table that reads well and says something else.
#[test]
fn no_byte_of_a_finished_table_can_change_unseen() {
    let place = folder();
    let folder = place.path().join("t.varve");
    let mut writer = TraceWriter::create(&folder, &manifest()).unwrap();
    writer.append(&rows::<TouchRow>(&[1, 2, 3])).unwrap();
    let writer = writer.into_folder();
    finish_tables(&writer, &mut |_| ()).unwrap();
    let mut ended = manifest();
    ended.state = State::Finished;
    ended.checksums = writer.checksums().unwrap();
    writer.write_manifest(&ended).unwrap();
    drop(writer);
    let good = read::<TouchRow>(&folder).unwrap();
    assert_eq!(good, rows::<TouchRow>(&[1, 2, 3]));
    let file = folder.join("touches.parquet");
    let bytes = fs::read(&file).unwrap();
    let mut read_well = 0;
    for at in 0..bytes.len() {
        let mut turned = bytes.clone();
        turned[at] ^= 1 << (at % 8);
        fs::write(&file, turned).unwrap();
        let said = refused::<TouchRow>(&folder, "touches.parquet");
        assert!(said.contains("checksum differs"), "byte {at}: {said}");
        // What it would have come to.
        let mut trace = Trace::open(&folder).unwrap();
        trace.manifest.checksums.clear();
        read_well += u32::from(trace.rows::<TouchRow>().is_ok());
    }
    assert!(
        read_well > 0,
        "every turned bit is seen without a checksum too"
    );
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert!(refused::<TouchRow>(&folder, "touches.parquet").contains("bytes"));
    fs::remove_file(&file).unwrap();
    assert!(refused::<TouchRow>(&folder, "touches.parquet").contains("missing"));
    fs::write(&file, &bytes).unwrap();
    assert_eq!(read::<TouchRow>(&folder).unwrap(), good);
}

#[test]
fn manifests_of_every_kind_of_garbage_are_refused() {
    bounded("manifests_of_every_kind_of_garbage_are_refused", || {
        let good = serde_json::to_string(&manifest()).unwrap();
        let deep = "[".repeat(1 << 20);
        let version = |v: &str| {
            let ours = format!("\"version\":{}", varve_trace::FORMAT_VERSION);
            good.replace(&ours, &format!("\"version\":{v}"))
        };
        let cases = [
            String::new(),
            "garbage".to_owned(),
            "null".to_owned(),
            "[]".to_owned(),
            "{}".to_owned(),
            deep.clone(),
            "{\"a\":".repeat(1 << 18),
            format!("{{\"future\":{deep}"),
            version("1e400"),
            version("-1"),
            version("0"),
            version("4294967296"),
            version("99999"),
            good.replace("varve-trace", "tar"),
            good.replace("\"start_ns\":0", "\"start_ns\":18446744073709551616"),
            good.replace("\"start_ns\":0", "\"start_ns\":-1"),
            good.replace("\"recording\"", "\"dreaming\""),
            good.replace("\"losses\":{}", "\"losses\":{\"faults\":1.5}"),
            format!("{good}}}"),
            good[..good.len() - 1].to_owned(),
            good.replacen('{', "{\"version\":1,", 1),
        ];
        for case in &cases {
            assert_ne!(*case, good, "a replacement hit nothing");
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("manifest.json"), case).unwrap();
            let error = Manifest::read(dir.path()).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
            assert!(text.len() < 1000, "{text}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("manifest.json");
        fs::write(&path, b"\xff\xfe{\0").unwrap();
        assert!(Manifest::read(dir.path()).is_err());
        // As long as a disk, and hardly there.
        fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = Manifest::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
        // What this version does not know is passed over.
        fs::write(
            &path,
            good.replacen('{', "{\"future\":[1,{\"a\":null}],", 1),
        )
        .unwrap();
        assert_eq!(Manifest::read(dir.path()).unwrap(), manifest());

        let mut source = Source::new(3);
        for _ in 0..1000 {
            let mut bytes = good.clone().into_bytes();
            mutate(&mut bytes, &mut source);
            fs::write(&path, &bytes).unwrap();
            let _ = Manifest::read(dir.path());
        }
    });
}

#[test]
fn a_panic_of_somebody_else_is_still_reported() {
    // The hook that quiets decoders must not quiet the rest: panics of tests are caught as ever.
    let dir = folder();
    fs::write(dir.path().join("sites.parquet"), b"PAR1").unwrap();
    refused::<SiteRow>(dir.path(), "sites.parquet");
    assert!(std::panic::catch_unwind(|| panic!("said")).is_err());
}
