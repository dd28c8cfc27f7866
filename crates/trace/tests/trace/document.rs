//! `docs/trace-format.md` names every table and column that there is, with its type, and no other.

use std::collections::BTreeMap;

use crate::common::AnyRow;
use arrow_schema::DataType;

const DOCUMENT: &str = include_str!("../../../../docs/trace-format.md");

/// Column by column: name, type, whether it may be null.
type Columns = Vec<(String, String, bool)>;

fn in_code<R: AnyRow>() -> (String, Columns) {
    let schema = R::schema();
    let columns = schema.fields().iter().map(|field| {
        let kind = match field.data_type() {
            DataType::Utf8 => "string".to_owned(),
            DataType::Boolean => "bool".to_owned(),
            DataType::Dictionary(..) => "dictionary(int8, string)".to_owned(),
            DataType::List(item) if matches!(item.data_type(), DataType::Struct(_)) => {
                "list(struct)".to_owned()
            }
            DataType::List(item) => {
                format!("list({})", item.data_type().to_string().to_lowercase())
            }
            other => other.to_string().to_lowercase(),
        };
        (field.name().clone(), kind, field.is_nullable())
    });
    (R::TABLE.name.to_owned(), columns.collect())
}

fn in_document(text: &str) -> BTreeMap<String, Columns> {
    let mut tables: BTreeMap<String, Columns> = BTreeMap::new();
    let mut table = None;
    for line in text.lines() {
        if line.starts_with('#') {
            let name = line.strip_prefix("### `").and_then(|l| l.strip_suffix('`'));
            table = name.map(str::to_owned);
            if let Some(name) = name {
                assert!(
                    tables.insert(name.to_owned(), vec![]).is_none(),
                    "`{name}` stands there twice"
                );
            }
        } else if let (Some(table), Some(row)) = (&table, line.strip_prefix("| `")) {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let [name, kind, _unit, null, meaning, ..] = cells[..] else {
                panic!("a row of `{table}` has not five cells: {line}");
            };
            assert!(!meaning.is_empty(), "{line}");
            let column = (
                name.trim_end_matches('`').to_owned(),
                kind.to_owned(),
                null == "yes",
            );
            tables.get_mut(table).expect("inserted").push(column);
        }
    }
    tables
}

#[test]
fn the_document_is_the_code() {
    let code = BTreeMap::from(each_table!(in_code()));
    assert_eq!(code.len(), varve_trace::tables::ALL.len());
    assert_eq!(in_document(DOCUMENT), code);
}

#[test]
fn a_difference_would_be_seen() {
    let whole = in_document(DOCUMENT);
    let without = |what: &str| {
        let lines = DOCUMENT.lines().filter(|l| !l.starts_with(what));
        in_document(&lines.collect::<Vec<_>>().join("\n"))
    };
    assert_ne!(without("| `page_bytes`"), whole);
    assert_ne!(without("### `losses`"), whole);
    assert_ne!(
        in_document(&DOCUMENT.replace("### `deaths`", "### `graves`")),
        whole
    );
}

#[test]
fn the_document_speaks_of_this_version_and_every_manifest_field() {
    assert!(DOCUMENT.starts_with(&format!(
        "# The trace format, version {}\n",
        varve_trace::FORMAT_VERSION
    )));
    let manifest = serde_json::to_value(crate::common::manifest()).unwrap();
    for (field, value) in manifest.as_object().unwrap() {
        assert!(DOCUMENT.contains(&format!("`{field}`")), "{field}");
        for inner in value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
        {
            assert!(DOCUMENT.contains(&format!("`{inner}`")), "{field}.{inner}");
        }
    }
}
