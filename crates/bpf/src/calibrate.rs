//! Finding out where the kernel keeps its memory, without symbols
//!
//! The loader knows the frame numbers of a few pages of its own from `/proc/self/pagemap`. The
//! direct map is where a walk of its own page tables gives the same numbers; the array of
//! `struct page` starts so many sizes below the `struct page` of one of them, which a pipe holds
//! after `vmsplice`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
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
        frame: sample.entry(PROBES[0])?.frame()?,
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
            "no candidate for the direct map agrees with /proc/self/pagemap".into(),
        ));
    }
    settings.direct = find.direct;
    settings.frame_mask = find.frame_mask;
    settings.levels = find.levels;
    store(settings_map, &settings)?;
    for page in PROBES {
        let mut check = CalibrateArgs {
            what: abi::CAL_TRANSLATE,
            address: sample.address(page),
            ..Default::default()
        };
        run(program, &mut check)?;
        if check.found_frame != sample.entry(page)?.frame()? {
            return Err(BpfError::Calibration(
                "the page tables and /proc/self/pagemap disagree".into(),
            ));
        }
    }
    let (vmemmap, vmemmap_problem) = match vmemmap(program, &sample) {
        Ok(base) => (base, None),
        Err(error) => (0, Some(error.to_string())),
    };
    settings.vmemmap = vmemmap;
    Ok(Found {
        settings,
        features: find.features,
        vmemmap_problem,
        soft_dirty: sample.entry(PROBES[0])?.soft_dirty(),
    })
}

/// Where `struct page` 0 would be, from two pages that must agree
fn vmemmap(program: BorrowedFd<'_>, sample: &Sample) -> Result<u64, BpfError> {
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
        let offset = sample.entry(page)?.frame()? * u64::from(args.page_bytes);
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
struct Sample {
    start: NonNull<u8>,
    pagemap: File,
}

/// An entry of pagemap (Documentation/admin-guide/mm/pagemap.rst)
struct Entry(u64);

impl Entry {
    fn frame(&self) -> Result<u64, BpfError> {
        let frame = self.0 & ((1 << 55) - 1);
        if self.0 >> 63 == 0 {
            return Err(BpfError::Calibration(
                "a touched page is not present".into(),
            ));
        }
        // The kernel hides frame numbers from those without CAP_SYS_ADMIN
        if frame == 0 {
            return Err(BpfError::NoPrivilege);
        }
        Ok(frame)
    }

    fn soft_dirty(&self) -> bool {
        self.0 >> 55 & 1 != 0
    }
}

impl Sample {
    fn new() -> Result<Sample, BpfError> {
        let pagemap = File::open("/proc/self/pagemap").map_err(|source| BpfError::System {
            what: "opening /proc/self/pagemap",
            source,
        })?;
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
        let sample = Sample { start, pagemap };
        // SAFETY: advice on, and writes to, the mapping made above
        unsafe {
            libc::madvise(start.as_ptr().cast(), PAGES * PAGE, libc::MADV_NOHUGEPAGE);
            for page in 0..PAGES {
                start.as_ptr().add(page * PAGE).write_volatile(1);
            }
        }
        Ok(sample)
    }

    fn address(&self, page: usize) -> u64 {
        self.start.as_ptr() as u64 + (page * PAGE) as u64
    }

    fn entry(&self, page: usize) -> Result<Entry, BpfError> {
        let mut bytes = [0; 8];
        self.pagemap
            .read_exact_at(&mut bytes, self.address(page) / PAGE as u64 * 8)
            .map_err(|source| BpfError::System {
                what: "reading /proc/self/pagemap",
                source,
            })?;
        Ok(Entry(u64::from_ne_bytes(bytes)))
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
