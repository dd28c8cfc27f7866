//! Printer, progress bars, hints and number formats of the command line
//!
//! Standard output is data. Everything here goes to standard error, in colour only where that is a
//! terminal and `NO_COLOR` is not set.

mod progress;

use std::fmt::Display;
use std::io::Write;

use anstyle::{AnsiColor, Style};

pub use progress::{Line, Progress};
use varve_model::visible;

const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();
const NOTE: Style = Style::new().dimmed();

fn say(style: Style, word: &str, text: &dyn Display) {
    // Standard error may be closed; there is nobody left to inform then.
    // Messages name files, programs and threads, which are called whatever somebody wants.
    let text = text.to_string();
    let text = visible(&text);
    let _ = writeln!(anstream::stderr(), "{style}{word}:{style:#} {text}");
}

/// Says what failed, on what.
pub fn error(text: impl Display) {
    say(ERROR, "error", &text);
}

/// Says what is not as it should be but does not stop the work.
pub fn warning(text: impl Display) {
    say(WARNING, "warning", &text);
}

/// Says what can be done about it.
pub fn hint(text: impl Display) {
    say(HINT, "hint", &text);
}

/// Says what happens.
pub fn note(text: impl Display) {
    say(NOTE, "varve", &text);
}

/// Columns of the terminal that standard output goes to, if it is one.
pub fn terminal_width() -> Option<usize> {
    terminal_size::terminal_size().map(|(width, _)| usize::from(width.0))
}
