//! Command lines, names and lengths as a person reads them.

use std::path::Path;

use varve_analyse::{Analysis, TraceFacts, format};
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
pub fn quoted_path(path: &Path) -> String {
    let text = path.display().to_string();
    match text.starts_with('-') {
        true => quoted(&format!("./{text}")),
        false => quoted(&text),
    }
}

/// A command line as a shell takes it.
pub(crate) fn command_line(words: &[String]) -> String {
    let words = words.iter().map(|w| quoted(w));
    words.collect::<Vec<_>>().join(" ")
}

pub(crate) fn grouped(name: &str, objects: u64) -> String {
    match objects {
        1 => name.to_owned(),
        n => format!("{name} ×{}", format::count(n)),
    }
}

/// How long the intervals are: what they were, and what was asked for where they are longer; none where that is not known.
pub(crate) fn lengths(trace: &TraceFacts) -> Option<String> {
    match trace.interval_accesses {
        Some(0) => return Some("the whole run".to_owned()),
        Some(accesses) => return Some(format!("{} accesses", format::count(accesses))),
        None => (),
    }
    let shortest = *trace.shortest_interval_ns.value()?;
    let longest = *trace.longest_interval_ns.value()?;
    let median = format::duration(*trace.median_interval_ns.value()?);
    // The last one may be shorter than the shortest of the others.
    let differ = longest.0 > shortest.0.saturating_add(shortest.0 / 10);
    let mut more = Vec::new();
    if differ {
        more.push(format!("median {median}"));
    }
    match trace.interval_ns {
        Some(length) if trace.is_lengthened() => {
            let word = match trace.interval_asked {
                true => "asked for",
                false => "to be",
            };
            more.push(format!("{word} {}", format::duration(length)));
        }
        None => more.push("chosen by cost".to_owned()),
        Some(_) => (),
    }
    let length = match differ {
        true => format!(
            "{} to {}",
            format::duration(shortest),
            format::duration(longest)
        ),
        false => median,
    };
    Some(match more.is_empty() {
        true => length,
        false => format!("{length} ({})", more.join("; ")),
    })
}

/// A length of time in what the trace's clock counts.
pub(crate) fn span(a: &Analysis, length: Duration) -> String {
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
