//! Command lines and names as a person reads them.

use std::path::Path;

use varve_analyse::{Analysis, format};
use varve_model::Duration;
use varve_trace::ClockUnit;

/// A word of a command line as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// A path as a shell takes it, and never as an option.
pub(super) fn quoted_path(path: &Path) -> String {
    let text = path.display().to_string();
    match text.starts_with('-') {
        true => quoted(&format!("./{text}")),
        false => quoted(&text),
    }
}

/// A command line as a shell takes it.
pub(super) fn command_line(words: &[String]) -> String {
    let words = words.iter().map(|w| quoted(w));
    words.collect::<Vec<_>>().join(" ")
}

pub(super) fn grouped(name: &str, objects: u64) -> String {
    match objects {
        1 => name.to_owned(),
        n => format!("{name} ×{}", format::count(n)),
    }
}

/// A length of time in what the trace's clock counts.
pub(super) fn span(a: &Analysis, length: Duration) -> String {
    match a.trace.clock_unit {
        ClockUnit::Nanoseconds => format::duration(length),
        ClockUnit::Accesses => format::counted(length.0, "access").replace("accesss", "accesses"),
        ClockUnit::Ticks => format!("{} ticks of its own clock", format::count(length.0)),
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
