//! The comparison.
//!
//! A *demand* is a set of pages that were accessed within a stretch of time. It is met if each page is
//! touched in one of the intervals that the stretch lies in: usually a single one. A loop that lies in
//! one interval demands all its pages of that interval.
//!
//! An *extra* is a page of an arena that a trace reports in an interval in which no phase accessed it.
//! A trace may report more than was accessed, but each such page is explained or counted as unexplained.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use varve_model::{Page, Pid, TouchSource};

use crate::{Access, Arena, Oracle, PageSet, Pattern, Phase, Touch, Touches, describe};

/// How the kernel maps pages around a file's page that is faulted in: 64 KiB, aligned.
const FAULT_AROUND: u64 = 16;
/// Failures that are shown in full.
const SHOWN: usize = 5;

/// Why a page is reported that was not accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extra {
    /// It shares a huge page with one that was.
    Huge,
    /// It was accessed before, and the kernel cannot clear its bit.
    Sticky,
    /// Pinned for a device.
    Pinned,
    /// Its page flag was set: shared with somebody who accessed it, or accessed by the kernel.
    PageFlag,
    /// Mapped, as accessed, along with a neighbour in the same file.
    FaultAround,
    /// Read before it vanished, with its accessed bit set.
    Vanished,
    /// Next to an accessed page: hardware prefetch and speculation walk page tables too.
    Neighbour,
    /// None of these.
    Unexplained,
}

impl fmt::Display for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Extra::Huge => "huge page",
            Extra::Sticky => "sticky",
            Extra::Pinned => "pinned",
            Extra::PageFlag => "page flag",
            Extra::FaultAround => "fault-around",
            Extra::Vanished => "vanished",
            Extra::Neighbour => "neighbour",
            Extra::Unexplained => "unexplained",
        })
    }
}

/// What a comparison found. Numbers count pages, each once per demand or interval.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Demanded pages.
    pub expected: u64,
    /// Of them, touched.
    pub covered: u64,
    /// Demands of a single interval: those that test the most.
    pub strong: u64,
    /// Demanded writes that the trace says were none.
    pub writes_denied: u64,
    /// Pages reported as written while no phase wrote them.
    pub writes_invented: u64,
    /// Pages beyond what was accessed.
    pub extra: BTreeMap<Extra, u64>,
    /// The first few failures, in words.
    pub failures: Vec<String>,
    /// Missed pages by phase.
    pub missed_in: BTreeMap<String, u64>,
}

impl Verdict {
    /// Demanded pages that are not in the trace.
    pub fn missed(&self) -> u64 {
        self.expected - self.covered
    }

    /// All pages beyond what was accessed.
    pub fn extras(&self) -> u64 {
        self.extra.values().sum()
    }

    /// Of them, those without an explanation.
    pub fn unexplained(&self) -> u64 {
        self.extra.get(&Extra::Unexplained).copied().unwrap_or(0)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "expected {}, covered {}, missed {}, extra {}, explained {}",
            self.expected,
            self.covered,
            self.missed(),
            self.extras(),
            self.extras() - self.unexplained(),
        )?;
        if !self.extra.is_empty() {
            let parts: Vec<String> = self.extra.iter().map(|(e, n)| format!("{e} {n}")).collect();
            write!(f, " ({})", parts.join(", "))?;
        }
        if self.writes_denied + self.writes_invented > 0 {
            write!(
                f,
                ", writes denied {}, invented {}",
                self.writes_denied, self.writes_invented
            )?;
        }
        write!(f, ", {} demands of one interval", self.strong)
    }
}

/// Compares a trace with what the program said of itself.
pub fn judge(oracle: &Oracle, touches: &Touches) -> Verdict {
    let mut verdict = Verdict::default();
    for phase in &oracle.phases {
        demand_loops(phase, touches, &mut verdict);
        for once in &phase.once {
            let intervals = touches.around(once.span);
            demand(
                phase,
                &[(once.access, once.pages)],
                intervals,
                touches,
                &mut verdict,
            );
        }
    }
    let pids: BTreeSet<Pid> = oracle.arenas.iter().map(|a| a.pid).collect();
    for pid in pids {
        find_extras(oracle, touches, pid, &mut verdict);
    }
    verdict
}

fn demand_loops(phase: &Phase, touches: &Touches, verdict: &mut Verdict) {
    let places: BTreeSet<(usize, usize)> = phase
        .loops
        .iter()
        .map(|l| touches.around(*l))
        .map(|r| (r.start, r.end))
        .collect();
    for (start, end) in places {
        demand(phase, &phase.sets, start..end, touches, verdict);
    }
}

fn demand(
    phase: &Phase,
    sets: &[(Access, Pattern)],
    intervals: Range<usize>,
    touches: &Touches,
    verdict: &mut Verdict,
) {
    verdict.strong += u64::from(intervals.len() == 1);
    let merged;
    let layer = match touches.layers.get(&(intervals.start, phase.pid)) {
        Some(layer) if intervals.len() == 1 => layer,
        _ => {
            merged = touches.union(intervals.clone(), phase.pid);
            &merged
        }
    };
    let (mut missed, mut denied) = (Vec::new(), Vec::new());
    for (access, pattern) in sets {
        for page in pattern
            .runs()
            .flat_map(|(first, n)| (first.0..first.0 + n).map(Page))
        {
            verdict.expected += 1;
            if !layer.pages.contains(page) {
                missed.push(page);
                continue;
            }
            verdict.covered += 1;
            if *access == Access::Write && layer.denies_write(page) {
                denied.push(page);
            }
        }
    }
    verdict.writes_denied += denied.len() as u64;
    if !missed.is_empty() {
        *verdict.missed_in.entry(phase.name.clone()).or_default() += missed.len() as u64;
    }
    for (pages, what) in [(missed, "missed"), (denied, "reported as not written")] {
        if !pages.is_empty() && verdict.failures.len() < SHOWN {
            let count = pages.len();
            let set: PageSet = pages.into_iter().collect();
            verdict.failures.push(format!(
                "{count} pages {what} in interval {}..{} of {}, process {}, phase `{}` ({}..{} ns): {}",
                intervals.start,
                intervals.end,
                touches.intervals.len(),
                phase.pid.0,
                phase.name,
                phase.span.from.0,
                phase.span.to.0,
                describe(&set, 8),
            ));
        }
    }
}

/// What the phases of a process access in an interval.
struct Allowed {
    pages: PageSet,
    writes: PageSet,
}

fn allowed(oracle: &Oracle, touches: &Touches, pid: Pid, interval: usize) -> Allowed {
    let (mut pages, mut writes) = (Vec::new(), Vec::new());
    let mut add = |access: Option<Access>, pattern: Pattern| {
        pages.extend(pattern.runs());
        if access != Some(Access::Read) {
            writes.extend(pattern.runs());
        }
    };
    let within = |span| touches.perhaps(span).contains(&interval);
    for phase in oracle
        .phases
        .iter()
        .filter(|p| p.pid == pid && within(p.span))
    {
        phase.sets.iter().for_each(|(a, p)| add(Some(*a), *p));
        phase.may.iter().for_each(|p| add(None, *p));
        let once = phase.once.iter().filter(|o| within(o.span));
        once.for_each(|o| add(Some(o.access), o.pages));
    }
    Allowed {
        pages: PageSet::from_runs(pages),
        writes: PageSet::from_runs(writes),
    }
}

fn find_extras(oracle: &Oracle, touches: &Touches, pid: Pid, verdict: &mut Verdict) {
    let mut before = PageSet::default();
    for (i, (span, _, _)) in touches.intervals.iter().enumerate() {
        let allowed = allowed(oracle, touches, pid, i);
        before = before.union(&allowed.pages);
        let Some(layer) = touches.layers.get(&(i, pid)) else {
            continue;
        };
        let alive = |a: &&Arena| a.pid == pid && a.life.from < span.from && a.life.to > span.to;
        for arena in oracle.arenas.iter().filter(alive) {
            let end = arena.pages.first.0 + arena.pages.pages;
            let mut unexplained = Vec::new();
            let mut seen = BTreeSet::new();
            for touch in &layer.touches {
                let from = touch.first.0.max(arena.pages.first.0);
                let to = (touch.first.0 + touch.pages).min(end);
                for page in (from..to).map(Page) {
                    if allowed.pages.contains(page) {
                        let wrong = touch.written == Some(true) && !allowed.writes.contains(page);
                        verdict.writes_invented += u64::from(wrong && touch.granule == 1);
                    } else if seen.insert(page) {
                        let extra = explain(page, touch, arena, &allowed.pages, &before);
                        *verdict.extra.entry(extra).or_default() += 1;
                        if extra == Extra::Unexplained {
                            unexplained.push(page);
                        }
                    }
                }
            }
            if !unexplained.is_empty() && verdict.failures.len() < SHOWN {
                let names = oracle
                    .phases
                    .iter()
                    .filter(|p| p.pid == pid && touches.around(p.span).contains(&i));
                let names: BTreeSet<&str> = names.map(|p| p.name.as_str()).collect();
                let set: PageSet = unexplained.into_iter().collect();
                verdict.failures.push(format!(
                    "{} pages of arena `{}` reported without a reason in interval {i} of {}, phases {names:?}: {}",
                    set.len(),
                    arena.name,
                    touches.intervals.len(),
                    describe(&set, 8),
                ));
            }
        }
    }
}

fn explain(page: Page, touch: &Touch, arena: &Arena, allowed: &PageSet, before: &PageSet) -> Extra {
    let whole = |granule: u64| (Page(page.0 / granule * granule), granule);
    let near = |set: &PageSet, granule| {
        let (first, pages) = whole(granule);
        set.intersects(first, pages)
    };
    match touch.source {
        TouchSource::Sticky if near(before, touch.granule) => Extra::Sticky,
        TouchSource::Pinned => Extra::Pinned,
        TouchSource::PageFlag | TouchSource::PossiblyOthers => Extra::PageFlag,
        _ if touch.granule > 1 && near(allowed, touch.granule) => Extra::Huge,
        TouchSource::Vanish | TouchSource::Gone => Extra::Vanished,
        _ if arena.kind != "anon" && near(allowed, FAULT_AROUND) => Extra::FaultAround,
        _ if allowed.intersects(Page(page.0.saturating_sub(1)), 3) => Extra::Neighbour,
        _ => Extra::Unexplained,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;
    use varve_model::{Duration, Time};

    const PID: Pid = Pid(7);

    /// Two intervals, 0..100 and 100..200 µs; loops within each and across the border.
    fn oracle() -> Result<Oracle, (usize, String)> {
        "arena 7 1 1000 100 anon a\nphase 7 7 10000 190000 p\nset w 1000 4 10\n\
         loop 30000 40000\nloop 90000 110000\nloop 150000 160000\nend 3\n\
         phase 7 7 191000 199000 q\nonce 192000 193000 r 1050 2\nend 0\n"
            .parse()
    }

    type Row = (usize, u64, u64, u64, TouchSource);

    fn touches(pages: &[Row]) -> Touches {
        written(&pages.iter().map(|row| (*row, None)).collect::<Vec<_>>())
    }

    fn written(pages: &[(Row, Option<bool>)]) -> Touches {
        let span = |a, b| {
            (
                Span {
                    from: Time(a),
                    to: Time(b),
                },
                Duration(0),
                Duration(0),
            )
        };
        let mut touches = Touches {
            intervals: vec![span(1000, 100_000), span(100_000, 200_000)],
            ..Touches::default()
        };
        for &((i, first, pages, granule, source), written) in pages {
            let layer = touches.layers.entry((i, PID)).or_default();
            layer.touches.push(Touch {
                first: Page(first),
                pages,
                granule,
                written,
                source,
            });
        }
        for i in 0..2 {
            let union = touches.union(i..i + 1, PID);
            touches.layers.insert((i, PID), union);
        }
        touches
    }

    const SCAN: TouchSource = TouchSource::Scan;

    #[test]
    fn a_full_trace_passes() -> Result<(), (usize, String)> {
        let mut rows: Vec<_> = (0..2)
            .flat_map(|i| (0..4).map(move |p| (i, 1000 + 10 * p, 1, 1, SCAN)))
            .collect();
        rows.push((1, 1050, 2, 1, SCAN));
        let verdict = judge(&oracle()?, &touches(&rows));
        assert_eq!(
            (verdict.expected, verdict.missed(), verdict.extras()),
            (14, 0, 0)
        );
        assert_eq!(verdict.strong, 3, "two loops and the single access");
        Ok(())
    }

    #[test]
    fn a_page_missing_in_one_interval_is_missed() -> Result<(), (usize, String)> {
        let mut rows: Vec<_> = (0..2)
            .flat_map(|i| (0..4).map(move |p| (i, 1000 + 10 * p, 1, 1, SCAN)))
            .collect();
        rows.push((1, 1050, 1, 1, SCAN));
        rows.remove(2);
        let verdict = judge(&oracle()?, &touches(&rows));
        assert_eq!(
            verdict.missed(),
            2,
            "one of the loop in the first interval, one of `q`"
        );
        assert_eq!(verdict.missed_in.get("p"), Some(&1));
        assert!(
            verdict.failures[0].contains("0x3fc"),
            "{:?}",
            verdict.failures
        );
        Ok(())
    }

    /// The loop over the border writes: what both intervals know of it decides.
    #[test]
    fn a_write_is_denied_only_where_no_row_leaves_it_open() -> Result<(), (usize, String)> {
        let denied = |first: Option<bool>, second: Option<bool>| {
            let oracle = "phase 7 7 10000 190000 p\nset w 1000 1 1\nloop 90000 110000\nend 1\n"
                .parse::<Oracle>()?;
            let row = |i| (i, 1000, 1, 1, SCAN);
            let verdict = judge(&oracle, &written(&[(row(0), first), (row(1), second)]));
            Ok(verdict.writes_denied)
        };
        assert_eq!(denied(Some(false), Some(false))?, 1);
        assert_eq!(denied(Some(false), None)?, 0);
        assert_eq!(denied(None, Some(false))?, 0);
        assert_eq!(denied(Some(false), Some(true))?, 0);
        Ok(())
    }

    #[test]
    fn extras_are_counted_and_explained() -> Result<(), (usize, String)> {
        let rows = [
            (0, 1001, 1, 1, SCAN),
            (0, 1055, 1, 1, SCAN),
            (0, 1056, 1, 1, TouchSource::PageFlag),
            (1, 1024, 8, 8, SCAN),
            (0, 1050, 1, 1, SCAN),
            (0, 5000, 9, 1, SCAN),
        ];
        let verdict = judge(&oracle()?, &touches(&rows));
        let extra: Vec<_> = verdict.extra.into_iter().collect();
        assert_eq!(
            extra,
            [
                (Extra::Huge, 7),
                (Extra::PageFlag, 1),
                (Extra::Neighbour, 1),
                (Extra::Unexplained, 2)
            ],
            "pages outside of arenas do not count; 1050 is accessed in the other interval only"
        );
        Ok(())
    }
}
