//! The entry of the fuzz targets, over the golden files and mutations of each as its own format.

#[path = "../../../../fuzz/src/import.rs"]
mod import;

use std::path::{Path, PathBuf};

use crate::perf_file::{Event, IDENTIFIER, IP, TID, TIME, USUAL, event, file};
use varve_model::ImportFormat;

const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/import/cases");
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/import");

#[test]
fn golden_files_and_their_mutations() {
    let folder = tempfile::tempdir().unwrap();
    let words = [
        ("perf.data", ImportFormat::PerfData),
        ("perf-script", ImportFormat::PerfScript),
        ("mitos", ImportFormat::Mitos),
        ("iiswc22", ImportFormat::Iiswc22),
        ("damon", ImportFormat::Damon),
        ("lackey", ImportFormat::Lackey),
        ("moca", ImportFormat::Moca),
        ("tabarnac", ImportFormat::Tabarnac),
    ];
    let mut seed = 7u64;
    for file in files(GOLDEN) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let format = words
            .iter()
            .find(|(word, _)| name.contains(word))
            .unwrap()
            .1;
        let whole = std::fs::read(&file).unwrap();
        mutated(&whole, format, folder.path(), &mut seed);
    }
}

/// The small files of `cases`, as whatever they are, and a recording with tasks, mappings and several events.
#[test]
fn cases_and_their_mutations() {
    let folder = tempfile::tempdir().unwrap();
    let mut seed = 11u64;
    for file in files(CASES) {
        let whole = std::fs::read(&file).unwrap();
        let format = match file.extension().and_then(|e| e.to_str()) {
            Some("csv") => ImportFormat::Mitos,
            Some("json") => ImportFormat::Damon,
            _ => ImportFormat::PerfScript,
        };
        mutated(&whole, format, folder.path(), &mut seed);
    }
    let recording = recording();
    for _ in 0..20 {
        mutated(&recording, ImportFormat::PerfData, folder.path(), &mut seed);
    }
}

fn recording() -> Vec<u8> {
    let one = event(USUAL | IDENTIFIER);
    let other = Event {
        id: 2,
        ..event(IP | TID | TIME | IDENTIFIER)
    };
    let place = (0x40_0000, 0x3000);
    let records = [
        other.comm((10, 10), "a", 1, true),
        other.mmap(10, place, "/opt/a", 2),
        one.old_mmap(10, (0x40_1000, 0x1000), "/opt/b", 3),
        one.fork((10, 10), (11, 11), 4),
        one.data(11, (0x40_0000, 0x1000), "//anon", 5),
        one.sample((11, 11), 6, 0x40_2100, 0x40_0010),
        other.sample((10, 10), 7, 0x40_0100, 0),
        one.exit((10, 10), (11, 11), 8),
    ];
    file(&[one, other], &records)
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// Imports the bytes, and thirty mutations of them.
fn mutated(whole: &[u8], format: ImportFormat, folder: &Path, seed: &mut u64) {
    import::run(whole, format, folder);
    for _ in 0..30 {
        let mut bytes = whole.to_vec();
        for _ in 0..8 {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (*seed >> 33) as usize % bytes.len();
            bytes[at] = (*seed >> 24) as u8;
        }
        import::run(&bytes, format, folder);
    }
}
