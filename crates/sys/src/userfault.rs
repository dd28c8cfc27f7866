//! userfaultfd in asynchronous write-protect mode, and `PAGEMAP_SCAN`, which protects with it.
//!
//! A protected page that is written gives its protection up by itself: the kernel resolves the fault
//! and nobody is notified. ABI: `linux/userfaultfd.h` and `linux/fs.h`; semantics:
//! `Documentation/admin-guide/mm/pagemap.rst` and `userfaultfd.rst`. Kernels have it from 6.7 on,
//! which is found out by trying.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use varve_model::{Address, Bytes, PAGE_BYTES, Pid};

const API: u64 = 0xaa;
/// Shared memory can be protected too.
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
/// The kernel lets a write to a protected page go on by itself.
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const REGISTER_MODE_WP: u64 = 1 << 1;
/// `UFFD_USER_MODE_ONLY`: all that an unprivileged process may have, and all that is needed.
const USER_MODE_ONLY: i32 = 1;

const SCAN_WP_MATCHING: u64 = 1;
const PAGE_IS_WPALLOWED: u64 = 1 << 0;
const PAGE_IS_WRITTEN: u64 = 1 << 1;
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;
const PAGE_IS_PFNZERO: u64 = 1 << 5;

/// Runs of pages that one `PAGEMAP_SCAN` can report.
const REGIONS: usize = 1024;

#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct UffdioRegister {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR(kind, number, size)`
const fn read_write(kind: u64, number: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | kind << 8 | number
}

const UFFDIO_API: u64 = read_write(0xaa, 0x3f, size_of::<UffdioApi>());
const UFFDIO_REGISTER: u64 = read_write(0xaa, 0x00, size_of::<UffdioRegister>());
const PAGEMAP_SCAN: u64 = read_write(b'f' as u64, 16, size_of::<PmScanArg>());

/// An open userfaultfd: it belongs to the address space of the process that made it, whoever holds it.
///
/// When the last descriptor is closed, the kernel takes every protection away.
#[derive(Debug)]
pub struct UserFault {
    fd: OwnedFd,
}

impl UserFault {
    /// Takes a descriptor that a process made, and asks for asynchronous write protection.
    ///
    /// # Errors
    /// Where it is something else, or the kernel cannot do it.
    pub fn adopt(fd: OwnedFd) -> io::Result<UserFault> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if link != Path::new("anon_inode:[userfaultfd]") {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut api = UffdioApi {
            api: API,
            features: FEATURE_WP_ASYNC | FEATURE_WP_HUGETLBFS_SHMEM,
            ioctls: 0,
        };
        // SAFETY: the argument is the struct that this request reads and writes.
        check(unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API as _, &raw mut api) })?;
        Ok(UserFault { fd })
    }

    /// One for this process.
    ///
    /// # Errors
    /// As for [`UserFault::adopt`].
    pub fn create() -> io::Result<UserFault> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: takes an integer, makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        check(fd as i32)?;
        // SAFETY: a fresh descriptor that nobody else has.
        UserFault::adopt(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    /// Lets the pages of a mapping be protected. Doing so twice is fine.
    ///
    /// # Errors
    /// Where the mapping cannot be protected, or belongs to a userfaultfd of the program's own.
    pub fn register(&self, address: Address, bytes: Bytes) -> io::Result<()> {
        let mut register = UffdioRegister {
            start: address.0,
            len: bytes.0,
            mode: REGISTER_MODE_WP,
            ioctls: 0,
        };
        // SAFETY: the argument is the struct that this request reads and writes.
        let result =
            unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_REGISTER as _, &raw mut register) };
        check(result)
    }
}

/// Protects pages of processes.
#[derive(Debug)]
pub struct Protector {
    found: Vec<PageRegion>,
    end: u64,
}

impl std::fmt::Debug for PageRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start, self.end)
    }
}

impl Default for Protector {
    fn default() -> Self {
        Protector {
            found: Vec::with_capacity(REGIONS),
            end: (1 << 47) - PAGE_BYTES,
        }
    }
}

impl Protector {
    /// Protects every page of the registered mappings of a process that has content and is not
    /// protected; says how many pages those are. Pages without content, and the page tables that they
    /// do not need, are left alone.
    ///
    /// # Errors
    /// Where the process is gone, or the kernel cannot do it: then some pages are not protected.
    pub fn protect(&mut self, pid: Pid) -> io::Result<u64> {
        let pagemap = File::open(crate::shared_folder(pid).join("pagemap"))?;
        let mut pages = 0;
        let mut start = 0;
        while start < self.end {
            // A list is asked for although only its length is of use: without one, the kernel protects
            // pages without content as well.
            let mut scan = PmScanArg {
                size: size_of::<PmScanArg>() as u64,
                flags: SCAN_WP_MATCHING,
                start,
                end: self.end,
                walk_end: 0,
                vec: self.found.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: PAGE_IS_WPALLOWED | PAGE_IS_WRITTEN,
                category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
                return_mask: PAGE_IS_WRITTEN,
            };
            // SAFETY: the argument is the struct that this request reads and writes, and the list has
            // room for as many regions as it says.
            let count =
                unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
            check(count)?;
            // SAFETY: the kernel has written so many regions, which are not more than there is room for.
            unsafe { self.found.set_len(count as usize) };
            pages += self
                .found
                .iter()
                .map(|r| (r.end - r.start) / PAGE_BYTES)
                .sum::<u64>();
            self.found.clear();
            if scan.walk_end <= start {
                return Err(io::ErrorKind::InvalidData.into());
            }
            start = scan.walk_end;
        }
        Ok(pages)
    }
}

/// The runs of pages between two addresses that are in memory or in swap, as many as one look brings, and where the next
/// look begins.
///
/// # Errors
/// Where the kernel cannot say.
pub(crate) fn present_runs(
    pagemap: &File,
    start: u64,
    end: u64,
) -> io::Result<(Vec<(u64, u64)>, u64)> {
    runs_of(pagemap, (start, end), PAGE_IS_PRESENT | PAGE_IS_SWAPPED)
}

/// The runs of pages between two addresses that were read and never written, so that they are all the kernel's one page of zeroes; as addresses.
///
/// # Errors
/// Where the kernel cannot say (`PAGEMAP_SCAN`, since Linux commit 52526ca7fdb9).
pub fn zero_runs(
    pagemap: &File,
    start: Address,
    end: Address,
) -> io::Result<Vec<(Address, Address)>> {
    let mut all = Vec::new();
    let mut at = start.0;
    while at < end.0 {
        let (found, next) = runs_of(pagemap, (at, end.0), PAGE_IS_PFNZERO)?;
        all.extend(
            found
                .into_iter()
                .map(|(start, end)| (Address(start), Address(end))),
        );
        at = next;
    }
    Ok(all)
}

/// The runs of pages that are of any of these kinds, as many as one look brings, and where the next look begins.
fn runs_of(
    pagemap: &File,
    (start, end): (u64, u64),
    kinds: u64,
) -> io::Result<(Vec<(u64, u64)>, u64)> {
    let mut found: Vec<PageRegion> = Vec::with_capacity(REGIONS);
    let mut scan = PmScanArg {
        size: size_of::<PmScanArg>() as u64,
        flags: 0,
        start,
        end,
        walk_end: 0,
        vec: found.as_mut_ptr() as u64,
        vec_len: REGIONS as u64,
        max_pages: 0,
        category_inverted: 0,
        category_mask: 0,
        category_anyof_mask: kinds,
        return_mask: kinds,
    };
    // SAFETY: the argument is the struct that this request reads and writes, and the list has room for as many regions
    // as it says.
    let count = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
    check(count)?;
    // SAFETY: the kernel has written so many regions, which are not more than there is room for.
    unsafe { found.set_len(count as usize) };
    let next = if scan.walk_end <= start {
        end
    } else {
        scan.walk_end
    };
    Ok((found.iter().map(|r| (r.start, r.end)).collect(), next))
}

/// Whether this kernel can distinguish writes this way, tried on a page of our own.
///
/// # Errors
/// What the kernel said to the first step that it does not know.
pub fn try_write_protection() -> io::Result<()> {
    let page = TrialPage::map()?;
    let fault = UserFault::create()?;
    fault.register(Address(page.start.as_ptr() as u64), Bytes(PAGE_BYTES))?;
    let mut protector = Protector::default();
    let own = Pid(std::process::id());
    let mut count = || protector.protect(own);
    page.write(1);
    let (first, second) = (count()?, count()?);
    page.write(2);
    let third = count()?;
    if (first, second, third) == (1, 0, 1) {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "a page that was written, left alone, and written again counted {first}, {second} and {third} times"
    )))
}

/// A page to try things on.
struct TrialPage {
    start: NonNull<u8>,
}

impl TrialPage {
    fn map() -> io::Result<TrialPage> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        // SAFETY: the kernel chooses a free range, so no existing memory changes.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                PAGE_BYTES as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(TrialPage { start })
    }

    fn write(&self, value: u8) {
        // SAFETY: the page is mapped and writable as long as this value lives.
        unsafe { self.start.as_ptr().write_volatile(value) };
    }
}

impl Drop for TrialPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody else knows of it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), PAGE_BYTES as usize) };
    }
}

/// The sender and the descriptor of a message, as far as there are any.
pub(crate) fn unpack(message: &libc::msghdr) -> (Option<Pid>, Option<OwnedFd>) {
    let (mut pid, mut fd) = (None, None);
    // SAFETY: the kernel filled the control buffer that the message points to; each header is looked
    // at within it, and each descriptor in it is new and ours alone.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(h) = header.as_ref() {
            let data = libc::CMSG_DATA(header);
            let bytes = h.cmsg_len - libc::CMSG_LEN(0) as usize;
            if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_CREDENTIALS {
                let sender: libc::ucred = std::ptr::read_unaligned(data.cast());
                pid = u32::try_from(sender.pid).ok().filter(|p| *p > 0).map(Pid);
            } else if h.cmsg_level == libc::SOL_SOCKET && h.cmsg_type == libc::SCM_RIGHTS {
                for i in 0..bytes / size_of::<i32>() {
                    let raw = std::ptr::read_unaligned(data.cast::<i32>().add(i));
                    fd = Some(OwnedFd::from_raw_fd(raw));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    (pid, fd)
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_have_the_numbers_of_the_headers() {
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020_aa00);
        assert_eq!(PAGEMAP_SCAN, 0xc060_6610);
    }

    #[test]
    fn what_is_no_userfaultfd_is_refused() {
        assert!(UserFault::adopt(File::open("/dev/null").unwrap().into()).is_err());
    }

    #[test]
    fn a_kernel_that_can_protect_tells_writes() {
        match try_write_protection() {
            Ok(()) => {}
            Err(e) => assert_ne!(e.kind(), io::ErrorKind::Other, "{e}"),
        }
    }
}
