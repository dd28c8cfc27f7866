//! What is never moved aside.

use super::maps::Entry;
use super::mover::PAGE;
use super::ranges::{Range, Ranges};
use crate::process;

/// Bytes from a thread pointer on that hold what the kernel reads and writes at the thread's end, when nobody can serve
/// it any more: the thread's id and the head of its robust mutexes, which lie at 720 and 736 in glibc's `struct pthread`
/// and before 256 in musl's. Both structs are longer, so this never reaches into memory of the program's own.
const THREAD_BYTES: u64 = 1024;
/// Variables of a library reach no further.
const MOST_STATICS: u64 = 4 << 20;

/// The memory that must always be there.
pub(super) struct Keep {
    ranges: Ranges,
    /// The libraries whose code the servant runs: this one, and the C library for copying.
    libraries: [Library; 2],
    /// The mapping before the one that is looked at.
    before: Option<Entry>,
    /// The thread pointer of the thread that made the servant.
    maker: u64,
}

impl Keep {
    pub(super) fn new() -> Option<Keep> {
        let maker: u64;
        // SAFETY: the x86-64 ABI keeps the thread pointer there.
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) maker, options(nostack, readonly, pure));
        }
        Some(Keep {
            ranges: Ranges::new()?,
            libraries: [process::some_code(), copying_code()].map(|code| Library {
                code,
                inode: 0,
                statics: None,
            }),
            before: None,
            maker,
        })
    }

    /// Collects what is known now; `lists` are the servant's own.
    pub(super) fn renew(&mut self, threads: &[u64], lists: &[Range]) {
        self.ranges.clear();
        process::each_own_memory(|start, bytes| {
            self.ranges.insert(pages(start, bytes));
        });
        for range in lists.iter().copied().chain([self.ranges.memory()]) {
            self.ranges.insert(range);
        }
        for thread in threads.iter().copied().chain([self.maker]) {
            self.ranges.insert(pages(thread, THREAD_BYTES));
        }
        for statics in self.libraries.iter().filter_map(|l| l.statics) {
            self.ranges.insert(statics);
        }
        self.before = None;
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
                    end: entry.range.start + MOST_STATICS,
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
