//! Samples by line of code and by call chain.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use ts_rs::TS;
use varve_model::{Address, Duration, SiteId, is_recorders_work};
use varve_trace::tables::{Frame, SiteRow};
use varve_trace::{Trace, TraceError};

use super::callers::line_of;
use super::tally::Tally;

/// Lines that are listed, and call chains.
const MAX_LINES: usize = 200;
const MAX_CHAINS: usize = 5000;

/// Samples at one line of code.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct LineTime {
    /// The function.
    pub function: Option<String>,
    /// The source file.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The line at which the function begins, in the same file; null where unknown.
    pub function_line: Option<u32>,
    /// The executable or library.
    pub module: Option<String>,
    /// All samples that stood there, the kernel's work on its behalf included.
    pub samples: u64,
    /// Their time; null where samples have no weight in time.
    pub time_ns: Option<Duration>,
    /// The time of those whose access is known.
    pub access_ns: Option<Duration>,
    /// The time of those at accesses whose address is gone.
    pub overwritten_ns: Option<Duration>,
    /// The time of those that write.
    pub write_ns: Option<Duration>,
    /// The time of those that stood in the kernel, which worked on the line's behalf.
    pub kernel_ns: Option<Duration>,
    /// The function of the C library that the line called, where at least half of its time is in that; by the name that programs call it,
    /// or the library's where its name is not known.
    pub called: Option<String>,
}

impl LineTime {
    /// The time at accesses, whether their address is known or gone; none where samples have no weight in time.
    pub fn at_accesses(&self) -> Option<Duration> {
        Some(self.access_ns? + self.overwritten_ns.unwrap_or_default())
    }

    /// Whether most of the time is in the kernel.
    pub fn is_in_kernel(&self) -> bool {
        let share = self.kernel_ns.zip(self.time_ns);
        share.is_some_and(|(kernel, all)| kernel.0 > all.0 / 2)
    }

    /// The place as a person reads it: `solver.cpp:68, in step`, or what is known instead; with what it called and whether its time is in the
    /// kernel: `solver.cpp:68, in step (read, in the kernel)`.
    pub fn place(&self) -> String {
        let kernel = self.is_in_kernel().then_some("in the kernel");
        let marks: Vec<&str> = self.called.as_deref().into_iter().chain(kernel).collect();
        match marks.is_empty() {
            true => self.line_of_code(),
            false => format!("{} ({})", self.line_of_code(), marks.join(", ")),
        }
    }

    fn line_of_code(&self) -> String {
        let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let file = self.file.as_deref().map(base);
        let function = self.function.as_deref();
        match (file, self.line, function) {
            (Some(file), Some(number), Some(function)) => format!("{file}:{number}, in {function}"),
            (Some(file), Some(number), None) => format!("{file}:{number}"),
            (_, _, Some(function)) => match &self.module {
                Some(module) => format!("{function} ({module})"),
                None => function.to_owned(),
            },
            _ => match &self.module {
                Some(module) => format!("{module} (function not known)"),
                None => "code of no known file".to_owned(),
            },
        }
    }
}

/// The samples of one call chain whose access is known.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
pub struct ChainTime {
    /// Functions, the outermost first, separated by `;`: a folded stack for a flame graph. Code without symbols is `module+0xoffset`.
    pub stack: String,
    /// How many.
    pub samples: u64,
    /// The time of its accesses; null where samples have no weight in time.
    pub time_ns: Option<Duration>,
}

/// What is known of the code.
pub(super) struct Code {
    pub(super) lines: Vec<LineTime>,
    pub(super) omitted_lines: u64,
    pub(super) flame: Vec<ChainTime>,
    pub(super) omitted_chains: u64,
}

type Places = HashMap<(Option<SiteId>, Option<Address>), Tally>;
type Key<'a> = (
    Option<&'a str>,
    Option<&'a str>,
    Option<u32>,
    Option<&'a str>,
);

#[derive(Default)]
struct Sum {
    function_line: Option<u32>,
    samples: u64,
    time: Option<u64>,
    access: Option<u64>,
    overwritten: Option<u64>,
    write: Option<u64>,
    kernel: Option<u64>,
    /// Time, or samples where they have none, in functions of the C library.
    called: BTreeMap<String, u64>,
}

impl Sum {
    /// What all of it weighs, as `called` weighs it.
    fn weight(&self) -> u64 {
        self.time.unwrap_or(self.samples)
    }

    fn mostly_called(&self) -> Option<String> {
        let most = self
            .called
            .iter()
            .max_by_key(|(name, weight)| (**weight, Reverse(*name)));
        let half = most.filter(|(_, weight)| **weight >= self.weight().div_ceil(2));
        half.map(|(name, _)| name.clone())
    }
}

/// Looks up the call stacks of the samples. Those without frames, as most importers have, are in no line.
pub(super) fn read(trace: &Trace, places: &Places) -> Result<Code, TraceError> {
    let frames = frames(trace, places)?;
    let mut lines: BTreeMap<Key<'_>, Sum> = BTreeMap::new();
    let mut chains: BTreeMap<String, (u64, Option<u64>)> = BTreeMap::new();
    let mut names: HashMap<SiteId, String> = HashMap::new();
    for ((site, _), tally) in places {
        let Some(site) = site else { continue };
        let Some(of_site) = frames.get(site).filter(|f| !f.is_empty()) else {
            continue;
        };
        if is_recorders_work(of_site.iter().map(|f| f.module.as_deref())) {
            continue;
        }
        let Some((f, called)) = line_of(of_site) else {
            continue;
        };
        let key = (
            f.function.as_deref(),
            f.file.as_deref(),
            f.line,
            f.module.as_deref(),
        );
        let (sum, all) = (lines.entry(key).or_default(), tally.done());
        sum.function_line = sum.function_line.or(f.function_line);
        sum.samples += all.samples;
        for (sum, more) in [
            (&mut sum.time, all.time_ns),
            (&mut sum.access, all.access_ns),
            (&mut sum.overwritten, all.overwritten_ns),
            (&mut sum.write, all.write_ns),
            (&mut sum.kernel, tally.kernel()),
        ] {
            if let Some(more) = more {
                *sum.get_or_insert_default() += more.0;
            }
        }
        if let Some(called) = called {
            let weight = all.time_ns.map_or(all.samples, |time| time.0);
            *sum.called.entry(called).or_default() += weight;
        }
        // The kernel's work on behalf of a line is no access of it.
        if tally.with_address() > 0 {
            let stack = names.entry(*site).or_insert_with(|| {
                let names: Vec<String> = of_site.iter().rev().map(name).collect();
                names.join(";")
            });
            let chain = chains.entry(stack.clone()).or_default();
            chain.0 += tally.with_address();
            if let Some(access) = all.access_ns {
                *chain.1.get_or_insert_default() += access.0;
            }
        }
    }
    let mut lines: Vec<LineTime> = lines
        .into_iter()
        .map(|((function, file, line, module), sum)| LineTime {
            function: function.map(str::to_owned),
            file: file.map(str::to_owned),
            line,
            function_line: sum.function_line,
            module: module.map(str::to_owned),
            samples: sum.samples,
            time_ns: sum.time.map(Duration),
            access_ns: sum.access.map(Duration),
            overwritten_ns: sum.overwritten.map(Duration),
            write_ns: sum.write.map(Duration),
            kernel_ns: sum.kernel.map(Duration),
            called: sum.mostly_called(),
        })
        .collect();
    lines.sort_by_key(|l| Reverse((l.time_ns, l.samples)));
    let mut flame: Vec<ChainTime> = chains
        .into_iter()
        .map(|(stack, (samples, time))| ChainTime {
            stack,
            samples,
            time_ns: time.map(Duration),
        })
        .collect();
    flame.sort_by_key(|c| Reverse((c.time_ns, c.samples)));
    let omitted_lines = lines.len().saturating_sub(MAX_LINES) as u64;
    let omitted_chains = flame.len().saturating_sub(MAX_CHAINS) as u64;
    lines.truncate(MAX_LINES);
    flame.truncate(MAX_CHAINS);
    Ok(Code {
        lines,
        omitted_lines,
        flame,
        omitted_chains,
    })
}

/// The frames of the sites that samples have.
fn frames(trace: &Trace, places: &Places) -> Result<HashMap<SiteId, Vec<Frame>>, TraceError> {
    let wanted: std::collections::HashSet<SiteId> =
        places.keys().filter_map(|(site, _)| *site).collect();
    let mut known = HashMap::new();
    for rows in trace.batches::<SiteRow>()? {
        let rows = rows?.into_iter();
        known.extend(
            rows.filter(|row| wanted.contains(&row.site))
                .map(|row| (row.site, row.frames)),
        );
    }
    Ok(known)
}

/// A frame's name; what separates frames does not occur in it.
fn name(frame: &Frame) -> String {
    let name = frame.function.clone().or_else(|| frame.in_module());
    name.unwrap_or_else(|| "[unknown]".to_owned())
        .replace(';', ":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> LineTime {
        LineTime {
            function: Some("step".into()),
            file: Some("/src/solver.cpp".into()),
            line: Some(68),
            function_line: None,
            module: None,
            samples: 4,
            time_ns: Some(Duration(4)),
            access_ns: None,
            overwritten_ns: None,
            write_ns: None,
            kernel_ns: Some(Duration(2)),
            called: None,
        }
    }

    #[test]
    fn code_without_symbols_has_its_offset() {
        let frame = Frame {
            module: Some("/bin/a;b".into()),
            offset: Some(0x40),
            ..Frame::default()
        };
        assert_eq!(name(&frame), "a:b+0x40");
        assert_eq!(name(&Frame::default()), "[unknown]");
    }

    #[test]
    fn a_place_says_what_it_called_and_where_its_time_is() {
        assert_eq!(line().place(), "solver.cpp:68, in step");
        let called = LineTime {
            called: Some("memcpy".into()),
            ..line()
        };
        assert_eq!(called.place(), "solver.cpp:68, in step (memcpy)");
        let kernel = LineTime {
            kernel_ns: Some(Duration(3)),
            ..line()
        };
        assert_eq!(kernel.place(), "solver.cpp:68, in step (in the kernel)");
        let both = LineTime {
            called: Some("read".into()),
            ..kernel
        };
        assert_eq!(both.place(), "solver.cpp:68, in step (read, in the kernel)");
    }

    #[test]
    fn what_a_line_called_has_half_of_its_time() {
        let sum = |called: &[(&str, u64)]| Sum {
            samples: 10,
            called: called
                .iter()
                .map(|(name, n)| ((*name).to_owned(), *n))
                .collect(),
            ..Sum::default()
        };
        assert_eq!(
            sum(&[("memcpy", 5), ("strlen", 2)])
                .mostly_called()
                .as_deref(),
            Some("memcpy")
        );
        assert_eq!(sum(&[("memcpy", 4), ("strlen", 4)]).mostly_called(), None);
        assert_eq!(
            sum(&[("b", 5), ("a", 5)]).mostly_called().as_deref(),
            Some("a")
        );
        assert_eq!(sum(&[]).mostly_called(), None);
    }
}
