//! What the trace cannot show.

use std::path::Path;

use varve_analyse::Analysis;

use super::page::Page;
use crate::text::quoted_path;

/// Files that a sentence lists; more are counted.
const MAX_FILES: usize = 12;

pub(super) fn write(page: &mut Page, a: &Analysis, folder: &Path) {
    if a.unknown.is_empty() && a.unknown_files.is_empty() {
        return;
    }
    page.heading("Not known");
    for files in &a.unknown_files {
        page.item(&files.sentence(MAX_FILES));
    }
    if a.unknown_files.iter().any(|of| of.files.len() > MAX_FILES) {
        page.item(&format!(
            "All files: `varve report {} --json --section unknown` lists them.",
            quoted_path(folder)
        ));
    }
    for sentence in &a.unknown {
        page.item(sentence);
    }
}
