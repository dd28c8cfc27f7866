//! Lines of a text, one at a time, in memory that does not grow with the text.

use std::io::{BufRead, Read};

use crate::error::Trouble;

/// The longest line that any of the formats has a use for.
const MAX_LENGTH: u64 = 1 << 20;

/// What editors of another system put before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A text without a byte order mark.
pub(crate) fn unmarked(text: &[u8]) -> &[u8] {
    text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text)
}

/// A text that is read line by line. A last line without a break is left out: of a tool that ends each line with one, it may be any
/// part of a line, and half an address looks like an address.
pub(crate) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    is_cut: bool,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R) -> Self {
        Lines {
            input,
            line: Vec::new(),
            number: 0,
            is_cut: false,
        }
    }

    /// The next line and its number, without the line break; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u64, &[u8])>, Trouble> {
        self.line.clear();
        let read = (&mut self.input)
            .take(MAX_LENGTH)
            .read_until(b'\n', &mut self.line)?;
        self.number += 1;
        let whole = self.line.strip_suffix(b"\n");
        match whole {
            Some(whole) => {
                let whole = whole.strip_suffix(b"\r").unwrap_or(whole);
                let line = match self.number {
                    1 => unmarked(whole),
                    _ => whole,
                };
                Ok(Some((self.number, line)))
            }
            None if read as u64 == MAX_LENGTH => {
                let message = format!("it is longer than {MAX_LENGTH} bytes");
                Err(Trouble::line(self.number, message))
            }
            None => {
                self.is_cut |= read > 0;
                Ok(None)
            }
        }
    }

    /// Whether a line was left out.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// The fields of a line of comma-separated values, without the blanks around them. A field may be quoted.
pub(crate) fn fields(line: &[u8]) -> Fields<'_> {
    Fields { rest: Some(line) }
}

pub(crate) struct Fields<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Fields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        if let Some(inner) = rest.trim_ascii_start().strip_prefix(b"\"")
            && let Some(end) = memchr::memchr(b'"', inner)
        {
            let after = &inner[end + 1..];
            let comma = memchr::memchr(b',', after);
            self.rest = comma.map(|at| &after[at + 1..]);
            return Some(&inner[..end]);
        }
        let comma = memchr::memchr(b',', rest);
        self.rest = comma.map(|at| &rest[at + 1..]);
        Some(rest[..comma.unwrap_or(rest.len())].trim_ascii())
    }
}

/// Text for people, whatever bytes it was.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
