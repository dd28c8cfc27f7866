//! Moving pages to their shadows and back: `userfaultfd`'s requests, and the two descriptors that a handler has.
//!
//! The *front* watches the program's memory: an access to a page that is not there waits until the handler has
//! brought it, and forks, unmappings and moves of that memory are reported before they return. The *back* watches the
//! place where pages lie meanwhile; nothing waits for it. Both are needed because the kernel moves pages only to memory
//! that the same userfaultfd watches, and because what the handler does to a shadow must not wait for the
//! handler. ABI: `linux/userfaultfd.h`; semantics: `Documentation/admin-guide/mm/userfaultfd.rst` and
//! `mm/userfaultfd.c` of the kernel.

use varve_preload_abi::journal::Change;

use super::place::TOP;
use super::ranges::Range;
use crate::sys;

pub(super) const IOC_NEW: usize = 0xaa00;
pub(super) const UFFDIO_API: usize = request(3, 0x3f, 24);
pub(super) const UFFDIO_REGISTER: usize = request(3, 0x00, 32);
pub(super) const UFFDIO_WAKE: usize = request(2, 0x02, 16);
pub(super) const UFFDIO_COPY: usize = request(3, 0x03, 40);
pub(super) const UFFDIO_ZEROPAGE: usize = request(3, 0x04, 32);
pub(super) const UFFDIO_MOVE: usize = request(3, 0x05, 40);
pub(super) const UFFDIO_UNREGISTER: usize = request(2, 0x01, 16);
pub(super) const UFFDIO_POISON: usize = request(3, 0x08, 32);
pub(super) const PAGEMAP_SCAN: usize = 3 << 30 | 96 << 16 | (b'f' as usize) << 8 | 16;

const API: u64 = 0xaa;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_MOVE: u64 = 1 << 16;
const REGISTER_MODE_MISSING: u64 = 1;
const MOVE_DONTWAKE: u64 = 1;
const MOVE_ALLOW_SRC_HOLES: u64 = 2;
const COPY_DONTWAKE: u64 = 1;
const ZEROPAGE_DONTWAKE: u64 = 1;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

pub(super) const PAGE: u64 = 4096;

const fn request(direction: usize, number: usize, bytes: usize) -> usize {
    direction << 30 | bytes << 16 | 0xaa << 8 | number
}

/// Why a request failed, as far as handlers care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Mappings are changing: look at what the kernel reports, then try again.
    Changing,
    /// There is nothing at the source.
    Nothing,
    /// There is a page at the destination.
    Occupied,
    /// This page is pinned, or shared with another process.
    Busy,
    /// These mappings do not let pages be moved between them.
    Immovable,
    /// The address space is gone.
    Gone,
    /// Out of memory for now.
    NoMemory,
}

fn refusal(result: isize) -> Refusal {
    match -result as i32 {
        libc::EAGAIN | libc::EINTR => Refusal::Changing,
        libc::ENOENT | libc::EFAULT => Refusal::Nothing,
        libc::EEXIST => Refusal::Occupied,
        libc::EBUSY => Refusal::Busy,
        libc::ESRCH => Refusal::Gone,
        libc::ENOMEM => Refusal::NoMemory,
        _ => Refusal::Immovable,
    }
}

impl Refusal {
    /// Whether the same may be granted a little later.
    pub(super) fn is_passing(self) -> bool {
        matches!(self, Refusal::Changing | Refusal::NoMemory)
    }
}

fn ioctl(descriptor: i32, request: usize, argument: *mut u64) -> isize {
    // SAFETY: the argument is an array of words as long as the request's struct, or null where it takes none.
    unsafe {
        sys::call(
            libc::SYS_ioctl,
            [descriptor as usize, request, argument as usize, 0, 0, 0],
        )
    }
}

/// A userfaultfd.
#[derive(Clone, Copy)]
pub(super) struct Watch {
    pub(super) descriptor: i32,
}

impl Watch {
    /// A new one, from the device.
    pub(super) fn from_device(device: i32) -> Option<Watch> {
        let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        let descriptor = ioctl(device, IOC_NEW, flags as *mut u64);
        (descriptor >= 0).then_some(Watch {
            descriptor: descriptor as i32,
        })
    }

    /// Asks for what the back needs: an access to what is not there fails and does not wait.
    pub(super) fn begin_as_back(self) -> bool {
        let mut api = [API, FEATURE_SIGBUS | FEATURE_MOVE, 0];
        ioctl(self.descriptor, UFFDIO_API, api.as_mut_ptr()) == 0
    }

    /// Reads messages, as many as there are and fit; says how many.
    pub(super) fn read(self, messages: &mut [Change]) -> usize {
        // SAFETY: the kernel writes whole messages, of which all bit patterns are valid, into the slice.
        let bytes = unsafe {
            sys::call(
                libc::SYS_read,
                [
                    self.descriptor as usize,
                    messages.as_mut_ptr() as usize,
                    size_of_val(messages),
                    0,
                    0,
                    0,
                ],
            )
        };
        usize::try_from(bytes).unwrap_or(0) / size_of::<Change>()
    }

    /// Watches a range for accesses to pages that are not there.
    pub(super) fn register(self, range: Range) -> bool {
        let mut words = [range.start, range.bytes(), REGISTER_MODE_MISSING, 0];
        ioctl(self.descriptor, UFFDIO_REGISTER, words.as_mut_ptr()) == 0
    }

    /// Moves pages from `source` on to `to`, which this descriptor watches; wakes nobody. Holes are passed over. Says
    /// how many bytes were done, and why no more.
    pub(super) fn move_run(self, to: u64, source: u64, bytes: u64) -> (u64, Option<Refusal>) {
        let mode = MOVE_DONTWAKE | MOVE_ALLOW_SRC_HOLES;
        self.moved([to, source, bytes, mode, 0])
    }

    /// Moves one page and wakes who waits for it, if so wished.
    pub(super) fn move_page(self, to: u64, source: u64, wake: bool) -> Option<Refusal> {
        let mode = if wake { 0 } else { MOVE_DONTWAKE };
        self.moved([to, source, PAGE, mode, 0]).1
    }

    fn moved(self, mut words: [u64; 5]) -> (u64, Option<Refusal>) {
        let bytes = words[2];
        let result = ioctl(self.descriptor, UFFDIO_MOVE, words.as_mut_ptr());
        if result == 0 {
            return (bytes, None);
        }
        // What was done of it stands in the last word, or why nothing was.
        match words[4] as i64 {
            done if done > 0 => (done as u64, Some(Refusal::Changing)),
            error if error < 0 => (0, Some(refusal(error as isize))),
            _ => (0, Some(refusal(result))),
        }
    }

    /// Copies one page to where none is.
    pub(super) fn copy_page(self, to: u64, source: u64, wake: bool) -> Option<Refusal> {
        let mode = if wake { 0 } else { COPY_DONTWAKE };
        let mut words = [to, source, PAGE, mode, 0];
        let result = ioctl(self.descriptor, UFFDIO_COPY, words.as_mut_ptr());
        (result != 0).then(|| refusal(result))
    }

    /// Maps the zero page where none is, and wakes who waits for it, if so wished.
    pub(super) fn zero_page(self, to: u64, wake: bool) -> Option<Refusal> {
        let mode = if wake { 0 } else { ZEROPAGE_DONTWAKE };
        let mut words = [to, PAGE, mode, 0];
        let result = ioctl(self.descriptor, UFFDIO_ZEROPAGE, words.as_mut_ptr());
        (result != 0).then(|| refusal(result))
    }

    /// Makes an access to a page that is not there end the process: its content could not be brought.
    pub(super) fn poison(self, to: u64) -> Option<Refusal> {
        let mut words = [to, PAGE, 0, 0];
        let result = ioctl(self.descriptor, UFFDIO_POISON, words.as_mut_ptr());
        (result != 0).then(|| refusal(result))
    }

    /// Lets whoever waits for a page of the range look again; whether the kernel takes such a range.
    pub(super) fn wake(self, range: Range) -> bool {
        let mut words = [range.start, range.bytes()];
        ioctl(self.descriptor, UFFDIO_WAKE, words.as_mut_ptr()) == 0
    }

    /// Lets whoever waits look again.
    pub(super) fn wake_all(self) {
        // The first addresses are nobody's, how many is a setting (`vm.mmap_min_addr`).
        for first in [1 << 16, 1 << 20, 1 << 30] {
            let all = Range {
                start: first,
                end: TOP - PAGE,
            };
            if self.wake(all) {
                return;
            }
        }
    }

    /// Watches a range no more: who waits looks again.
    pub(super) fn unregister(self, range: Range) {
        let mut words = [range.start, range.bytes()];
        ioctl(self.descriptor, UFFDIO_UNREGISTER, words.as_mut_ptr());
    }

    /// Gives up all that it watches: who waits looks again.
    pub(super) fn close(self) {
        // SAFETY: a descriptor of the handler's own; it is not used again.
        unsafe { sys::call(libc::SYS_close, [self.descriptor as usize, 0, 0, 0, 0, 0]) };
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PageRegion {
    range: Range,
    categories: u64,
}

/// Runs of pages that one look brings.
const RUNS: usize = 256;

/// `/proc/self/pagemap`: which pages are there, in memory or in swap.
pub(super) struct Pagemap {
    file: sys::ReadFile,
    runs: [PageRegion; RUNS],
}

impl Pagemap {
    pub(super) fn open() -> Option<Pagemap> {
        let empty = PageRegion {
            range: Range { start: 0, end: 0 },
            categories: 0,
        };
        Some(Pagemap {
            file: sys::ReadFile::open(c"/proc/self/pagemap")?,
            runs: [empty; RUNS],
        })
    }

    /// The runs of pages from the start of a range on, as many as one look brings, and where the next look begins;
    /// `None` where the kernel cannot say.
    pub(super) fn look(
        &mut self,
        range: Range,
    ) -> Option<(impl ExactSizeIterator<Item = Range>, u64)> {
        let mut words: [u64; 12] = [
            96,
            0,
            range.start,
            range.end,
            0,
            self.runs.as_mut_ptr() as u64,
            RUNS as u64,
            0,
            0,
            0,
            PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            PAGE_IS_PRESENT,
        ];
        let count = ioctl(self.file.descriptor(), PAGEMAP_SCAN, words.as_mut_ptr());
        let count = usize::try_from(count).ok()?;
        let runs = self.runs.get(..count)?;
        let next = if words[4] <= range.start {
            range.end
        } else {
            words[4]
        };
        Some((runs.iter().map(|r| r.range), next))
    }

    /// Pages of a range that are there; `None` where the kernel cannot say.
    pub(super) fn count(&mut self, range: Range) -> Option<u64> {
        let (mut start, mut pages) = (range.start, 0);
        while start < range.end {
            let (runs, next) = self.look(Range { start, ..range })?;
            pages += runs.map(|r| r.bytes() / PAGE).sum::<u64>();
            start = next;
        }
        Some(pages)
    }
}
