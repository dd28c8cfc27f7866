//! JSON of speedscope (<https://www.speedscope.app/file-format-schema.json>).

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use serde::Serialize;

use super::ExportError;
use super::events::{Events, Kind, stack};

#[derive(Serialize)]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    shared: Shared,
    profiles: Vec<Profile>,
    exporter: String,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Name>,
}

#[derive(Serialize)]
struct Name {
    name: String,
}

#[derive(Serialize)]
struct Profile {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'static str,
    #[serde(rename = "startValue")]
    start: u64,
    #[serde(rename = "endValue")]
    end: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// One profile for each thread; equal stacks that follow each other are one.
pub(super) fn write(events: Events<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut frames: Vec<Name> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut profiles: BTreeMap<_, Profile> = BTreeMap::new();
    events.for_each(|event| {
        let list = stack(event).into_iter().map(|name| {
            *known.entry(name.clone()).or_insert_with(|| {
                frames.push(Name { name });
                frames.len() - 1
            })
        });
        let list: Vec<usize> = list.collect();
        let profile = profiles.entry((event.pid, event.tid)).or_insert_with(|| {
            let name = events.thread(event.pid, event.tid);
            let number = event.tid.map_or(event.pid.0, |t| t.0);
            Profile {
                kind: "sampled",
                name: format!("{name} ({number})").trim_start().to_owned(),
                unit: "none",
                start: 0,
                end: 0,
                samples: Vec::new(),
                weights: Vec::new(),
            }
        });
        profile.end = profile.end.saturating_add(event.weight);
        match profile.weights.last_mut() {
            Some(weight) if profile.samples.last() == Some(&list) => *weight += event.weight,
            _ => {
                profile.samples.push(list);
                profile.weights.push(event.weight);
            }
        }
        Ok(())
    })?;
    let what = match events.kind {
        Kind::Samples => "samples",
        Kind::Faults => "page faults",
        Kind::Touches => "touched pages",
    };
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        shared: Shared { frames },
        profiles: profiles.into_values().collect(),
        exporter: format!("varve {}, {what}", env!("CARGO_PKG_VERSION")),
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")?;
    Ok(())
}
