//! A file of counts from bytes, as a program that is counted might leave it.
//!
//! Unless the first byte's top bit is set, the words that any such file must have are put right, and the file is as long and as
//! empty as the plugin makes it, so that what follows is reached.

use std::fs::{self, OpenOptions};
use std::path::Path;

use varve_qemu_counter_abi::{Counts, layout};

pub(crate) fn run(bytes: &[u8], path: &Path) {
    let [how, content @ ..] = bytes else {
        return;
    };
    let mut content = content.to_vec();
    if how & 0x80 == 0 {
        content.resize(content.len().max(layout::HEADER_BYTES as usize), 0);
        for (at, word) in [
            (layout::AT_MAGIC, layout::MAGIC),
            (layout::AT_VERSION, layout::VERSION),
        ] {
            content[at as usize..at as usize + 8].copy_from_slice(&word.to_ne_bytes());
        }
    }
    fs::write(path, &content).expect("scratch file");
    if how & 0x80 == 0 {
        let file = OpenOptions::new().write(true).open(path);
        let grown = file.and_then(|file| file.set_len(64 << 30));
        grown.expect("scratch file");
    }
    let Ok(counts) = Counts::open(path) else {
        return;
    };
    assert!(counts.image().path.len() <= 3 * layout::MAX_PATH);
    let Ok(segments) = counts.segments() else {
        return;
    };
    // Every entry stands in the file once.
    let mut entries = 0;
    for segment in segments {
        entries += counts.entries(&segment).map_or(0, |found| found.len());
    }
    assert!(entries <= content.len() / layout::ENTRY_BYTES as usize);
}
