//! What the first access to a page after clear and flush is said to cost, beside what it costs a program that is larger than the
//! caches and comes back to its pages in no order.
#![allow(clippy::unwrap_used, clippy::undocumented_unsafe_blocks)]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::time::{ClockId, clock_gettime};
use varve_goals::Goals;
use varve_model::PAGE_BYTES;
use varve_sys::first_access_time;

/// 256 MiB.
const PAGES: usize = 1 << 16;

/// CPU time: others may want the CPU.
fn cpu_ns() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// All pages in no order, each once, and of each another line.
fn order() -> Vec<usize> {
    let mut state = 1u64;
    let mut pages: Vec<usize> = (0..PAGES).collect();
    for i in (1..PAGES).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        pages.swap(i, (state >> 33) as usize % (i + 1));
    }
    let page_bytes = PAGE_BYTES as usize;
    let place = |page: usize| page * page_bytes + page * 64 % page_bytes;
    pages.into_iter().map(place).collect()
}

/// What is said, as a share of what a large program pays.
fn said_of_paid(rounds: usize) -> f64 {
    let bytes = PAGES * PAGE_BYTES as usize;
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, rights, flags).unwrap() };
    let advise = |advice| unsafe { madvise(memory, bytes, advice) };
    let _ = advise(Advice::LinuxNoHugepage);
    let order = order();
    let sweep = || {
        let began = cpu_ns();
        for at in &order {
            let place = unsafe { memory.cast::<u8>().add(*at) };
            unsafe { place.write_volatile(place.read_volatile().wrapping_add(1)) };
        }
        (cpu_ns() - began) / PAGES as f64
    };
    let (mut plain, mut cleared) = (f64::MAX, f64::MAX);
    for _ in 0..rounds {
        sweep();
        plain = plain.min(sweep());
        advise(Advice::LinuxCold).unwrap();
        cleared = cleared.min(sweep());
    }
    unsafe { rustix::mm::munmap(memory, bytes).unwrap() };
    let costs = cleared - plain;
    let said = first_access_time().unwrap().0 as f64;
    println!("said {said} ns, costs {costs} ns");
    said / costs
}

fn main() {
    let mut goals = Goals::from_arguments("sys");
    let rounds = goals.rounds(5);
    // What it costs where all is in a cache is a fifth of it.
    let name = "first access: said, as a share of what is paid";
    goals.at_least(name, "", 0.4, || said_of_paid(rounds));
    goals.at_most(name, "", 3.0, || said_of_paid(rounds));
    std::process::exit(goals.finish());
}
