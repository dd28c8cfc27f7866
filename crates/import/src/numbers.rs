//! Numbers as the formats write them.

/// A decimal number; none where there is another sign, or too many digits.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| {
        let digit = char::from(*digit).to_digit(10)?;
        sum.checked_mul(10)?.checked_add(u64::from(digit))
    })
}

/// A hexadecimal number, with or without `0x`.
pub(crate) fn hexadecimal(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |sum, digit| {
        Some(sum << 4 | u64::from(char::from(*digit).to_digit(16)?))
    })
}

/// A number that is hexadecimal where it begins with `0x`, else decimal.
pub(crate) fn either(digits: &[u8]) -> Option<u64> {
    match digits.starts_with(b"0x") {
        true => hexadecimal(digits),
        false => decimal(digits),
    }
}

/// Seconds with a decimal fraction, such as `12.000345678`, in nanoseconds; digits beyond those count for nothing.
pub(crate) fn seconds(text: &[u8]) -> Option<u64> {
    let (whole, fraction) = split(text);
    let mut nanoseconds = 0;
    for at in 0..9 {
        let digit = fraction.get(at).copied().unwrap_or(b'0');
        nanoseconds = nanoseconds * 10 + u64::from(char::from(digit).to_digit(10)?);
    }
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    decimal(whole)?
        .checked_mul(1_000_000_000)?
        .checked_add(nanoseconds)
}

/// Seconds and nanoseconds joined by a point **without leading zeros**, as `printf("%ld.%ld")` makes them: `12.345` is 12 s
/// and 345 ns.
pub(crate) fn seconds_and_nanoseconds(text: &[u8]) -> Option<u64> {
    let (whole, nanoseconds) = split(text);
    let nanoseconds = match nanoseconds {
        [] => 0,
        digits => decimal(digits).filter(|n| *n < 1_000_000_000)?,
    };
    decimal(whole)?
        .checked_mul(1_000_000_000)?
        .checked_add(nanoseconds)
}

fn split(text: &[u8]) -> (&[u8], &[u8]) {
    match memchr::memchr(b'.', text) {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_or_refused() {
        assert_eq!(decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(decimal(b"18446744073709551616"), None);
        assert_eq!(decimal(b""), None);
        assert_eq!(hexadecimal(b"0x7fFf"), Some(0x7fff));
        assert_eq!(hexadecimal(b"11112222333344445"), None);
        assert_eq!(either(b"12"), Some(12));
        assert_eq!(either(b"0x12"), Some(18));
    }

    #[test]
    fn a_fraction_is_not_a_number_of_nanoseconds() {
        assert_eq!(seconds(b"12.345"), Some(12_345_000_000));
        assert_eq!(seconds_and_nanoseconds(b"12.345"), Some(12_000_000_345));
        assert_eq!(
            seconds_and_nanoseconds(b"12.345000000"),
            Some(12_345_000_000)
        );
        assert_eq!(seconds_and_nanoseconds(b"12.1000000000"), None);
        assert_eq!(seconds(b"7"), Some(7_000_000_000));
        assert_eq!(seconds(b"7.1x"), None);
        assert_eq!(seconds(b"99999999999999"), None);
    }
}
