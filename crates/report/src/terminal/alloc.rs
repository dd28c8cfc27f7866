//! What `varve alloc report` prints: the verdict first, then tables.

use varve_alloc::{Answer, Judged, Judgement, Memory, Moment, ProcessFigures, Share, Times};
use varve_analyse::format;
use varve_model::{Bytes, Duration};

use super::WIDTHS;
use super::page::{Page, Tone};
use super::table::{ABSENT, Align, Table};

/// Rows of each table, where not all are asked for.
const ROWS: usize = 8;
/// A share of a mean from which its error is said.
const MUCH_ERROR: f64 = 0.1;
/// Bars of the time line.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The text; `whole`: with all rows.
pub fn render(judged: &Judged, width: usize, color: bool, whole: bool) -> String {
    let width = width.clamp(*WIDTHS.start(), *WIDTHS.end());
    let mut page = Page::new(width, color);
    let rows = if whole { usize::MAX } else { ROWS };
    verdict(&mut page, judged);
    let Some(of) = judged.counted() else {
        return page.text;
    };
    time(&mut page, of);
    memory(&mut page, of);
    super::alloc_pages::render(&mut page, of, rows);
    super::alloc_tables::operations(&mut page, of, rows);
    super::alloc_blocks::render(&mut page, of, rows);
    super::alloc_tables::classes(&mut page, of, rows);
    page.text
}

pub(super) fn percent(share: f64) -> String {
    format::percent((share.clamp(0.0, 1.0) * 1e9) as u64, 1_000_000_000)
}

fn time_of(ns: f64) -> String {
    match ns {
        ns if ns < 1000.0 => format!("{ns:.0} ns"),
        ns => format::duration(Duration(ns as u64)),
    }
}

/// A mean, and how far off it may be where that is much; nothing where it may be off by itself, and says nothing.
pub(super) fn with_error(ns: f64, error: f64) -> String {
    match error {
        error if error >= 1.0 => ABSENT.to_owned(),
        error if error > MUCH_ERROR => format!("{} ± {}", time_of(ns), time_of(ns * error)),
        _ => time_of(ns),
    }
}

/// A time, and how far off it may be where that is much; nothing where it is not known.
pub(super) fn estimated((time, error): (Option<Duration>, Option<f64>)) -> String {
    time.map_or_else(
        || ABSENT.to_owned(),
        |time| match error {
            Some(error) => with_error(time.0 as f64, error),
            None => format::duration(time),
        },
    )
}

/// What helps where a diagnosis lies above its bound by less than its error.
const UNDECIDED: &str =
    "Record a longer run: this one has too few samples to tell it from less than is worth a word.";

fn verdict(page: &mut Page, of: &Judged) {
    let (about, verdict) = (of.trace(), of.verdict());
    let tone = match verdict.answer {
        Answer::No => Tone::Good,
        Answer::Busy | Answer::Unknown => Tone::Notice,
        Answer::Yes => Tone::Bad,
    };
    if let Some(cut) = &about.cut {
        page.wrapped(cut, Tone::Bad);
        page.gap();
    }
    for missing in about.why_uncounted() {
        page.wrapped(missing, Tone::Bad);
        page.gap();
    }
    page.wrapped(&verdict.sentence, tone);
    for diagnosis in of.diagnoses() {
        page.gap();
        page.finding(
            diagnosis.id,
            Tone::Bad,
            &diagnosis.title,
            &diagnosis.evidence,
            &diagnosis.advice,
        );
    }
    for diagnosis in of.undecided() {
        page.gap();
        page.finding(
            diagnosis.id,
            Tone::Notice,
            &format!(
                "perhaps {}: that is not known, as the run is too short",
                diagnosis.title
            ),
            &diagnosis.evidence,
            UNDECIDED,
        );
    }
    if about.attached {
        page.gap();
        page.wrapped(
            "The program ran before it was recorded: blocks that it had then are not among its memory, and frees of them have no known size.",
            Tone::Notice,
        );
    }
    for note in &about.notes {
        page.gap();
        page.wrapped(note, Tone::Notice);
    }
    if about.lost > 0 {
        page.gap();
        let lost = format::counted(about.lost, "operation");
        page.wrapped(
            &format!("{lost} were not counted, or what the kernel did within them."),
            Tone::Notice,
        );
    }
}

pub(super) fn share(of: Option<Share>) -> String {
    of.map_or_else(
        || "not known".to_owned(),
        |s| format!("{} ± {}", percent(s.share), percent(s.error)),
    )
}

/// How long operations took, as far as that is known.
fn in_operations(of: &Times) -> String {
    match (of.operations_ns, of.operations_least_ns) {
        (Some(_), _) => estimated((of.operations_ns, of.operations_error)),
        (None, Duration(0)) => "not known how long".to_owned(),
        (None, least) => format!("at least {}", format::duration(least)),
    }
}

fn time(page: &mut Page, of: &Judgement) {
    page.heading("Time");
    let t = &of.time;
    page.labelled(
        "share",
        Tone::Plain,
        &format!(
            "{}, {} by timing one operation in {}",
            match t.sampled {
                Some(_) => format!("{} of the CPU time by the clocks of CPUs", share(t.sampled)),
                None =>
                    "not known by the clocks of CPUs: none found the program at work".to_owned(),
            },
            share(t.timed),
            of.trace.time_every
        ),
    );
    if t.differ {
        page.labelled(
            "",
            Tone::Notice,
            "The two differ by more than their errors: reading the clock twice makes an operation of a few nanoseconds longer, and timed operations that wait for a CPU seem long.",
        );
    }
    page.labelled(
        "in all",
        Tone::Plain,
        &format!(
            "{} in operations{}{}; {} of CPU time in {}; counting took {} besides",
            in_operations(t),
            match t.waited_ns {
                Duration(0) => String::new(),
                waited => format!(", {} of it waiting", format::duration(waited)),
            },
            match t.queued_ns {
                Duration(0..1_000_000) => String::new(),
                queued => format!(", {} of it without a CPU", format::duration(queued)),
            },
            format::duration(t.cpu_ns),
            format::duration(of.trace.duration_ns),
            format::duration(t.counting_ns)
        ),
    );
    if let Some(spinning) = t.spinning.filter(|spinning| spinning.share > 0.0) {
        page.labelled(
            "spinning",
            Tone::Plain,
            &format!(
                "{} of the CPU time in loops within operations that wait for another thread",
                share(Some(spinning))
            ),
        );
    }
    page.labelled(
        "recording",
        Tone::Faint,
        &format!(
            "{}a system call of any program took {} meanwhile, {} before",
            of.trace.probe_ns.map_or_else(String::new, |longer| format!(
                "each operation took {} longer, which is left out of its time, so that times below that are rough; ",
                format::duration(longer)
            )),
            format::duration(of.trace.call_ns),
            format::duration(of.trace.plain_call_ns)
        ),
    );
    // What lies within what a probe takes is the error of what was left out.
    let least = of.trace.probe_ns.unwrap_or_default();
    let known = |time: Duration| match time < least {
        true => format!("< {}", format::duration(least)),
        false => time_of(time.0 as f64),
    };
    if of.times.is_empty() {
        return;
    }
    let mut table = Table::new(&[
        ("time of", Align::Name),
        ("timed", Align::Right),
        ("mean", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("max", Align::Right),
    ]);
    for (kind, figures) in &of.times {
        table.row([
            kind.clone(),
            format::count(figures.timed),
            with_error(
                figures.mean_ns,
                figures.mean_error_ns / figures.mean_ns.max(1.0),
            ),
            known(figures.p50_ns),
            known(figures.p99_ns),
            known(figures.max_ns),
        ]);
    }
    page.table(&table);
}

fn memory(page: &mut Page, of: &Judgement) {
    let is_known = |of: &ProcessFigures| of.peak_requested_bytes.is_some();
    match of.processes.as_slice() {
        [first, _, ..] => page.heading(&format!(
            "Memory of process {} ({}), which of {} {} the highest peak",
            first.pid.0,
            first.exe.rsplit('/').next().unwrap_or(&first.exe),
            of.processes.len(),
            match of.processes.iter().all(is_known) {
                true => "had",
                false => "may have had",
            }
        )),
        _ => page.heading("Memory"),
    }
    let m = &of.memory;
    page.labelled("peak", Tone::Plain, &peak(m));
    page.labelled("resident", Tone::Plain, &resident(m));
    if let Some(all) = m.peak_resident_bytes {
        let all = format::bytes(all);
        let text = format!(
            "{all} of all anonymous memory at the look that found most, what the program maps itself and stacks with it, Varve's left out"
        );
        page.labelled("", Tone::Faint, &text);
    }
    page.labelled("at the end", Tone::Plain, &at_the_end(m));
    match of.trace.probe_ns {
        Some(_) => page.labelled("counting", Tone::Faint, "took no memory in the process"),
        None => page.labelled(
            "counting",
            Tone::Faint,
            &format!("took {} in the process", format::bytes(m.own_bytes)),
        ),
    }
    if m.over_time.len() > 2 {
        if m.over_time.iter().any(|o| o.requested_bytes.is_some()) {
            line(page, "asked for", &m.over_time, |moment| {
                moment.requested_bytes
            });
        }
        if m.over_time.iter().any(|o| o.heap_resident_bytes.is_some()) {
            line(page, "resident", &m.over_time, |moment| {
                moment.heap_resident_bytes
            });
        }
    }
}

/// What is said in place of a figure of what lives.
fn not_known(of: &Memory) -> String {
    match &of.uncounted {
        Some(why) => format!("not known: {why}"),
        None => "not known".to_owned(),
    }
}

/// What the program had asked for at the most.
fn peak(of: &Memory) -> String {
    let (Some(requested), Some(when)) = (of.peak_requested_bytes, of.peak_ns) else {
        return not_known(of);
    };
    format!(
        "{} asked for{}, after {}",
        format::bytes(requested),
        match (of.peak_usable_bytes, of.internal_fragmentation) {
            (Some(usable), Some(lost)) => format!(
                ", in blocks of {} ({} lost within blocks)",
                format::bytes(usable),
                percent(lost)
            ),
            _ => " (how large its blocks are the allocator does not say)".to_owned(),
        },
        format::duration(when)
    )
}

/// What it had not freed.
fn at_the_end(of: &Memory) -> String {
    let (Some(requested), Some(blocks)) = (of.end_requested_bytes, of.end_blocks) else {
        return not_known(of);
    };
    format!(
        "{} in {}",
        format::bytes(requested),
        format::counted(blocks, "block")
    )
}

/// What was resident of the allocator's memory.
fn resident(of: &Memory) -> String {
    match (&of.unknown, of.peak_heap_resident_bytes) {
        (Some(why), _) => format!("not known of the allocator's memory: {why}"),
        (None, None) => "not known".to_owned(),
        (None, Some(resident)) => {
            let blowup = of.blowup.map_or_else(String::new, |b| {
                format!(", {b:.2} times what was asked for at the peak")
            });
            let kept = of.kept_bytes.map_or_else(String::new, |kept| {
                format!("; up to {} of it lay in no block", format::bytes(kept))
            });
            let when = of.peak_heap_resident_before_end_ns.unwrap_or_default();
            format!(
                "{} of what the allocator has mapped at the look that found most, {} before the end{blowup}{kept}; between looks it may have been more",
                format::bytes(resident),
                format::duration(when)
            )
        }
    }
}

/// A time line, as high as the most of all figures.
fn line(
    page: &mut Page,
    label: &str,
    moments: &[Moment],
    figure: impl Fn(&Moment) -> Option<Bytes>,
) {
    let most = moments
        .iter()
        .flat_map(|m| [m.requested_bytes, m.heap_resident_bytes])
        .flatten()
        .max()
        .unwrap_or_default();
    let (first, last) = match moments {
        [first, .., last] => (first.time_ns.0, last.time_ns.0),
        _ => return,
    };
    let columns = (page.width - 14).min(100);
    let mut text = String::new();
    let mut moments = moments.iter().peekable();
    let mut now = None;
    for column in 0..columns {
        let until = first + (last - first) * (column as u64 + 1) / columns as u64;
        let mut highest = None;
        while let Some(moment) = moments.next_if(|m| m.time_ns.0 <= until) {
            now = figure(moment).or(now);
            highest = highest.max(now);
        }
        let height = highest.or(now).map(|b| b.0 as f64 / most.0.max(1) as f64);
        text.push(height.map_or(' ', |h| {
            let step = (h * BARS.len() as f64).ceil() as usize;
            BARS[step.clamp(1, BARS.len()) - 1]
        }));
    }
    page.labelled(label, Tone::Plain, &text);
}
