//! Threads that wait for each other: for the allocator's locks, and for the kernel's lock of mappings.

use varve_analyse::format;
use varve_model::Duration;

use super::{Diagnosis, Found, callers_of, calls, came_from};
use crate::bounds::Side;
use crate::figures::CONFIDENCE;
use crate::{Judgement, Share};

/// Waits of so much of the time of all operations are too long ...
const WAITS_SHARE: f64 = 0.25;
/// ... where they are so much of the CPU time.
const WAITS_OF_CPU: f64 = 0.1;

/// Threads wait for each other.
pub(super) fn lock(judgement: &Judgement) -> Found {
    let lock = judgement.mmap_lock.as_ref();
    let of_kernel = lock.map_or(Duration(0), |lock| lock.time_ns);
    let cpu = judgement.time.cpu_ns.0.max(1) as f64;
    // Loops that wait for a thread take CPU time.
    let spinning = judgement.time.spinning.unwrap_or_default();
    let looping = spinning.share * cpu;
    let spun = lock.map_or(0, |lock| lock.spun_ns.0) + looping as u64;
    let waited = Duration(judgement.time.waited_ns.0.saturating_add(spun));
    // Their CPU time, as the clocks saw it, and their waits: an operation that was timed may have waited for a CPU, which is no wait for a lock.
    let in_operations = judgement.time.share().unwrap_or_default();
    let all = in_operations.share * cpu + judgement.time.waited_ns.0 as f64;
    let all = all.max(1.0);
    // What is known of loops is as far off as their samples say, where there are any.
    let loops_error = match looping > 0.0 {
        true => spinning.error,
        false => 0.0,
    };
    // Few waits may be long by chance, as where who has the lock has no CPU.
    let count = count_of(judgement) + lock.map_or(0, |lock| lock.waits);
    let by_chance = CONFIDENCE / (count.max(1) as f64).sqrt();
    let in_calls = waited.0.saturating_sub(looping as u64);
    let of_calls = judgement.time.of_cpu(in_calls);
    let of_cpu = Share {
        share: of_calls.share + spinning.share,
        error: of_calls.error + of_calls.share * by_chance + loops_error,
    };
    let of_operations = waited.0 as f64 / all;
    let of_operations = Share {
        share: of_operations,
        error: (in_calls as f64 * by_chance
            + loops_error * cpu
            + of_operations * in_operations.error * cpu)
            / all,
    };
    let side = Side::all([of_operations.side(WAITS_SHARE), of_cpu.side(WAITS_OF_CPU)]);
    if side == Side::Below {
        return None;
    }
    let of_cpu = of_cpu.share;
    let threads = judgement.threads.iter().filter(|t| t.count > 100).count() as u64;
    let who = match threads {
        1 => "1 thread allocates".to_owned(),
        threads => format!("{} threads allocate", format::count(threads)),
    };
    let each = format::duration(Duration((of_cpu * 1e9) as u64));
    let id = "lock";
    let share = of_cpu.min(1.0);
    let share_of = "the CPU time";
    if let Some(lock) = lock.filter(|_| of_kernel.0 * 2 > waited.0) {
        let from = came_from(&lock.sites, lock.waits, "Most of the waits");
        return Some((side, Diagnosis {
            id,
            title: "its threads wait for the lock of the process's mappings (mmap_lock), as it maps and unmaps memory again and again".into(),
            evidence: format!(
                "{who}; their operations waited {} for locks, {} of it {} for mmap_lock, {each} for each second of CPU time.{from}",
                format::duration(waited),
                format::duration(of_kernel),
                format::counted(lock.waits, "time"),
            ),
            advice: "Have it map less often: let it keep what is free (glibc: MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_; jemalloc: MALLOC_CONF=retain:true,dirty_decay_ms:10000), or keep large blocks instead of freeing them.".into(),
            share,
            share_of,
            by_program: false,
        }));
    }
    let (count, names) = (count_of(judgement), names_of(judgement));
    let mut besides = String::new();
    if looping > 0.0 {
        let looping = format::duration(Duration(looping as u64));
        besides.push_str(&format!(", and {looping} in loops that pause"));
    }
    if of_kernel.0 > 0 {
        let of_kernel = format::duration(of_kernel);
        besides.push_str(&format!(", and {of_kernel} for mmap_lock"));
    }
    let in_kernel = lock.map_or(0, |lock| lock.time_ns.0.saturating_sub(lock.spun_ns.0));
    let asleep = Duration(judgement.time.waited_ns.0.saturating_sub(in_kernel));
    Some((side, Diagnosis {
        id,
        title: "its threads wait for each other's locks".into(),
        evidence: format!(
            "{who}; their operations waited {} in {}{names}{besides}: {each} for each second of CPU time.{}",
            format::duration(asleep),
            format::counted(count, "system call"),
            callers_of(judgement, "futex"),
        ),
        advice: "Take an allocator with caches for each thread (jemalloc, mimalloc, tcmalloc), or have each thread reuse its own blocks.".into(),
        share,
        share_of,
        by_program: false,
    }))
}

/// System calls that wait.
const WAITING: [&str; 4] = ["futex", "sched_yield", "nanosleep", "clock_nanosleep"];

/// How many there were.
fn count_of(judgement: &Judgement) -> u64 {
    calls(judgement, &WAITING).0
}

/// Which of them there were, in brackets.
fn names_of(judgement: &Judgement) -> String {
    let found = judgement.syscalls.iter().filter(|call| call.count > 0);
    let found = found.filter(|call| WAITING.contains(&call.name.as_str()));
    let names: Vec<&str> = found.map(|call| call.name.as_str()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(" ({})", names.join(", ")),
    }
}
