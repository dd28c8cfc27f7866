//! Lines of a text, one at a time, in memory that does not grow with the text.

use std::io::{BufRead, Read};

use crate::error::Trouble;

/// The longest line that any of the formats has a use for.
const MAX_LENGTH: u64 = 1 << 20;

/// A text that is read line by line.
pub(crate) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
    /// The last line had no break.
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
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
        } else if read as u64 == MAX_LENGTH {
            let message = format!("it is longer than {MAX_LENGTH} bytes");
            return Err(Trouble::line(self.number, message));
        } else {
            self.is_cut = true;
        }
        Ok(Some((self.number, &self.line)))
    }

    /// The same without a last line that has no break: of a tool that ends each line with one, it may be any part of a line,
    /// and half an address looks like an address.
    pub(crate) fn next_whole(&mut self) -> Result<Option<(u64, &[u8])>, Trouble> {
        let is_end = self.next()?.is_none();
        Ok((!is_end && !self.is_cut).then_some((self.number, &self.line)))
    }

    /// Whether [`Lines::next_whole`] left something out.
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
