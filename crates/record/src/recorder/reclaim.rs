//! What reclaim does to the bits that a scan reads.

/// Pages that reclaim has looked at since boot, where the kernel counts them.
pub(crate) fn reclaim() -> Option<i64> {
    let counters = varve_sys::vmstat(|name| {
        matches!(
            name,
            "pgscan_kswapd" | "pgscan_direct" | "pgscan_khugepaged" | "pgscan_proactive"
        )
    });
    let counters = counters.ok()?;
    (!counters.is_empty()).then(|| counters.iter().map(|(_, v)| v).sum())
}
