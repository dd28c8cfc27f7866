//! Values that several commands take: times, shares and sizes.

use std::str::FromStr;

use varve_model::{Bytes, Duration};

/// A time since the beginning of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Duration);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give seconds such as 1.5, or a time such as 300ms, 2s or 1m".to_owned();
        let (number, unit) = split_unit(text);
        let factor = match unit {
            "ms" => 1e6,
            "" | "s" => 1e9,
            "m" | "min" => 60e9,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        Ok(Moment(Duration((number * factor) as u64)))
    }
}

/// A share, given as `3%` or `0.03`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share(pub(crate) f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let number: f64 = number
            .parse()
            .map_err(|_| "give a share such as 3%".to_owned())?;
        let share = match unit {
            "%" => number / 100.0,
            "" => number,
            _ => return Err("give a share such as 3%".into()),
        };
        if share > 0.0 && share <= 1.0 {
            Ok(Share(share))
        } else {
            Err("a share lies above 0 % and is 100 % at most".into())
        }
    }
}

/// A number of bytes, given as `4096`, `4k`, `4KiB`, `2M` or `1GiB`; units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) Bytes);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            _ => return Err("give a size such as 4096, 64KiB or 2MiB".into()),
        };
        let number: u64 = number
            .parse()
            .map_err(|_| "give a whole number of bytes, KiB, MiB or GiB".to_owned())?;
        let bytes = number.checked_mul(1 << shift).filter(|b| *b > 0);
        bytes
            .map(|b| Size(Bytes(b)))
            .ok_or_else(|| "that is not a size that memory can have".into())
    }
}

/// The number of a process.
pub(crate) fn process(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|n| *n > 0);
    number.ok_or_else(|| {
        "give the number of a process, such as 1234; `pgrep NAME` finds it".to_owned()
    })
}

pub(crate) fn split_unit(text: &str) -> (&str, &str) {
    let at = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    (number, unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_shares_and_sizes_are_read() {
        let moment = |ms: u64| Ok(Moment(Duration(ms * 1_000_000)));
        assert_eq!("1.5".parse::<Moment>(), moment(1500));
        assert_eq!("300ms".parse::<Moment>(), moment(300));
        assert!("-1".parse::<Moment>().is_err() && "1h".parse::<Moment>().is_err());
        assert_eq!("3%".parse(), Ok(Share(0.03)));
        assert_eq!("0.03".parse(), Ok(Share(0.03)));
        assert!("0".parse::<Share>().is_err());
        assert_eq!("4KiB".parse(), Ok(Size(Bytes(4096))));
        assert_eq!("2M".parse(), Ok(Size(Bytes(2 << 20))));
        assert!("99999999999999999999G".parse::<Size>().is_err());
        assert!("x".parse::<Size>().is_err());
        assert_eq!(process("1234"), Ok(1234));
        for text in ["1x", "0", "-1", "", "99999999999"] {
            assert!(
                process(text).is_err_and(|why| why.contains("pgrep")),
                "{text}"
            );
        }
    }
}
