//! The page that `varve report` prints.

mod access_time;
mod chart;
mod exact;
mod objects;
mod page;
mod samples;
mod sharing;
mod table;

use std::path::Path;

use varve_analyse::{Analysis, FindingId, ObjectSource, Remainder, format};
use varve_model::{Duration, TouchSource, visible};
use varve_trace::{Absent, ClockUnit, EXACT, TrapsNote};

use page::{Page, Tone};
use table::{Align, Table};

/// Narrower pages cannot be read, wider ones neither.
const WIDTHS: std::ops::RangeInclusive<usize> = 60..=120;
/// Threads that are shown.
const THREADS: usize = 6;
/// Processes that are shown.
const PROCESSES: usize = 5;

/// The page as text, `width` columns wide (60 to 120), with ANSI colours or without. `folder` is where the trace is.
pub fn render(analysis: &Analysis, folder: &Path, width: usize, color: bool) -> String {
    let mut page = Page::new(width.clamp(*WIDTHS.start(), *WIDTHS.end()), color);
    what_ran(&mut page, analysis);
    let lacks = |what| analysis.trace.absent.contains(&what);
    // Where the weight is time, that says more than how many samples there were: see below.
    if let Some(found) = &analysis.samples
        && found.note.is_none()
    {
        samples::samples(&mut page, found);
    }
    // Where every access was counted, more is known: see below.
    if let (Some(found), None) = (&analysis.counts, &analysis.exact) {
        samples::counts(&mut page, found);
    }
    let has_touches = analysis.trace.intervals > 0 || analysis.trace.touch_rows > 0;
    if has_touches && !lacks(Absent::Touches) {
        footprint(&mut page, analysis);
        over_time(&mut page, analysis);
        objects::write(&mut page, analysis);
        processes(&mut page, analysis);
        threads(&mut page, analysis);
        exact::accesses(&mut page, analysis);
        let taken = analysis.samples.as_ref();
        if let Some((samples, note)) = taken.and_then(|s| Some((s, s.note.as_ref()?))) {
            match samples.all.time_ns {
                Some(_) => access_time::write(&mut page, samples, note),
                None => samples::samples(&mut page, samples),
            }
        }
    }
    sharing::write(&mut page, analysis);
    findings(&mut page, analysis);
    unknown(&mut page, analysis);
    page.gap();
    let next = format!(
        "next: `varve report {} --html page.html` draws the map of time and addresses; --json gives all numbers",
        quoted_path(folder)
    );
    page.wrapped(&next, Tone::Faint);
    page.text
}

/// A word of a command line as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// A path as a shell takes it, and never as an option.
fn quoted_path(path: &Path) -> String {
    let text = path.display().to_string();
    match text.starts_with('-') {
        true => quoted(&format!("./{text}")),
        false => quoted(&text),
    }
}

/// A command line as a shell takes it.
fn command_line(words: &[String]) -> String {
    let words = words.iter().map(|w| quoted(w));
    words.collect::<Vec<_>>().join(" ")
}

fn what_ran(page: &mut Page, a: &Analysis) {
    let trace = &a.trace;
    let command = match trace.command.is_empty() {
        true => "(unknown command)".to_owned(),
        false => command_line(&trace.command),
    };
    page.wrapped(&command, Tone::Strong);
    let machine = &trace.machine;
    let mut where_and_when = Vec::new();
    if trace.start_unix_ns > 0 {
        where_and_when.push(format::utc(trace.start_unix_ns));
    }
    let lacks = |what| trace.absent.contains(&what);
    match lacks(Absent::Machine) {
        true => where_and_when.push("machine not recorded".to_owned()),
        false => {
            where_and_when.push(format!("Linux {} {}", machine.kernel, machine.architecture));
            where_and_when.push(format!(
                "{}, {}, {}",
                machine.cpu,
                format::counted(u64::from(machine.cpus), "CPU"),
                format::bytes(machine.memory_bytes)
            ));
        }
    }
    page.wrapped(&where_and_when.join(" · "), Tone::Faint);
    if trace.backend.starts_with("import/") {
        imported(page, a);
        return;
    }
    let length = match (trace.interval_ns, trace.interval_accesses) {
        (Some(asked), _) if trace.is_lengthened() => format!(
            "of {} to {} (median {}; asked for {})",
            format::duration(trace.shortest_interval_ns),
            format::duration(trace.longest_interval_ns),
            format::duration(trace.median_interval_ns),
            format::duration(asked)
        ),
        (Some(length), _) => format!("of {}", format::duration(length)),
        (_, Some(0)) => "(the whole run)".to_owned(),
        (_, Some(accesses)) => format!("of {} accesses", format::count(accesses)),
        _ => format!(
            "of {} (median, chosen by cost)",
            format::duration(trace.median_interval_ns)
        ),
    };
    let how = match trace.attached {
        true => "attached while it ran",
        false => "from its start",
    };
    let end = match trace.exit_code {
        Some(code) => format!(", exit code {code}"),
        None => String::new(),
    };
    page.wrapped(
        &format!(
            "{} recorded {how}, {} {length}, backend {}{end}",
            format::duration(trace.duration_ns),
            format::counted(trace.intervals, "interval"),
            trace.backend
        ),
        Tone::Plain,
    );
    page.gap();
    if trace.complete {
        page.labelled("complete", Tone::Good, &trace.statement);
    } else {
        page.labelled("INCOMPLETE", Tone::Bad, &trace.statement);
        let losses: Vec<String> = trace
            .losses
            .iter()
            .map(|(kind, count)| format!("{kind}: {}", format::count(*count)))
            .collect();
        if !losses.is_empty() {
            page.labelled("lost", Tone::Bad, &losses.join(", "));
        }
    }
    if !a.contradictions.is_empty() {
        let text = format!(
            "this report contradicts itself: {}. Please report it",
            a.contradictions.join("; ")
        );
        page.labelled("WRONG", Tone::Bad, &text);
    }
    let cost = &a.overhead;
    let mut parts = vec![match trace.backend == EXACT {
        true => "target ran in an emulator".to_owned(),
        false => format!(
            "target held {} ({} of the time, longest {}; all threads stood still for {}){}",
            format::duration(cost.held_ns),
            format::percent(cost.held_ns.0, trace.duration_ns.0),
            format::duration(cost.longest_hold_ns),
            format::duration(cost.stood_ns),
            held_by(&trace.hold)
        ),
    }];
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
    page.labelled("cost", Tone::Plain, &parts.join(", "));
    if let Some(traps) = &trace.traps {
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

/// Who told of the objects of how many programs, and why not the preload library.
fn object_sources(sources: &[ObjectSource]) -> String {
    let parts = sources.iter().map(|source| {
        let programs = format::counted(source.programs, "program");
        if source.from == "preload" {
            return format!("preload in {programs}");
        }
        let why = match source.why.as_deref() {
            Some("static") => "it loads no libraries",
            Some("rights") => "it gained rights by its file",
            Some("environment") => "LD_PRELOAD was dropped",
            Some("root") => "its root folder lacks the library",
            Some("unanswered") => "the library did not connect",
            _ => return format!("kernel's view in {programs}"),
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
        "{}, once an interval each, at their first access; the scan alone tells of {} more: memory that is shared, of \
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
            ". Processes whose later accesses did not trap, because they could not be served any more: {}",
            format::count(traps.given_up)
        );
    }
    text
}

/// The same for what another tool recorded.
fn imported(page: &mut Page, a: &Analysis) {
    let trace = &a.trace;
    let intervals = match trace.absent.contains(&Absent::Touches) {
        true => "no intervals".to_owned(),
        false => format::counted(trace.intervals, "interval"),
    };
    let from = trace.backend.strip_prefix("import/").unwrap_or_default();
    page.wrapped(
        &format!(
            "imported from {from}: {}, {intervals}",
            span(a, trace.duration_ns)
        ),
        Tone::Plain,
    );
    page.gap();
    page.labelled("imported", Tone::Notice, &trace.statement);
    let losses = trace.losses.iter();
    let losses: Vec<String> = losses
        .map(|(kind, count)| format!("{kind}: {}", format::count(*count)))
        .collect();
    if !losses.is_empty() {
        page.labelled("lost", Tone::Bad, &losses.join(", "));
    }
    if trace.absent.contains(&Absent::Overhead) {
        page.labelled("cost", Tone::Plain, "not recorded");
    }
}

/// A length of time in what the trace's clock counts.
fn span(a: &Analysis, length: Duration) -> String {
    match a.trace.clock_unit {
        ClockUnit::Nanoseconds => format::duration(length),
        ClockUnit::Accesses => format::counted(length.0, "access").replace("accesss", "accesses"),
        ClockUnit::Ticks => format!("{} ticks of its own clock", format::count(length.0)),
    }
}

fn footprint(page: &mut Page, a: &Analysis) {
    let f = &a.footprint;
    page.heading("Footprint");
    let several = a.processes.len() > 1;
    let mut parts = vec![format!(
        "{} touched ({})",
        format::pages_size(f.touched_pages),
        format::counted(f.touched_pages.0, "page")
    )];
    if f.peak_resident_pages.0 > 0 && !several {
        parts.push(format!(
            "{} resident at the peak",
            format::pages_size(f.peak_resident_pages)
        ));
    }
    page.wrapped(&parts.join(", "), Tone::Plain);
    if several {
        page.wrapped(&per_process(a), Tone::Plain);
    }
    let pages = a.reuse.pages().0;
    for (name, part) in [
        ("in 1 interval", a.reuse.once),
        ("in 2 intervals", a.reuse.twice),
        ("in 3 or more", a.reuse.more),
    ] {
        let share = part.0 as f64 / pages.max(1) as f64;
        page.line(&format!(
            "  touched {name:<15}{:>7}  {:>9}  {}",
            format::percent(part.0, pages),
            format::pages_size(part),
            chart::bar(share, 30)
        ));
    }
    let aside = [
        (a.unowned, "belong to no known object"),
        (a.shared, "are shared by several objects and count in each"),
        (
            a.own_memory,
            "are Varve's own in the target, in no other figure",
        ),
    ];
    for (rest, what) in aside {
        if rest != Remainder::default() {
            page.line(&format!(
                "  {}, {}, {what}",
                format::counted(rest.touched_pages.0, "page"),
                format::pages_size(rest.touched_pages)
            ));
        }
    }
    for s in &a.sources {
        let why = match s.source {
            TouchSource::Sticky => {
                "bits that cannot be cleared: they count from their first touch on"
            }
            TouchSource::Pinned => "pinned for direct access: they count while pinned",
            _ => continue,
        };
        page.wrapped(
            &format!(
                "  up to {} per interval are {why}",
                format::counted(s.peak_pages.0, "page")
            ),
            Tone::Plain,
        );
    }
    if f.possibly_others_page_touches > 0 {
        page.wrapped(
            &format!(
                "  possibly touched by others: {}, {}, in {}: pages of shared files and memory known only by a flag that other \
                 processes set too; they are in no other figure",
                format::counted(f.possibly_others_pages.0, "page"),
                format::pages_size(f.possibly_others_pages),
                format::counted(f.possibly_others_page_touches, "page touch")
                    .replace("touchs", "touches"),
            ),
            Tone::Plain,
        );
    }
}

/// What the processes touched and had, where a page that several use counts in each.
fn per_process(a: &Analysis) -> String {
    let f = &a.footprint;
    let mut text = format!(
        "summed over {} processes, where a page that several use counts in each: {} touched",
        format::count(a.processes.len() as u64),
        format::pages_size(f.touched_pages_per_process)
    );
    if f.peak_resident_pages.0 > 0 {
        text += &format!(
            ", {} resident at the peak",
            format::pages_size(f.peak_resident_pages)
        );
    }
    text
}

fn over_time(page: &mut Page, a: &Analysis) {
    if a.working_set.is_empty() {
        return;
    }
    page.heading("Working set over time");
    // Ticks of unknown length are no axis that a person could read.
    if a.trace.clock_unit != ClockUnit::Ticks {
        let label = |length| span(a, length);
        for line in chart::area(&a.working_set, a.trace.start_ns, page.width, &label) {
            page.line(&line);
        }
    }
    page.wrapped(
        &format!(
            "per interval: {} on average, {} at most",
            format::pages_size(a.footprint.mean_working_set_pages),
            format::pages_size(a.footprint.peak_working_set_pages)
        ),
        Tone::Plain,
    );
}

fn grouped(name: &str, objects: u64) -> String {
    match objects {
        1 => name.to_owned(),
        n => format!("{name} ×{}", format::count(n)),
    }
}

fn processes(page: &mut Page, a: &Analysis) {
    if a.processes.len() < 2 {
        return;
    }
    page.heading(&format!("Processes ({})", a.processes.len()));
    let mut table = Table::new(&[
        ("process", Align::Name),
        ("pid", Align::Right),
        ("threads", Align::Right),
        ("touched", Align::Right),
        ("shared", Align::Right),
        ("exit", Align::Right),
    ]);
    let mut most: Vec<_> = a.processes.iter().collect();
    most.sort_by_key(|p| (std::cmp::Reverse(p.touched_pages), p.pid));
    for p in most.iter().take(PROCESSES) {
        let command = match p.command.is_empty() {
            true => "(unknown)".to_owned(),
            false => p.command.clone(),
        };
        table.row([
            command,
            p.pid.to_string(),
            p.threads.to_string(),
            format::pages_size(p.touched_pages),
            format::pages_size(p.shared_pages),
            p.exit_code.map_or("-".to_owned(), |c| c.to_string()),
        ]);
    }
    page.table(&table);
    if most.len() > PROCESSES {
        page.line(&format!("  and {} more", most.len() - PROCESSES));
    }
}

fn threads(page: &mut Page, a: &Analysis) {
    let all: u64 = a.threads.iter().map(|t| t.first_touches.0).sum();
    if all == 0 {
        return;
    }
    page.heading("First touch by thread (page faults)");
    for t in a.threads.iter().take(THREADS) {
        let name = match t.name.is_empty() {
            true => t.tid.to_string(),
            false => format!("{} ({})", visible(&t.name), t.tid),
        };
        page.line(&format!(
            "  {name:<26}{:>7}  {:>15}  {}",
            format::percent(t.first_touches.0, all),
            format::counted(t.first_touches.0, "page"),
            chart::bar(t.first_touches.0 as f64 / all as f64, 24)
        ));
    }
    if a.threads.len() > THREADS {
        let rest: u64 = a
            .threads
            .iter()
            .skip(THREADS)
            .map(|t| t.first_touches.0)
            .sum();
        page.line(&format!(
            "  {}: {}",
            format::counted((a.threads.len() - THREADS) as u64, "other thread"),
            format::counted(rest, "page")
        ));
    }
}

fn findings(page: &mut Page, a: &Analysis) {
    page.heading("Findings");
    if a.trace.intervals == 0 && a.samples.is_none() {
        page.wrapped(
            "The recording has no intervals: nothing can be said of it.",
            Tone::Plain,
        );
    }
    if a.findings.is_empty() && (a.trace.intervals > 0 || a.samples.is_some()) {
        page.wrapped("Nothing stands out.", Tone::Plain);
    }
    for finding in &a.findings {
        let tone = match finding.id {
            FindingId::Incomplete => Tone::Bad,
            _ => Tone::Notice,
        };
        page.finding(
            finding.id.word(),
            tone,
            &finding.title,
            &finding.evidence,
            &finding.advice,
        );
    }
}

/// More files than this of which something is not known are counted, not listed.
const MAX_FILES: usize = 3;

fn unknown(page: &mut Page, a: &Analysis) {
    if a.unknown.is_empty() {
        return;
    }
    page.heading("Not known");
    // What is said of a file begins with its path.
    let (files, rest): (Vec<&String>, Vec<&String>) =
        a.unknown.iter().partition(|s| s.starts_with('/'));
    match files.len() > MAX_FILES {
        true => page.item(&format!(
            "Names of objects or functions in {} files: `varve report --json` lists them under `unknown`.",
            files.len()
        )),
        false => files.iter().for_each(|sentence| page.item(sentence)),
    }
    for sentence in rest {
        page.item(sentence);
    }
}

#[cfg(test)]
mod tests {
    use super::command_line;

    #[test]
    fn a_command_line_can_be_given_to_a_shell() {
        let words = ["bash", "-c", "for i in 1; do echo it's; done", ""].map(str::to_owned);
        let shown = command_line(&words);
        assert_eq!(shown, r"bash -c 'for i in 1; do echo it'\''s; done' ''");
    }
}
