//! The memory that is exempt: it is never moved.

use super::maps::Entry;
use super::mover::PAGE;
use super::ranges::{Range, Ranges};
use crate::process;

/// Bytes from a thread pointer on that hold what the kernel reads and writes at the thread's end, when nobody can resolve faults
/// it any more: the thread's id and the head of its robust mutexes, which lie at 720 and 736 in glibc's `struct pthread`
/// and before 256 in musl's. Both structs are longer, so this never reaches into memory of the program's own.
const THREAD_BYTES: u64 = 1024;
/// Variables of a library reach no further.
const MAX_STATICS: u64 = 4 << 20;

/// The memory that must always be there.
pub(super) struct Exempt {
    ranges: Ranges,
    /// The libraries whose code the handler runs: this one, and the C library for copying.
    libraries: [Library; 2],
    /// The mapping before the one that is looked at.
    before: Option<Entry>,
    /// The thread pointer of the thread that made the handler.
    maker: u64,
    /// The control blocks of the threads that the recorder knows, since the last boundary.
    threads: Ranges,
    /// There are more than there is room for.
    has_more: bool,
}

impl Exempt {
    pub(super) fn new() -> Option<Exempt> {
        let maker: u64;
        // SAFETY: the x86-64 ABI keeps the thread pointer there.
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) maker, options(nostack, readonly, pure));
        }
        Some(Exempt {
            ranges: Ranges::new()?,
            libraries: [process::some_code(), copying_code()].map(|code| Library {
                code,
                inode: 0,
                statics: None,
            }),
            before: None,
            maker,
            threads: Ranges::new()?,
            has_more: false,
        })
    }

    /// Notes the thread pointers of threads, for the next boundary.
    pub(super) fn add_threads(&mut self, threads: &[u64]) {
        for thread in threads {
            self.has_more |= !self.threads.insert(pages(*thread, THREAD_BYTES));
        }
    }

    /// Collects what is known now; `lists` are the handler's own. Whether all of it found room: else nothing may be
    /// moved.
    pub(super) fn renew(&mut self, lists: &[Range]) -> bool {
        let ranges = &mut self.ranges;
        ranges.clear();
        let mut has_room = !std::mem::take(&mut self.has_more);
        for range in self.threads.as_slice() {
            has_room &= ranges.insert(*range);
        }
        process::each_own_memory(|start, bytes| has_room &= ranges.insert(pages(start, bytes)));
        let own = [
            ranges.memory(),
            self.threads.memory(),
            pages(self.maker, THREAD_BYTES),
        ];
        let statics = self.libraries.iter().filter_map(|l| l.statics);
        for range in lists.iter().copied().chain(own).chain(statics) {
            has_room &= ranges.insert(range);
        }
        self.threads.clear();
        self.before = None;
        has_room
    }

    /// Looks whether a mapping holds variables of those libraries that have no content in the file: they lie right
    /// behind those that have. Mappings come in order.
    pub(super) fn notice(&mut self, entry: &Entry) {
        let before = self.before.replace(*entry);
        for library in &mut self.libraries {
            if entry.range.start <= library.code && library.code < entry.range.end {
                library.inode = entry.inode;
            }
            let follows = before
                .is_some_and(|b| b.range.end == entry.range.start && b.inode == library.inode);
            if library.statics.is_none() && library.inode != 0 && entry.is_plain && follows {
                let reach = Range {
                    start: entry.range.start,
                    end: entry.range.start + MAX_STATICS,
                };
                let statics = entry.range.common(reach);
                library.statics = Some(statics);
                self.ranges.insert(statics);
            }
        }
    }

    pub(super) fn ranges(&self) -> &Ranges {
        &self.ranges
    }
}

/// A library, by an address of its code.
struct Library {
    code: u64,
    /// Of its file, once known.
    inode: u64,
    statics: Option<Range>,
}

/// Where the C library's copying lies: it looks at variables of its own, and nothing else of the C library is used.
fn copying_code() -> u64 {
    libc::memmove as *const () as u64
}

fn pages(start: u64, bytes: u64) -> Range {
    Range {
        start: start & !(PAGE - 1),
        end: start.saturating_add(bytes + PAGE - 1) & !(PAGE - 1),
    }
}
