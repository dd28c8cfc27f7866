//! What the trace cannot show.

use std::path::Path;

use varve_analyse::{Analysis, MAX_PACKAGES, UnknownFiles};

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
    let is_cut = |of: &UnknownFiles| of.files.len() > MAX_FILES || of.needed.len() > MAX_PACKAGES;
    if a.unknown_files.iter().any(is_cut) {
        page.item(&format!(
            "All files and packages: `varve report {} --json --section unknown` lists them.",
            quoted_path(folder)
        ));
    }
    for sentence in &a.unknown {
        page.item(sentence);
    }
}
