//! The entry of the fuzz targets, over the golden files and mutations of each as its own format.

#[path = "../../../../fuzz/src/import.rs"]
mod import;

use varve_model::ImportFormat;

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
    let mut files: Vec<_> = std::fs::read_dir(GOLDEN)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let mut seed = 7u64;
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let format = words
            .iter()
            .find(|(word, _)| name.contains(word))
            .unwrap()
            .1;
        let whole = std::fs::read(&file).unwrap();
        import::run(&whole, format, folder.path());
        for _ in 0..30 {
            let mut bytes = whole.clone();
            for _ in 0..8 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % bytes.len();
                bytes[at] = (seed >> 24) as u8;
            }
            import::run(&bytes, format, folder.path());
        }
    }
}
