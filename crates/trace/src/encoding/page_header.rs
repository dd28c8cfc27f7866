//! The header of a Parquet page, as far as its sizes: the Parquet crate keeps its own to itself.
//!
//! Thrift's compact protocol; the fields are those of `PageHeader` in `parquet.thrift`.

/// Structs within structs that are followed.
const MAX_DEPTH: u32 = 8;

/// The sizes that a page claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageHeader {
    /// Bytes before packing.
    pub(crate) unpacked: u64,
    /// Bytes in the file, after the header.
    pub(crate) packed: u64,
    /// Values, nulls included.
    pub(crate) values: u64,
}

impl PageHeader {
    /// Reads a header and its own length; `None` where there is no whole one.
    pub(crate) fn parse(bytes: &[u8]) -> Option<(PageHeader, usize)> {
        let mut input = Input { bytes, at: 0 };
        let (mut unpacked, mut packed, mut values) = (None, None, 0);
        let mut last = 0;
        while let Some((id, kind)) = input.field(&mut last)? {
            match (id, kind) {
                (2, Kind::INT32) => unpacked = Some(input.size()?),
                (3, Kind::INT32) => packed = Some(input.size()?),
                // Data page, dictionary page, data page of version 2: the first field counts the values.
                (5 | 7 | 8, Kind::STRUCT) => {
                    let mut last = 0;
                    while let Some((id, kind)) = input.field(&mut last)? {
                        match (id, kind) {
                            (1, Kind::INT32) => values = input.size()?,
                            _ => input.skip(kind, 0)?,
                        }
                    }
                }
                _ => input.skip(kind, 0)?,
            }
        }
        let header = PageHeader {
            unpacked: unpacked?,
            packed: packed?,
            values,
        };
        Some((header, input.at))
    }
}

struct Kind;

impl Kind {
    const TRUE: u8 = 1;
    const FALSE: u8 = 2;
    const BYTE: u8 = 3;
    const INT16: u8 = 4;
    const INT32: u8 = 5;
    const INT64: u8 = 6;
    const DOUBLE: u8 = 7;
    const BINARY: u8 = 8;
    const LIST: u8 = 9;
    const SET: u8 = 10;
    const STRUCT: u8 = 12;
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A number that must not be negative.
    fn size(&mut self) -> Option<u64> {
        let zigzag = self.varint()?;
        zigzag.is_multiple_of(2).then_some(zigzag / 2)
    }

    /// The next field of a struct: its id and kind; `Some(None)` at the struct's end.
    fn field(&mut self, last: &mut u64) -> Option<Option<(u64, u8)>> {
        let head = self.byte()?;
        if head == 0 {
            return Some(None);
        }
        *last = match head >> 4 {
            0 => self.size()?,
            delta => last.checked_add(u64::from(delta))?,
        };
        Some(Some((*last, head & 0xf)))
    }

    fn advance(&mut self, bytes: u64) -> Option<()> {
        self.at = self.at.checked_add(usize::try_from(bytes).ok()?)?;
        (self.at <= self.bytes.len()).then_some(())
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            Kind::TRUE | Kind::FALSE => Some(()),
            Kind::BYTE => self.advance(1),
            Kind::INT16 | Kind::INT32 | Kind::INT64 => self.varint().map(|_| ()),
            Kind::DOUBLE => self.advance(8),
            Kind::BINARY => {
                let length = self.varint()?;
                self.advance(length)
            }
            Kind::LIST | Kind::SET => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.varint()?,
                    count => u64::from(count),
                };
                for _ in 0..count {
                    match head & 0xf {
                        // Within a list a truth value takes a byte.
                        Kind::TRUE | Kind::FALSE => self.advance(1)?,
                        item => self.skip(item, depth + 1)?,
                    }
                }
                Some(())
            }
            Kind::STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip(kind, depth + 1)?;
                }
                Some(())
            }
            // Maps are in no page header.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_values_are_found() {
        // type 0, 300 bytes, 20 packed, data page of 7 values with an encoding.
        let bytes = [
            0x15, 0x00, 0x15, 0xd8, 0x04, 0x15, 0x28, 0x2c, 0x15, 0x0e, 0x15, 0x00, 0x00, 0x00,
        ];
        let header = PageHeader {
            unpacked: 300,
            packed: 20,
            values: 7,
        };
        assert_eq!(PageHeader::parse(&bytes), Some((header, bytes.len())));
        for cut in 0..bytes.len() {
            assert_eq!(PageHeader::parse(&bytes[..cut]), None);
        }
    }

    #[test]
    fn nonsense_is_not_followed_for_ever() {
        assert_eq!(PageHeader::parse(&[0x1c; 100]), None);
        assert_eq!(
            PageHeader::parse(&[0x19, 0xf1, 0xff, 0xff, 0xff, 0xff, 0x0f]),
            None
        );
        // A negative size.
        assert_eq!(PageHeader::parse(&[0x25, 0x01, 0x15, 0x00, 0x00]), None);
    }
}
