//! What the trace cannot show.

use std::path::Path;

use varve_analyse::Analysis;

use super::page::Page;
use crate::text::quoted_path;

/// Files of which something is not known that are listed; more are counted.
const MAX_FILES: usize = 12;

pub(super) fn write(page: &mut Page, a: &Analysis, folder: &Path) {
    if a.unknown.is_empty() {
        return;
    }
    page.heading("Not known");
    // What is said of a file begins with its path.
    let (files, rest): (Vec<&String>, Vec<&String>) =
        a.unknown.iter().partition(|s| s.starts_with('/'));
    for sentence in files.iter().take(MAX_FILES) {
        page.item(sentence);
    }
    if let more @ 1.. = files.len().saturating_sub(MAX_FILES) {
        page.item(&format!(
            "Names in {more} more files: `varve report {} --json --section unknown` lists them.",
            quoted_path(folder)
        ));
    }
    for sentence in rest {
        page.item(sentence);
    }
}
