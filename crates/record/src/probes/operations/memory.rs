//! How much anonymous memory a process has resident: the program's, and that in which the preload library counts.
//!
//! Sources: `RssAnon` of `/proc/PID/status`, and `/proc/PID/pagemap` for the library's part
//! (Documentation/admin-guide/mm/pagemap.rst).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use varve_model::Pid;

/// Bit 63 of an entry: the page is present.
const PRESENT: u64 = 1 << 63;
const PAGE: u64 = 4096;

/// Bytes of the program and of the library; none where the process is not there.
pub(super) fn resident(pid: Pid, own: &[(u64, u64)]) -> Option<(u64, u64)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    let mut own_pages = 0;
    if let Ok(map) = File::open(format!("/proc/{pid}/pagemap")) {
        own_pages = own.iter().map(|piece| present_pages(&map, *piece)).sum();
    }
    let own_bytes = own_pages * PAGE;
    Some(((kib * 1024).saturating_sub(own_bytes), own_bytes))
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
