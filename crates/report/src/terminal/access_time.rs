//! Where the time of accesses goes.

use varve_analyse::{SampleUse, Sampled, Steps, WEIGHT, format};
use varve_model::Duration;
use varve_trace::SamplesNote;

use super::page::{Page, Tone};
use super::table::{Align, Table};
use crate::text::grouped;

/// Objects that are shown.
const OBJECTS: usize = 6;
/// Lines of code that are shown.
const LINES: usize = 5;

/// What the column of steps says.
const STEPS: &str = "steps: from one sample of an instruction to its next so many went up, all by multiples of so many bytes where that is \
                     known: near 100 % or 0 % is a walk, near 50 % random access or a walk that began anew in between";

/// The row of accesses whose address is not known.
const GONE: &str = "(address gone)";
const GONE_MEANS: &str = "address gone: the instruction replaced the register that its address came from, as each step of a linked list does, \
                          before the sample was taken; whose memory it read is not known";

/// What samples with a weight in time say.
pub(super) fn write(page: &mut Page, samples: &SampleUse, note: &SamplesNote) {
    page.heading("Time at accesses (samples)");
    page.wrapped(&what(samples, note), Tone::Faint);
    let all = time(&samples.all);
    let accesses = samples.all.at_accesses().unwrap_or_default();
    if accesses.0 > 0 {
        objects(page, samples, accesses);
    }
    // Time at no access is at lines of code all the same.
    if !samples.lines.is_empty() {
        lines(page, samples, all);
    }
}

fn objects(page: &mut Page, samples: &SampleUse, accesses: Duration) {
    let mut table = Table::new(&[
        ("object", Align::Name),
        ("time", Align::Right),
        ("writes", Align::Right),
        ("threads", Align::Right),
        ("steps", Align::Left),
    ]);
    for object in samples.objects.iter().take(page.rows(OBJECTS)) {
        let of = &object.sampled;
        table.row([
            grouped(&object.name, object.objects),
            format::percent(time(of).0, accesses.0),
            format::percent(of.write_ns.unwrap_or_default().0, time(of).0),
            format::count(object.threads.len() as u64),
            object.steps.as_ref().map_or_else(String::new, steps),
        ]);
    }
    let gone = samples.all.overwritten_ns.unwrap_or_default();
    if gone.0 > 0 {
        let share = format::percent(gone.0, accesses.0);
        table.row([
            GONE.to_owned(),
            share,
            String::new(),
            String::new(),
            String::new(),
        ]);
    }
    page.table(&table);
    page.more(samples.objects.len(), OBJECTS, samples.omitted.objects);
    if gone.0 > 0 {
        page.wrapped(GONE_MEANS, Tone::Faint);
    }
    if samples
        .objects
        .iter()
        .take(page.rows(OBJECTS))
        .any(|o| o.steps.is_some())
    {
        page.wrapped(STEPS, Tone::Faint);
    }
}

fn lines(page: &mut Page, samples: &SampleUse, all: Duration) {
    let mut table = Table::new(&[
        ("line of code", Align::Name),
        ("time", Align::Right),
        ("at accesses", Align::Right),
    ]);
    for line in samples.lines.iter().take(page.rows(LINES)) {
        table.row([
            line.place(),
            format::percent(line.time_ns.unwrap_or_default().0, all.0),
            format::percent(line.at_accesses().unwrap_or_default().0, all.0),
        ]);
    }
    page.gap();
    page.table(&table);
    page.more(samples.lines.len(), LINES, samples.omitted.lines);
}

fn time(of: &Sampled) -> Duration {
    of.time_ns.unwrap_or_default()
}

/// How they were taken, and what became of them.
fn what(samples: &SampleUse, note: &SamplesNote) -> String {
    let resolved = note.behind + note.at + note.ahead + note.hardware;
    let accesses = samples.with_address + samples.own_accesses;
    let mut to = Vec::new();
    if accesses != resolved {
        to.push(format!("to {} accesses", format::count(accesses)));
    }
    if samples.own_accesses > 0 {
        to.push(format!(
            "{} to Varve's own memory, which is in no table",
            format::count(samples.own_accesses)
        ));
    }
    let to = match to.is_empty() {
        true => String::new(),
        false => format!(" ({})", to.join(", ")),
    };
    format!(
        "A share is {WEIGHT}. {} by {}{}: {} resolved{to}, {} not decoded{}, {} in system calls, {} in faults and \
         interrupts, {} dropped.",
        format::counted(note.taken, "sample"),
        note.source,
        samples
            .rate
            .as_ref()
            .map_or_else(String::new, |rate| format!(" at {rate}")),
        format::count(resolved),
        format::count(note.undecoded),
        not_decoded(note),
        format::count(note.in_calls),
        format::count(note.in_traps),
        format::count(note.dropped),
    )
}

/// Why accesses were not decoded, where that is known.
fn not_decoded(note: &SamplesNote) -> String {
    let mut why = Vec::new();
    if note.overwritten > 0 {
        why.push(format!(
            "{} at addresses that are gone",
            format::count(note.overwritten)
        ));
    }
    if note.gathers > 0 {
        why.push(format!("{} gathers", format::count(note.gathers)));
    }
    match why.is_empty() {
        true => String::new(),
        false => format!(" ({})", why.join(", ")),
    }
}

fn steps(steps: &Steps) -> String {
    let up = format!("{:.0} % up", steps.upward * 100.0);
    match steps.stride_bytes {
        // Everything is a multiple of 1.
        0 | 1 => up,
        stride => format!("of {} B, {up}", format::count(stride)),
    }
}
