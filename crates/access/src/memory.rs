//! Memory of a thread as it was when the thread was stopped.

use varve_model::Address;

/// Memory of which some is known.
pub trait Memory {
    /// The number that the bytes from an address on are, least significant first; none where one of them is not known.
    ///
    /// `bytes` is at most 8.
    fn read(&self, address: Address, bytes: usize) -> Option<u64>;
}

/// Memory of which nothing is known.
#[derive(Clone, Copy, Debug)]
pub struct Unknown;

impl Memory for Unknown {
    fn read(&self, _: Address, _: usize) -> Option<u64> {
        None
    }
}

/// Pieces of memory that were copied.
#[derive(Clone, Copy, Debug)]
pub struct Copies<'a> {
    /// Where each begins, and its bytes.
    pub parts: &'a [(Address, &'a [u8])],
}

impl Memory for Copies<'_> {
    fn read(&self, address: Address, bytes: usize) -> Option<u64> {
        let byte = |at: u64| {
            self.parts.iter().find_map(|(begin, part)| {
                let offset = usize::try_from(at.checked_sub(begin.0)?).ok()?;
                part.get(offset).copied()
            })
        };
        let mut value = [0; 8];
        for (n, to) in value.get_mut(..bytes)?.iter_mut().enumerate() {
            *to = byte(address.0.checked_add(n as u64)?)?;
        }
        Some(u64::from_le_bytes(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_across_pieces_and_not_beyond_them() {
        let (low, high) = ([1, 2, 3, 4], [5, 6, 7, 8, 9]);
        let parts = [(Address(0x100), &low[..]), (Address(0x104), &high[..])];
        let copies = Copies { parts: &parts };
        assert_eq!(copies.read(Address(0x100), 8), Some(0x0807_0605_0403_0201));
        assert_eq!(copies.read(Address(0x103), 2), Some(0x0504));
        assert_eq!(copies.read(Address(0x102), 8), None);
        assert_eq!(copies.read(Address(0xff), 1), None);
        assert_eq!(copies.read(Address(u64::MAX), 2), None);
        assert_eq!(copies.read(Address(0x100), 9), None);
        assert_eq!(Unknown.read(Address(0x100), 1), None);
    }
}
