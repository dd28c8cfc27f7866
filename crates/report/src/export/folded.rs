//! Folded stacks, for flame graphs.

use std::collections::BTreeMap;
use std::io::Write;

use super::ExportError;
use super::events::{Events, stack};

/// `process;thread;outer;inner;[object] weight`, sorted. Memory depends on the distinct stacks.
pub(super) fn write(events: Events<'_>, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    events.for_each(|event| {
        let process = events.process(event.pid);
        let mut parts = vec![match process.is_empty() {
            true => format!("process {}", event.pid),
            false => process.to_owned(),
        }];
        if let Some(tid) = event.tid {
            let thread = events.thread(event.pid, event.tid);
            parts.push(format!("{thread} ({tid})").trim_start().to_owned());
        }
        parts.extend(stack(event));
        // A semicolon and a line break end a frame.
        let clean = |part: &String| part.replace(';', ":").replace(['\n', '\r'], " ");
        let line = parts.iter().map(clean).collect::<Vec<_>>().join(";");
        let sum = sums.entry(line).or_default();
        *sum = sum.saturating_add(event.weight);
        Ok(())
    })?;
    for (line, weight) in sums {
        writeln!(out, "{line} {weight}")?;
    }
    Ok(())
}
