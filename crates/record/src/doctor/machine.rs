//! Facts of the machine that change what a recording sees.

use std::fs;

use super::Check;

pub(super) fn ageing() -> Check {
    let daemon = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .any(|entry| {
            fs::read_to_string(entry.path().join("comm")).is_ok_and(|c| c.starts_with("kdamond"))
        });
    Check::note(
        "DAMON",
        "others who take accessed bits",
        if daemon {
            "running: what it takes is recovered from page flags".into()
        } else {
            "not running".into()
        },
    )
}

pub(super) fn reclaim() -> Check {
    let generations = fs::read_to_string("/sys/kernel/mm/lru_gen/enabled").ok();
    let on = generations.is_some_and(|g| g.trim() != "0x0000");
    Check::note(
        "reclaim",
        "takes accessed bits for good; what it scans is counted as a loss",
        if on {
            "multi-generational LRU"
        } else {
            "two lists"
        }
        .into(),
    )
}

pub(super) fn huge_pages() -> Check {
    let text =
        fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = text.split('[').nth(1).and_then(|t| t.split(']').next());
    Check::note(
        "transparent huge pages",
        "one accessed bit for 2 MiB; --thp=never shows 4 KiB",
        chosen.unwrap_or("not in this kernel").to_owned(),
    )
}
