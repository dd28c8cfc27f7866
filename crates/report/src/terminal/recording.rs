//! What was recorded, whether all of it, and what that cost.

use varve_analyse::{Analysis, ObjectSource, Overhead, TraceFacts, format, why_not_preloaded};
use varve_model::{Backend, Capability, Duration};
use varve_trace::TrapsNote;

use super::page::{Page, Tone};
use crate::text::{command_line, lengths, span};

/// The command line, or that nobody knows it.
fn command(a: &Analysis) -> String {
    match a.trace.command.is_empty() {
        true => "(unknown command)".to_owned(),
        false => command_line(&a.trace.command),
    }
}

/// When and on what machine.
fn where_and_when(a: &Analysis) -> String {
    let trace = &a.trace;
    let mut parts = Vec::new();
    parts.extend(trace.start_unix_ns.value().map(|start| format::utc(*start)));
    match trace.machine.value() {
        None => parts.push("machine not recorded".to_owned()),
        Some(machine) => {
            parts.push(format!("Linux {} {}", machine.kernel, machine.architecture));
            parts.push(format!(
                "{}, {}{}",
                format::counted(u64::from(machine.cpus), "CPU"),
                format::bytes(machine.memory_bytes),
                nodes(machine.nodes)
            ));
            parts.push(machine.cpu.clone());
        }
    }
    parts.join(" · ")
}

fn nodes(nodes: Option<u32>) -> String {
    match nodes {
        Some(n @ 2..) => format!(", {n} memory nodes"),
        _ => String::new(),
    }
}

/// How long and how.
fn how(a: &Analysis) -> String {
    let trace = &a.trace;
    if let Backend::Import(from) = trace.backend {
        let intervals = match trace.intervals.value() {
            None => "no intervals".to_owned(),
            Some(&intervals) => format::counted(intervals, "interval"),
        };
        let length = span(a, trace.duration_ns);
        return format!("imported from {from}: {length}, {intervals}");
    }
    let length = match (trace.interval_accesses, lengths(trace)) {
        (Some(0), _) => " (the whole run)".to_owned(),
        (_, Some(lengths)) => format!(" of {lengths}"),
        (_, None) => String::new(),
    };
    let intervals = match trace.intervals.value() {
        Some(0) => ", 0 intervals".to_owned(),
        Some(&intervals) => format!(", {}{length}", format::counted(intervals, "interval")),
        None => String::new(),
    };
    let delay = format::duration(trace.delay_ns);
    let how = match (trace.attached, trace.delay_ns.0) {
        (true, 0) => "recorded while it ran".to_owned(),
        (true, _) => format!("recorded while it ran, after a delay of {delay}"),
        (false, 0) => "recorded from its start".to_owned(),
        (false, _) => format!("recorded from {delay} after its start"),
    };
    let mut time = format::duration(trace.duration_ns);
    if let Some(from) = trace.offset_ns {
        let whole = format::duration(trace.whole_ns);
        time += &format!(" from {} on, of {whole}", format::duration(from));
    }
    let paused = format::duration(trace.paused_ns);
    let paused = match (trace.paused_ns.0, &trace.selected) {
        (0, _) => String::new(),
        (_, Some(_)) => format!(" (without {paused} within it)"),
        (_, None) => format!(" (paused for {paused} of it)"),
    };
    format!(
        "{time} {how}{paused}{intervals}, backend {}{}",
        trace.backend,
        ending(trace)
    )
}

/// How the program ended, where that was seen.
fn ending(trace: &TraceFacts) -> String {
    let code = trace.exit_code.map(format::exit_code);
    code.map_or_else(String::new, |code| format!(", {code}"))
}

/// What recording cost.
fn cost(a: &Analysis, cost: &Overhead) -> String {
    let trace = &a.trace;
    let mut parts: Vec<String> = cost.slowdown.map(|s| s.in_words()).into_iter().collect();
    parts.push(match trace.has(Capability::Emulated) {
        true => "the program ran in an emulator, many times slower than by itself: times are not its own".to_owned(),
        false if trace.hold == "fexit" => {
            "target never held: its accessed bits were read and cleared in one step".to_owned()
        }
        false => format!(
            "target held {} ({} of the time, longest {}; all threads stood still for {}){}",
            format::duration(cost.held_ns),
            format::percent(cost.held_ns.0, cost.held_of_ns.0),
            cost.longest_hold(),
            format::duration(cost.stood_ns),
            held_by(&trace.hold)
        ),
    });
    parts.push(format!(
        "recorder used {} of CPU",
        format::duration(cost.recorder_cpu_ns)
    ));
    if cost.recorder_peak_bytes.0 > 0 {
        parts.push(format!(
            "{} of memory",
            format::bytes(cost.recorder_peak_bytes)
        ));
    }
    match cost.slowdown {
        // The first is a sentence with commas of its own.
        Some(_) => [parts.remove(0), parts.join(", ")].join("; "),
        None => parts.join(", "),
    }
}

/// The word for what another tool recorded.
const IMPORTED: &str = "imported";

/// Whether all was recorded, in a word with its tone.
fn completeness(a: &Analysis) -> (&'static str, Tone) {
    match a.trace.complete {
        true => ("complete", Tone::Good),
        false if matches!(a.trace.backend, Backend::Import(_)) => (IMPORTED, Tone::Notice),
        false if a.trace.losses.is_empty() && !a.trace.has(Capability::Touches) => {
            ("without pages", Tone::Notice)
        }
        false => ("INCOMPLETE", Tone::Bad),
    }
}

fn losses(a: &Analysis) -> String {
    let losses = a.trace.losses.iter();
    let losses: Vec<String> = losses
        .map(|(kind, count)| format!("{kind}: {}", format::count(*count)))
        .collect();
    losses.join(", ")
}

/// Says where figures contradict each other.
fn wrong(a: &Analysis) -> Option<String> {
    (!a.contradictions.is_empty()).then(|| {
        format!(
            "this report contradicts itself, please report it: {}",
            a.contradictions.join("; ")
        )
    })
}

/// A line of each: what ran, on what, how long; what is shown of it; whether all was recorded, and what that cost.
pub(super) fn brief(page: &mut Page, a: &Analysis, lines: usize) {
    head_within(page, a, lines.min(2));
    page.gap();
    let (word, tone) = completeness(a);
    page.labelled_within(word, tone, &short_statement(a), lines);
    // The statement of an import begins with what it is, and may be longer than there is room.
    let lost = losses(a);
    if word == IMPORTED && !lost.is_empty() {
        page.labelled_within("lost", Tone::Bad, &lost, lines);
    }
    if let Some(text) = wrong(a) {
        page.labelled_within("WRONG", Tone::Bad, &text, lines);
    }
    if let Some(cost) = a.overhead.value() {
        let text = match (a.trace.has(Capability::Emulated), cost.slowdown) {
            (true, _) => self::cost(a, cost),
            (false, Some(slowdown)) => format!(
                "{}; longest hold {}",
                slowdown.in_words(),
                cost.longest_hold()
            ),
            (false, None) => format!(
                "target held {} ({} of the time){}, recorder used {} of CPU",
                format::duration(cost.held_ns),
                format::percent(cost.held_ns.0, cost.held_of_ns.0),
                waited(a),
                format::duration(cost.recorder_cpu_ns)
            ),
        };
        page.labelled_within("cost", Tone::Plain, &text, lines);
    }
}

/// How long threads waited for trapped accesses, where they did.
fn waited(a: &Analysis) -> String {
    match a.trace.traps.as_ref().map(|traps| traps.waited_ns) {
        Some(waited) if waited > Duration(0) => format!(
            ", threads waited {} for trapped accesses",
            format::duration(waited)
        ),
        _ => String::new(),
    }
}

/// The statement of completeness in a line.
pub(super) fn short_statement(a: &Analysis) -> String {
    match a.trace.complete {
        true if a.trace.has(Capability::Emulated) => {
            "every access of the program's own instructions was counted".to_owned()
        }
        true => "every page that the program accessed is listed, interval by interval".to_owned(),
        false => a.trace.statement.clone(),
    }
}

/// What ran, on what machine, how long.
pub(super) fn head(page: &mut Page, a: &Analysis) {
    head_within(page, a, 2);
}

fn head_within(page: &mut Page, a: &Analysis, lines: usize) {
    page.wrapped_beginning(&command(a), Tone::Strong, lines);
    page.wrapped_within(&where_and_when(a), Tone::Faint, lines);
    page.wrapped(&how(a), Tone::Plain);
    if let Some(words) = &a.trace.selected {
        page.wrapped(&format!("only {words}"), Tone::Notice);
    }
}

/// All of it.
pub(super) fn what_ran(page: &mut Page, a: &Analysis) {
    page.wrapped(&command(a), Tone::Strong);
    page.wrapped(&where_and_when(a), Tone::Faint);
    page.wrapped(&how(a), Tone::Plain);
    if let Some(words) = &a.trace.selected {
        page.wrapped(&format!("only {words}"), Tone::Notice);
    }
    page.gap();
    let (word, tone) = completeness(a);
    page.labelled(word, tone, &a.trace.statement);
    let lost = losses(a);
    if !lost.is_empty() {
        page.labelled("lost", Tone::Bad, &lost);
    }
    if let Some(text) = wrong(a) {
        page.labelled("WRONG", Tone::Bad, &text);
    }
    let words = a.overhead.value().map(|known| cost(a, known));
    page.labelled(
        "cost",
        Tone::Plain,
        words.as_deref().unwrap_or("not recorded"),
    );
    if let Some(traps) = &a.trace.traps {
        page.labelled("trapped", Tone::Plain, &trapped(traps));
    }
    if a.trace.attached {
        page.labelled("objects", Tone::Plain, &objects_of_attached(a));
    } else if a.object_sources.iter().any(|s| s.why.is_some()) {
        page.labelled("objects", Tone::Plain, &object_sources(&a.object_sources));
    }
}

/// Where the objects of a program come from that ran already, to which nothing could be preloaded.
fn objects_of_attached(a: &Analysis) -> String {
    // The kernel shows the heap as a whole, `[heap]`, without the objects in it.
    let is_heap = |o: &varve_analyse::ObjectUse| {
        o.kind == varve_model::ObjectKind::Heap && !o.name.starts_with("[heap]")
    };
    let heap = match a.objects.iter().any(is_heap) {
        true => "heap objects are those made since the recording began",
        false => "heap objects are not known",
    };
    format!("from the mappings and system calls of the program, as it ran already; {heap}")
}

/// Who reported the objects of how many programs, and why not the preload library.
fn object_sources(sources: &[ObjectSource]) -> String {
    let parts = sources.iter().map(|source| {
        let programs = format::counted(source.programs, "program");
        if source.from == "preload" {
            return format!("preload in {programs}");
        }
        let why = source.why.as_deref().and_then(why_not_preloaded);
        let Some(why) = why else {
            return format!("kernel's view in {programs}");
        };
        format!("kernel's view in {programs} ({}: {why})", source.example)
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn held_by(hold: &str) -> String {
    let names = hold.split(", ").filter_map(|word| match word {
        "cgroup" => Some("the freezer of a cgroup made for it"),
        "own cgroup" => Some("the freezer of its own cgroup"),
        "ptrace" => Some("ptrace"),
        // The rest of the time nothing did.
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" by {}", names.join(" and ")),
    }
}

/// What `--backend fault` trapped, and what it left to the scan.
fn trapped(traps: &TrapsNote) -> String {
    let mut text = format!(
        "{}, once an interval each, at their first access; the scan alone reports {} more: memory that is shared, of \
         files, not chosen, or cannot be moved",
        format::counted(traps.trapped_touches, "page"),
        format::count(traps.scanned_touches)
    );
    if traps.waited_ns > Duration(0) {
        text += &format!(
            ". Threads waited {} for that, and intervals are longer by as much",
            format::duration(traps.waited_ns)
        );
    }
    if traps.budget.is_some() {
        text += &format!(
            ". Sampled: {:.2} % of the pages, chosen at random, were to be trapped",
            traps.sampling_rate * 100.0
        );
    }
    if traps.given_up > 0 {
        text += &format!(
            ". Processes whose later accesses did not trap, because their faults could not be resolved any more: {}",
            format::count(traps.given_up)
        );
    }
    text
}
