//! How much anonymous memory a process has resident: the program's, what its allocator has mapped of that, and that in which the
//! preload library counts.
//!
//! Sources: `RssAnon` of `/proc/PID/status`, and `/proc/PID/pagemap` for the parts
//! (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use varve_model::Pid;

/// Bit 63 of an entry: the page is present.
const PRESENT: u64 = 1 << 63;
const PAGE: u64 = 4096;

/// Resident bytes of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Resident {
    /// All anonymous memory but the library's.
    pub(super) program: u64,
    /// The library's.
    pub(super) library: u64,
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

/// Resident bytes of these ranges, each an address and bytes; none where the process is not there.
pub(super) fn resident_of(pid: Pid, ranges: &[(u64, u64)]) -> Option<u64> {
    let map = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    let pages = ranges.iter().map(|range| present_pages(&map, *range));
    Some(pages.sum::<u64>() * PAGE)
}

fn present_pages(map: &File, (address, bytes): (u64, u64)) -> u64 {
    const AT_ONCE: usize = 1 << 14;
    let mut entries = vec![0u8; AT_ONCE * 8];
    let (mut page, end) = (address / PAGE, address.saturating_add(bytes) / PAGE);
    let mut present = 0;
    while page < end {
        let wanted = (end - page).min(AT_ONCE as u64) as usize * 8;
        let Ok(read @ 8..) = map.read_at(&mut entries[..wanted], page * 8) else {
            break;
        };
        let words = entries[..read].chunks_exact(8);
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        present += words.filter(|w| word(w) & PRESENT != 0).count() as u64;
        page += read as u64 / 8;
    }
    present
}
