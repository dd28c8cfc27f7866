//! What the flags of `varve record` can be.

use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use varve_model::{Backend, Duration};
use varve_record::Ablation;

use crate::values::split_unit;

/// `--interval`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct IntervalArgument(pub(crate) Duration);

/// The interval where nobody asked for one and its cost is not what decides.
pub(crate) const SHORT_INTERVAL: Duration = Duration(50_000_000);

const MIN_MS: f64 = 10.0;

const MAX_MS: f64 = 3_600_000.0;

impl FromStr for IntervalArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let factor = match unit {
            "ms" => 1.0,
            "s" => 1e3,
            "m" | "min" => 60e3,
            _ => return Err("give a time such as 50ms, 2s or 5m".into()),
        };
        let ms: f64 = number.parse::<f64>().map_err(|e| e.to_string())? * factor;
        if !(MIN_MS..=MAX_MS).contains(&ms) {
            return Err("an interval is 10ms at least and 60m at most".into());
        }
        Ok(IntervalArgument(Duration((ms * 1e6) as u64)))
    }
}

/// `--max-hold`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MaxHoldArgument(pub(crate) Duration);

/// The longest hold where nobody asked for another.
pub(crate) const MAX_HOLD: Duration = Duration(10_000_000);

impl FromStr for MaxHoldArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let factor = match unit {
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return Err("give a time such as 500µs (or 500us), 10ms or 1s".into()),
        };
        let ns: f64 = number.parse::<f64>().map_err(|e| e.to_string())? * factor;
        if !(100e3..=60e9).contains(&ns) {
            return Err("a hold may be 100µs long at least and 60s at most".into());
        }
        Ok(MaxHoldArgument(Duration(ns as u64)))
    }
}

/// `--samples`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplesArgument {
    /// None
    Off,
    /// So many per second of each CPU
    Clock(u32),
    /// What the processor itself samples, where it does, and else by the clock
    Auto,
    /// What the processor itself samples
    Hardware(varve_model::SampleSource),
}

/// The highest rate that is chosen, and that of `auto`.
pub(crate) const DEFAULT_RATE: u32 = 1000;

/// Above this a CPU does little else.
const MAX_RATE: u32 = 20_000;

impl FromStr for SamplesArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => return Ok(SamplesArgument::Off),
            "auto" => return Ok(SamplesArgument::Auto),
            "pebs" | "ibs" | "spe" => {
                let source = text.parse().map_err(|e| format!("{e}"))?;
                return Ok(SamplesArgument::Hardware(source));
            }
            _ => {}
        }
        let number = text.strip_suffix("/s").unwrap_or(text);
        match number.parse() {
            Ok(rate @ 1..=MAX_RATE) => Ok(SamplesArgument::Clock(rate)),
            _ => Err(format!(
                "give a rate from 1/s to {MAX_RATE}/s, `auto`, `pebs`, `ibs`, `spe` or `off`"
            )),
        }
    }
}

/// `--thp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Thp {
    /// As the system has it
    System,
    /// No huge pages
    Never,
}

/// `--hold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum HoldArgument {
    /// A freezer of cgroup v2 where one can be used, else ptrace
    Auto,
    /// A freezer or nothing
    Cgroup,
    /// Every thread is stopped
    Ptrace,
}

/// `--writes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Writes {
    /// Where the kernel has soft-dirty bits
    Auto,
    /// Also through userfaultfd
    On,
    /// Nowhere
    Off,
}

/// `--vanish`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Vanish {
    /// As the locks of mappings are asked for
    Locks,
    /// At every system call
    Exact,
}

/// What a recording can be made with.
pub(super) fn backends() -> impl TypedValueParser<Value = Backend> {
    let help = |backend| match backend {
        Backend::Scan => "Accessed bits",
        Backend::Fault => "The first access to each page in an interval trapped",
        Backend::Exact => "Every access counted",
        Backend::Import(_) => "",
    };
    let values = Backend::RECORDERS.map(|b| PossibleValue::new(b.as_str()).help(help(b)));
    PossibleValuesParser::new(values).try_map(|word| word.parse::<Backend>())
}

pub(super) fn ablation(word: &str) -> Result<Ablation, String> {
    Ablation::from_name(word)
        .ok_or_else(|| "one of flush, hold, page-flags, vanish, behind, protect".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_samples_are_read() {
        let ms = |n: u64| Ok(IntervalArgument(Duration(n * 1_000_000)));
        assert_eq!("50ms".parse::<IntervalArgument>(), ms(50));
        assert_eq!("1.5s".parse::<IntervalArgument>(), ms(1500));
        assert_eq!("2m".parse::<IntervalArgument>(), ms(120_000));
        assert!("9ms".parse::<IntervalArgument>().is_err());
        assert!("50".parse::<IntervalArgument>().is_err());
        assert_eq!("off".parse(), Ok(SamplesArgument::Off));
        assert_eq!("4000/s".parse(), Ok(SamplesArgument::Clock(4000)));
        assert_eq!("50".parse(), Ok(SamplesArgument::Clock(50)));
        assert_eq!("auto".parse(), Ok(SamplesArgument::Auto));
        let ibs = SamplesArgument::Hardware(varve_model::SampleSource::Ibs);
        assert_eq!("ibs".parse(), Ok(ibs));
        assert!("0/s".parse::<SamplesArgument>().is_err());
        assert!("90000/s".parse::<SamplesArgument>().is_err());
    }
}
