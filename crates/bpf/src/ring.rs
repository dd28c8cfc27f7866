//! The reader's side of the BPF ring buffer: records are handed out where they lie
//!
//! The layout is that of kernel/bpf/ringbuf.c: a page with the reader's position, a page with the
//! writer's, and the data mapped twice in a row so that no record is ever cut.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const BUSY: u32 = 1 << 31;
const DISCARD: u32 = 1 << 30;
const HEADER: u64 = 8;
const PAGE: usize = 4096;

/// A shared mapping of a BPF map
pub(crate) struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to a thread
unsafe impl Send for Mapped {}

impl Mapped {
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        bytes: usize,
        writable: bool,
        offset: usize,
    ) -> io::Result<Mapped> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping at an address that the kernel chooses harms nobody
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on the mapping made above. A child of the recorder has no use for it.
        unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) };
        NonNull::new(start.cast())
            .map(|start| Mapped { start, bytes })
            .ok_or_else(|| io::Error::other("mapped at address zero"))
    }

    /// The bytes from an offset on; they do not change while the programs do not run
    pub(crate) fn slice(&self, offset: usize, bytes: usize) -> &[u8] {
        let offset = offset.min(self.bytes);
        let bytes = bytes.min(self.bytes - offset);
        // SAFETY: the range lies in the mapping, which lives as long as self. What is read here was
        // written before: regions by a walk that has returned, records by a commit that the reader
        // has seen.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), bytes) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the callers give offset 0 of a mapping of at least a page, which is aligned
        unsafe { &*self.start.as_ptr().add(offset).cast() }
    }

    fn header(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: record headers are aligned to 8 bytes and lie in the mapping
        unsafe { &*self.start.as_ptr().add(offset).cast() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by new and nothing borrows from it any more
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

pub(crate) struct Ring {
    fd: OwnedFd,
    reader: Mapped,
    writer: Mapped,
    bytes: u64,
}

impl Ring {
    pub(crate) fn new(fd: OwnedFd, bytes: u32) -> io::Result<Ring> {
        let reader = Mapped::new(fd.as_fd(), PAGE, true, 0)?;
        let writer = Mapped::new(fd.as_fd(), PAGE + 2 * bytes as usize, false, PAGE)?;
        Ok(Ring {
            fd,
            reader,
            writer,
            bytes: u64::from(bytes),
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether so much waits to be read that whoever could read it should
    pub(crate) fn is_filling(&self) -> bool {
        let read = self.reader.word(0).load(Ordering::Relaxed);
        let written = self.writer.word(0).load(Ordering::Acquire);
        written.wrapping_sub(read) > self.bytes / 4
    }

    /// Whether nothing waits to be read
    pub(crate) fn is_empty(&self) -> bool {
        self.has_read(self.written())
    }

    /// Up to where records were begun
    pub(crate) fn written(&self) -> u64 {
        self.writer.word(0).load(Ordering::Acquire)
    }

    /// Whether all up to there were handed out
    pub(crate) fn has_read(&self, written: u64) -> bool {
        self.reader.word(0).load(Ordering::Relaxed) >= written
    }

    /// Hands out all records that are complete now, but no more than two rings full, so that a
    /// target that writes faster than the sink reads cannot hold the recorder for ever
    pub(crate) fn drain<E>(
        &mut self,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let mut at = self.reader.word(0).load(Ordering::Relaxed);
        let limit = at + 2 * self.bytes;
        let mut count = 0;
        while at < limit && at < self.writer.word(0).load(Ordering::Acquire) {
            let offset = PAGE + (at & (self.bytes - 1)) as usize;
            let header = self.writer.header(offset).load(Ordering::Acquire);
            if header & BUSY != 0 {
                break;
            }
            let length = u64::from(header & !(BUSY | DISCARD));
            let result = if header & DISCARD == 0 {
                count += 1;
                sink(self.writer.slice(offset + HEADER as usize, length as usize))
            } else {
                Ok(())
            };
            at += (length + HEADER).next_multiple_of(8);
            self.reader.word(0).store(at, Ordering::Release);
            result?;
        }
        Ok(count)
    }
}
