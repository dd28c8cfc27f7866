//! Reading and clearing a target in slices, of which each is done within a short hold.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Range;

use varve_bpf::{Bitmap, BpfError, Kernel, Leaf, MmId, Region};
use varve_model::{Address, Duration, Pid};
use varve_sys::{Aging, monotonic_now, resident_pages};

use super::{Scan, cannot_clear, is_gone};
use crate::RecordError;
use crate::probes::Held;

/// Regions of 2 MiB that are read and cleared at a time, at most: a millisecond's work.
const MAX_REGIONS: u64 = 16;
/// What reading and clearing one of them takes at most, nanoseconds.
const REGION_PRICE: u64 = 100_000;
/// A process is cleared as a whole where one in so many of its accessed pages is left uncleared.
const MAX_LEFT: u64 = 8;
/// So many are, however few there are in all: pages that came just now are on no list yet.
const MIN_LEFT: u64 = 2048;
/// What clearing a page of a process as a whole is thought to take at first, nanoseconds.
const FIRST_PRICE: f64 = 60.0;

/// The pages of an address space whose bits could not be cleared.
#[derive(Debug, Default)]
pub(super) struct Left(HashMap<(MmId, u64, Leaf), Bitmap>);

impl Left {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whoever was left may be stale.
    pub(super) fn mark(&self, mm: MmId, regions: &mut [Region]) {
        if self.0.is_empty() {
            return;
        }
        for region in regions {
            if let Some(left) = self.0.get(&(mm, region.base.0, region.leaf)) {
                for (i, left) in left.iter().enumerate() {
                    region.sticky[i] |= region.accessed[i] & left;
                    region.accessed[i] &= !left;
                }
            }
        }
    }
}

/// How far a pass through the target has come.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Processes that are cleared, or gone.
    done: HashSet<Pid>,
    memories: HashSet<MmId>,
    at: Option<At>,
}

/// The process that is being cleared.
#[derive(Debug)]
struct At {
    pid: Pid,
    mm: Option<MmId>,
    from: Address,
    /// None until they are needed.
    mappings: Option<Vec<Range<u64>>>,
    aging: Option<Aging>,
    /// Accessed pages that were read, and that were left.
    read: u64,
    left: u64,
}

impl At {
    fn new(pid: Pid) -> At {
        At {
            pid,
            mm: None,
            from: Address(0),
            mappings: None,
            aging: None,
            read: 0,
            left: 0,
        }
    }

    /// Clears the bits from `from` up to there.
    fn clear(&mut self, end: Address) -> io::Result<()> {
        let mappings = match &mut self.mappings {
            Some(mappings) => mappings,
            none => {
                let all = varve_sys::maps(self.pid)?;
                none.insert(all.iter().map(|e| e.address.0..(e.address + e.bytes).0).collect())
            }
        };
        let aging = match &mut self.aging {
            Some(aging) => aging,
            none => none.insert(Aging::open(self.pid)?),
        };
        let of = |m: &Range<u64>| m.start.max(self.from.0)..m.end.min(end.0);
        aging.clear(mappings.iter().map(of).filter(|range| !range.is_empty()))
    }
}

/// What clearing whole processes takes.
#[derive(Debug)]
pub(super) struct Price(f64);

impl Default for Price {
    fn default() -> Price {
        Price(FIRST_PRICE)
    }
}

impl Price {
    fn of(&self, pages: u64) -> Duration {
        Duration((pages as f64 * self.0) as u64)
    }

    fn learn(&mut self, pages: u64, took: Duration) {
        // Of few pages the system calls are the most.
        if pages > 4096 {
            self.0 = (self.0 + took.0 as f64 / pages as f64) / 2.0;
        }
    }
}

impl Scan {
    /// Reads and clears until the time of the hold is over, and says whether all was. What was read is kept.
    pub(super) fn slice(&mut self, held: &mut Held<'_>) -> Result<(), RecordError> {
        let mut pass = match self.pass.take() {
            Some(pass) => pass,
            None => {
                self.forget();
                self.left_before = std::mem::take(&mut self.left);
                Pass::default()
            }
        };
        held.reading.is_passed = self.go_on(&mut pass, held)?;
        if !held.reading.is_passed {
            self.pass = Some(pass);
        }
        Ok(())
    }

    fn go_on(&mut self, pass: &mut Pass, held: &mut Held<'_>) -> Result<bool, RecordError> {
        let mut has_begun = false;
        loop {
            let stands = |at: &At| held.pids.contains(&at.pid);
            let mut at = match pass.at.take().filter(stands) {
                Some(at) => at,
                None => match held.pids.iter().find(|pid| !pass.done.contains(pid)) {
                    Some(pid) => At::new(*pid),
                    None => return Ok(true),
                },
            };
            let now = monotonic_now();
            if has_begun && now >= held.until {
                pass.at = Some(at);
                return Ok(false);
            }
            if self.whole.contains(&at.pid) {
                let takes = self.price.of(resident_pages(at.pid).unwrap_or(0));
                // One that takes longer is not begun behind others.
                if has_begun && now + takes > held.until {
                    pass.at = Some(at);
                    return Ok(false);
                }
                has_begun = true;
                self.pass_whole(pass, at.pid, held)?;
                pass.done.insert(at.pid);
                continue;
            }
            has_begun = true;
            match self.pass_slice(pass, &mut at, held)? {
                Next::Slice => pass.at = Some(at),
                Next::Whole => {
                    self.whole.insert(at.pid);
                    pass.at = Some(At::new(at.pid));
                }
                Next::Process => {
                    pass.done.insert(at.pid);
                }
            }
        }
    }

    /// One slice of a process.
    fn pass_slice(
        &mut self,
        pass: &mut Pass,
        at: &mut At,
        held: &mut Held<'_>,
    ) -> Result<Next, RecordError> {
        let mut regions = Vec::new();
        let most = (held.until.0.saturating_sub(monotonic_now().0) / REGION_PRICE).clamp(1, MAX_REGIONS);
        let read = read_part(held.kernel, at, most, &mut regions)?;
        let Some((mm, resume)) = read else {
            return Ok(Next::Process);
        };
        if at.mm.is_none() && !pass.memories.insert(mm) {
            return Ok(Next::Process);
        }
        let is_first = at.mm.replace(mm).is_none();
        at.read += touched(&regions);
        if is_first && resume.is_none() {
            // A small one: as a whole it is cleared for less, and nothing is left.
            self.keep(at.pid, mm, regions);
            self.clear_whole(at.pid)?;
            return Ok(Next::Process);
        }
        match at.clear(resume.unwrap_or(Address(u64::MAX))) {
            Ok(()) => {}
            Err(error) if is_gone(&error) => return Ok(Next::Process),
            // This process may not, or this kernel cannot.
            Err(_) => return Ok(Next::Whole),
        }
        let mut left = Vec::new();
        if read_part(held.kernel, at, most, &mut left)?.is_none() {
            return Ok(Next::Process);
        }
        at.left += touched(&left);
        if at.left > MIN_LEFT && at.left > at.read / MAX_LEFT {
            self.keep(at.pid, mm, regions);
            return Ok(Next::Whole);
        }
        self.keep(at.pid, mm, regions);
        for region in left.iter().filter(|r| r.accessed != [0; 8]) {
            let key = (mm, region.base.0, region.leaf);
            self.left.0.insert(key, region.accessed);
        }
        held.kernel.relieve();
        Ok(match resume {
            Some(resume) => {
                at.from = resume;
                Next::Slice
            }
            None => Next::Process,
        })
    }

    /// All of a process that is not cleared by ranges: its memory is shared, say.
    fn pass_whole(
        &mut self,
        pass: &mut Pass,
        pid: Pid,
        held: &mut Held<'_>,
    ) -> Result<(), RecordError> {
        let began = monotonic_now();
        let mut regions = Vec::new();
        let stats = match held.kernel.walk(pid, &mut |r| regions.push(*r)) {
            Ok(stats) => stats,
            Err(BpfError::NoProcess(_) | BpfError::MemoryGone(_)) => return Ok(()),
            Err(e) => return Err(e.into()),
        };
        held.reading.failures += stats.flag_failures + stats.table_failures;
        pass.memories.insert(stats.mm);
        self.left.0.retain(|(mm, ..), _| *mm != stats.mm);
        self.keep(pid, stats.mm, regions);
        self.clear_whole(pid)?;
        self.price.learn(stats.present_pages, monotonic_now() - began);
        Ok(())
    }

    fn clear_whole(&mut self, pid: Pid) -> Result<(), RecordError> {
        match self.clear_process(pid) {
            Err(error) if !is_gone(&error) => Err(cannot_clear(error)),
            _ => Ok(()),
        }
    }

    /// Keeps what was read until the interval ends.
    fn keep(&mut self, pid: Pid, mm: MmId, mut regions: Vec<Region>) {
        self.left_before.mark(mm, &mut regions);
        self.add(pid, mm, regions);
    }
}

/// What is next after a slice.
enum Next {
    /// The next slice of the same process.
    Slice,
    /// All of it at once.
    Whole,
    /// Another process.
    Process,
}

/// Reads a slice; none if there is no such process any more.
fn read_part(
    kernel: &mut Kernel,
    at: &At,
    most: u64,
    regions: &mut Vec<Region>,
) -> Result<Option<(MmId, Option<Address>)>, RecordError> {
    let part = kernel.walk_part(at.pid, at.mm, at.from, most as u32, &mut |r| {
        regions.push(*r);
    });
    match part {
        Ok((stats, resume)) => Ok(Some((stats.mm, resume))),
        Err(BpfError::NoProcess(_) | BpfError::MemoryGone(_)) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Pages whose own bits say that they were accessed; a huge one is one.
fn touched(regions: &[Region]) -> u64 {
    let words = regions.iter().flat_map(|region| region.accessed);
    words.map(|word| u64::from(word.count_ones())).sum()
}
