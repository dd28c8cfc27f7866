//! Threads that wait for each other: for the allocator's locks, and for the kernel's lock of mappings.

use varve_analyse::format;
use varve_model::Duration;

use super::{Diagnosis, Found, advice, callers_of, calls, calls_within_frees, came_from};
use crate::bounds::Side;
use crate::figures::CONFIDENCE;
use crate::{Judgement, LockWaits, Share};

/// Waits of so much of the time of all operations are too long ...
const WAITS_SHARE: f64 = 0.25;
/// ... where they are so much of the CPU time.
const WAITS_OF_CPU: f64 = 0.1;
/// Of two kinds of locks one alone is named where the waits for it are so much of all: else both are.
const NEARLY_ALL: f64 = 0.75;

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
    let parts = Parts {
        kernel: lock,
        of_kernel: of_kernel.0 as f64 / waited.0.max(1) as f64,
    };
    let each = format::duration(Duration((of_cpu * 1e9) as u64));
    let cause = lock.map(|lock| Cause::of(judgement, lock));
    Some((
        side,
        Diagnosis {
            id: "lock",
            title: parts.title(cause),
            evidence: format!(
                "{}; their operations waited {} for locks, {each} for each second of CPU time: {}.{}",
                allocating(judgement),
                format::duration(waited),
                of_each(judgement, looping),
                parts.callers(judgement),
            ),
            advice: parts.advice(judgement, cause),
            share: of_cpu.min(1.0),
            share_of: "the CPU time",
            by_program: parts.is_programs(judgement, cause),
        },
    ))
}

/// How many threads allocate.
fn allocating(judgement: &Judgement) -> String {
    let threads = judgement.threads.iter().filter(|t| t.count > 100).count() as u64;
    match threads {
        1 => "1 thread allocates".to_owned(),
        threads => format!("{} threads allocate", format::count(threads)),
    }
}

/// How long each kind of waits was.
fn of_each(judgement: &Judgement, looping: f64) -> String {
    let lock = judgement.mmap_lock.as_ref();
    let in_kernel = lock.map_or(0, |lock| lock.time_ns.0.saturating_sub(lock.spun_ns.0));
    let asleep = Duration(judgement.time.waited_ns.0.saturating_sub(in_kernel));
    let mut parts = Vec::new();
    let count = count_of(judgement);
    if count > 0 {
        parts.push(format!(
            "{} in {}{}",
            format::duration(asleep),
            format::counted(count, "system call"),
            names_of(judgement)
        ));
    }
    if looping > 0.0 {
        let looping = format::duration(Duration(looping as u64));
        parts.push(format!("{looping} in loops that pause"));
    }
    if let Some(lock) = lock.filter(|lock| lock.waits > 0) {
        parts.push(format!(
            "{} {} for mmap_lock",
            format::duration(lock.time_ns),
            format::counted(lock.waits, "time")
        ));
    }
    parts.join(", ")
}

/// What the waits are for.
struct Parts<'a> {
    kernel: Option<&'a LockWaits>,
    /// The share of the lock of mappings.
    of_kernel: f64,
}

impl Parts<'_> {
    /// Whether the lock of mappings is to be named.
    fn has_kernel(&self) -> bool {
        self.of_kernel > 1.0 - NEARLY_ALL
    }

    /// Whether locks of the allocator's own are.
    fn has_own(&self) -> bool {
        self.of_kernel < NEARLY_ALL
    }

    fn title(&self, cause: Option<Cause>) -> String {
        let as_what = cause.map_or_else(String::new, Cause::clause);
        match (self.has_own(), self.has_kernel()) {
            (true, false) => "its threads wait for each other's locks".to_owned(),
            (true, true) => format!(
                "its threads wait for each other's locks and for that of the process's mappings (mmap_lock){as_what}"
            ),
            (false, _) => format!(
                "its threads wait for the lock of the process's mappings (mmap_lock){as_what}"
            ),
        }
    }

    /// Who waited.
    fn callers(&self, judgement: &Judgement) -> String {
        match self.kernel.filter(|_| !self.has_own()) {
            Some(lock) => came_from(&lock.sites, lock.waits, "Most of the waits"),
            None => callers_of(judgement, "futex"),
        }
    }

    fn advice(&self, judgement: &Judgement, cause: Option<Cause>) -> String {
        const OWN: &str = "Take an allocator with caches for each thread (jemalloc, mimalloc, tcmalloc), or have each thread reuse its own blocks.";
        let of_kernel = cause.filter(|_| self.has_kernel());
        let of_kernel = of_kernel.map(|cause| cause.advice(judgement));
        let own = self.has_own().then(|| OWN.to_owned());
        let both: Vec<String> = own.into_iter().chain(of_kernel).collect();
        both.join(" ")
    }

    /// Whether another allocator would make the same calls.
    fn is_programs(&self, judgement: &Judgement, cause: Option<Cause>) -> bool {
        !self.has_own() && cause == Some(Cause::InTurn) && advice::trims(judgement)
    }
}

/// What operations do with mappings while others wait for their lock, by the system calls within them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// Memory goes back to the kernel, and is taken again.
    InTurn,
    /// It grows, most often by this call.
    Grows(&'static str),
    /// Nearly all waits are in no such calls: they are page faults.
    Faults,
    /// Neither calls nor page faults were seen.
    Unknown,
}

/// System calls that change mappings and hold their lock.
const MAPPING: [&str; 6] = ["mmap", "munmap", "mremap", "mprotect", "brk", "madvise"];
/// Those by which memory is taken.
const TAKING: [&str; 4] = ["mprotect", "brk", "mmap", "mremap"];
/// Waits are mostly in page faults where they are more than so many times the calls: a call waits once, and brings a page fault or so with it.
const MOSTLY: u64 = 4;
/// It goes back in turn where so large a part of the other calls give it back, as one in so many: one that only grows has next to none.
const IN_TURN: u64 = 4;

impl Cause {
    fn of(judgement: &Judgement, lock: &LockWaits) -> Cause {
        let (all, ..) = calls(judgement, &MAPPING);
        let returned = advice::Returned::of(judgement).all();
        let is_in_turn = returned > 0 && returned * IN_TURN >= all.saturating_sub(returned);
        let is_in_faults = all.saturating_mul(MOSTLY) < lock.waits;
        let taking = |name: &str| {
            let (count, by_frees) = calls_within_frees(judgement, name);
            count.saturating_sub(by_frees)
        };
        // The first of those that are as many.
        let most = TAKING.into_iter().rev().max_by_key(|name| taking(name));
        match most.filter(|name| taking(name) > 0) {
            _ if is_in_faults && judgement.faults.inside > 0 => Cause::Faults,
            _ if is_in_faults => Cause::Unknown,
            _ if is_in_turn => Cause::InTurn,
            Some(name) => Cause::Grows(name),
            None => Cause::Unknown,
        }
    }

    /// As the end of a sentence.
    fn clause(self) -> String {
        match self {
            Cause::InTurn => ", as it maps and unmaps memory again and again".to_owned(),
            Cause::Grows(name) => format!(", as its memory grows by many calls ({name})"),
            Cause::Faults => ", in page faults on memory that it touches first".to_owned(),
            Cause::Unknown => String::new(),
        }
    }

    fn advice(self, judgement: &Judgement) -> String {
        let is_glibc = judgement.trace.allocator == "glibc";
        match self {
            Cause::InTurn => advice::to_keep(judgement),
            Cause::Grows("brk") if is_glibc => {
                "Have it take more at once: MALLOC_TOP_PAD_=67108864 in the environment (M_TOP_PAD of mallopt).".to_owned()
            }
            Cause::Grows("mprotect") if is_glibc => {
                "glibc's arenas of threads grow by the pages that a block needs, and neither bounds nor M_TOP_PAD change that: allocate more at once, reuse blocks, or take an allocator that maps more at once (jemalloc, mimalloc, tcmalloc).".to_owned()
            }
            Cause::Grows(_) => {
                "Allocate more at once, reuse blocks, or take an allocator that maps more at once (jemalloc, mimalloc, tcmalloc).".to_owned()
            }
            Cause::Faults | Cause::Unknown => {
                "Have what else maps and unmaps memory in the program do so less often (its own mmap, munmap and mprotect, threads that begin and end): others wait for it as they touch memory. From Linux 6.4 on most page faults do not ask for this lock.".to_owned()
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use varve_model::Bytes;

    use super::*;
    use crate::{CallFigures, Times, made};

    /// Half a second of waits in a second of CPU time, of which this part was for the lock of mappings, a thousand times; and so many calls within
    /// glibc's operations, of which so many were within frees.
    fn judgement(of_kernel: f64, calls: &[(&str, u64, u64)]) -> Judgement {
        const WAITED: f64 = 5e8;
        let mut of = made::judgement();
        of.trace.allocator = "glibc".into();
        of.time = Times {
            cpu_ns: Duration(1_000_000_000),
            sampled: Share::of(100, 1000),
            samples: 1000,
            waited_ns: Duration(WAITED as u64),
            ..Times::default()
        };
        of.mmap_lock = Some(LockWaits {
            waits: 1000,
            time_ns: Duration((WAITED * of_kernel) as u64),
            ..LockWaits::default()
        });
        let call = |(name, count, by_frees): &(&str, u64, u64)| CallFigures {
            name: (*name).to_owned(),
            count: *count,
            by_frees: *by_frees,
            failed: 0,
            time_ns: Duration(0),
            queued_ns: Duration(0),
            bytes: Bytes(0),
            per_operation: 0.0,
            sites: Vec::new(),
        };
        of.syscalls = calls.iter().map(call).collect();
        of
    }

    fn found(of: &Judgement) -> Diagnosis {
        let (side, found) = lock(of).expect("they wait");
        assert_eq!((side, found.id), (Side::Above, "lock"));
        found
    }

    /// Eight arenas, each mapped, cut to its alignment, and grown.
    const GROWS: [(&str, u64, u64); 3] = [("mprotect", 5000, 0), ("mmap", 8, 0), ("munmap", 16, 0)];

    #[test]
    fn memory_that_only_grows_is_not_unmapped() {
        let arenas = found(&judgement(1.0, &GROWS));
        let clause = "(mmap_lock), as its memory grows by many calls (mprotect)";
        assert!(arenas.title.ends_with(clause), "{}", arenas.title);
        let advice = &arenas.advice;
        assert!(advice.contains("M_TOP_PAD") && !advice.contains("THRESHOLD"));
        let heap = found(&judgement(1.0, &[("brk", 3000, 40)]));
        assert!(heap.title.ends_with("(brk)"), "{}", heap.title);
        assert!(heap.advice.contains("MALLOC_TOP_PAD_"), "{}", heap.advice);
    }

    #[test]
    fn memory_that_comes_and_goes_is_mapped_in_turn() {
        let of = judgement(1.0, &[("mmap", 3000, 0), ("munmap", 3000, 3000)]);
        let of = found(&of);
        assert!(of.title.contains("maps and unmaps"), "{}", of.title);
        assert!(of.advice.contains("THRESHOLD"), "{}", of.advice);
    }

    #[test]
    fn page_faults_wait_where_there_are_few_calls() {
        let mut of = judgement(1.0, &[("mmap", 10, 0), ("munmap", 10, 10)]);
        let title = found(&of).title;
        assert!(title.ends_with("(mmap_lock)"), "{title}");
        of.faults.inside = 4000;
        let title = found(&of).title;
        assert!(title.contains("in page faults"), "{title}");
    }

    /// How long waits were varies from run to run: it decides nothing but whether one kind has nearly all of it.
    #[test]
    fn the_name_follows_from_counts() {
        let mut calls = GROWS.to_vec();
        calls.push(("futex", 1000, 500));
        let title = |of_kernel| found(&judgement(of_kernel, &calls)).title;
        assert_eq!(title(0.3), title(0.7));
        assert!(title(0.5).contains("each other's locks and for that of"));
        assert!(title(0.5).contains("(mprotect)"));
        assert_eq!(title(0.1), "its threads wait for each other's locks");
        assert_eq!(title(0.8), title(1.0));
        let advice = found(&judgement(0.5, &calls)).advice;
        assert!(advice.contains("caches for each thread") && advice.contains("M_TOP_PAD"));
    }
}
