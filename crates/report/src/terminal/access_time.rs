//! Where the time of accesses goes.

use varve_analyse::{AccessTime, Analysis, LineTime, ObjectTime, WEIGHT, format};

use super::page::{Page, Tone};
use super::table::{Align, Table};

/// Objects that are shown.
const OBJECTS: usize = 6;
/// Lines of code that are shown.
const LINES: usize = 5;

pub(super) fn write(page: &mut Page, analysis: &Analysis) {
    let Some(samples) = analysis.access_time.as_ref().filter(|s| s.note.taken > 0) else {
        return;
    };
    page.heading("Time at accesses (samples)");
    page.wrapped(&what(samples), Tone::Faint);
    if samples.access_ns.0 == 0 {
        return;
    }
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("time", Align::Right),
        ("writes", Align::Right),
        ("threads", Align::Right),
        ("steps", Align::Left),
    ]);
    for object in samples.objects.iter().take(OBJECTS) {
        table.row([
            object.name.clone(),
            format::percent(object.time_ns.0, samples.access_ns.0),
            format::percent(object.write_ns.0, object.time_ns.0),
            format::count(object.threads.len() as u64),
            steps(object),
        ]);
    }
    page.table(&table);
    let mut table = Table::new(&[
        ("line of code", Align::Name),
        ("time", Align::Right),
        ("at accesses", Align::Right),
    ]);
    for line in samples.lines.iter().take(LINES) {
        table.row([
            place(line),
            format::percent(line.time_ns.0, samples.time_ns.0),
            format::percent(line.access_ns.0, samples.time_ns.0),
        ]);
    }
    page.gap();
    page.table(&table);
}

/// How they were taken, and what became of them.
fn what(samples: &AccessTime) -> String {
    let note = &samples.note;
    format!(
        "A share is {WEIGHT}. {} by {} at {}/s per CPU: {} told, {} undecoded{}, {} in system calls, {} in faults and \
         interrupts, {} dropped.",
        format::counted(note.taken, "sample"),
        note.source,
        note.rate,
        format::count(note.behind + note.at + note.ahead + note.hardware),
        format::count(note.undecoded),
        match note.gathers {
            0 => String::new(),
            gathers => format!(" ({} of them gathers)", format::count(gathers)),
        },
        format::count(note.in_calls),
        format::count(note.in_traps),
        format::count(note.dropped),
    )
}

fn steps(object: &ObjectTime) -> String {
    match &object.steps {
        None => String::new(),
        Some(steps) => format!(
            "of {} B, {:.0} % up",
            format::count(steps.stride_bytes),
            steps.upward * 100.0
        ),
    }
}

fn place(line: &LineTime) -> String {
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let file = line.file.as_deref().map(base);
    let function = line.function.as_deref();
    match (file, line.line, function) {
        (Some(file), Some(number), Some(function)) => format!("{file}:{number}, in {function}"),
        (Some(file), Some(number), None) => format!("{file}:{number}"),
        (_, _, Some(function)) => match &line.module {
            Some(module) => format!("{function} ({module})"),
            None => function.to_owned(),
        },
        _ => line.module.clone().unwrap_or_else(|| "unknown".to_owned()),
    }
}
