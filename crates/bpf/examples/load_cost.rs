//! What loading the programs takes: `cargo run --release -p varve-bpf --example load_cost`
//!
//! For each kind of recording, the least time of some loads, and how many instructions of each program the verifier looked at. The time is
//! not in proportion to those: it also changes programs that it has looked at, which takes the longer the larger they are.

use std::time::{Duration, Instant};

use varve_bpf::{Kernel, LoadOptions, VanishHooks};

const ROUNDS: usize = 7;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let scan = LoadOptions::default();
    let exact = LoadOptions {
        vanish: VanishHooks::Calls,
        ..scan.clone()
    };
    let operations = LoadOptions {
        pages: false,
        faults: false,
        samples: false,
        operations: true,
        ..scan.clone()
    };
    for (name, options) in [
        ("record", scan),
        ("record --vanish exact", exact),
        ("alloc record", operations),
    ] {
        let mut least = Duration::MAX;
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let kernel = Kernel::load(&options)?;
            least = least.min(began.elapsed());
            drop(kernel);
        }
        println!("{name}: {least:?}");
        let mut programs = Kernel::load(&options)?.programs()?;
        programs.sort_by_key(|program| std::cmp::Reverse(program.verified));
        let sum: u64 = programs.iter().map(|p| u64::from(p.verified)).sum();
        println!("{sum:>8} instructions in {} programs", programs.len());
        for program in programs {
            println!("{:>8} {}", program.verified, program.name);
        }
    }
    Ok(())
}
