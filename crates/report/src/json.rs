//! `varve report --json`; the fields are described in `docs/report-json.md`.

use serde::Serialize;
use serde_json::Value;
use varve_analyse::{Analysis, Overview, Section};

/// The version of the fields. Fields may be added under the same version.
pub const SCHEMA: &str = "varve-report/1";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'a str,
    overview: Overview,
    #[serde(flatten)]
    analysis: &'a Analysis,
}

/// The analysis as one JSON document, with a line break at the end: all of it, or what belongs to some sections.
///
/// # Errors
/// None that a real analysis meets.
pub fn render(analysis: &Analysis, sections: &[Section]) -> Result<String, serde_json::Error> {
    let document = Document {
        schema: SCHEMA,
        overview: Overview::of(analysis),
        analysis,
    };
    let mut text = match sections.is_empty() {
        true => serde_json::to_string_pretty(&document)?,
        false => {
            let mut value = serde_json::to_value(&document)?;
            keep(&mut value, sections);
            serde_json::to_string_pretty(&value)?
        }
    };
    text.push('\n');
    Ok(varve_model::visible_json(&text).into_owned())
}

/// Leaves what belongs to the sections.
fn keep(value: &mut Value, sections: &[Section]) {
    let Value::Object(map) = value else { return };
    let wanted = |field: &str| sections.iter().any(|s| s.fields().contains(&field));
    map.retain(|field, _| field == "schema" || wanted(field));
}
