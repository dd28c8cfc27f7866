//! Tiers as a person describes them: `fast=4GiB,80ns` and `slow=inf,250ns,bw=20GB/s,move=2us`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use varve_model::{Bytes, Duration, PAGE_BYTES, Pages};

use crate::error::TierError;

/// Tiers that a simulation has at most.
pub const MAX_TIERS: usize = 8;
/// Letters of a name at most.
const MAX_NAME: usize = 32;
/// What moving a page takes where nobody says: what Linux's `migrate_pages` takes for 4 KiB, system call and flush included, is 1 to 3 µs.
pub const MOVE_NS: u64 = 2_000;
/// A latency above this is a slip of the pen.
const MAX_LATENCY_NS: u64 = 1_000_000_000;

/// A tier of memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tier {
    /// What it is called.
    pub name: String,
    /// How much it holds; null: as much as is asked of it.
    pub capacity_bytes: Option<Bytes>,
    /// What a read that misses all caches takes, without load.
    pub read_ns: Duration,
    /// What a write takes.
    pub write_ns: Duration,
    /// Bytes per second; null: enough, whatever the load.
    pub bandwidth: Option<u64>,
    /// What it takes to move a page into the tier or out of it.
    pub move_ns: Duration,
}

impl Tier {
    /// How many pages it holds.
    pub fn capacity(&self) -> Pages {
        Pages(self.capacity_bytes.map_or(u64::MAX, |b| b.0 / PAGE_BYTES))
    }
}

/// Why something is no tier, or tiers are none together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Nothing before `=`.
    #[error("`{0}` does not say what the tier is called and how much it holds")]
    NoName(String),
    /// A name that is too long or has letters that no name has.
    #[error("`{0}` is no name for a tier")]
    BadName(String),
    /// The part is nothing that a tier has.
    #[error("`{part}` is not {what}")]
    BadPart {
        /// The part.
        part: String,
        /// What it should have been.
        what: &'static str,
    },
    /// Said twice.
    #[error("the tier {name} says {what} twice")]
    Twice {
        /// The tier.
        name: String,
        /// What.
        what: &'static str,
    },
    /// No latency.
    #[error("the tier {0} does not say what a read takes")]
    NoLatency(String),
    /// Fewer than two, or too many.
    #[error("{0} tiers: a simulation needs 2 to {MAX_TIERS}")]
    Count(usize),
    /// Two of one name.
    #[error("two tiers are called {0}")]
    SameName(String),
    /// A slower one before a faster one.
    #[error("the tier {slower} comes before {faster}, which is faster")]
    Order {
        /// The one that comes first.
        slower: String,
        /// The one that comes next.
        faster: String,
    },
    /// A tier that holds everything, and others behind it.
    #[error("the tier {0} holds all there is, so that nothing is ever in those behind it")]
    Endless(String),
}

impl SpecError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            SpecError::Count(_) => {
                "give `--tier` once for each tier, the fastest first, such as `--tier fast=4GiB,80ns --tier slow=inf,250ns`"
            }
            SpecError::Order { .. } | SpecError::Endless(_) => {
                "give the fastest tier first, and `inf` to the last alone"
            }
            SpecError::SameName(_) => "give each tier a name of its own",
            _ => {
                "a tier is NAME=CAPACITY,READ[,write=TIME][,bw=RATE][,move=TIME], such as `slow=inf,250ns,write=400ns,bw=20GB/s,move=2us`"
            }
        }
    }
}

/// A number and what follows it.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let value: f64 = text[..end].parse().ok()?;
    Some((value, text[end..].trim()))
}

/// A size; None where it is none. Units are powers of 1024.
fn size(text: &str) -> Option<u64> {
    let (value, unit) = number(text)?;
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    let bytes = value * (1_u64 << shift) as f64;
    (bytes >= PAGE_BYTES as f64 && bytes < (1_u64 << 60) as f64).then_some(bytes as u64)
}

fn time(text: &str) -> Option<Duration> {
    let (value, unit) = number(text)?;
    let factor = match unit {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        _ => return None,
    };
    let ns = (value * factor).round();
    (ns >= 1.0 && ns <= MAX_LATENCY_NS as f64).then_some(Duration(ns as u64))
}

/// Bytes per second; units are powers of 1000, as data sheets have them.
fn rate(text: &str) -> Option<u64> {
    let (value, unit) = number(text.strip_suffix("/s")?)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "mb" => 1e6,
        "gb" => 1e9,
        "mib" => 1_048_576.0,
        "gib" => 1_073_741_824.0,
        _ => return None,
    };
    let bytes = value * factor;
    (1e6..1e15).contains(&bytes).then_some(bytes as u64)
}

impl FromStr for Tier {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Tier, SpecError> {
        let no_name = || SpecError::NoName(text.to_owned());
        let (name, rest) = text.split_once('=').ok_or_else(no_name)?;
        let is_good = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.chars().count() > MAX_NAME || !name.chars().all(is_good) {
            return Err(SpecError::BadName(name.to_owned()));
        }
        let mut parts = rest.split(',').map(str::trim);
        let bad = |part: &str, what| SpecError::BadPart {
            part: part.to_owned(),
            what,
        };
        let capacity = parts.next().unwrap_or_default();
        const SIZE: &str = "a size such as 4GiB, of 4 KiB or more, or `inf`";
        const TIME: &str = "a time such as 80ns or 2us, of 1 s at most";
        let capacity_bytes = match capacity {
            "inf" => None,
            text => Some(Bytes(size(text).ok_or_else(|| bad(text, SIZE))?)),
        };
        let (mut read, mut write, mut bandwidth, mut moving) = (None, None, None, None);
        let once = |is_set: bool, what| match is_set {
            true => Err(SpecError::Twice {
                name: name.to_owned(),
                what,
            }),
            false => Ok(()),
        };
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or(("read", part));
            let (key, value) = (key.trim(), value.trim());
            let a_time = || time(value).ok_or_else(|| bad(part, TIME));
            match key {
                "read" => {
                    once(read.is_some(), "what a read takes")?;
                    read = Some(a_time()?);
                }
                "write" => {
                    once(write.is_some(), "what a write takes")?;
                    write = Some(a_time()?);
                }
                "move" => {
                    once(moving.is_some(), "what moving a page takes")?;
                    moving = Some(a_time()?);
                }
                "bw" => {
                    once(bandwidth.is_some(), "its bandwidth")?;
                    let of = rate(value);
                    bandwidth = Some(of.ok_or_else(|| bad(part, "a bandwidth such as 20GB/s"))?);
                }
                _ => return Err(bad(part, "`write=`, `bw=` or `move=`, or a time")),
            }
        }
        let read = read.ok_or_else(|| SpecError::NoLatency(name.to_owned()))?;
        Ok(Tier {
            name: name.to_owned(),
            capacity_bytes,
            read_ns: read,
            write_ns: write.unwrap_or(read),
            bandwidth,
            move_ns: moving.unwrap_or(Duration(MOVE_NS)),
        })
    }
}

/// Tiers that make sense together, the fastest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Tiers(Vec<Tier>);

impl Tiers {
    /// The tiers, in the order given.
    ///
    /// # Errors
    /// Too few or too many, two of one name, or a slower one before a faster one.
    pub fn new(tiers: Vec<Tier>) -> Result<Tiers, SpecError> {
        if !(2..=MAX_TIERS).contains(&tiers.len()) {
            return Err(SpecError::Count(tiers.len()));
        }
        for (at, tier) in tiers.iter().enumerate() {
            if tiers[..at].iter().any(|t| t.name == tier.name) {
                return Err(SpecError::SameName(tier.name.clone()));
            }
        }
        for pair in tiers.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            if a.read_ns > b.read_ns || a.write_ns > b.write_ns {
                return Err(SpecError::Order {
                    slower: a.name.clone(),
                    faster: b.name.clone(),
                });
            }
            if a.capacity_bytes.is_none() {
                return Err(SpecError::Endless(a.name.clone()));
            }
        }
        Ok(Tiers(tiers))
    }

    /// Each tier, the fastest first.
    pub fn all(&self) -> &[Tier] {
        &self.0
    }

    /// The fastest.
    pub fn fastest(&self) -> &Tier {
        &self.0[0]
    }

    /// The same with another size of the fastest.
    #[must_use]
    pub fn with_fastest(&self, pages: Pages) -> Tiers {
        let mut tiers = self.clone();
        tiers.0[0].capacity_bytes = Some(pages.bytes());
        tiers
    }

    /// How many pages all of them hold.
    pub fn capacity(&self) -> Pages {
        let sum = self
            .0
            .iter()
            .fold(0_u64, |sum, t| sum.saturating_add(t.capacity().0));
        Pages(sum)
    }

    /// Refuses tiers that do not hold so many pages at once.
    pub(crate) fn must_hold(&self, needs: Pages) -> Result<(), TierError> {
        let holds = self.capacity();
        match needs > holds {
            true => Err(TierError::TooSmall { holds, needs }),
            false => Ok(()),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holds = self
            .capacity_bytes
            .map_or_else(|| "all".to_owned(), varve_analyse::format::bytes);
        write!(f, "{} ({holds}, {} ns)", self.name, self.read_ns.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(text: &str) -> Tier {
        text.parse().unwrap()
    }

    #[test]
    fn tiers_are_read() {
        let fast = tier("fast=4GiB,80ns");
        assert_eq!(fast.capacity_bytes, Some(Bytes(4 << 30)));
        assert_eq!((fast.read_ns, fast.write_ns), (Duration(80), Duration(80)));
        let slow = tier("cxl-1=inf, read=250ns, write=0.4us, bw=20GB/s, move=3us");
        assert_eq!(slow.capacity_bytes, None);
        assert_eq!(slow.write_ns, Duration(400));
        assert_eq!(slow.bandwidth, Some(20_000_000_000));
        assert_eq!(slow.move_ns, Duration(3000));
        assert_eq!(tier("a=1.5GiB,80ns").capacity(), Pages(3 << 17));
    }

    #[test]
    fn what_is_no_tier_says_why() {
        let why = |text: &str| text.parse::<Tier>().unwrap_err().to_string();
        assert!(why("fast").contains("what the tier is called"));
        assert!(why("fast=4GiB").contains("what a read takes"));
        assert!(why("fast=much,80ns").contains("a size such as"));
        assert!(why("fast=0,80ns").contains("a size such as"));
        assert!(why("fast=4GiB,80").contains("a time such as"));
        assert!(why("fast=4GiB,0ns").contains("a time such as"));
        assert!(why("fast=4GiB,99999999999ms").contains("a time such as"));
        assert!(why("fast=4GiB,80ns,bw=3").contains("a bandwidth such as"));
        assert!(why("fast=4GiB,80ns,90ns").contains("twice"));
        assert!(why("fast=4GiB,80ns,colour=red").contains("`write=`"));
        assert!(why("=4GiB,80ns").contains("no name"));
        assert!(why("a b=4GiB,80ns").contains("no name"));
    }

    #[test]
    fn tiers_make_sense_together() {
        let of = |texts: &[&str]| Tiers::new(texts.iter().map(|t| tier(t)).collect());
        assert!(of(&["a=1GiB,80ns", "b=inf,250ns"]).is_ok());
        assert!(matches!(of(&["a=1GiB,80ns"]), Err(SpecError::Count(1))));
        let same = of(&["a=1GiB,80ns", "a=inf,250ns"]);
        assert!(matches!(same, Err(SpecError::SameName(_))));
        let order = of(&["a=1GiB,250ns", "b=inf,80ns"]);
        assert!(matches!(order, Err(SpecError::Order { .. })));
        let endless = of(&["a=inf,80ns", "b=inf,250ns"]);
        assert!(matches!(endless, Err(SpecError::Endless(_))));
    }
}
