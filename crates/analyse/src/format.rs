//! Numbers as a person reads them: one way for findings, pages and pictures.

use varve_model::{Bytes, Duration, Pages};

/// `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 page`, `4,032 pages`; the plural adds an `s`.
pub fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", count(number))
}

/// `1 process`, `300 processes`: the plural is none of [`counted`].
pub fn processes(number: u64) -> String {
    match number {
        1 => "1 process".to_owned(),
        many => format!("{} processes", count(many)),
    }
}

/// Three digits that mean something: `1.23`, `12.3`, `123`.
fn three(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        v if v < 99.95 => format!("{v:.1}").trim_end_matches(".0").to_owned(),
        v => format!("{v:.0}"),
    }
}

/// `exit code 3`, `exit code 139 (as of a program killed by signal 11, SIGSEGV)`: the code is that of a shell.
pub fn exit_code(code: i32) -> String {
    // A shell shows a signal as 128 more; a program may end with such a code by itself.
    match signal_name(code.saturating_sub(128)) {
        Some(name) => format!(
            "exit code {code} (as of a program killed by signal {}, {name})",
            code - 128
        ),
        None => format!("exit code {code}"),
    }
}

/// The name of a signal that ends programs (signal(7), x86 and ARM).
fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

/// `1.2 GiB`, `480 KiB`, `7 B`.
pub fn bytes(amount: Bytes) -> String {
    let mut value = amount.0 as f64;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1023.5 {
            return format!("{} {unit}", three(value));
        }
        value /= 1024.0;
    }
    format!("{} EiB", three(value))
}

/// Pages by their size: `1.2 GiB`.
pub fn pages_size(amount: Pages) -> String {
    bytes(Bytes(amount.0.saturating_mul(varve_model::PAGE_BYTES)))
}

/// `3.1 s`, `450 ms`, `2 min 5 s`, `1 h 10 min`.
pub fn duration(length: Duration) -> String {
    let ns = length.0 as f64;
    match length.0 {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{} ns", length.0),
        1_000..999_500 => format!("{} µs", three(ns / 1e3)),
        999_500..999_500_000 => format!("{} ms", three(ns / 1e6)),
        999_500_000..119_500_000_000 => format!("{} s", three(ns / 1e9)),
        _ => {
            let seconds = (length.0 + 500_000_000) / 1_000_000_000;
            match seconds {
                s if s < 3600 && s % 60 == 0 => format!("{} min", s / 60),
                s if s < 3600 => format!("{} min {} s", s / 60, s % 60),
                s if s % 3600 / 60 == 0 => format!("{} h", s / 3600),
                s => format!("{} h {} min", s / 3600, s % 3600 / 60),
            }
        }
    }
}

/// `12 %`, `0.4 %`, `<0.1 %`; nothing of nothing is `0 %`.
pub fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "0 %".to_owned();
    }
    match 100.0 * part as f64 / whole as f64 {
        p if p < 0.1 => "<0.1 %".to_owned(),
        p if p < 9.95 => format!("{p:.1} %").replace(".0 %", " %"),
        // All but a little is not all.
        p if p > 99.0 && part < whole => format!("{:.1} %", p.min(99.9)),
        p => format!("{p:.0} %"),
    }
}

/// A share of 0 to 1 as [`percent`] shows it.
pub fn share(share: f64) -> String {
    const WHOLE: u64 = 1 << 40;
    percent((share.clamp(0.0, 1.0) * WHOLE as f64) as u64, WHOLE)
}

/// How the largest of several parts is called at the beginning of a sentence: `most` where it is more than half of the whole, and else
/// `The largest part (31 %)`. The verb behind it has to be one that does not depend on the number, as `came`.
pub fn largest_part(part: u64, whole: u64, most: &str) -> String {
    match part.saturating_mul(2) > whole {
        true => most.to_owned(),
        false => format!("The largest part ({})", percent(part, whole)),
    }
}

/// A moment as `2026-03-14 09:26:53 UTC`, from nanoseconds since 1970.
pub fn utc(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (days, rest) = ((seconds / 86_400) as i64, seconds % 86_400);
    // Howard Hinnant, "chrono-compatible low-level date algorithms": civil_from_days.
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// The words as a sentence begins.
pub fn capitalised(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_is_more_than_half_of_all() {
        let part = |part| largest_part(part, 100, "Most of them");
        assert_eq!(part(31), "The largest part (31 %)");
        assert_eq!(part(50), "The largest part (50 %)");
        assert_eq!(part(51), "Most of them");
        // Of nothing there is no part.
        assert_eq!(largest_part(0, 0, "Most of it"), "The largest part (0 %)");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "page"), "1 page");
        assert_eq!(bytes(Bytes(0)), "0 B");
        assert_eq!(bytes(Bytes(4096)), "4 KiB");
        assert_eq!(bytes(Bytes(1 << 20)), "1 MiB");
        assert_eq!(bytes(Bytes(1_288_490_188)), "1.2 GiB");
        assert_eq!(bytes(Bytes(u64::MAX)), "16 EiB");
        assert_eq!(duration(Duration(3_100_000_000)), "3.1 s");
        assert_eq!(duration(Duration(999_600)), "1 ms");
        assert_eq!(duration(Duration(125_000_000_000)), "2 min 5 s");
        assert_eq!(duration(Duration(3_600_000_000_000)), "1 h");
        assert_eq!(percent(1, 3), "33 %");
        assert_eq!(percent(999, 1000), "99.9 %");
        assert_eq!(percent(99_999, 100_000), "99.9 %");
        assert_eq!(percent(1, 10_000), "<0.1 %");
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(1_709_210_096_000_000_000), "2024-02-29 12:34:56 UTC");
    }
}
