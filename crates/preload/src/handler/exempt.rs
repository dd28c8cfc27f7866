//! The memory that is exempt: it is never moved.

use std::sync::atomic::{AtomicU64, Ordering};

use super::mover::PAGE;
use super::ranges::{Range, Ranges};
use crate::proc::{self, Stat};
use crate::{modules, own, process, sys};

/// The fields of `/proc/PID/stat` that say where a process's arguments and environment begin and end (proc_pid_stat(5)).
const ARGUMENTS: [[usize; 2]; 2] = [[48, 49], [50, 51]];
/// Where they are; zeroes where that is not known.
static ARGUMENTS_AT: [[AtomicU64; 2]; 2] = [const { [const { AtomicU64::new(0) }; 2] }; 2];

/// Bytes from a thread pointer on that hold what the kernel reads and writes at the thread's end, when nobody can resolve faults
/// it any more: the thread's id and the head of its robust mutexes, which lie at 720 and 736 in glibc's `struct pthread`
/// and before 256 in musl's. Both structs are longer, so this never reaches into memory of the program's own.
const THREAD_BYTES: u64 = 1024;

/// The memory that must always be there.
pub(super) struct Exempt {
    ranges: Ranges,
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
        let statics = modules::statics().map(|s| Range {
            start: s.start,
            end: s.end,
        });
        let arguments = ARGUMENTS_AT.each_ref().map(|range| {
            let [start, end] = range.each_ref().map(|at| at.load(Ordering::Relaxed));
            pages(start, end.saturating_sub(start))
        });
        let own = own.into_iter().chain(arguments);
        for range in lists.iter().copied().chain(own).chain(statics) {
            has_room &= ranges.insert(range);
        }
        self.threads.clear();
        has_room
    }

    pub(super) fn ranges(&self) -> &Ranges {
        &self.ranges
    }
}

/// Finds the variables of the libraries whose code the handler runs: this one, and the C library for copying, which looks at
/// variables of its own; nothing else of the C library is used. At the start of the program.
pub(crate) fn note_statics() {
    modules::note_statics([process::some_code(), own::some_code_of_the_c_library()]);
}

/// Finds the process's arguments and environment. Whoever lists processes reads them in the memory of each
/// (`/proc/PID/cmdline`, `environ`), where the kernel waits for nobody: of a page that is moved it finds nothing.
pub(crate) fn note_arguments() {
    let mut room = [0u64; 128];
    let Some(count) = sys::ReadFile::open(c"/proc/self/stat").map(|file| file.read(&mut room))
    else {
        return;
    };
    let Some(stat) = Stat::of(proc::bytes(&room, count)) else {
        return;
    };
    for (fields, at) in ARGUMENTS.into_iter().zip(&ARGUMENTS_AT) {
        for (field, at) in fields.into_iter().zip(at) {
            at.store(stat.field(field).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

fn pages(start: u64, bytes: u64) -> Range {
    Range {
        start: start & !(PAGE - 1),
        end: start.saturating_add(bytes + PAGE - 1) & !(PAGE - 1),
    }
}
