//! How much anonymous memory a process has resident: the program's, what its allocator has mapped of that, and that in which the
//! preload library counts.
//!
//! Sources: `RssAnon` of `/proc/PID/status`, and `/proc/PID/pagemap` for the parts
//! (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use varve_model::{Address, Duration, Pid, Time};
use varve_sys::{monotonic_now, thread_cpu_time};
use varve_trace::tables::HeapMemoryRow;

/// Bit 63 of an entry: the page is present.
const PRESENT: u64 = 1 << 63;
/// Bit 61: it is a file's, or shared anonymous memory, which `RssAnon` does not count.
const SHARED: u64 = 1 << 61;
/// Bit 56: no other process has it mapped, and it is not the kernel's page of zeroes.
const EXCLUSIVE: u64 = 1 << 56;
const PAGE: u64 = 4096;

/// Resident bytes of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resident {
    /// All anonymous memory but the library's.
    pub(super) program: u64,
    /// The library's.
    pub(super) library: u64,
}

/// Looks at which of the pages that an allocator has mapped are there, now and then.
#[derive(Clone, Default)]
pub(super) struct Scan {
    next: Time,
    /// Whether there were blocks at the last look.
    has_blocks: bool,
}

impl Scan {
    pub(super) fn is_due(&self) -> bool {
        monotonic_now() >= self.next
    }

    /// Resident bytes of these ranges, and the most that `used` says before and after of blocks. None where the process is not there.
    ///
    /// Nothing at all counts only from the second look at blocks: those that came just now may lie where nobody knows yet that
    /// something is mapped.
    pub(super) fn look(
        &mut self,
        pid: Pid,
        ranges: &[(u64, u64)],
        used: impl Fn() -> u64,
    ) -> Option<(u64, u64)> {
        let began = thread_cpu_time();
        // Blocks come and go meanwhile.
        let before = used();
        let resident = resident_of(pid, ranges)?;
        let after = used();
        self.next = after_rest(began);
        self.counts(resident, before.min(after))
            .then(|| (resident, before.max(after)))
    }

    fn counts(&mut self, resident: u64, used: u64) -> bool {
        let had_blocks = std::mem::replace(&mut self.has_blocks, used > 0);
        resident > 0 || had_blocks && self.has_blocks
    }
}

/// When it is looked again at what the allocator has mapped, after a look that began at that time of this thread's CPU: after so many times as long as it
/// worked, for the target's calls on mappings wait for it. On a busy machine a look takes longer than it works, and the next one must not be far.
pub(super) fn after_rest(began: Duration) -> Time {
    const REST: u64 = 100;
    monotonic_now() + Duration((thread_cpu_time() - began).0 * REST)
}

/// Adds a row unless it says what the last one did, which it becomes.
pub(super) fn add_changed(
    last: &mut Option<HeapMemoryRow>,
    row: HeapMemoryRow,
    rows: &mut Vec<HeapMemoryRow>,
) {
    let is_same = last.as_ref().is_some_and(|last| {
        last == &HeapMemoryRow {
            time_ns: last.time_ns,
            peak_ns: last.peak_ns,
            ..row.clone()
        }
    });
    // What says the end stands there in any case.
    if !is_same || row.resident_bytes.is_none() {
        *last = Some(row.clone());
        rows.push(row);
    }
}

/// None where the process is not there.
pub(super) fn resident(pid: Pid, own: &[(u64, u64)]) -> Option<Resident> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    let library = resident_of(pid, own).unwrap_or(0);
    Some(Resident {
        program: (kib * 1024).saturating_sub(library),
        library,
    })
}

/// Resident bytes of anonymous memory in these ranges, each an address and bytes; none where the process is not there.
fn resident_of(pid: Pid, ranges: &[(u64, u64)]) -> Option<u64> {
    let map = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    let pages = ranges.iter().map(|range| present_pages(&map, *range));
    Some(pages.sum::<u64>() * PAGE)
}

fn present_pages(map: &File, (address, bytes): (u64, u64)) -> u64 {
    const AT_ONCE: u64 = 1 << 14;
    let (mut page, end) = (address / PAGE, address.saturating_add(bytes) / PAGE);
    let mut found = 0;
    while page < end {
        let read = present(map, page, end.min(page + AT_ONCE));
        if read.is_empty() {
            break;
        }
        found += read.iter().filter(|is| **is).count() as u64;
        page += read.len() as u64;
    }
    found
}

/// Which of these pages of anonymous memory take memory of the process's own; fewer where the process's addresses end, or it has.
///
/// Pages that were read and never written do not, where the kernel can say which those are.
pub(super) fn present(map: &File, page: u64, until: u64) -> Vec<bool> {
    let mut entries = vec![0u8; (until - page) as usize * 8];
    let read = map.read_at(&mut entries, page * 8).unwrap_or(0);
    let words = entries[..read].as_chunks::<8>().0;
    let words: Vec<u64> = words.iter().map(|w| u64::from_ne_bytes(*w)).collect();
    let is = |word: &u64| word & (PRESENT | SHARED) == PRESENT;
    let mut found: Vec<bool> = words.iter().map(is).collect();
    // Those, and pages that a fork has left to two processes.
    if words.iter().any(|word| is(word) && word & EXCLUSIVE == 0) {
        let (start, end) = (
            Address(page * PAGE),
            Address((page + words.len() as u64) * PAGE),
        );
        for (start, end) in varve_sys::zero_runs(map, start, end).unwrap_or_default() {
            let place =
                |at: Address| ((at.0 / PAGE).saturating_sub(page) as usize).min(found.len());
            let places = place(start)..place(end);
            found[places].fill(false);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nothing_is_there_counts_for_blocks_that_were_seen_before() {
        let mut scan = Scan::default();
        assert!(!scan.counts(0, 0), "there may be nothing yet");
        assert!(!scan.counts(0, 9), "they came since");
        assert!(scan.counts(0, 9));
        assert!(!scan.counts(0, 0), "they are gone");
        assert!(scan.counts(4096, 0));
    }
}
