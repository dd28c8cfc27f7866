//! The recorder's own memory.

use std::io;
use std::time::Instant;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use varve_model::{Bytes, Duration, PAGE_BYTES};

/// Peak resident memory of this process.
pub fn own_peak_bytes() -> Bytes {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = text
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
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
/// # Errors
/// Where the kernel has no memory, or no `MADV_COLD` (Linux 5.4 and later).
pub fn first_access_time() -> io::Result<Duration> {
    const PAGES: usize = 512;
    const BYTES: usize = PAGES * PAGE_BYTES as usize;
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
    let sweep = || {
        let began = Instant::now();
        for at in (0..BYTES).step_by(PAGE_BYTES as usize) {
            // SAFETY: inside the mapping, which nobody else knows.
            unsafe {
                let byte = memory.cast::<u8>().add(at);
                byte.write_volatile(byte.read_volatile().wrapping_add(1));
            }
        }
        began.elapsed().as_nanos() as f64
    };
    let measure = || -> io::Result<f64> {
        // Of a huge page there would be one bit. Kernels that have none refuse.
        let _ = advise(Advice::LinuxNoHugepage);
        let mut best = f64::MAX;
        for _ in 0..3 {
            sweep();
            let warm = sweep();
            advise(Advice::LinuxCold)?;
            best = best.min((sweep() - warm).max(0.0) / PAGES as f64);
        }
        Ok(best)
    };
    let best = measure();
    // SAFETY: nothing refers to it any more.
    let _ = unsafe { munmap(memory, BYTES) };
    Ok(Duration(best?.round() as u64))
}
