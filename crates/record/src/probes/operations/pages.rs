//! How full the pages of what an allocator has mapped are with blocks that live.
//!
//! Sources: the shadow of the heap in the target ([`heap`]), and `/proc/PID/pagemap`. Blocks begin and end meanwhile: a page counts as it was when its
//! part of the shadow was read.

use std::fs::File;
use std::os::unix::fs::FileExt;

use varve_model::{Bytes, PAGE_BYTES, Page, Pid, Time};
use varve_preload_abi::operations::heap::{
    self, GRANULE, LINE, MAX_FIELDS, SPAN, SPAN_GRANULES, SPAN_LINES,
};
use varve_trace::tables::{HeapPagesRow, SparsePagesRow};

use super::memory::present;

/// Pages that are read at once.
const AT_ONCE: u64 = 1 << 12;
/// Granules of a page.
const PAGE_GRANULES: u64 = PAGE_BYTES / GRANULE;
const LINE_GRANULES: u64 = LINE / GRANULE;
/// Bounds of how full pages are, in eighths.
const EIGHTHS: [u32; 6] = [0, 1, 2, 4, 6, 8];
/// A page is sparse up to here.
const SPARSE_EIGHTHS: u32 = 2;
/// Runs of sparse pages that are kept of a process.
const MAX_RUNS: usize = 1 << 20;
/// Blocks of glibc's without further bytes in the shadow have two granules with their header, those of others one.
const ALONE_IN_GLIBC: u64 = 2;

/// What a look finds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fill {
    /// By [`EIGHTHS`].
    classes: [Class; EIGHTHS.len()],
    sparse: Vec<Run>,
}

/// Pages that are full up to the same bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Class {
    pages: u64,
    live: u64,
    lines: u64,
    shared: u64,
}

/// What lives on a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OnPage {
    /// Bytes of blocks.
    live: u64,
    /// Cache lines with a part of one.
    lines: u64,
    /// Who allocated the first of them.
    thread: Option<u8>,
    /// Another thread allocated another one.
    is_shared: bool,
}

/// Sparse pages that are equally full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    page: u64,
    pages: u32,
    live: u32,
}

impl Fill {
    /// Free bytes on sparse pages.
    fn pinned(&self) -> u64 {
        let runs = self.sparse.iter();
        runs.map(|run| u64::from(run.pages) * (PAGE_BYTES - u64::from(run.live).min(PAGE_BYTES)))
            .sum()
    }

    fn add(&mut self, page: u64, of: OnPage) {
        let live = of.live.min(PAGE_BYTES);
        let eighths = (live * 8).div_ceil(PAGE_BYTES) as u32;
        let class = EIGHTHS.iter().position(|most| eighths <= *most);
        if let Some(class) = class.and_then(|class| self.classes.get_mut(class)) {
            class.pages += 1;
            class.live += live;
            class.lines += of.lines;
            class.shared += u64::from(of.is_shared);
        }
        if live == 0 || eighths > SPARSE_EIGHTHS || self.sparse.len() >= MAX_RUNS {
            return;
        }
        let live = live as u32;
        match self.sparse.last_mut() {
            Some(run) if run.live == live && run.page + u64::from(run.pages) == page => {
                run.pages += 1;
            }
            _ => self.sparse.push(Run {
                page,
                pages: 1,
                live,
            }),
        }
    }
}

/// How full pages of one process were.
#[derive(Default)]
pub(super) struct Fills {
    last: Fill,
    /// When that was looked at last, and when it was written.
    looked: Time,
    written: Time,
    /// The one with most free bytes on sparse pages, and when that was.
    sparsest: Option<(Time, Fill)>,
}

impl Fills {
    /// Notes what a look found.
    pub(super) fn add(&mut self, now: Time, pid: Pid, fill: Fill, rows: &mut Vec<HeapPagesRow>) {
        let is_new = fill.classes != self.last.classes;
        let most = self.sparsest.as_ref().map_or(0, |(_, fill)| fill.pinned());
        self.last.classes = fill.classes;
        self.looked = now;
        if is_new {
            self.write(pid, rows);
        }
        if fill.pinned() > most {
            self.sparsest = Some((now, fill));
        }
    }

    fn write(&mut self, pid: Pid, rows: &mut Vec<HeapPagesRow>) {
        self.written = self.looked;
        let classes = EIGHTHS.iter().zip(self.last.classes);
        rows.extend(classes.map(|(eighths, of)| HeapPagesRow {
            time_ns: self.looked,
            pid,
            eighths: *eighths,
            pages: of.pages,
            live_bytes: Bytes(of.live),
            lines: of.lines,
            shared_pages: of.shared,
        }));
    }

    /// The last look, also where it found what the one before had, and the sparse pages when they kept most.
    pub(super) fn end(
        &mut self,
        pid: Pid,
        rows: &mut Vec<HeapPagesRow>,
        sparse: &mut Vec<SparsePagesRow>,
    ) {
        if self.looked > self.written {
            self.write(pid, rows);
        }
        let Some((time, fill)) = self.sparsest.take() else {
            return;
        };
        sparse.extend(fill.sparse.iter().map(|run| SparsePagesRow {
            time_ns: time,
            pid,
            page: Page(run.page),
            pages: run.pages,
            live_bytes: run.live,
        }));
    }
}

/// The files that a look reads.
struct Source<'a> {
    memory: File,
    map: File,
    shadows: &'a [(u64, u64)],
}

/// Looks at these ranges of the process's allocator, each an address and bytes; none where the process is not there.
pub(super) fn look(
    pid: Pid,
    shadows: &[(u64, u64)],
    ranges: &[(u64, u64)],
    is_glibc: bool,
) -> Option<Fill> {
    let source = Source {
        memory: File::open(format!("/proc/{pid}/mem")).ok()?,
        map: File::open(format!("/proc/{pid}/pagemap")).ok()?,
        shadows,
    };
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    let mut reader = Reader {
        alone: if is_glibc { ALONE_IN_GLIBC } else { 1 },
        fill: Fill::default(),
        covered: 0,
        thread: 0,
    };
    for (address, bytes) in ranges {
        let (first, end) = (
            address / PAGE_BYTES,
            address.saturating_add(bytes).div_ceil(PAGE_BYTES),
        );
        let mut page = first;
        while page < end {
            // Not over the end of a span.
            let span = (page * PAGE_BYTES / SPAN + 1) * (SPAN / PAGE_BYTES);
            let until = end.min(page + AT_ONCE).min(span);
            reader.read(&source, page, until)?;
            page = until;
        }
    }
    Some(reader.fill)
}

struct Reader {
    /// Granules of a block that does not say how many it has.
    alone: u64,
    fill: Fill,
    /// Granules of the program's memory before this one are part of a block that began before.
    covered: u64,
    /// Who allocated that block.
    thread: u8,
}

/// A part of a piece of the shadow.
struct Part<'a> {
    /// Its bytes, and some behind the last of interest.
    granules: &'a [u8],
    /// Of each cache line, the thread that allocated in it last.
    threads: &'a [u8],
}

impl Reader {
    /// Reads pages up to another one, of one span.
    fn read(&mut self, source: &Source<'_>, page: u64, until: u64) -> Option<()> {
        let present = present(&source.map, page, until);
        if present.is_empty() {
            // Nothing is mapped there any more.
            return Some(());
        }
        let count = (until - page) as usize;
        let mut found = vec![OnPage::default(); count];
        let address = page * PAGE_BYTES;
        let piece = source
            .shadows
            .iter()
            .find(|(_, of)| *of == address / SPAN * SPAN);
        if let Some((at, of)) = piece {
            let first = ((address - of) / GRANULE) as usize;
            let wanted = count * PAGE_GRANULES as usize;
            let room = (wanted + MAX_FIELDS).min(SPAN_GRANULES - first);
            let mut granules = vec![0; room];
            source
                .memory
                .read_exact_at(&mut granules, at + first as u64)
                .ok()?;
            let first = ((address - of) / LINE) as usize;
            let mut threads = vec![0; (wanted / LINE_GRANULES as usize).min(SPAN_LINES - first)];
            let of_lines = at + SPAN_GRANULES as u64 + first as u64;
            source.memory.read_exact_at(&mut threads, of_lines).ok()?;
            let part = Part {
                granules: &granules,
                threads: &threads,
            };
            self.count(&part, address / GRANULE, &mut found);
        }
        for ((of, page), is_there) in found.into_iter().zip(page..).zip(present) {
            if is_there {
                self.fill.add(page, of);
            }
        }
        Some(())
    }

    /// Counts the blocks of these pages, whose first granule is the number `base` of all addresses.
    fn count(&mut self, part: &Part<'_>, base: u64, found: &mut [OnPage]) {
        let wanted = found.len() * PAGE_GRANULES as usize;
        let mut at = 0;
        let mut last_line = u64::MAX;
        let mut cover = |from: u64, to: u64, thread: u8| {
            let end = base + wanted as u64;
            let (mut from, to) = (from.max(base), to.min(end));
            while from < to {
                let page = (from - base) / PAGE_GRANULES;
                let upto = to.min(base + (page + 1) * PAGE_GRANULES);
                let (first, last) = (from / LINE_GRANULES, (upto - 1) / LINE_GRANULES);
                let known = u64::from(first == last_line);
                last_line = last;
                if let Some(of) = found.get_mut(page as usize) {
                    of.live += (upto - from) * GRANULE;
                    of.lines += last + 1 - first - known;
                    of.is_shared |= *of.thread.get_or_insert(thread) != thread;
                }
                from = upto;
            }
        };
        if self.covered > base {
            cover(base, self.covered, self.thread);
            at = (self.covered - base).min(wanted as u64) as usize;
        }
        while at < wanted {
            let Some(granules) =
                heap::granules_at(part.granules.get(at..).unwrap_or(&[]), self.alone)
            else {
                at += 1;
                continue;
            };
            let from = base + at as u64;
            let line = part.threads.get(at / LINE_GRANULES as usize);
            self.thread = line.copied().unwrap_or(0);
            self.covered = from.saturating_add(granules);
            cover(from, self.covered, self.thread);
            at = at.saturating_add(granules as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the preload library would write of these blocks: granule, usable bytes.
    fn shadow(of: usize, blocks: &[(usize, usize)]) -> Vec<u8> {
        let mut bytes = vec![heap::NEVER; of];
        for (at, usable) in blocks {
            let fields = heap::Fields::of(0, *usable, false);
            bytes[*at] = heap::of_excess(8, fields.is_alone()).unwrap();
            if !fields.is_alone() {
                match fields.count_bytes() {
                    1 => bytes[at + 1] = fields.granules as u8,
                    _ => {
                        bytes[at + 1] = 0;
                        let count = u32::try_from(fields.granules).unwrap();
                        bytes[at + 2..at + 6].copy_from_slice(&count.to_ne_bytes());
                    }
                }
            }
        }
        bytes
    }

    #[test]
    fn blocks_fill_the_pages_that_they_lie_on() {
        // One of 24 bytes, one of 1000 over the end of the page, one over four pages, of which two are not read here.
        let all = shadow(
            2048,
            &[(0, 24), (240, 1000), (400, 3 * PAGE_BYTES as usize)],
        );
        let mut reader = Reader {
            alone: ALONE_IN_GLIBC,
            fill: Fill::default(),
            covered: 0,
            thread: 0,
        };
        // The one over the end of the page is another thread's, the last one a third's.
        let mut threads = [0; 512];
        threads[240 / 4] = 1;
        threads[400 / 4] = 2;
        let first = Part {
            granules: &all,
            threads: &threads[..128],
        };
        let mut found = [OnPage::default(); 2];
        reader.count(&first, 0, &mut found);
        assert_eq!(
            found.map(|of| of.live),
            [32 + 16 * 16, (63 - 16 + 512 - 400) * 16]
        );
        assert_eq!(
            found.map(|of| of.lines),
            [1 + 4, (63 - 16_u64).div_ceil(4) + (512 - 400) / 4]
        );
        assert_eq!(found.map(|of| of.is_shared), [true, true]);
        // The rest of the last one, in the next part.
        let rest = Part {
            granules: &all[512..],
            threads: &threads[128..],
        };
        let mut found = [OnPage::default(); 2];
        reader.count(&rest, 512, &mut found);
        assert_eq!(found.map(|of| of.live), [4096, 4096]);
        assert_eq!(found[0].lines, 64);
        assert_eq!(found[0].thread, Some(2));
        assert!(!found[0].is_shared);
    }

    #[test]
    fn what_nobody_wrote_so_is_read_without_harm() {
        let mut bytes = vec![heap::LARGE; 600];
        bytes[1] = 0;
        let mut reader = Reader {
            alone: 1,
            fill: Fill::default(),
            covered: 0,
            thread: 0,
        };
        let part = Part {
            granules: &bytes,
            threads: &[],
        };
        let mut found = [OnPage::default(); 2];
        reader.count(&part, 0, &mut found);
        assert!(found.iter().all(|of| of.live <= PAGE_BYTES));
        reader.count(&part, u64::MAX / 16, &mut found);
    }

    #[test]
    fn sparse_pages_are_kept_as_runs() {
        let mut fill = Fill::default();
        let mut add = |page, live, lines| {
            let of = OnPage {
                live,
                lines,
                ..OnPage::default()
            };
            fill.add(page, of);
        };
        (0..10).for_each(|page| add(page, 1024, 16));
        add(10, 0, 0);
        add(11, 1040, 17);
        add(12, 4096, 64);
        add(13, 16, 1);
        let runs: Vec<_> = fill
            .sparse
            .iter()
            .map(|r| (r.page, r.pages, r.live))
            .collect();
        assert_eq!(runs, [(0, 10, 1024), (13, 1, 16)]);
        assert_eq!(fill.pinned(), 10 * 3072 + 4080);
        let pages: Vec<u64> = fill.classes.iter().map(|c| c.pages).collect();
        assert_eq!(pages, [1, 1, 10, 1, 0, 1]);
    }
}
