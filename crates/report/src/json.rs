//! `varve report --json`; the fields are described in `docs/report-json.md`.

use serde::Serialize;
use serde_json::Value;
use varve_analyse::{Analysis, Overview, Section};
use varve_model::Capability;

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
    let lacks = Capability::ALL.iter().filter(|c| !analysis.trace.has(**c));
    let unknown: Vec<String> = lacks
        .flat_map(|capability| fields_of(*capability))
        .collect();
    let is_plain = unknown.is_empty() && sections.is_empty();
    let mut text = match is_plain {
        true => serde_json::to_string_pretty(&document)?,
        false => {
            let mut value = serde_json::to_value(&document)?;
            withhold(&mut value, unknown);
            keep(&mut value, sections);
            serde_json::to_string_pretty(&value)?
        }
    };
    text.push('\n');
    Ok(varve_model::visible_json(&text).into_owned())
}

/// Leaves what belongs to the sections; all where there are none.
fn keep(value: &mut Value, sections: &[Section]) {
    let Value::Object(map) = value else { return };
    let wanted = |field: &str| sections.iter().any(|s| s.fields().contains(&field));
    if !sections.is_empty() {
        map.retain(|field, _| field == "schema" || wanted(field));
    }
}

/// Figures that are made of touches: by path, `*` for every item of a list.
const TOUCHES: &[&str] = &[
    "trace.intervals",
    "trace.interval_ns",
    "trace.median_interval_ns",
    "trace.shortest_interval_ns",
    "trace.longest_interval_ns",
    "trace.touch_rows",
    "trace.stray_rows",
    "processes.*.touched_pages",
    "processes.*.shared_pages",
    "processes.*.page_touches",
];
/// Those of objects and groups.
const OF_OBJECTS: &[&str] = &[
    "touched_pages",
    "touched_bytes",
    "touched_pages_over_lives",
    "page_touches",
    "intervals_touched",
    "reuse",
    "written_pages",
    "shared_page_touches",
    "huge_page_touches",
    "standing_page_touches",
    "possibly_others_page_touches",
    "cold_pages",
    "untouched_objects",
];

/// The fields of which nothing is known in a trace that lacks this.
fn fields_of(capability: Capability) -> Vec<String> {
    let fields: &[&str] = match capability {
        Capability::Touches => {
            let lists = ["objects.*.", "groups.*.", "omitted."];
            let of_objects = lists
                .iter()
                .flat_map(|list| OF_OBJECTS.iter().map(move |field| format!("{list}{field}")));
            return TOUCHES
                .iter()
                .map(|field| (*field).to_owned())
                .chain(of_objects)
                .collect();
        }
        Capability::Faults => &[
            "objects.*.first_touches",
            "objects.*.faults",
            "objects.*.threads",
            "groups.*.first_touches",
            "groups.*.faults",
        ],
        Capability::Places => &[
            "objects.*.address",
            "objects.*.bytes",
            "groups.*.bytes",
            "groups.*.peak_bytes",
            "omitted.bytes",
        ],
        Capability::Lives => &["objects.*.born_ns", "groups.*.died", "groups.*.peak_bytes"],
        // These are known or not by their types.
        Capability::Resident | Capability::Overhead | Capability::Machine => &[],
        Capability::Superset
        | Capability::Writes
        | Capability::HeapObjects
        | Capability::Samples
        | Capability::Counts
        | Capability::ExactCounts
        | Capability::Traps
        | Capability::Emulated => &[],
    };
    fields.iter().map(|field| (*field).to_owned()).collect()
}

/// Makes null what would be a number although nothing is known.
fn withhold(value: &mut Value, lists: Vec<String>) {
    for path in lists {
        let parts: Vec<&str> = path.split('.').collect();
        make_null(value, &parts);
    }
}

/// Makes null what is at a path; a path to nothing stays nothing.
fn make_null(value: &mut Value, path: &[&str]) {
    match (path, value) {
        ([], value) => *value = Value::Null,
        (["*", rest @ ..], Value::Array(list)) => {
            list.iter_mut().for_each(|item| make_null(item, rest));
        }
        ([field, rest @ ..], Value::Object(map)) => {
            if let Some(value) = map.get_mut(*field) {
                make_null(value, rest);
            }
        }
        _ => (),
    }
}
