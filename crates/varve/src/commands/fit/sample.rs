//! Pages of the program, so that swap is measured with what it will be given: how well they compress decides what it costs.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use varve_model::Pid;

const PAGE: usize = 4096;
/// Pages that are kept.
const MAX: usize = 512;
/// Pages that are taken at once.
const AT_ONCE: usize = 32;
/// Pages among which one that is present is looked for: most of a stack or of a reserved heap never was touched.
const REACH: u64 = 512;
const EVERY: Duration = Duration::from_millis(50);
/// Bits of `/proc/PID/pagemap`.
const PRESENT: u64 = 1 << 63;

/// Pages that were seen.
#[derive(Debug, Default)]
pub(super) struct Sampler {
    pages: Vec<Vec<u8>>,
    last: Option<Instant>,
    seed: u64,
}

impl Sampler {
    /// What was sampled.
    pub(super) fn pages(&self) -> &[Vec<u8>] {
        &self.pages
    }

    /// A number that looks random.
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.seed;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Takes a few pages of each process, now and then.
    pub(super) fn look(&mut self, processes: &[Pid]) {
        if self.last.is_some_and(|last| last.elapsed() < EVERY) {
            return;
        }
        self.last = Some(Instant::now());
        for pid in processes.iter().take(8) {
            // A process that ends meanwhile has no pages.
            let _ = self.take(*pid);
        }
    }

    fn take(&mut self, pid: Pid) -> std::io::Result<()> {
        let mut text = String::new();
        File::open(format!("/proc/{pid}/maps"))?.read_to_string(&mut text)?;
        let ranges: Vec<(u64, u64)> = text.lines().filter_map(anonymous).collect();
        let all: u64 = ranges
            .iter()
            .map(|(from, to)| (to - from) / PAGE as u64)
            .sum();
        let (memory, map) = (
            File::open(format!("/proc/{pid}/mem"))?,
            File::open(format!("/proc/{pid}/pagemap"))?,
        );
        if all == 0 {
            return Ok(());
        }
        for _ in 0..AT_ONCE {
            let mut at = self.random() % all;
            let Some(span) = ranges.iter().find_map(|(from, to)| {
                let pages = (to - from) / PAGE as u64;
                let here = (at < pages).then(|| from / PAGE as u64 + at..to / PAGE as u64);
                at = at.saturating_sub(pages);
                here
            }) else {
                continue;
            };
            let mut entries = vec![0; (span.end - span.start).min(REACH) as usize * 8];
            map.read_exact_at(&mut entries, span.start * 8)?;
            let (entries, _) = entries.as_chunks::<8>();
            let mut entries = entries.iter().map(|bytes| u64::from_ne_bytes(*bytes));
            let Some(behind) = entries.position(|entry| entry & PRESENT != 0) else {
                continue;
            };
            let address = (span.start + behind as u64) * PAGE as u64;
            let mut page = vec![0; PAGE];
            memory.read_exact_at(&mut page, address)?;
            match self.pages.len() < MAX {
                true => self.pages.push(page),
                false => {
                    let place = self.random() as usize % MAX;
                    self.pages[place] = page;
                }
            }
        }
        Ok(())
    }
}

/// The range of a line of `maps` that is private, writable and of no file.
fn anonymous(line: &str) -> Option<(u64, u64)> {
    let mut fields = line.split_whitespace();
    let (from, to) = fields.next()?.split_once('-')?;
    let is_ours = fields.next()?.starts_with("rw-p");
    let inode = fields.nth(2)?;
    let range = (
        u64::from_str_radix(from, 16).ok()?,
        u64::from_str_radix(to, 16).ok()?,
    );
    (is_ours && inode == "0").then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_process_are_sampled() {
        // So much that every place is near a page that is present, wherever the others lie.
        let own = std::hint::black_box(vec![7u8; 8192 * PAGE]);
        let mut sampler = Sampler::default();
        sampler.look(&[Pid(std::process::id())]);
        assert!(!sampler.pages().is_empty());
        // Not again at once.
        let before = sampler.pages().len();
        sampler.look(&[Pid(std::process::id())]);
        assert_eq!(sampler.pages().len(), before);
        assert_eq!(own[PAGE], 7);
        let line = "7f00-9f00 rw-p 00000000 00:00 0  [heap]";
        assert_eq!(anonymous(line), Some((0x7f00, 0x9f00)));
        assert_eq!(anonymous("7f00-9f00 r--p 00000000 00:00 0"), None);
        assert_eq!(anonymous("7f00-9f00 rw-p 00000000 08:01 12 /x"), None);
    }
}
