//! `varve report --json`; the fields are described in `docs/report-json.md`.

use serde::Serialize;
use varve_analyse::Analysis;

/// The version of the fields. Fields may be added under the same version.
pub const SCHEMA: &str = "varve-report/1";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'a str,
    #[serde(flatten)]
    analysis: &'a Analysis,
}

/// The analysis as one JSON document, with a line break at the end.
///
/// # Errors
/// None that a real analysis meets.
pub fn render(analysis: &Analysis) -> Result<String, serde_json::Error> {
    let document = Document {
        schema: SCHEMA,
        analysis,
    };
    let mut text = serde_json::to_string_pretty(&document)?;
    text.push('\n');
    Ok(text)
}
