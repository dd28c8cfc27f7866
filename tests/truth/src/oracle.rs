//! The log that a workload writes about itself; `workloads/truth/oracle.h` documents the format.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::str::{FromStr, SplitAsciiWhitespace};

use varve_model::{Page, Pid, Tid, Time};

use crate::Problem;

/// How a page was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The program read it.
    Read,
    /// The program wrote it.
    Write,
    /// The kernel accessed it on the program's behalf.
    Kernel,
}

/// A stretch of time, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its start.
    pub from: Time,
    /// Its end.
    pub to: Time,
}

impl Span {
    /// Whether the two have a moment in common.
    pub fn overlaps(self, other: Span) -> bool {
        self.from <= other.to && other.from <= self.to
    }
}

/// Pages that are evenly apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The first one.
    pub first: Page,
    /// How many there are.
    pub pages: u64,
    /// The distance between two of them, in pages; 1: a dense run.
    pub stride: u64,
}

impl Pattern {
    /// As runs of first page and count.
    pub fn runs(self) -> impl Iterator<Item = (Page, u64)> {
        let (count, pages) = match self.stride {
            1 => (1, self.pages),
            _ => (self.pages, 1),
        };
        (0..count).map(move |i| (Page(self.first.0 + i * self.stride), pages))
    }
}

/// Something that was accessed once within a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Once {
    /// When.
    pub span: Span,
    /// How.
    pub access: Access,
    /// What.
    pub pages: Pattern,
}

/// One phase of one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// From start to end.
    pub span: Span,
    /// What the program calls it.
    pub name: String,
    /// Accessed in every loop.
    pub sets: Vec<(Access, Pattern)>,
    /// Possibly accessed.
    pub may: Vec<Pattern>,
    /// Complete loops, not necessarily all.
    pub loops: Vec<Span>,
    /// Accessed once.
    pub once: Vec<Once>,
}

/// Memory that is accessed only within phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// The process.
    pub pid: Pid,
    /// Its pages.
    pub pages: Pattern,
    /// `anon`, `file` or `shared`.
    pub kind: String,
    /// What the program calls it.
    pub name: String,
    /// From when to when that holds.
    pub life: Span,
}

/// All that a run of a workload said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oracle {
    /// The processes, in the order in which they reported.
    pub programs: Vec<(Pid, String)>,
    /// The arenas.
    pub arenas: Vec<Arena>,
    /// The phases, in the order in which they ended.
    pub phases: Vec<Phase>,
    /// Parts that could not run, and why.
    pub skipped: Vec<String>,
}

impl Oracle {
    /// Reads a log.
    pub fn read(path: &Path) -> Result<Oracle, Problem> {
        let text = fs::read_to_string(path).map_err(Problem::file("read", path))?;
        text.parse().map_err(|(line, text)| Problem::Log {
            path: path.to_owned(),
            line,
            text,
        })
    }

    /// What each of several programs said that ran one after the other, with the processes that it made: all from where it reported
    /// under one of these names to where another of them did.
    pub fn one_by_one(&self, names: &[&str]) -> Vec<(String, Oracle)> {
        let mut parts: Vec<(&str, BTreeSet<Pid>)> = Vec::new();
        for (pid, name) in &self.programs {
            // A child has its parent's name.
            let is_next = names.contains(&name.as_str())
                && parts.last().is_none_or(|(last, _)| *last != name.as_str());
            if is_next {
                parts.push((name.as_str(), BTreeSet::new()));
            }
            if let Some((_, pids)) = parts.last_mut() {
                pids.insert(*pid);
            }
        }
        parts
            .into_iter()
            .map(|(name, pids)| (name.to_owned(), self.of(&pids)))
            .collect()
    }

    /// What these processes said. Of parts that could not run it is not known whose they were.
    fn of(&self, pids: &BTreeSet<Pid>) -> Oracle {
        let mut own = self.clone();
        own.programs.retain(|(pid, _)| pids.contains(pid));
        own.arenas.retain(|arena| pids.contains(&arena.pid));
        own.phases.retain(|phase| pids.contains(&phase.pid));
        own.skipped.clear();
        own
    }

    fn end_arenas(&mut self, pid: Pid, at: Time, first: u64, pages: u64) {
        let mut pieces = Vec::new();
        for arena in &mut self.arenas {
            let (start, end) = (arena.pages.first.0, arena.pages.first.0 + arena.pages.pages);
            let hit = pages == 0 || (first < end && start < first + pages);
            if arena.pid != pid || arena.life.to < at || !hit {
                continue;
            }
            arena.life.to = at;
            // What the range leaves of the arena lives on.
            for (from, to) in [(start, first), (first + pages, end)] {
                if pages > 0 && from < to {
                    let mut piece = arena.clone();
                    piece.pages.first = Page(from);
                    piece.pages.pages = to - from;
                    piece.life = Span {
                        from: at,
                        to: Time(u64::MAX),
                    };
                    pieces.push(piece);
                }
            }
        }
        self.arenas.append(&mut pieces);
    }
}

struct Words<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Option<&'a str> {
        self.0.next()
    }

    fn number<T: FromStr>(&mut self) -> Option<T> {
        self.word()?.parse().ok()
    }

    fn time(&mut self) -> Option<Time> {
        self.number().map(Time)
    }

    fn span(&mut self) -> Option<Span> {
        Some(Span {
            from: self.time()?,
            to: self.time()?,
        })
    }

    fn access(&mut self) -> Option<Access> {
        match self.word()? {
            "r" => Some(Access::Read),
            "w" => Some(Access::Write),
            "k" => Some(Access::Kernel),
            _ => None,
        }
    }

    fn run(&mut self) -> Option<Pattern> {
        Some(Pattern {
            first: Page(self.number()?),
            pages: self.number()?,
            stride: 1,
        })
    }

    fn rest(&mut self) -> String {
        let words: Vec<&str> = self.0.by_ref().collect();
        words.join(" ")
    }
}

impl Oracle {
    /// Takes one line in; None where it is not of the format.
    fn line(&mut self, line: &str, open: &mut Option<Phase>) -> Option<()> {
        let mut words = Words(line.split_ascii_whitespace());
        let record = words.word()?;
        if let Some(phase) = open {
            match record {
                "set" => {
                    let access = words.access()?;
                    let mut pattern = words.run()?;
                    pattern.stride = words.number()?;
                    phase.sets.push((access, pattern));
                }
                "may" => phase.may.push(words.run()?),
                "loop" => phase.loops.push(words.span()?),
                "once" => phase.once.push(Once {
                    span: words.span()?,
                    access: words.access()?,
                    pages: words.run()?,
                }),
                "end" => self.phases.extend(open.take()),
                _ => return None,
            }
            return Some(());
        }
        match record {
            "program" => {
                let name = words.word()?.to_owned();
                // A name may have spaces; the pid is the first number.
                let rest: Vec<&str> = line.split_ascii_whitespace().skip(2).collect();
                let pid = rest.iter().find_map(|w| w.parse().ok())?;
                self.programs.push((Pid(pid), name));
            }
            "arena" => {
                let pid = Pid(words.number()?);
                let from = words.time()?;
                self.arenas.push(Arena {
                    pid,
                    pages: words.run()?,
                    kind: words.word()?.to_owned(),
                    name: words.rest(),
                    life: Span {
                        from,
                        to: Time(u64::MAX),
                    },
                });
            }
            "gone" => {
                let (pid, at) = (Pid(words.number()?), words.time()?);
                self.end_arenas(pid, at, words.number()?, words.number()?);
            }
            "skip" => {
                let _pid: u32 = words.number()?;
                self.skipped.push(words.rest());
            }
            "phase" => {
                *open = Some(Phase {
                    pid: Pid(words.number()?),
                    tid: Tid(words.number()?),
                    span: words.span()?,
                    name: words.rest(),
                    sets: Vec::new(),
                    may: Vec::new(),
                    loops: Vec::new(),
                    once: Vec::new(),
                });
            }
            _ => return None,
        }
        Some(())
    }
}

impl FromStr for Oracle {
    /// The number and the text of the line that could not be read.
    type Err = (usize, String);

    fn from_str(text: &str) -> Result<Oracle, (usize, String)> {
        let mut oracle = Oracle::default();
        let mut open = None;
        for (index, line) in text.lines().enumerate() {
            oracle
                .line(line, &mut open)
                .ok_or_else(|| (index + 1, line.to_owned()))?;
        }
        match open {
            None => Ok(oracle),
            Some(phase) => Err((
                text.lines().count(),
                format!("phase `{}` has no end", phase.name),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "program cow_fork child 7 1 5\narena 7 10 100 50 anon my arena\n\
        phase 7 8 20 90 a b\nset w 100 3 4\nmay 1 2\nloop 21 22\nonce 23 24 k 120 2\nend 9\n\
        gone 7 95 110 5\nskip 7 No AVX2.\n";

    #[test]
    fn a_log_is_read() -> Result<(), (usize, String)> {
        let oracle: Oracle = LOG.parse()?;
        assert_eq!(oracle.programs, [(Pid(7), "cow_fork".into())]);
        let phase = &oracle.phases[0];
        assert_eq!(
            (phase.tid, phase.name.as_str(), phase.loops.len()),
            (Tid(8), "a b", 1)
        );
        let runs: Vec<_> = phase.sets[0].1.runs().collect();
        assert_eq!(runs, [(Page(100), 1), (Page(104), 1), (Page(108), 1)]);
        assert_eq!(phase.once[0].access, Access::Kernel);
        let lives: Vec<_> = oracle
            .arenas
            .iter()
            .map(|a| (a.pages.first.0, a.pages.pages, a.life.to.0))
            .collect();
        assert_eq!(
            lives,
            [(100, 50, 95), (100, 10, u64::MAX), (115, 35, u64::MAX)]
        );
        assert_eq!(oracle.skipped, ["No AVX2."]);
        Ok(())
    }

    #[test]
    fn programs_that_ran_one_after_the_other_have_their_own() -> Result<(), (usize, String)> {
        let of = |pid: u32| {
            format!("arena {pid} 1 100 5 anon a\nphase {pid} {pid} 2 3 of {pid}\nend 1\n")
        };
        let log = [
            "program one 7 1 5\n".to_owned() + &of(7),
            "program one child 8 7 6\n".to_owned() + &of(8),
            "program other 9 7 6\n".to_owned() + &of(9),
            "program two 10 1 9\n".to_owned() + &of(10),
            "skip 10 No AVX2.\n".to_owned(),
        ];
        let oracle: Oracle = log.concat().parse()?;
        let parts = oracle.one_by_one(&["one", "two", "three"]);
        let phases = |oracle: &Oracle| -> Vec<u32> {
            assert_eq!(oracle.arenas.len(), oracle.phases.len());
            oracle.phases.iter().map(|phase| phase.pid.0).collect()
        };
        let found: Vec<_> = parts
            .iter()
            .map(|(name, oracle)| (name.as_str(), phases(oracle)))
            .collect();
        assert_eq!(found, [("one", vec![7, 8, 9]), ("two", vec![10])]);
        Ok(())
    }

    #[test]
    fn a_wrong_line_is_named() {
        assert_eq!("loop 1 2\n".parse::<Oracle>(), Err((1, "loop 1 2".into())));
        assert!("phase 1 2 3 4 x\nset w 1\n".parse::<Oracle>().is_err());
        assert!("phase 1 2 3 4 x\n".parse::<Oracle>().is_err());
    }
}
