//! Text that others chose, made harmless for a terminal.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character does something to a terminal, or to the order in which text is shown, rather than being seen.
fn acts(c: char) -> bool {
    // C0, DEL and C1; marks, overrides and isolates of direction; separators of lines.
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text of which nothing acts on a terminal: what would is written as an escape that can be seen, such as `\x1b` or
/// `\u{202e}`.
///
/// Names of threads, files, symbols and the like are whatever a program wants. This is the one filter for them, for
/// wherever text leaves.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, |out, c| {
        // Writing to a string cannot fail.
        let _ = match u32::from(c) {
            code @ ..0x80 => write!(out, "\\x{code:02x}"),
            code => write!(out, "\\u{{{code:x}}}"),
        };
    })
}

/// The same for a JSON document, in which such characters stand in strings alone: they are written as JSON escapes, so that
/// the document says what it said. Blanks and line breaks stay.
pub fn visible_json(text: &str) -> Cow<'_, str> {
    escaped(text, |out, c| {
        let _ = match c {
            '\n' | '\r' | '\t' => out.write_char(c),
            // None of them is beyond the first plane.
            c => write!(out, "\\u{:04x}", u32::from(c)),
        };
    })
}

fn escaped(text: &str, escape: impl Fn(&mut String, char)) -> Cow<'_, str> {
    let Some(first) = text.find(acts) else {
        return Cow::Borrowed(text);
    };
    let mut out = String::with_capacity(text.len() + 16);
    out.push_str(&text[..first]);
    for c in text[first..].chars() {
        match acts(c) {
            true => escape(&mut out, c),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_is_seen_and_the_rest_stays() {
        assert_eq!(visible("plain, größer 漢"), "plain, größer 漢");
        assert_eq!(
            visible("a\x1b]0;t\x07b\u{9b}31m\x7f\n\u{202e}c"),
            "a\\x1b]0;t\\x07b\\u{9b}31m\\x7f\\x0a\\u{202e}c"
        );
    }

    #[test]
    fn json_says_what_it_said() {
        assert_eq!(
            visible_json("{\n \"a\": \"\u{9b}\u{2066}\"}"),
            "{\n \"a\": \"\\u009b\\u2066\"}"
        );
    }
}
