//! Whether what is said of accesses is what was executed.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use varve_access::{Access, Kind, Located, Memory, Place, Steps, Undecoded};
use varve_model::Address;

/// An access that the emulator made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) write: bool,
    /// What lay there afterwards, where it could be read.
    pub(crate) contents: Vec<u8>,
}

/// What the program's memory holds, as far as it has been accessed.
#[derive(Debug, Default)]
pub(crate) struct Contents(HashMap<u64, u8>);

impl Contents {
    fn after(&mut self, made: &[Made]) {
        for access in made {
            for n in 0..access.bytes {
                let at = access.address.wrapping_add(n);
                match access.contents.get(n as usize) {
                    Some(byte) => self.0.insert(at, *byte),
                    None => self.0.remove(&at),
                };
            }
        }
    }
}

impl Memory for Contents {
    fn read(&self, address: Address, bytes: usize) -> Option<u64> {
        let byte = |n| self.0.get(&address.0.wrapping_add(n as u64));
        (0..bytes)
            .rev()
            .try_fold(0, |value, n| Some(value << 8 | u64::from(*byte(n)?)))
    }
}

/// An instruction that was executed: where it lies, the registers before it, and what it accessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Executed<R> {
    pub(crate) ip: u64,
    pub(crate) registers: R,
    pub(crate) made: Vec<Made>,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) steps: usize,
    /// Instructions that accessed memory, and those of them that were resolved while a thread stood before them.
    pub(crate) accessing: usize,
    pub(crate) resolved: usize,
    /// Answers by how they were found, for a thread that stands before each instruction.
    pub(crate) behind: usize,
    pub(crate) at: usize,
    pub(crate) ahead: usize,
    /// Why there was none.
    pub(crate) none: BTreeMap<&'static str, usize>,
    /// Why there was none for an instruction that does access memory and that a thread stands before.
    pub(crate) unresolved: Vec<String>,
    /// Answers that are not so.
    pub(crate) wrong: Vec<String>,
}

impl Tally {
    pub(crate) fn answers(&self) -> usize {
        self.behind + self.at + self.ahead
    }

    /// The share of accessing instructions that were resolved, in percent.
    pub(crate) fn resolved_share(&self) -> f64 {
        self.resolved as f64 * 100.0 / self.accessing.max(1) as f64
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} instructions, {} of them access memory, {:.2} % of these resolved; a thread before each: {:.2} % answers ({} behind, {} at, {} ahead), none {:?}; {} wrong",
            self.steps,
            self.accessing,
            self.resolved_share(),
            self.answers() as f64 * 100.0 / self.steps.max(1) as f64,
            self.behind,
            self.at,
            self.ahead,
            self.none,
            self.wrong.len()
        )
    }
}

/// What is tested; none for code that is not looked at.
pub(crate) type Locate<'a, R> =
    dyn Fn(u64, &R, &dyn Memory, Steps) -> Option<Result<Located, Undecoded>> + 'a;

/// Asks at every instruction, and compares.
pub(crate) fn judge<R>(run: &[Executed<R>], steps: Steps, locate: &Locate<'_, R>) -> Tally {
    let (mut tally, mut contents) = (Tally::default(), Contents::default());
    for (n, step) in run.iter().enumerate() {
        if let Some(before) = n.checked_sub(1) {
            contents.after(&run[before].made);
        }
        let Some(here) = locate(step.ip, &step.registers, &contents, Steps::NotBehind) else {
            continue;
        };
        tally.steps += 1;
        if !step.made.is_empty() {
            tally.accessing += 1;
            match &here {
                Ok(found) if found.place == Place::At => tally.resolved += 1,
                other => tally.unresolved.push(format!("{:#x}: {other:?}", step.ip)),
            }
        }
        let answer = locate(step.ip, &step.registers, &contents, steps).expect("the code is known");
        match &answer {
            Ok(found) => match found.place {
                Place::Behind => tally.behind += 1,
                Place::At => tally.at += 1,
                Place::Ahead => tally.ahead += 1,
            },
            Err(why) => {
                let why = match why {
                    Undecoded::Invalid => "invalid",
                    Undecoded::Register => "register",
                    Undecoded::Overwritten => "overwritten",
                    Undecoded::Vector => "vector",
                    Undecoded::Gather => "gather",
                    Undecoded::Path => "path",
                };
                *tally.none.entry(why).or_default() += 1;
            }
        }
        for found in [here, answer].into_iter().flatten() {
            let truth = match found.place {
                Place::Behind => n.checked_sub(1).map(|before| &run[before]),
                Place::At => Some(step),
                Place::Ahead => run[n..].iter().find(|s| !s.made.is_empty()),
            };
            // What comes after the end of the run nobody knows.
            let Some(truth) = truth else { continue };
            if !agree(&found.accesses, &truth.made) {
                tally.wrong.push(format!(
                    "{:#x}: said {found:x?}, was {:x?} at {:#x}",
                    step.ip, truth.made, truth.ip
                ));
            }
        }
    }
    tally
}

/// Operands above this size are states of the processor, which the emulator accesses in parts.
const WIDEST: u64 = 64;

/// Whether the same bytes were read and the same written. Reading and writing is writing; the emulator tells of
/// both, in as many pieces as it likes.
fn agree(said: &[Access], made: &[Made]) -> bool {
    if let [only] = said
        && (only.bytes.0 == 0 || only.bytes.0 > WIDEST)
        && !made.is_empty()
    {
        let first = made.iter().map(|m| m.address).min();
        return first == Some(only.address.0);
    }
    let is_written = |access: &&Access| access.kind == Kind::Write;
    let range = |a: &Access| (a.address.0, a.bytes.0);
    let written = bytes(said.iter().filter(is_written).map(range));
    let read = bytes(said.iter().filter(|a| !is_written(a)).map(range));
    let of = |write: bool| {
        let these = made.iter().filter(move |m| m.write == write);
        bytes(these.map(|m| (m.address, m.bytes)))
    };
    let (was_written, was_read) = (of(true), of(false));
    let only_read = |all: &[u64], written: &[u64]| -> Vec<u64> {
        all.iter()
            .copied()
            .filter(|b| !written.contains(b))
            .collect()
    };
    written == was_written && only_read(&read, &written) == only_read(&was_read, &was_written)
}

/// The single bytes of ranges, sorted.
fn bytes(ranges: impl Iterator<Item = (u64, u64)>) -> Vec<u64> {
    let mut all: Vec<u64> = ranges
        .flat_map(|(from, length)| (0..length).map(move |n| from.wrapping_add(n)))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}
