//! `docs/diff.md` names every field that there is.

use varve_compare::{Measure, diff};

use crate::made::{Made, Site};

const DOCUMENT: &str = include_str!("../../../../docs/diff.md");

/// The names of all fields, in whatever they lie.
fn fields(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (name, inner) in map {
                found.push(name.clone());
                fields(inner, found);
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|inner| fields(inner, found)),
        _ => (),
    }
}

#[test]
fn the_document_names_every_field_and_figure() {
    let one = |touched| {
        let site = Site {
            samples: 30,
            ..Site::new("plate", "setup", 12).touching(touched)
        };
        let idle = Site {
            pages: 4096,
            touched: 0,
            ..Site::new("idle", "setup", 14)
        };
        Made::new(vec![site, idle]).run()
    };
    let found = diff(&[one(3), one(4)], &[one(5), one(6)]);
    let mut names = Vec::new();
    fields(&serde_json::to_value(&found).unwrap(), &mut names);
    assert!(names.contains(&"fate".to_owned()) && names.contains(&"how".to_owned()));
    names.extend(Measure::ALL.iter().map(|m| m.as_str().to_owned()));
    for name in names {
        assert!(
            DOCUMENT.contains(&format!("`{name}`")) || DOCUMENT.contains(&format!("`{name}[]`")),
            "{name}"
        );
    }
    assert!(DOCUMENT.contains(found.schema));
}
