//! Finding out where the kernel keeps its memory, without symbols
//!
//! The loader writes numbers that nobody can know into a few pages of its own. The direct map is where a walk
//! of its own page tables ends at memory that holds those numbers, and holds the next ones when they are
//! written. Frame numbers come from that walk: `/proc/self/pagemap` would show them too, but to holders of
//! `CAP_SYS_ADMIN` only. The array of `struct page` starts so many sizes below the `struct page` of one of the pages,
//! which a pipe holds after `vmsplice`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::abi::{self, CalibrateArgs, Settings};
use crate::{BpfError, raw};

const PAGE: usize = 4096;
const PAGES: usize = 64;
/// Pages of the sample that are compared
const PROBES: [usize; 4] = [0, 17, 40, 63];
/// Frames of pages may change under compaction: then everything is tried again
const ATTEMPTS: usize = 4;
const VMEMMAP_ALIGN: u64 = 1 << 21;
/// Bit of an entry that the kernel sets with each write, where it has soft-dirty bits
const SOFT_DIRTY: u64 = 1 << 11;

/// What the machine turned out to be
pub(crate) struct Found {
    pub(crate) settings: Settings,
    /// Bits of `abi::FEATURE_*`
    pub(crate) features: u32,
    /// Why there is no vmemmap, if there is none
    pub(crate) vmemmap_problem: Option<String>,
    pub(crate) soft_dirty: bool,
}

/// Runs the calibrate program and stores the settings as they become known
pub(crate) fn calibrate(
    program: BorrowedFd<'_>,
    settings_map: BorrowedFd<'_>,
    start: Settings,
) -> Result<Found, BpfError> {
    let mut last = BpfError::Calibration("no attempt was made".into());
    for _ in 0..ATTEMPTS {
        match attempt(program, settings_map, start) {
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn attempt(
    program: BorrowedFd<'_>,
    settings_map: BorrowedFd<'_>,
    mut settings: Settings,
) -> Result<Found, BpfError> {
    let sample = Sample::new()?;
    let mut find = CalibrateArgs {
        what: abi::CAL_FIND,
        address: sample.address(PROBES[0]),
        value: sample.mark(PROBES[0])?,
        ..Default::default()
    };
    run(program, &mut find)?;
    if find.tgid != std::process::id() {
        return Err(BpfError::Calibration(
            "the recorder runs in a pid namespace of its own (hint: record from outside of the container, or share the host's pid namespace)".into(),
        ));
    }
    if find.error != 0 {
        return Err(BpfError::Calibration(
            "no candidate leads to memory that this process wrote".into(),
        ));
    }
    settings.direct = find.direct;
    settings.frame_mask = find.frame_mask;
    settings.levels = find.levels;
    settings.root = find.root;
    settings.root_mount = find.root_mount;
    store(settings_map, &settings)?;
    let mut soft_dirty = false;
    for page in PROBES {
        // A number that was written before may lie in an old copy of the page: only the right place has the next one.
        for _ in 0..2 {
            let value = sample.mark(page)?;
            let read = translate(program, &sample, page)?;
            if read.value != value {
                return Err(BpfError::Calibration(
                    "the page tables lead to memory that this process did not write".into(),
                ));
            }
            soft_dirty = read.entry & SOFT_DIRTY != 0;
        }
    }
    let (vmemmap, vmemmap_problem) = match vmemmap(program, &sample, &settings) {
        Ok(base) => (base, None),
        Err(error) => (0, Some(error.to_string())),
    };
    settings.vmemmap = vmemmap;
    Ok(Found {
        settings,
        features: find.features,
        vmemmap_problem,
        soft_dirty,
    })
}

/// The entry of a page of the sample, and what physical memory holds there
fn translate(
    program: BorrowedFd<'_>,
    sample: &Sample,
    page: usize,
) -> Result<CalibrateArgs, BpfError> {
    let mut read = CalibrateArgs {
        what: abi::CAL_TRANSLATE,
        address: sample.address(page),
        ..Default::default()
    };
    run(program, &mut read)?;
    if read.error != 0 {
        return Err(BpfError::Calibration(
            "a page of this process is not in its page tables".into(),
        ));
    }
    Ok(read)
}

/// Where `struct page` 0 would be, from two pages that must agree
fn vmemmap(program: BorrowedFd<'_>, sample: &Sample, settings: &Settings) -> Result<u64, BpfError> {
    let mut base = None;
    for page in [PROBES[1], PROBES[2]] {
        let (reader, writer) = pipe()?;
        sample.splice(page, &writer)?;
        let mut args = CalibrateArgs {
            what: abi::CAL_PIPE,
            fd: reader.as_raw_fd(),
            ..Default::default()
        };
        run(program, &mut args)?;
        let entry = translate(program, sample, page)?.entry;
        let frame = (entry & settings.frame_mask) / PAGE as u64;
        let offset = frame * u64::from(args.page_bytes);
        let this = args.page.wrapping_sub(offset);
        if args.error != 0 || args.page_bytes == 0 || !this.is_multiple_of(VMEMMAP_ALIGN) {
            return Err(BpfError::Calibration(format!(
                "a pipe does not lead to its page (error {}, {} bytes a page)",
                args.error, args.page_bytes
            )));
        }
        if base.is_some_and(|base| base != this) {
            return Err(BpfError::Calibration(
                "struct pages do not lie in one array".into(),
            ));
        }
        base = Some(this);
    }
    base.ok_or_else(|| BpfError::Calibration("no page was tried".into()))
}

pub(crate) fn store(map: BorrowedFd<'_>, settings: &Settings) -> Result<(), BpfError> {
    raw::map_update(map, 0, settings).map_err(|source| BpfError::Map {
        map: "settings",
        source,
    })
}

fn run(program: BorrowedFd<'_>, args: &mut CalibrateArgs) -> Result<(), BpfError> {
    raw::run(program, args).map_err(|source| BpfError::System {
        what: "running the calibration program",
        source,
    })
}

fn pipe() -> Result<(OwnedFd, OwnedFd), BpfError> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both descriptors
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } < 0 {
        return Err(last("making a pipe"));
    }
    // SAFETY: both descriptors are new and belong to nobody else
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

fn last(what: &'static str) -> BpfError {
    BpfError::System {
        what,
        source: io::Error::last_os_error(),
    }
}

/// A few touched pages of our own, never huge
pub(crate) struct Sample {
    start: NonNull<u8>,
}

impl Sample {
    pub(crate) fn new() -> Result<Sample, BpfError> {
        // SAFETY: a new private mapping at an address that the kernel chooses harms nobody
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGES * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(last("mapping memory"));
        }
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(last("mapping memory"));
        };
        let sample = Sample { start };
        // SAFETY: advice on, and writes to, the mapping made above
        unsafe {
            libc::madvise(start.as_ptr().cast(), PAGES * PAGE, libc::MADV_NOHUGEPAGE);
            for page in 0..PAGES {
                start.as_ptr().add(page * PAGE).write_volatile(1);
            }
        }
        Ok(sample)
    }

    pub(crate) fn address(&self, page: usize) -> u64 {
        self.start.as_ptr() as u64 + (page * PAGE) as u64
    }

    /// Writes a number that nobody knows to the beginning of a page
    pub(crate) fn mark(&self, page: usize) -> Result<u64, BpfError> {
        let mut value = 0u64;
        // SAFETY: the number has as many bytes as are asked for
        let got = unsafe { libc::getrandom((&raw mut value).cast(), size_of::<u64>(), 0) };
        if got != size_of::<u64>() as isize {
            return Err(last("asking for a random number"));
        }
        // SAFETY: the page belongs to the sample and begins at an aligned address
        unsafe {
            self.start
                .as_ptr()
                .add(page * PAGE)
                .cast::<u64>()
                .write_volatile(value);
        }
        Ok(value)
    }

    /// Puts the page itself, not a copy, into a pipe
    fn splice(&self, page: usize, writer: &OwnedFd) -> Result<(), BpfError> {
        let part = libc::iovec {
            iov_base: self.address(page) as *mut libc::c_void,
            iov_len: PAGE,
        };
        // SAFETY: the page belongs to the sample, which outlives the pipe
        if unsafe { libc::vmsplice(writer.as_fd().as_raw_fd(), &raw const part, 1, 0) } < 0 {
            return Err(last("putting a page into a pipe"));
        }
        Ok(())
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by new and nothing borrows from it any more
        unsafe { libc::munmap(self.start.as_ptr().cast(), PAGES * PAGE) };
    }
}
