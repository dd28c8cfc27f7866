//! `varve doctor`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::Args;
use serde::Serialize;
use varve_model::visible_json;
use varve_record::{Brief, Check, Leftovers, Standing, can_record, examine, examine_exact};

use super::Failure;
use crate::libraries::{plugin, preload};

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Write JSON to standard output
    #[arg(long)]
    pub(crate) json: bool,

    /// Show every mechanism, not only what works and what is missing
    #[arg(long, conflicts_with = "json")]
    pub(crate) all: bool,

    /// Remove what recorders that were killed left, and let go what they held
    #[arg(long)]
    pub(crate) clean: bool,
}

/// The JSON form.
#[derive(Serialize)]
struct Findings<'a> {
    schema: &'static str,
    can_record: bool,
    checks: &'a [Check],
}

pub(crate) fn run(arguments: &Doctor) -> Result<ExitCode, Failure> {
    let choice = if arguments.clean {
        Leftovers::Clean
    } else {
        Leftovers::List
    };
    let found = |library: Result<Option<PathBuf>, Failure>| library.map_err(|failure| failure.what);
    let mut checks = examine(found(preload()), choice);
    let can_record = can_record(&checks);
    checks.push(examine_exact(found(plugin()), can_record));
    let written = if arguments.json {
        let findings = Findings {
            schema: "varve-doctor/1",
            can_record,
            checks: &checks,
        };
        let mut text =
            serde_json::to_string_pretty(&findings).map_err(|e| Failure::new(e, None::<String>))?;
        text.push('\n');
        std::io::stdout().write_all(visible_json(&text).as_bytes())
    } else {
        print(&checks, arguments.all)
    };
    // Nobody reads any more, such as `head`; that is no failure.
    let _ = written;
    Ok(if can_record {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Columns of a line where standard output is no terminal: a line for each mechanism, for other programs.
const UNWRAPPED: usize = usize::MAX;
/// Columns of a terminal that does not say how many it has.
const DEFAULT_WIDTH: usize = 80;
/// Narrower lines cannot be read.
const MIN_WIDTH: usize = 40;

fn print(checks: &[Check], all: bool) -> std::io::Result<()> {
    let mut out = anstream::stdout().lock();
    let width = match std::io::stdout().is_terminal() {
        true => varve_ui::terminal_width().unwrap_or(DEFAULT_WIDTH),
        false => UNWRAPPED,
    };
    out.write_all(render(checks, all, width.max(MIN_WIDTH)).as_bytes())
}

/// What is said of all checks, with colours.
fn render(checks: &[Check], all: bool, width: usize) -> String {
    let mut out = String::new();
    if all {
        let column = checks.iter().map(|c| c.name.len()).max().unwrap_or(0);
        // Beside so long a name there is little room for a sentence.
        let column = column.min(width / 3);
        for check in checks {
            entry(&mut out, check, column, width);
        }
    } else {
        brief(&mut out, checks, width);
    }
    out.push('\n');
    let can = match (
        can_record(checks),
        checks.iter().any(|c| c.standing == Standing::Promised),
    ) {
        (false, _) => "This machine cannot record: see what is marked NO.",
        (true, true) => {
            "This machine can record, but no trace will be complete: see what is marked NO."
        }
        (true, false) => {
            "This machine can record complete page-level traces: varve record -- COMMAND"
        }
    };
    hanging(&mut out, "", can, 0, width);
    if !all {
        let more = format!(
            "`varve doctor --all` shows all {} mechanisms.",
            checks.len()
        );
        hanging(&mut out, "", &more, 0, width);
    }
    out
}

/// What works in a sentence, and what does not with what can be done about it.
fn brief(out: &mut String, checks: &[Check], width: usize) {
    let works = |check: &&Check| check.standing == Standing::Available;
    let features = checks
        .iter()
        .filter(works)
        .filter_map(|check| match check.brief {
            Brief::Feature(words) => Some(words),
            _ => None,
        });
    let features: Vec<&str> = features.collect();
    if !features.is_empty() {
        let (word, style) = mark(Standing::Available);
        let mark = format!("{style}{word}{style:#} ");
        hanging(out, &mark, &features.join(", "), MARK, width);
    }
    for check in checks {
        let is_shown = match check.brief {
            Brief::Always => true,
            Brief::Never => false,
            Brief::Missing | Brief::Feature(_) => check.standing != Standing::Available,
        };
        if is_shown {
            entry(out, check, 0, width);
        }
    }
}

/// Columns of the word that says how a mechanism stands, and a space.
const MARK: usize = 5;

fn mark(standing: Standing) -> (&'static str, Style) {
    match standing {
        Standing::Available => ("yes ", AnsiColor::Green.on_default()),
        Standing::Required | Standing::Promised => ("NO  ", AnsiColor::Red.on_default().bold()),
        Standing::Missing => ("no  ", AnsiColor::Yellow.on_default()),
        Standing::Note => ("note", Style::new().dimmed()),
    }
}

/// All of one mechanism; its name takes this many columns.
fn entry(out: &mut String, check: &Check, column: usize, width: usize) {
    let (word, style) = mark(check.standing);
    let mark = format!("{style}{word}{style:#} ");
    let (head, indent) = match column {
        0 => (format!("{mark}{}: ", check.name), MARK),
        _ => (format!("{mark}{:column$}  ", check.name), MARK + column + 2),
    };
    let first = match column {
        0 => MARK + check.name.chars().count() + 2,
        _ => MARK + check.name.chars().count().max(column) + 2,
    };
    let text = format!("{}: {}", check.purpose, check.detail);
    flow(out, &head, &text, first, indent, width);
    if let Some(hint) = &check.hint {
        let head = format!("{}hint: ", " ".repeat(indent));
        flow(out, &head, hint, indent + 6, indent, width);
    }
}

/// A text behind its head, with lines that begin below the text.
fn hanging(out: &mut String, head: &str, text: &str, indent: usize, width: usize) {
    flow(out, head, text, indent, indent, width);
}

/// A text behind a head that takes `first` columns; its other lines begin at `indent`.
fn flow(out: &mut String, head: &str, text: &str, first: usize, indent: usize, width: usize) {
    let room = width.saturating_sub(indent).max(MIN_WIDTH / 2);
    if first - indent > room / 2 {
        *out += head.trim_end();
        out.push('\n');
        return flow(out, &" ".repeat(indent), text, indent, indent, width);
    }
    // The head takes part in the wrapping as a word of its length.
    let taken = "x".repeat(first - indent);
    let lines = varve_report::wrap(&format!("{taken}{text}"), room);
    for (i, line) in lines.iter().enumerate() {
        match i {
            0 => {
                *out += head;
                *out += line.get(taken.len()..).unwrap_or_default();
            }
            _ => {
                out.extend(std::iter::repeat_n(' ', indent));
                *out += line;
            }
        }
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, standing: Standing, brief: Brief, hint: Option<&str>) -> Check {
        Check {
            name: name.to_owned(),
            purpose: format!("what {name} is for, which takes some words to say"),
            standing,
            detail: "how that was found".to_owned(),
            hint: hint.map(str::to_owned),
            brief,
        }
    }

    fn checks() -> Vec<Check> {
        vec![
            check("tables", Standing::Available, Brief::Missing, None),
            check(
                "heap",
                Standing::Available,
                Brief::Feature("heap objects"),
                None,
            ),
            check(
                "bits",
                Standing::Missing,
                Brief::Missing,
                Some("another kernel has them, and more than these"),
            ),
            check("part", Standing::Missing, Brief::Never, None),
            check("fact", Standing::Note, Brief::Never, None),
            check("leftovers", Standing::Note, Brief::Always, None),
        ]
    }

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn the_brief_form_says_what_works_and_what_is_missing() {
        let said = plain(&render(&checks(), false, UNWRAPPED));
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[0], "yes  heap objects");
        assert!(
            lines[1].starts_with("no   bits: what bits is for"),
            "{said}"
        );
        assert!(lines[2].starts_with("     hint: another kernel"), "{said}");
        assert!(lines[3].starts_with("note leftovers: "), "{said}");
        assert!(
            lines[5].starts_with("This machine can record complete"),
            "{said}"
        );
        assert_eq!(lines.len(), 7, "{said}");
        let mut broken = checks();
        broken[0].standing = Standing::Promised;
        let said = plain(&render(&broken, false, UNWRAPPED));
        assert!(
            said.contains("NO   tables: ") && said.contains("no trace will be complete"),
            "{said}"
        );
    }

    #[test]
    fn all_of_it_has_a_line_for_each_mechanism() {
        let said = plain(&render(&checks(), true, UNWRAPPED));
        for name in ["tables", "heap", "bits", "part", "fact", "leftovers"] {
            assert!(
                said.lines()
                    .any(|l| l.get(5..).is_some_and(|l| l.starts_with(name))),
                "{said}"
            );
        }
    }

    #[test]
    fn a_name_that_fills_a_narrow_line_stands_by_itself() {
        let name = "a mechanism of so long a name";
        let checks = [check(name, Standing::Missing, Brief::Missing, None)];
        let said = plain(&render(&checks, false, MIN_WIDTH));
        assert!(
            said.starts_with(&format!("no   {name}:\n     what {name}")),
            "{said}"
        );
        assert!(said.contains("how that was found"), "{said}");
    }

    #[test]
    fn lines_are_no_wider_than_the_terminal_and_begin_below_the_text() {
        for (all, indent) in [(false, 5), (true, 16)] {
            let said = plain(&render(&checks(), all, 60));
            assert!(said.lines().all(|l| l.chars().count() <= 60), "{said}");
            let bits = said.lines().skip_while(|l| !l.contains("bits")).skip(1);
            let next = bits.take_while(|l| l.starts_with(' ')).collect::<Vec<_>>();
            assert!(next.len() >= 2, "{said}");
            assert!(
                next.iter()
                    .all(|l| l.len() - l.trim_start().len() == indent),
                "{said}"
            );
            // Nothing is lost.
            let words = |text: &str| {
                text.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                words(&said),
                words(&plain(&render(&checks(), all, UNWRAPPED)))
            );
        }
    }
}
