//! The fuzz target of the trace reader, on a stable compiler and for a bounded time.

#[path = "../../../../fuzz/src/trace.rs"]
pub(crate) mod target;

use std::fs;
use std::path::Path;

use crate::common::{Source, small};

fn seed(folder: &Path) -> Vec<u8> {
    let read = |name: String| Some((name.clone(), fs::read(folder.join(&name)).ok()?));
    let files: Vec<_> = target::names().into_iter().filter_map(read).collect();
    assert!(files.len() > 5, "{files:?}");
    target::pack(&files)
}

#[test]
fn folders_from_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("t");
    let mut source = Source::new(11);
    let (finished, killed) = (dir.path().join("finished"), dir.path().join("killed"));
    small::finished(&finished);
    small::killed(&killed);
    for whole in [seed(&finished), seed(&killed)] {
        target::unpack(&whole, &folder);
        let trace = varve_trace::Trace::open(&folder).unwrap();
        assert!(
            target::read_columns(&trace).unwrap() > 0,
            "the seed is not read"
        );
        target::run(&whole, &folder);
        for _ in 0..150 {
            let mut bytes = whole.clone();
            for _ in 0..1 + source.below(20) {
                let at = source.below(bytes.len());
                match source.below(20) {
                    0 => bytes.truncate(at),
                    1 => drop(bytes.drain(at..(at + 5).min(bytes.len()))),
                    _ => bytes[at] ^= 1 << source.below(8),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            target::run(&bytes, &folder);
        }
    }
    for length in 0..200 {
        let noise: Vec<u8> = (0..length).map(|_| source.next() as u8).collect();
        target::run(&noise, &folder);
    }
}
