//! What a program that is counted may make of its file: reading it ends, in entries or in an error.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/src/counts.rs"]
mod fuzzed;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use varve_qemu_counter_abi::{Counts, CountsError, Entry, layout as at};

/// A file as long as the plugin's, with these segments in its list: where each lies, and its table's word.
fn file(path: &Path, segments: &[(u64, u64)]) -> File {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(path)
        .unwrap();
    file.set_len(64 << 30).unwrap();
    let put = |at: u64, word: u64| file.write_all_at(&word.to_ne_bytes(), at).unwrap();
    put(at::AT_MAGIC, at::MAGIC);
    put(at::AT_VERSION, at::VERSION);
    let mut newest = 0;
    for (offset, table) in segments {
        put(offset + at::SEGMENT_NEXT, newest);
        put(offset + at::SEGMENT_TABLE, *table);
        newest = *offset;
    }
    put(at::AT_SEGMENTS, newest);
    file
}

fn put_entry(file: &File, offset: u64, words: [u64; 4]) {
    for (i, word) in words.iter().enumerate() {
        let at = offset + 8 * i as u64;
        file.write_all_at(&word.to_ne_bytes(), at).unwrap();
    }
}

fn refused(path: &Path) -> String {
    match Counts::open(path).unwrap().segments() {
        Err(CountsError::Damaged { what, .. }) => what.to_owned(),
        other => panic!("{other:?}"),
    }
}

/// A table that says that it is 32 GiB long takes as long to read as what is in it.
#[test]
fn empty_room_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.exact");
    let tables: Vec<(u64, u64)> = (0..7u64)
        .map(|i| (4096 + 64 * i, (i + 1) << 33 | 28))
        .collect();
    let file = file(&path, &tables);
    let (middle, end) = ((3 << 33) + (32 << 20), (3 << 33) + (32 << 28));
    put_entry(&file, middle, [8, 1, 2, 3]);
    put_entry(&file, end - 32, [9, 4, 5, 6]);
    let counts = Counts::open(&path).unwrap();
    let segments = counts.segments().unwrap();
    let found: Vec<Entry> = segments
        .iter()
        .flat_map(|segment| counts.entries(segment).unwrap())
        .collect();
    let entry = |page, reads, writes, first_ns| Entry {
        page,
        reads,
        writes,
        first_ns,
    };
    assert_eq!(found, [entry(7, 1, 2, 3), entry(8, 4, 5, 6)]);
}

#[test]
fn segments_that_share_a_table_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("1.exact");
    file(&path, &[(4096, 8192 | 6), (4160, (8192 + 1984) | 6)]);
    assert!(refused(&path).contains("overlap"));
    // Side by side they may lie.
    let path = folder.path().join("2.exact");
    file(&path, &[(4096, 8192 | 6), (4160, (8192 + 2048) | 6)]);
    assert_eq!(Counts::open(&path).unwrap().segments().unwrap().len(), 2);
}

#[test]
fn what_leads_nowhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, segments, why) in [
        ("far", [(4096, 64 << 30 | 6)], "table"),
        ("long", [(4096, 8192 | 40)], "table"),
        ("longer", [(4096, 8192 | 63)], "table"),
        ("edge", [((64 << 30) - 64, u64::MAX)], "table"),
    ] {
        let path = folder.path().join(name);
        file(&path, &segments);
        let said = refused(&path);
        assert!(said.contains(why), "{name}: {said}");
    }
    let path = folder.path().join("late");
    let late = file(&path, &[(4096, 0)]);
    let last = at::MAX_INTERVALS - 1;
    let put = |interval: u64| {
        let at = 4096 + at::SEGMENT_INTERVAL;
        late.write_all_at(&interval.to_ne_bytes(), at).unwrap();
    };
    put(last);
    let segments = Counts::open(&path).unwrap().segments().unwrap();
    assert_eq!(u64::from(segments[0].interval), last);
    put(last + 1);
    assert!(refused(&path).contains("interval"));
    let path = folder.path().join("round");
    let round = file(&path, &[(4096, 0)]);
    round
        .write_all_at(&4096u64.to_ne_bytes(), 4096 + at::SEGMENT_NEXT)
        .unwrap();
    assert!(refused(&path).contains("list"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("proptest-regressions"))), ..ProptestConfig::with_cases(300) })]

    /// Words that look like offsets and tables, wherever they are read.
    #[test]
    fn files_from_words(how in any::<u8>(), words in proptest::collection::vec((0u64..700, 0u64..1 << 14), 0..60)) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = vec![0; 1 + 8 * 1024];
        bytes[0] = how;
        for (at, word) in words {
            // Half of them where lists begin and lie.
            let at = 1 + 8 * if at < 200 { 4 + at % 4 } else { at + 300 } as usize;
            bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        fuzzed::run(&bytes, &folder.path().join("1.exact"));
    }

    #[test]
    fn files_from_noise(bytes in proptest::collection::vec(any::<u8>(), 0..6000)) {
        let folder = tempfile::tempdir().unwrap();
        fuzzed::run(&bytes, &folder.path().join("1.exact"));
    }
}
