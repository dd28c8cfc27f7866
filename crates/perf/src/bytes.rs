//! Numbers and texts in bytes, of either byte order.

/// A reader that never goes beyond the end.
#[derive(Clone, Debug)]
pub struct Bytes<'a> {
    rest: &'a [u8],
    big: bool,
}

impl<'a> Bytes<'a> {
    /// Reads from the beginning; `big` says that the byte of most weight comes first.
    pub fn new(rest: &'a [u8], big: bool) -> Self {
        Bytes { rest, big }
    }

    /// The next bytes; none where there are not so many.
    pub fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    /// The next number of eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.number(8)
    }

    /// The next number of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|n| n as u32)
    }

    /// The next number of two bytes.
    pub fn u16(&mut self) -> Option<u16> {
        self.number(2).map(|n| n as u16)
    }

    /// A number of at most eight bytes.
    pub fn number(&mut self, length: usize) -> Option<u64> {
        let bytes = self.take(length)?;
        let join = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(match self.big {
            true => bytes.iter().fold(0, join),
            false => bytes.iter().rev().fold(0, join),
        })
    }

    /// A text that ends with a zero, or where `behind` bytes are left.
    pub fn text(&self, behind: usize) -> &'a [u8] {
        let all = &self.rest[..self.rest.len().saturating_sub(behind)];
        all.split(|b| *b == 0).next().unwrap_or_default()
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
