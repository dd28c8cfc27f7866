//! `varve report --json`; the fields are described in `docs/report-json.md`.

use serde::Serialize;
use serde_json::Value;
use varve_analyse::{AccessTime, Analysis, Overview, Section};
use varve_trace::Absent;

/// The version of the fields. Fields may be added under the same version.
pub const SCHEMA: &str = "varve-report/1";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'a str,
    overview: Overview,
    #[serde(flatten)]
    analysis: &'a Analysis,
    /// The same figures as in `samples`, where the first version of the document had them.
    access_time: Option<AccessTime<'a>>,
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
        access_time: analysis.samples.as_ref().and_then(AccessTime::of),
    };
    let is_plain = analysis.trace.absent.is_empty() && sections.is_empty();
    let mut text = match is_plain {
        true => serde_json::to_string_pretty(&document)?,
        false => {
            let mut value = serde_json::to_value(&document)?;
            withhold(&mut value, &analysis.trace.absent);
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
    "footprint.touched_pages",
    "footprint.touched_pages_per_process",
    "footprint.peak_working_set_pages",
    "footprint.mean_working_set_pages",
    "footprint.page_touches",
    "footprint.page_touches_per_process",
    "footprint.huge_page_touches",
    "footprint.possibly_others_pages",
    "footprint.possibly_others_page_touches",
    "reuse",
    "working_set",
    "sources",
    "writes",
    "processes.*.touched_pages",
    "processes.*.shared_pages",
    "processes.*.page_touches",
    "unowned",
    "shared",
    "own_memory",
    "tail",
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

/// Makes null what would be a number although nothing is known.
fn withhold(value: &mut Value, absent: &[Absent]) {
    let mut lists: Vec<String> = Vec::new();
    let mut take = |paths: &[&str]| lists.extend(paths.iter().map(|p| (*p).to_owned()));
    for what in absent {
        match what {
            Absent::Touches => {
                take(TOUCHES);
                for list in ["objects.*.", "groups.*.", "omitted."] {
                    let paths: Vec<String> = OF_OBJECTS
                        .iter()
                        .map(|field| format!("{list}{field}"))
                        .collect();
                    take(&paths.iter().map(String::as_str).collect::<Vec<_>>());
                }
            }
            Absent::Resident => take(&[
                "footprint.peak_resident_pages",
                "working_set.*.resident_pages",
            ]),
            Absent::Faults => take(&[
                "footprint.faults",
                "threads",
                "objects.*.first_touches",
                "objects.*.threads",
                "groups.*.first_touches",
            ]),
            Absent::Overhead => take(&["overhead"]),
            Absent::Machine => take(&["trace.machine"]),
            Absent::Places => take(&[
                "objects.*.address",
                "objects.*.bytes",
                "groups.*.bytes",
                "groups.*.peak_bytes",
                "omitted.bytes",
            ]),
            Absent::Lives => take(&["objects.*.born_ns", "groups.*.died", "groups.*.peak_bytes"]),
        }
    }
    if value["trace"]["start_unix_ns"] == 0 {
        lists.push("trace.start_unix_ns".to_owned());
    }
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
