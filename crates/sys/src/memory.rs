//! The recorder's own memory.

use std::io;
use std::time::Instant;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use varve_model::{Bytes, Duration, PAGE_BYTES};

/// Peak resident memory of this process.
pub fn own_peak_bytes() -> Bytes {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = crate::proc::status_field(&text, "VmHWM")
        .and_then(|peak| peak.split_whitespace().next()?.parse::<u64>().ok());
    Bytes(peak.unwrap_or(0) * 1024)
}

/// Gives free heap memory back to the system.
pub fn release_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim only returns free memory of glibc's own heap.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Measures on memory of this process what the first access to a page after clear and flush costs more than another: the walk
/// of the page tables, the setting of the bit, and on a virtual machine what the hypervisor adds. `MADV_COLD` clears and flushes
/// without rights, but for a few pages that the kernel has not put on its lists yet.
///
/// Of data that is in no cache, as what a large program comes back to after an interval is not: a processor that has to set a bit
/// waits for it alone, so that misses which it would have had many of at a time come one after the other. Of data that is in a cache
/// it is a fifth of that, which is too little for any program that is larger than one.
///
/// # Errors
/// Where the kernel has no memory, or no `MADV_COLD` (Linux 5.4 and later).
pub fn first_access_time() -> io::Result<Duration> {
    const PAGES: usize = 512;
    const BYTES: usize = PAGES * PAGE_BYTES as usize;
    const LINE: usize = 64;
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let memory = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?
    };
    let advise = |advice| {
        // SAFETY: both keep what the memory holds.
        unsafe { madvise(memory, BYTES, advice) }
    };
    // Another line of each page, as the first lines of all pages share few places in a cache.
    let places = || {
        (0..PAGES).map(|page| {
            let at = page * PAGE_BYTES as usize + page * LINE % PAGE_BYTES as usize;
            // SAFETY: inside the mapping, which nobody else knows.
            unsafe { memory.cast::<u8>().add(at) }
        })
    };
    let sweep = || {
        let began = Instant::now();
        for place in places() {
            // SAFETY: inside the mapping.
            unsafe { place.write_volatile(place.read_volatile().wrapping_add(1)) };
        }
        began.elapsed().as_nanos() as f64
    };
    let measure = || -> io::Result<f64> {
        // Of a huge page there would be one bit. Kernels that have none refuse.
        let _ = advise(Advice::LinuxNoHugepage);
        // The least of each: a sweep that is preempted must not count, neither the one nor the other.
        let (mut set, mut cleared) = (f64::MAX, f64::MAX);
        for _ in 0..5 {
            sweep();
            places().for_each(evict);
            set = set.min(sweep());
            // Before it is cleared: it sets the bit as a load does.
            places().for_each(evict);
            advise(Advice::LinuxCold)?;
            cleared = cleared.min(sweep());
        }
        Ok((cleared - set).max(0.0) / PAGES as f64)
    };
    let price = measure();
    // SAFETY: nothing refers to it any more.
    let _ = unsafe { munmap(memory, BYTES) };
    Ok(Duration(price?.round() as u64))
}

/// What the first touch of a page takes: of new memory of this process, which the kernel makes.
///
/// # Errors
/// Where the kernel has no memory.
pub fn fault_time() -> io::Result<Duration> {
    const PAGES: usize = 128;
    const BYTES: usize = PAGES * PAGE_BYTES as usize;
    let mut least = f64::MAX;
    for _ in 0..8 {
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        // SAFETY: it keeps what the memory holds. Of a huge page there would be one fault. Kernels that have none refuse.
        let _ = unsafe { madvise(memory, BYTES, Advice::LinuxNoHugepage) };
        let began = Instant::now();
        for at in (0..BYTES).step_by(PAGE_BYTES as usize) {
            // SAFETY: inside the mapping, which nobody else knows.
            unsafe { memory.cast::<u8>().add(at).write_volatile(1) };
        }
        least = least.min(began.elapsed().as_nanos() as f64);
        // SAFETY: nothing refers to it any more.
        let _ = unsafe { munmap(memory, BYTES) };
    }
    Ok(Duration((least / PAGES as f64).round() as u64))
}

/// Takes a line out of all caches, where the processor lets a program do so.
fn evict(place: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's memory; what it holds stays.
    unsafe {
        std::arch::x86_64::_mm_clflush(place);
        std::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}
