//! What a page costs that is read from swap, measured on this machine: a small program of ours goes over more memory than it may have.

use std::ffi::OsString;
use std::hint::black_box;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};
use varve_model::{Bytes, Duration};
use varve_sys::{GroupUsage, Signals};
use varve_tier::fit::PagePrices;

use super::machine::{Ended, Machine};
use crate::commands::Failure;

const PAGE: usize = 4096;
/// Pages that the program goes over: a power of two.
const PAGES: usize = 1 << 13;
/// Rounds in each order.
const ROUNDS: usize = 2;
/// Longer than this a probe never takes.
const LONGEST: Duration = Duration(300_000_000_000);

/// `varve fit-probe`: not for people.
#[derive(Debug, Args)]
pub(crate) struct FitProbe {}

/// What the probe says: of each part how long it took, and how many pages were read from swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Said {
    fill_ns: f64,
    in_order_ns: f64,
    in_order_reads: u64,
    any_order_ns: f64,
    any_order_reads: u64,
}

/// Goes over memory.
pub(crate) fn run(_: &FitProbe) -> Result<ExitCode, Failure> {
    let failed =
        |e: std::io::Error| Failure::new(format!("cannot probe swap: {e}"), None::<String>);
    let mut content = Vec::new();
    std::io::stdin().read_to_end(&mut content).map_err(failed)?;
    let samples: Vec<&[u8]> = content.chunks_exact(PAGE).collect();
    let group = own_group();
    let reads = || {
        group
            .as_deref()
            .map_or(0, |g| GroupUsage::of(g).anonymous_refaults)
    };
    let mut memory = vec![0_u8; PAGES * PAGE];
    let began = Instant::now();
    for (at, page) in memory.chunks_exact_mut(PAGE).enumerate() {
        match samples.get(at % samples.len().max(1)) {
            Some(sample) => page.copy_from_slice(sample),
            None => made_up(page, at),
        }
    }
    let fill_ns = began.elapsed().as_nanos() as f64;
    let mut go = |order: &dyn Fn(usize) -> usize| {
        let before = reads();
        let began = Instant::now();
        for _ in 0..ROUNDS {
            for at in 0..PAGES {
                let byte = &mut memory[order(at) * PAGE];
                *byte = black_box(byte.wrapping_add(1));
            }
        }
        let took = began.elapsed().as_nanos() as f64;
        (took, reads().saturating_sub(before))
    };
    let (in_order_ns, in_order_reads) = go(&|at| at);
    // Times an odd number, modulo a power of two, is a permutation.
    let (any_order_ns, any_order_reads) = go(&|at| at.wrapping_mul(0x9e37_79b1) % PAGES);
    let said = Said {
        fill_ns,
        in_order_ns,
        in_order_reads,
        any_order_ns,
        any_order_reads,
    };
    let text = serde_json::to_string(&said).unwrap_or_default();
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(failed)?;
    Ok(ExitCode::SUCCESS)
}

/// Contents that compress to about a half, where nothing of the program is known.
fn made_up(page: &mut [u8], number: usize) {
    let mut x = number as u64 + 1;
    for word in page[..PAGE / 2].chunks_exact_mut(8) {
        x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        word.copy_from_slice(&(x ^ (x >> 29)).to_ne_bytes());
    }
    page[PAGE - 1] = 1;
}

/// The folder of the cgroup that accounts this process's memory.
fn own_group() -> Option<PathBuf> {
    varve_sys::LimitPlace::find().ok().map(|place| place.home)
}

/// Measures prices, with these pages.
pub(super) fn prices(
    machine: &mut Machine,
    pages: &[Vec<u8>],
    signals: &mut Signals,
) -> Result<PagePrices, Failure> {
    let cannot =
        |e: std::io::Error| Failure::new(format!("cannot probe swap: {e}"), None::<String>);
    // Without a name: nobody else reads what a program has in memory.
    let mut input = tempfile::tempfile().map_err(cannot)?;
    for page in pages {
        input.write_all(page).map_err(cannot)?;
    }
    let own = std::env::current_exe().map_err(cannot)?;
    let words = [own.into_os_string(), OsString::from("fit-probe")];
    let mut once = |limit: Option<Bytes>| -> Result<(Said, Ended), Failure> {
        let ended = machine.run_fed(&words, limit, signals, Some(LONGEST), None, Some(&input))?;
        let said = serde_json::from_slice(&ended.output).map_err(|_| {
            Failure::new(
                match ended.out_of_memory || ended.too_slow {
                    true => "a probe of ours could not run under a limit of its memory: swap is too slow or full",
                    false => "a probe of ours ended without a word",
                },
                Some("look at `swapon --show` and at the kernel's log"),
            )
        })?;
        Ok((said, ended))
    };
    let (free, all) = once(None)?;
    let limit = Bytes(all.peak.0.saturating_sub((PAGES / 2 * PAGE) as u64));
    let (tight, ended) = once(Some(limit))?;
    let left = (all.peak.0 - limit.0) / PAGE as u64;
    found(&free, &tight, left).ok_or_else(|| {
        Failure::new(
            format!(
                "a probe of ours that may have half of its memory read {} pages from swap: what one costs could not be measured",
                ended.reads
            ),
            Some("look whether swap is on (`swapon --show`) and whether the cgroup may use it (memory.swap.max)"),
        )
    })
}

/// The prices that follow from a run with all memory and one with half; `left` pages had to leave while it was filled.
fn found(free: &Said, tight: &Said, left: u64) -> Option<PagePrices> {
    let each = |tight_ns: f64, free_ns: f64, pages: u64| {
        (pages > 0).then(|| (tight_ns - free_ns).max(0.0) / pages as f64)
    };
    let write_ns = each(tight.fill_ns, free.fill_ns, left)?;
    // Who reads a page has another one leave.
    let of_read = |both: f64| (both - write_ns).max(both / 10.0);
    let any = each(tight.any_order_ns, free.any_order_ns, tight.any_order_reads)?;
    let near = each(tight.in_order_ns, free.in_order_ns, tight.in_order_reads)?;
    Some(PagePrices {
        read_ns: of_read(any),
        near_read_ns: of_read(near),
        write_ns,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_differences() {
        let free = Said {
            fill_ns: 1000.0,
            in_order_ns: 100.0,
            any_order_ns: 200.0,
            ..Said::default()
        };
        let tight = Said {
            fill_ns: 31_000.0,
            in_order_ns: 50_100.0,
            in_order_reads: 10,
            any_order_ns: 80_200.0,
            any_order_reads: 10,
        };
        let found = found(&free, &tight, 10);
        let expected = PagePrices {
            read_ns: 5000.0,
            near_read_ns: 2000.0,
            write_ns: 3000.0,
        };
        assert_eq!(found, Some(expected));
        // Nothing was read: there is no price.
        assert_eq!(super::found(&free, &free, 10), None);
    }
}
