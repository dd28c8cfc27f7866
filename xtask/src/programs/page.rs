//! What was found out, as lines and as a table in Markdown.

use std::fmt::Write;
use std::time::Duration;

use super::table::Program;

/// What is told of one recording.
#[derive(Debug)]
pub(super) struct Facts {
    /// Which recording.
    pub(super) way: &'static str,
    /// The run, with what the recorder does before and after.
    pub(super) whole: Duration,
    /// The program's run, as the trace says; `None` where there is no trace.
    pub(super) recorded: Option<Duration>,
    /// Whether the trace is complete, or what it lacks; `None` where there is no trace.
    pub(super) completeness: Option<std::result::Result<(), String>>,
}

/// What became of one program.
#[derive(Debug)]
pub(super) enum Judgement {
    /// It is not here.
    Skipped,
    /// The table's entry is wrong, and says nothing of recordings.
    Wrong(String),
    /// It was run in all ways.
    Compared {
        /// Its exit code alone.
        code: i32,
        /// The faster of two runs alone.
        alone: Duration,
        /// The recordings.
        recorded: Vec<Facts>,
        /// The first difference of each recording that has one.
        differences: Vec<String>,
    },
}

/// One program and its judgement.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) program: Program,
    pub(super) version: Option<String>,
    pub(super) judgement: Judgement,
}

impl Row {
    /// Whether this is to fail the whole.
    pub(super) fn failed(&self) -> bool {
        match &self.judgement {
            Judgement::Skipped => false,
            Judgement::Wrong(_) => true,
            Judgement::Compared { differences, .. } => !differences.is_empty(),
        }
    }

    /// One line for the terminal.
    pub(super) fn line(&self) -> String {
        let name = self.program.name;
        match &self.judgement {
            Judgement::Skipped => format!(
                "skipped: {name}: not installed (--install, of {})",
                self.program.package
            ),
            Judgement::Wrong(why) => format!("FAILED: {name}: its entry is wrong, {why}"),
            Judgement::Compared {
                alone,
                recorded,
                differences,
                ..
            } => {
                let mut line = if differences.is_empty() {
                    format!("passed: {name}: alone {} s", seconds(*alone))
                } else {
                    format!(
                        "FAILED: {name}: {}: alone {} s",
                        differences.join("; "),
                        seconds(*alone)
                    )
                };
                for facts in recorded {
                    // Nothing is lost: a String takes it.
                    let _ = write!(line, ", {} {}", facts.way, times(facts));
                }
                line
            }
        }
    }
}

/// How many passed, failed and were skipped, as other test programs end.
pub(super) fn sums(rows: &[Row]) -> String {
    let skipped = rows
        .iter()
        .filter(|r| matches!(r.judgement, Judgement::Skipped))
        .count();
    let failed = rows.iter().filter(|r| r.failed()).count();
    format!(
        "{} passed, {failed} failed, {skipped} skipped",
        rows.len() - skipped - failed
    )
}

/// The table of all programs.
pub(super) fn page(rows: &[Row]) -> String {
    let mut page = "\
Seconds of a recording are the program's own, and in parentheses the recorder's before and after it. `complete` names the recordings that lack something.

| program | Debian package | exit code | output, exit code and files | alone | record | fault | alloc | complete |
|---|---|---|---|---|---|---|---|---|
"
    .to_owned();
    for row in rows {
        let package = [
            Some(row.program.package).filter(|p| !p.is_empty()),
            row.version.as_deref(),
        ];
        let package = package.into_iter().flatten().collect::<Vec<_>>().join(" ");
        let cells = match &row.judgement {
            Judgement::Skipped => "- | not installed | - | - | - | - | -".to_owned(),
            Judgement::Wrong(why) => {
                format!("- | the entry is wrong: {} | - | - | - | - | -", cell(why))
            }
            Judgement::Compared {
                code,
                alone,
                recorded,
                differences,
            } => {
                let verdict = if differences.is_empty() {
                    "equal".to_owned()
                } else {
                    cell(&differences.join("; "))
                };
                let times: Vec<String> = recorded.iter().map(times).collect();
                format!(
                    "{code} | {verdict} | {} | {} | {}",
                    seconds(*alone),
                    times.join(" | "),
                    completeness(recorded)
                )
            }
        };
        // Nothing is lost: a String takes it.
        let _ = writeln!(page, "| {} | {package} | {cells} |", row.program.name);
    }
    let _ = writeln!(page, "\n{}", sums(rows));
    page
}

/// The program's seconds and, in parentheses, the recorder's own before and after it.
fn times(facts: &Facts) -> String {
    match facts.recorded {
        Some(recorded) => format!(
            "{} (+{})",
            seconds(recorded),
            seconds(facts.whole.saturating_sub(recorded))
        ),
        None => "no trace".to_owned(),
    }
}

fn completeness(recorded: &[Facts]) -> String {
    let lacking: Vec<String> = recorded
        .iter()
        .filter_map(|facts| match &facts.completeness {
            Some(Err(losses)) => Some(format!("{}: {losses}", facts.way)),
            _ => None,
        })
        .collect();
    if recorded.iter().all(|facts| facts.completeness.is_none()) {
        "no trace".to_owned()
    } else if lacking.is_empty() {
        "yes".to_owned()
    } else {
        cell(&lacking.join("; "))
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64())
}

/// A text that stays in its cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Facts, Judgement, Row, page, sums};
    use crate::programs::table;

    #[test]
    fn a_difference_fails_and_a_missing_program_does_not() {
        let program = table::all()[0];
        let facts = |completeness| Facts {
            way: "record",
            whole: Duration::from_millis(1500),
            recorded: Some(Duration::from_millis(1250)),
            completeness,
        };
        let of = |judgement| Row {
            program,
            version: None,
            judgement,
        };
        let compared = |differences: &[&str]| Judgement::Compared {
            code: 0,
            alone: Duration::from_secs(1),
            recorded: vec![facts(Some(Ok(()))), facts(Some(Err("stacks 3".to_owned())))],
            differences: differences.iter().map(|&d| d.to_owned()).collect(),
        };
        let rows = [
            of(Judgement::Skipped),
            of(compared(&[])),
            of(compared(&["record: a | b"])),
        ];
        assert_eq!(rows.each_ref().map(Row::failed), [false, false, true]);
        assert_eq!(sums(&rows), "1 passed, 1 failed, 1 skipped");
        let page = page(&rows);
        assert!(
            page.contains("| 0 | equal | 1.00 | 1.25 (+0.25) | 1.25 (+0.25) | record: stacks 3 |"),
            "{page}"
        );
        assert!(page.contains("record: a \\| b"), "{page}");
    }
}
