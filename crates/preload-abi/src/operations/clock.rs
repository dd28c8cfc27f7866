//! The processor's clock.

/// Ticks since some moment; the same on all CPUs where the kernel uses it as its clock.
#[inline]
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: reads a counter, which every x86-64 has; where the kernel forbids it (PR_SET_TSC) the program asked for that.
    unsafe { std::arch::x86_64::_rdtsc() }
}
