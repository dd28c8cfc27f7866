//! The recorder's own memory.

use varve_model::Bytes;

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
