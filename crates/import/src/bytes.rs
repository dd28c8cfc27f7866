//! Numbers and texts in bytes, of either byte order.

/// A reader that never goes beyond the end.
#[derive(Clone, Debug)]
pub(crate) struct Bytes<'a> {
    rest: &'a [u8],
    big: bool,
}

impl<'a> Bytes<'a> {
    pub(crate) fn new(rest: &'a [u8], big: bool) -> Self {
        Bytes { rest, big }
    }

    pub(crate) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.number(8)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|n| n as u32)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.number(2).map(|n| n as u16)
    }

    /// A number of at most eight bytes.
    pub(crate) fn number(&mut self, length: usize) -> Option<u64> {
        let bytes = self.take(length)?;
        let join = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(match self.big {
            true => bytes.iter().fold(0, join),
            false => bytes.iter().rev().fold(0, join),
        })
    }

    /// A text that ends with a zero, or where `behind` bytes are left.
    pub(crate) fn text(&self, behind: usize) -> &'a [u8] {
        let all = &self.rest[..self.rest.len().saturating_sub(behind)];
        all.split(|b| *b == 0).next().unwrap_or_default()
    }
}

/// Bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
