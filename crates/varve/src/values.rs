//! Values that several commands take: times, shares and sizes.

use std::ops::RangeInclusive;
use std::str::FromStr;

use varve_model::{Bytes, Duration};

/// A time since the beginning of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Duration);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give seconds such as 1.5, or a time such as 300ms, 2s, 1m or 1h".to_owned();
        let (number, unit) = split_unit(text);
        let factor = match unit {
            "ms" => 1e6,
            "" | "s" => 1e9,
            "m" | "min" => 60e9,
            "h" => 3600e9,
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
        let share = share_of_whole(text).ok_or("give a share such as 3%")?;
        if share > 0.0 && share <= 1.0 {
            Ok(Share(share))
        } else if share > 1.0 && share <= 100.0 && !text.ends_with('%') {
            Err(format!(
                "{text} is more than the whole; {text} percent is {text}%"
            ))
        } else {
            Err("a share lies above 0 % and is 100 % at most".into())
        }
    }
}

/// A share of the whole that something may not exceed, given as `3%` or `0.03`: from nothing to all of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MostShare(pub(crate) f64);

impl FromStr for MostShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = share_of_whole(text).filter(|share| *share <= 1.0);
        share
            .map(MostShare)
            .ok_or_else(|| "give a share such as 5%: from 0% to 100%".into())
    }
}

/// How much larger something may become, given as `3%` or `0.03`: from nothing up, also beyond twice as large.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MostGrowth(pub(crate) f64);

impl FromStr for MostGrowth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = share_of_whole(text).ok_or("give a share such as 5%")?;
        // Who types 5 means 5 %, and not six times as large.
        match share > 1.0 && !text.ends_with('%') {
            true => Err(format!(
                "give a share such as 5%: {text} would be {} %",
                share * 100.0
            )),
            false => Ok(MostGrowth(share)),
        }
    }
}

/// `3%` or `0.03`; none where it is neither.
fn share_of_whole(text: &str) -> Option<f64> {
    let (number, unit) = split_unit(text);
    let number: f64 = number.parse().ok()?;
    match unit {
        "%" => Some(number / 100.0),
        "" => Some(number),
        _ => None,
    }
}

/// A number of bytes, given as `4096`, `4k`, `4KiB`, `2M`, `1.5GiB` or `80MB`: KB, MB and GB are powers of 1000, all other units of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) Bytes);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let unit: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            _ => return Err("give a size such as 4096, 64KiB or 2MiB".into()),
        };
        let whole: Option<u64> = number.parse().ok();
        let part = || number.parse::<f64>().ok().filter(|_| unit > 1);
        let bytes = match (whole, part()) {
            (Some(whole), _) => whole.checked_mul(unit),
            // Beyond 2^53 a float is not exact, and no memory is that large.
            (None, Some(part)) => Some((part * unit as f64).round())
                .filter(|bytes| *bytes < (1u64 << 53) as f64)
                .map(|bytes| bytes as u64),
            (None, None) => {
                return Err(
                    "give a number of bytes, KiB, MiB or GiB, such as 64KiB or 1.5MiB".into(),
                );
            }
        };
        bytes
            .filter(|bytes| *bytes > 0)
            .map(|bytes| Size(Bytes(bytes)))
            .ok_or_else(|| "give a size above 0 and below 8 EiB".into())
    }
}

/// Exit codes, given as `0,1,3-5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExitCodes(Vec<RangeInclusive<u8>>);

impl ExitCodes {
    /// Whether a code is among them.
    pub(crate) fn has(&self, code: i32) -> bool {
        let code = u8::try_from(code);
        code.is_ok_and(|code| self.0.iter().any(|range| range.contains(&code)))
    }
}

impl FromStr for ExitCodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let code = |text: &str| text.trim().parse::<u8>().ok();
            let range = code(first)?..=code(last)?;
            (!range.is_empty()).then_some(range)
        };
        let ranges = text.split(',').map(|part| {
            range(part).ok_or_else(|| {
                format!(
                    "`{}` is no exit code: give numbers from 0 to 255 and ranges of them, such as 0,1,3-5",
                    part.trim()
                )
            })
        });
        ranges.collect::<Result<_, _>>().map(ExitCodes)
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
        assert_eq!("1h".parse::<Moment>(), moment(3_600_000));
        assert!("-1".parse::<Moment>().is_err() && "1d".parse::<Moment>().is_err());
        assert_eq!("3%".parse(), Ok(Share(0.03)));
        assert_eq!("0.03".parse(), Ok(Share(0.03)));
        assert!("0".parse::<Share>().is_err());
        assert!("30".parse::<Share>().unwrap_err().ends_with("30%"));
        assert_eq!("0%".parse(), Ok(MostShare(0.0)));
        assert_eq!("250%".parse(), Ok(MostGrowth(2.5)));
        assert_eq!("0.05".parse(), Ok(MostGrowth(0.05)));
        for text in ["-1%", "5x", "5", "200%"] {
            assert!(text.parse::<MostShare>().is_err(), "{text}");
        }
        for text in ["-1%", "5x", "5"] {
            assert!(text.parse::<MostGrowth>().is_err(), "{text}");
        }
        assert_eq!("4KiB".parse(), Ok(Size(Bytes(4096))));
        assert_eq!("2M".parse(), Ok(Size(Bytes(2 << 20))));
        assert_eq!("80MB".parse(), Ok(Size(Bytes(80_000_000))));
        assert_eq!("15.5MiB".parse(), Ok(Size(Bytes(31 << 19))));
        for text in [
            "99999999999999999999G",
            "x",
            "1.5",
            "0",
            "0.0KiB",
            "9e9GiB",
            "-5",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        let codes: ExitCodes = "0,1, 3-5".parse().unwrap();
        let has = [0, 1, 2, 3, 5, 6, 256].map(|code| codes.has(code));
        assert_eq!(has, [true, true, false, true, true, false, false]);
        for text in ["", "x", "0,", "-1", "5-3", "256", "1-2-3"] {
            let why = text.parse::<ExitCodes>().unwrap_err();
            assert!(why.contains("0 to 255"), "{text}: {why}");
        }
        assert_eq!(process("1234"), Ok(1234));
        for text in ["1x", "0", "-1", "", "99999999999"] {
            assert!(
                process(text).is_err_and(|why| why.contains("pgrep")),
                "{text}"
            );
        }
    }
}
