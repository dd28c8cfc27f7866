//! Perf events that sample by themselves, and the rings through which they speak (`perf_event_open(2)`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as perf;
use perf_event_open_sys::bindings::{perf_event_attr, perf_event_mmap_page};
use varve_model::{Bytes, Cpu};

/// What an event counts and what its samples hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfEventKind {
    /// The number of the device (`type` in sysfs).
    pub device: u32,
    /// `config`, `config1`, `config2` and `config3`.
    pub config: [u64; 4],
    /// How often samples are taken; none for an event that only counts.
    pub pace: Option<PerfPace>,
    /// `PERF_SAMPLE_*`.
    pub sample: u64,
    /// How far behind the instruction samples may be: `precise_ip`, 0 to 3.
    pub precise: u8,
    /// Whether only the program's own code is sampled.
    pub user_only: bool,
    /// Whether the ring says which thread runs.
    pub switches: bool,
}

/// How often samples are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfPace {
    /// Once in so many events.
    Period(u64),
    /// So many times a second; the kernel adapts the period.
    Frequency(u64),
}

/// An open event of one CPU, at rest until [`PerfEvent::enable`].
#[derive(Debug)]
pub struct PerfEvent(OwnedFd);

impl PerfEvent {
    /// Opens an event on a CPU for whatever runs there, in a group if one is given. Times are CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// Those of the system call: EINVAL or ENOENT where the kernel does not know what is asked for, EACCES without the right.
    pub fn open(kind: &PerfEventKind, cpu: Cpu, leader: Option<&PerfEvent>) -> io::Result<Self> {
        let mut attr = perf_event_attr {
            type_: kind.device,
            size: size_of::<perf_event_attr>() as u32,
            config: kind.config[0],
            sample_type: kind.sample,
            clockid: libc::CLOCK_MONOTONIC,
            ..perf_event_attr::default()
        };
        attr.__bindgen_anon_3.config1 = kind.config[1];
        attr.__bindgen_anon_4.config2 = kind.config[2];
        attr.config3 = kind.config[3];
        match kind.pace {
            None => {}
            Some(PerfPace::Period(period)) => attr.__bindgen_anon_1.sample_period = period,
            Some(PerfPace::Frequency(rate)) => {
                attr.set_freq(1);
                attr.__bindgen_anon_1.sample_freq = rate;
            }
        }
        // A group starts with its leader.
        attr.set_disabled(u64::from(leader.is_none()));
        attr.set_use_clockid(1);
        attr.set_sample_id_all(1);
        attr.set_precise_ip(u64::from(kind.precise));
        attr.set_exclude_kernel(u64::from(kind.user_only));
        attr.set_exclude_hv(u64::from(kind.user_only));
        attr.set_context_switch(u64::from(kind.switches));
        let group = leader.map_or(-1, |l| l.0.as_raw_fd());
        let flags = perf::bindings::PERF_FLAG_FD_CLOEXEC.into();
        // SAFETY: the call reads `size` bytes of the attributes, which live until it returns.
        let fd =
            unsafe { perf::perf_event_open(&raw mut attr, -1, cpu.0 as libc::c_int, group, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just made this descriptor, and nobody else has it.
        Ok(PerfEvent(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Lets its samples go to the ring of another event of the same CPU.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn send_to(&self, other: &PerfEvent) -> io::Result<()> {
        // SAFETY: both are descriptors of perf events.
        done(unsafe { perf::ioctls::SET_OUTPUT(self.0.as_raw_fd(), other.0.as_raw_fd()) })
    }

    /// Starts it, and the group that it leads.
    ///
    /// # Errors
    /// Those of the system call.
    pub fn enable(&self) -> io::Result<()> {
        let group = perf::bindings::PERF_IOC_FLAG_GROUP;
        // SAFETY: the descriptor is that of a perf event.
        done(unsafe { perf::ioctls::ENABLE(self.0.as_raw_fd(), group) })
    }
}

impl AsFd for PerfEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Memory that the kernel writes and this process reads.
#[derive(Debug)]
struct Shared {
    start: NonNull<u8>,
    length: usize,
}

impl Shared {
    fn map(fd: BorrowedFd<'_>, length: usize, offset: u64) -> io::Result<Shared> {
        use rustix::mm::{MapFlags, ProtFlags};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses a free range (null hint, no MAP_FIXED), so no existing memory changes.
        let pointer = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                access,
                MapFlags::SHARED,
                fd,
                offset,
            )?
        };
        let start = NonNull::new(pointer.cast::<u8>())
            .ok_or_else(|| io::Error::other("mmap answered with a null address"))?;
        Ok(Shared { start, length })
    }

    /// Appends bytes of a ring from one position to another, both counted from its very beginning.
    fn copy(&self, offset: usize, size: usize, from: u64, to: u64, into: &mut Vec<u8>) {
        let count = to.wrapping_sub(from).min(size as u64) as usize;
        let first = (from % size.max(1) as u64) as usize;
        let straight = count.min(size - first);
        for (at, length) in [(first, straight), (0, count - straight)] {
            assert!(
                offset + at + length <= self.length,
                "a ring lies within its mapping"
            );
            // SAFETY: the range lies within the mapping, as asserted. The kernel does not write between tail and head.
            let bytes =
                unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset + at), length) };
            into.extend_from_slice(bytes);
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map` and nobody keeps a reference into it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

// SAFETY: the mapping is owned by this value alone, and positions in it are atomic.
unsafe impl Send for Shared {}

/// The ring of an event, and its AUX buffer where it has one.
#[derive(Debug)]
pub struct PerfRing {
    ring: Shared,
    page: usize,
    aux: Option<Shared>,
}

impl PerfRing {
    /// Maps the ring of an event, and an AUX buffer if one is asked for. Both lengths are powers of two and at least a page.
    ///
    /// # Errors
    /// Those of `mmap`; EPERM where more memory would be locked than is allowed.
    pub fn map(event: BorrowedFd<'_>, length: Bytes, aux: Option<Bytes>) -> io::Result<PerfRing> {
        let page = rustix::param::page_size();
        let whole = |bytes: Bytes| -> io::Result<usize> {
            let length = usize::try_from(bytes.0).map_err(io::Error::other)?;
            let fits = length.is_power_of_two() && length >= page;
            fits.then_some(length)
                .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
        };
        let length = whole(length)?;
        let ring = Shared::map(event, page + length, 0)?;
        let mut mapped = PerfRing {
            ring,
            page,
            aux: None,
        };
        if let Some(bytes) = aux {
            let (size, offset) = (whole(bytes)?, page + length);
            let control = mapped.control();
            // SAFETY: the fields lie in the first page of the mapping, which is writable; the kernel reads them when the buffer is mapped.
            unsafe {
                (&raw mut (*control).aux_offset).write_volatile(offset as u64);
                (&raw mut (*control).aux_size).write_volatile(size as u64);
            }
            mapped.aux = Some(Shared::map(event, size, offset as u64)?);
        }
        Ok(mapped)
    }

    fn control(&self) -> *mut perf_event_mmap_page {
        self.ring.start.as_ptr().cast()
    }

    /// Appends what has come since the last call.
    pub fn read(&mut self, into: &mut Vec<u8>) {
        let control = self.control();
        // SAFETY: both fields lie in the first page of the mapping, are aligned, and are only accessed atomically.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*control).data_head),
                AtomicU64::from_ptr(&raw mut (*control).data_tail),
            )
        };
        let (to, from) = (head.load(Ordering::Acquire), tail.load(Ordering::Relaxed));
        let size = self.ring.length - self.page;
        self.ring.copy(self.page, size, from, to, into);
        tail.store(to, Ordering::Release);
    }

    /// Appends what the AUX buffer holds from a position on, as a record in the ring has reported it.
    pub fn read_aux(&mut self, offset: u64, length: Bytes, into: &mut Vec<u8>) {
        let control = self.control();
        let Some(aux) = &self.aux else { return };
        let to = offset.wrapping_add(length.0);
        aux.copy(0, aux.length, offset, to, into);
        // SAFETY: the field lies in the first page of the mapping, is aligned, and is only accessed atomically.
        let tail = unsafe { AtomicU64::from_ptr(&raw mut (*control).aux_tail) };
        tail.store(to, Ordering::Release);
    }

    /// How ticks of the system counter become nanoseconds, where the kernel reports it: multiplier and shift.
    pub fn ticks_to_nanoseconds(&self) -> Option<(u32, u16)> {
        let control = self.control();
        // SAFETY: the fields lie in the first page of the mapping; they hardly ever change, and a torn read is a wrong time.
        let (multiplier, shift) = unsafe {
            (
                (&raw const (*control).time_mult).read_volatile(),
                (&raw const (*control).time_shift).read_volatile(),
            )
        };
        (multiplier != 0 && shift < 64).then_some((multiplier, shift))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A ring in plain memory, of which this test is the kernel.
    fn fake() -> (File, PerfRing) {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(fd);
        let page = rustix::param::page_size() as u64;
        file.set_len(page * 8).unwrap();
        let ring = PerfRing::map(file.as_fd(), Bytes(page), Some(Bytes(2 * page))).unwrap();
        (file, ring)
    }

    const HEAD: u64 = std::mem::offset_of!(perf_event_mmap_page, data_head) as u64;
    const TAIL: u64 = std::mem::offset_of!(perf_event_mmap_page, data_tail) as u64;
    const AUX_TAIL: u64 = std::mem::offset_of!(perf_event_mmap_page, aux_tail) as u64;

    fn word(file: &File, at: u64) -> u64 {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn the_layout_is_the_kernels() {
        // include/uapi/linux/perf_event.h says so.
        assert_eq!((HEAD, TAIL, AUX_TAIL), (1024, 1032, 1064));
    }

    #[test]
    fn a_ring_is_read_across_its_end() {
        let (file, mut ring) = fake();
        let page = rustix::param::page_size() as u64;
        let mut got = Vec::new();
        let mut wrote = Vec::new();
        let mut head = 0u64;
        for round in 0..300u64 {
            let length = 8 * (1 + round % 40);
            for n in 0..length {
                let byte = (round * 7 + n) as u8;
                file.write_all_at(&[byte], page + (head + n) % page)
                    .unwrap();
                wrote.push(byte);
            }
            head += length;
            file.write_all_at(&head.to_ne_bytes(), HEAD).unwrap();
            ring.read(&mut got);
            assert_eq!(word(&file, TAIL), head);
        }
        assert_eq!(got, wrote);
        ring.read(&mut got);
        assert_eq!(got.len(), wrote.len(), "nothing new");
    }

    #[test]
    fn an_aux_buffer_is_read_across_its_end() {
        let (file, mut ring) = fake();
        let page = rustix::param::page_size() as u64;
        let content: Vec<u8> = (0..2 * page).map(|n| ((n * 31) >> 3) as u8).collect();
        file.write_all_at(&content, 2 * page).unwrap();
        let mut got = Vec::new();
        ring.read_aux(2 * page - 100, Bytes(164), &mut got);
        let wanted = [&content[content.len() - 100..], &content[..64]].concat();
        assert_eq!(got, wanted);
        assert_eq!(word(&file, AUX_TAIL), 2 * page + 64);
    }

    #[test]
    fn lengths_that_no_ring_has_are_refused() {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        for length in [0, 100, 12288] {
            assert!(PerfRing::map(fd.as_fd(), Bytes(length), None).is_err());
        }
    }

    #[test]
    fn a_real_event_speaks_through_its_ring() {
        // The software clock, which every kernel has.
        let kind = PerfEventKind {
            device: perf::bindings::PERF_TYPE_SOFTWARE,
            config: [u64::from(perf::bindings::PERF_COUNT_SW_CPU_CLOCK), 0, 0, 0],
            pace: Some(PerfPace::Period(1_000_000)),
            sample: u64::from(perf::bindings::PERF_SAMPLE_IP),
            ..PerfEventKind::default()
        };
        let event = PerfEvent::open(&kind, Cpu(0), None).unwrap();
        let page = rustix::param::page_size() as u64;
        let mut ring = PerfRing::map(event.as_fd(), Bytes(16 * page), None).unwrap();
        event.enable().unwrap();
        let mut bytes = Vec::new();
        // A guard against hanging: it comes within milliseconds.
        for _ in 0..300_000 {
            ring.read(&mut bytes);
            if !bytes.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        // A record of the type PERF_RECORD_SAMPLE, its length a multiple of eight.
        assert_eq!(bytes.first(), Some(&9));
        assert_eq!(bytes.len() % 8, 0);
    }
}
