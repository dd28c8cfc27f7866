//! What the trace cannot show.

use std::path::Path;

use varve_analyse::Analysis;

use super::page::Page;
use crate::text::quoted_path;

/// More files than this of which something is not known are counted, not listed.
const MAX_FILES: usize = 3;

pub(super) fn write(page: &mut Page, a: &Analysis, folder: &Path) {
    if a.unknown.is_empty() {
        return;
    }
    page.heading("Not known");
    // What is said of a file begins with its path.
    let (files, rest): (Vec<&String>, Vec<&String>) =
        a.unknown.iter().partition(|s| s.starts_with('/'));
    match files.len() > MAX_FILES {
        true => page.item(&format!(
            "Names of objects or functions in {} files: `varve report {} --json --section unknown` lists them.",
            files.len(),
            quoted_path(folder)
        )),
        false => files.iter().for_each(|sentence| page.item(sentence)),
    }
    for sentence in rest {
        page.item(sentence);
    }
}
