//! The lines with which a recording ends: what was recorded, whether all of it, what that cost, what stands out.

use varve_analyse::{
    AnalyseOptions, Overview, Recorded, Slowdown, analyse, format, recorded_processes,
    recorded_programs,
};
use varve_model::{Capability, visible};
use varve_trace::tables::{CountRow, FaultRow, ObjectRow, ProcessRow, SampleRow, TouchRow};
use varve_trace::{Manifest, Trace, TraceError};

/// Rows of a trace up to which it is looked at when its recording ends, which is a fraction of a second of work.
const MAX_ROWS: u64 = 1_000_000;
/// Findings that are named.
const FINDINGS: usize = 2;

/// What is said of a trace that was just written, but for where it is: a sentence each.
pub(super) fn lines(trace: &Trace) -> Vec<String> {
    let manifest = &trace.manifest;
    let rows = trace.rows::<ProcessRow>().unwrap_or_default();
    let intervals = varve_analyse::intervals(trace).unwrap_or_default();
    let start = intervals
        .first()
        .map_or(manifest.clock.start_ns, |i| i.start_ns);
    let processes = recorded_processes(&rows, start);
    let programs = recorded_programs(&rows, start);
    let of = Recorded::of(&intervals);
    vec![
        recorded(manifest, &of, processes),
        complete(manifest),
        cost(manifest, &of, programs),
        // What cannot be read is reported by `varve report`.
        findings(trace).unwrap_or_else(|_| "findings: `varve report` looks for them".to_owned()),
    ]
}

fn recorded(manifest: &Manifest, of: &Recorded, processes: u64) -> String {
    let command = manifest.target.command.first();
    let word = command.map_or("(unknown command)", String::as_str);
    // A process may have made itself a title of several words.
    let word = match manifest.target.attached {
        true => word.split_whitespace().next().unwrap_or(word),
        false => word,
    };
    let program = word.rsplit('/').next().unwrap_or(word);
    let program = program.strip_suffix(':').unwrap_or(program);
    let paused = match of.paused.0 {
        0 => String::new(),
        _ => format!(" (paused for {} of it)", format::duration(of.paused)),
    };
    let processes = format::processes(processes);
    // A program that could not do its work must not look as if it had.
    let ending = match manifest.target.exit_code {
        None | Some(0) => String::new(),
        Some(code) => format!(", {}", format::exit_code(code)),
    };
    format!(
        "recorded {}: {}{paused}, {processes}{ending}",
        visible(program),
        format::duration(of.length)
    )
}

fn complete(manifest: &Manifest) -> String {
    match manifest.completeness.complete {
        true if manifest.has(Capability::Emulated) => {
            "complete: every access of the program's own instructions was counted".to_owned()
        }
        true => "complete: every page that the program accessed is listed".to_owned(),
        false => format!("INCOMPLETE: {}", manifest.completeness.statement),
    }
}

fn cost(manifest: &Manifest, of: &Recorded, programs: u64) -> String {
    let cpu = format::duration(manifest.overhead.recorder_cpu_ns);
    if manifest.has(Capability::Emulated) {
        return format!(
            "cost: the program ran in an emulator, many times slower than by itself; recorder used {cpu} of CPU"
        );
    }
    if let Some(slowdown) = Slowdown::of(manifest, of.length - of.paused, programs) {
        return format!(
            "cost: {}; longest hold {}{}",
            slowdown.in_words(),
            format::duration(of.longest_hold),
            match manifest
                .options
                .max_hold_ns
                .filter(|most| of.longest_hold > *most)
            {
                Some(most) => format!(
                    "{}, {} permitted",
                    of.longest_hold_work
                        .map_or_else(String::new, |work| work.in_words(of.longest_hold)),
                    format::duration(most)
                ),
                None => String::new(),
            }
        );
    }
    if (of.length - of.paused) < varve_analyse::TOO_SHORT {
        return format!(
            "cost: too short a recording to say; target held {}, recorder used {cpu} of CPU",
            format::duration(of.held)
        );
    }
    let waited = match manifest.traps.map(|traps| traps.waited_ns) {
        Some(waited) if waited.0 > 0 => format!(
            ", threads waited {} for trapped accesses",
            format::duration(waited)
        ),
        _ => String::new(),
    };
    format!(
        "cost: target held {} ({} of the time){waited}, recorder used {cpu} of CPU",
        format::duration(of.held),
        format::percent(of.held.0, of.held_of.0),
    )
}

/// The strongest findings, where they are found in no noticeable time.
fn findings(trace: &Trace) -> Result<String, TraceError> {
    let rows = trace.count::<TouchRow>()?
        + trace.count::<SampleRow>()?
        + trace.count::<FaultRow>()?
        + trace.count::<ObjectRow>()?
        + trace.count::<CountRow>()?;
    if rows > MAX_ROWS {
        return Ok("findings: the trace is large, `varve report` looks for them".to_owned());
    }
    let analysis = analyse(trace, &AnalyseOptions::default(), &mut |_| ())?;
    let found = Overview::of(&analysis).findings;
    let shown: Vec<String> = found
        .iter()
        .take(FINDINGS)
        .map(|f| format!("{} ({})", f.title, f.action))
        .collect();
    Ok(match found.len() {
        0 => "no findings".to_owned(),
        n if n > FINDINGS => format!("findings: {}; and {} more", shown.join("; "), n - FINDINGS),
        _ => format!("findings: {}", shown.join("; ")),
    })
}
