//! What `/proc` says of processes, read without the C library and without memory of the heap.

use std::ffi::CStr;
use std::str::FromStr;

use crate::sys;

/// Room for the longest path here: `/proc/self/task/`, ten digits, `/children` and a zero byte.
pub(crate) type Path = [u8; 48];

/// A path of these pieces; none where it would be too long.
pub(crate) fn path(pieces: &[&[u8]]) -> Option<Path> {
    let mut path = [0; size_of::<Path>()];
    let mut at = 0;
    for piece in pieces {
        path.get_mut(at..at + piece.len())?.copy_from_slice(piece);
        at += piece.len();
    }
    // The last byte stays zero.
    (at < path.len()).then_some(path)
}

/// Opens what lies at a path.
pub(crate) fn open(path: &Path) -> Option<sys::ReadFile> {
    sys::ReadFile::open(CStr::from_bytes_until_nul(path).ok()?)
}

/// The first bytes of words that were read.
pub(crate) fn bytes(words: &[u64], count: usize) -> &[u8] {
    // SAFETY: initialised words are as many times 8 initialised bytes.
    let all =
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), size_of_val(words)) };
    all.get(..count).unwrap_or_default()
}

/// The numbers in a text, between white space.
pub(crate) fn numbers<N: FromStr>(text: &[u8]) -> impl Iterator<Item = N> {
    text.split(u8::is_ascii_whitespace)
        .filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok())
}

/// The digits of a number.
pub(crate) fn decimal(mut number: u32, digits: &mut [u8; 10]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

/// The text of a `/proc/PID/stat`: the name of the program, which may have any bytes, and all that stands behind it.
pub(crate) struct Stat<'a> {
    pub(crate) name: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Stat<'a> {
    pub(crate) fn of(text: &'a [u8]) -> Option<Stat<'a>> {
        let start = text.iter().position(|byte| *byte == b'(')?;
        let end = text.iter().rposition(|byte| *byte == b')')?;
        Some(Stat {
            name: text.get(start + 1..end)?,
            rest: text.get(end + 2..)?,
        })
    }

    /// A field from the third on, by its number in proc_pid_stat(5).
    pub(crate) fn field(&self, number: usize) -> Option<u64> {
        const FIRST: usize = 3;
        let mut fields = self.rest.split(u8::is_ascii_whitespace);
        let field = fields.nth(number.checked_sub(FIRST)?)?;
        std::str::from_utf8(field).ok()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_written() {
        assert_eq!(numbers(b"12 7\t300 \n").collect::<Vec<u32>>(), [12, 7, 300]);
        assert_eq!(numbers(b"4294967296 7").next(), Some(1u64 << 32));
        assert_eq!(decimal(0, &mut [0; 10]), b"0");
        assert_eq!(decimal(u32::MAX, &mut [0; 10]), b"4294967295");
    }

    #[test]
    fn a_path_ends_in_a_zero_byte() {
        let path_of = |bytes: usize| path(&[b"/proc/", &vec![b'x'; bytes - 6]]);
        let longest = path_of(size_of::<Path>() - 1).unwrap();
        assert!(CStr::from_bytes_until_nul(&longest).is_ok());
        assert!(path_of(size_of::<Path>()).is_none());
        assert!(path_of(size_of::<Path>() + 1).is_none());
    }

    #[test]
    fn a_name_with_brackets_hides_no_field() {
        let stat = Stat::of(b"12 (a) 3 (b)) S 7 8").unwrap();
        assert_eq!(stat.name, b"a) 3 (b)");
        assert_eq!(
            [4, 5, 6].map(|number| stat.field(number)),
            [Some(7), Some(8), None]
        );
        assert_eq!(stat.field(3), None, "a letter");
        assert!(Stat::of(b"12 (a").is_none() && Stat::of(b"").is_none());
    }
}
