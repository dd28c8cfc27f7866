//! A file of another tool from bytes, read as one format, and as whatever it looks like.

use std::fs;
use std::path::Path;

use varve_import::import;
use varve_model::ImportFormat;
use varve_trace::Output;

/// Imports the bytes; errors are what is to be expected. An import that fails leaves nothing.
pub(crate) fn run(bytes: &[u8], format: ImportFormat, folder: &Path) {
    let _ = fs::create_dir_all(folder);
    let file = folder.join("file");
    fs::write(&file, bytes).expect("scratch file");
    for forced in [Some(format), None] {
        let output = folder.join("t.varve");
        let _ = fs::remove_dir_all(&output);
        let done = import(
            std::slice::from_ref(&file),
            &Output::new(&output),
            forced,
            &mut |_| (),
        );
        assert_eq!(done.is_ok(), output.join("manifest.json").exists());
    }
}
