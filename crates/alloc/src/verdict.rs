//! Whether it is the allocator, in one sentence, and what that costs.

use serde::Serialize;
use ts_rs::TS;
use varve_analyse::format;

use crate::bounds::Side;
use crate::diagnoses::given_back;
use crate::{About, Judgement, Share};

/// Whether it is the allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, TS)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is not.
    No,
    /// It takes much of the time, and nothing is wrong with it: fewer operations, or another allocator, may help.
    Busy,
    /// Something is wrong with it, or with how it is used.
    Yes,
    /// Too little was seen to say so, or the run was too short.
    #[default]
    Unknown,
}

/// The verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct Verdict {
    /// Whether it is the allocator.
    pub answer: Answer,
    /// That as a sentence.
    pub sentence: String,
    /// The share of CPU time within operations, 0 to 1; null where it is not known.
    pub time_share: Option<f64>,
    /// With 95 % confidence that share is no further off than this; null where it is not known.
    pub time_share_error: Option<f64>,
    /// The share of the allocator's most resident memory that nobody had asked for at the peak, 0 to 1; null where it is not known.
    pub memory_share: Option<f64>,
}

/// So much of the time is worth a look.
const BUSY: f64 = 0.2;
/// A share is given with its error where that is more than this part of it.
const NOTABLE_ERROR: f64 = 0.1;
/// The sentence where nothing was counted, or next to nothing.
const UNCOUNTED: &str =
    "Whether the allocator is a problem is not known: operations were not counted.";
/// The sentence where the clocks cannot say how much it works, and more would have been counted elsewhere.
const UNCOUNTED_IN_PART: &str =
    "Whether the allocator is a problem is not known: some processes were not counted.";
/// Of fewer operations nothing is said.
const FEW_OPERATIONS: u64 = 100;

/// A share that is known so well is near a bound, rather than not known.
const NEAR: f64 = 0.05;

/// Whether the bound lies within its error.
fn is_unsure(share: Share) -> bool {
    share.side(BUSY) != Side::Above && share.share + share.error >= BUSY
}

/// Whether the share is near the bound: a longer run would tell on which side, and change nothing in what is to be done.
fn is_near(share: Share) -> bool {
    is_unsure(share) && share.error <= NEAR
}

/// Whether there is nothing to judge, because what the command ran was not counted: a few operations may be those of a program that began it.
fn lacks_the_program(about: &About, operations: u64) -> bool {
    about.uncounted_command || operations < FEW_OPERATIONS && about.lacks_processes()
}

/// Of a program of which nothing was counted.
pub(crate) fn uncounted() -> Verdict {
    Verdict {
        sentence: UNCOUNTED.to_owned(),
        ..Verdict::default()
    }
}

pub(crate) fn of(judgement: &Judgement) -> Verdict {
    let time_share = judgement.time.share();
    let memory = &judgement.memory;
    let peaks = memory
        .peak_heap_resident_bytes
        .zip(memory.peak_requested_bytes);
    let memory_share = peaks.map(|(resident, requested)| {
        let more = resident.0.saturating_sub(requested.0);
        more as f64 / resident.0.max(1) as f64
    });
    let count: u64 = judgement.operations.values().map(|o| o.count).sum();
    let name = &judgement.trace.allocator;
    let percent = |share: f64| format::percent((share * 1e6) as u64, 1_000_000);
    let takes = time_share.map_or_else(String::new, |share| {
        let error = if share.error > NOTABLE_ERROR * share.share || is_near(share) {
            format!(" (± {})", percent(share.error))
        } else {
            String::new()
        };
        let share = percent(share.share);
        // Where what it gives back comes again, its operations are the smaller part.
        let given = &judgement.given_back;
        let again = given.again.filter(|again| again.share > again.error);
        match again.filter(|_| given.again_bytes.0 > 0) {
            Some(again) => format!(
                " Its operations take {share}{error} of the CPU time, and page faults on memory that came again {}",
                percent(again.share)
            ),
            None => format!(" It takes {share}{error} of the CPU time"),
        }
    });
    let holds = match (peaks, takes.is_empty()) {
        (Some((resident, requested)), false) => {
            let (whose, program) = match judgement.processes.as_slice() {
                // The memory is one process's, the time that of all.
                [first, _, ..] => (
                    format!(
                        "its memory in process {} ({})",
                        first.pid.0,
                        first.exe.rsplit('/').next().unwrap_or(&first.exe)
                    ),
                    "the process",
                ),
                _ => ("its memory".to_owned(), "the program"),
            };
            format!(
                ", and {} of {whose} were resident when most was seen, for {} that {program} asked for.",
                format::bytes(resident),
                format::bytes(requested)
            )
        }
        _ if takes.is_empty() => String::new(),
        _ => ".".to_owned(),
    };
    // What is wrong with its memory cannot be known then, and a longer run would not say it.
    let lost = memory.uncounted.clone();
    let unsure = judgement.undecided_of_allocator();
    let (first, unsure, perhaps) = (
        judgement.allocators_diagnosis(),
        unsure.filter(|_| lost.is_none()),
        lost.or_else(|| given_back::perhaps(judgement)),
    );
    if first.is_none() && lacks_the_program(&judgement.trace, count) {
        return uncounted();
    }
    let is_short = time_share.is_none_or(|share| is_unsure(share) && !is_near(share));
    let (answer, what) = match (first, unsure, perhaps) {
        (Some(first), ..) => (
            Answer::Yes,
            format!("The allocator ({name}) is a problem: {}.", first.title),
        ),
        (None, Some(first), _) => (
            Answer::Unknown,
            format!(
                "Whether the allocator ({name}) is a problem is not known, as the run is too short: it may be that {}. A longer run says it.",
                first.title
            ),
        ),
        (None, None, Some(why)) => (
            Answer::Unknown,
            format!("Whether the allocator ({name}) is a problem is not known: {why}."),
        ),
        (None, None, None) if count < FEW_OPERATIONS => (
            Answer::Unknown,
            "Too few allocator operations were seen to judge.".to_owned(),
        ),
        (None, None, None) if is_short && judgement.trace.lacks_processes() => {
            (Answer::Unknown, UNCOUNTED_IN_PART.to_owned())
        }
        (None, None, None) if time_share.is_none() => (
            Answer::Unknown,
            format!(
                "Whether the allocator ({name}) works much is not known: no clock of a CPU found the program at work. A longer run says more."
            ),
        ),
        (None, None, None) if time_share.is_some_and(is_near) => (
            Answer::Busy,
            format!(
                "The allocator ({name}) works rather much, and nothing is wrong with it: fewer allocations, or another allocator, may help."
            ),
        ),
        (None, None, None) if time_share.is_some_and(is_unsure) => (
            Answer::Unknown,
            format!(
                "Whether the allocator ({name}) works much is not known, as the run is too short: {} of the CPUs' clocks cannot tell its share of the time from {}. A longer run says it.",
                format::counted(judgement.time.samples, "sample"),
                percent(BUSY)
            ),
        ),
        (None, None, None) if time_share.is_some_and(|share| share.side(BUSY) == Side::Above) => (
            Answer::Busy,
            format!(
                "The allocator ({name}) works much, and nothing is wrong with it: allocate less often, or compare others."
            ),
        ),
        (None, None, None) => (
            Answer::No,
            format!("The allocator ({name}) is not your problem."),
        ),
    };
    Verdict {
        answer,
        sentence: format!("{what}{takes}{holds}"),
        time_share: time_share.map(|s| s.share),
        time_share_error: time_share.map(|s| s.error),
        memory_share,
    }
}

#[cfg(test)]
mod tests {
    use varve_model::{Bytes, Duration};

    use super::*;
    use crate::{Diagnosis, GivenBack, Memory, OperationFigures, Times, UnknownTouches, made};

    /// A program that allocates little: a hundredth of its time.
    fn judgement() -> Judgement {
        let mut judgement = made::judgement();
        judgement.trace.allocator = "glibc".into();
        let malloc = OperationFigures {
            count: 1000,
            ..OperationFigures::default()
        };
        judgement.operations.insert("malloc".into(), malloc);
        judgement.time = Times {
            cpu_ns: Duration(1_000_000_000),
            sampled: Share::of(10, 1000),
            samples: 1000,
            ..Times::default()
        };
        judgement
    }

    #[test]
    fn what_may_cost_much_is_not_called_no_problem() {
        let mut judgement = judgement();
        let verdict = of(&judgement);
        assert_eq!(verdict.answer, Answer::No);
        assert!(verdict.sentence.contains("not your problem"));
        judgement.given_back = GivenBack {
            bytes: Bytes(1 << 30),
            unknown: Some(UnknownTouches {
                at_most: Share {
                    share: 0.4,
                    error: 0.03,
                },
                why: "the program ran before".into(),
            }),
            ..GivenBack::default()
        };
        let verdict = of(&judgement);
        assert_eq!(verdict.answer, Answer::Unknown);
        assert!(
            verdict.sentence.starts_with(
                "Whether the allocator (glibc) is a problem is not known: it gave up to 1 GiB back"
            ),
            "{}",
            verdict.sentence
        );
        assert!(!verdict.sentence.contains("not your problem"));
    }

    /// As of blocks of a gigabyte on huge pages, which a few operations map and unmap.
    #[test]
    fn few_operations_are_no_reason_where_there_is_another() {
        let mut judgement = judgement();
        judgement.operations.clear();
        assert!(of(&judgement).sentence.starts_with("Too few"));
        judgement.given_back = GivenBack {
            bytes: Bytes(50 << 30),
            unknown: Some(UnknownTouches {
                at_most: Share {
                    share: 0.4,
                    error: 0.03,
                },
                why: "a page fault may have brought more than 4 KiB (huge pages)".into(),
            }),
            ..GivenBack::default()
        };
        let verdict = of(&judgement);
        assert_eq!(verdict.answer, Answer::Unknown);
        let sentence = &verdict.sentence;
        assert!(sentence.contains("huge pages"), "{sentence}");
        assert!(!sentence.contains("Too few"), "{sentence}");
    }

    /// As where `env` replaces LD_PRELOAD: its own operations are counted, and those of the program that it becomes are not.
    #[test]
    fn a_command_that_was_not_counted_is_not_judged_by_what_began_it() {
        let mut judgement = judgement();
        judgement.trace.uncounted = Some("Operations of 1 process were not counted.".into());
        assert_eq!(of(&judgement).answer, Answer::No);
        judgement.time.sampled = Share::of(1, 8);
        judgement.time.samples = 8;
        assert!(of(&judgement).sentence.contains("some processes"));
        judgement.trace.uncounted = None;
        assert!(of(&judgement).sentence.contains("the run is too short"));
        judgement.trace.uncounted_command = true;
        assert_eq!(of(&judgement), uncounted());
        judgement.time.sampled = Share::of(10, 1000);
        assert_eq!(of(&judgement), uncounted());
    }

    #[test]
    fn of_memory_that_is_not_known_nothing_is_said() {
        let mut judgement = judgement();
        let known = Memory {
            peak_requested_bytes: Some(Bytes(8 << 20)),
            peak_heap_resident_bytes: Some(Bytes(10 << 20)),
            ..Memory::default()
        };
        judgement.memory = known;
        let verdict = of(&judgement);
        assert_eq!(verdict.answer, Answer::No);
        assert!(verdict.sentence.contains("10 MiB of its memory"));
        assert!(verdict.memory_share.is_some());
        judgement.memory = Memory {
            uncounted: Some("7 operations were not counted".into()),
            ..Memory::default()
        };
        let unknown = "Whether the allocator (glibc) is a problem is not known: 7 operations were not counted. It takes 1 % (± 0.6 %) of the CPU time.";
        let verdict = of(&judgement);
        assert_eq!(verdict.answer, Answer::Unknown);
        assert_eq!(verdict.sentence, unknown);
        assert_eq!(verdict.memory_share, None);
        // A longer run would not count them either.
        let lock = Diagnosis {
            id: "lock",
            title: "its threads wait for each other".into(),
            evidence: String::new(),
            advice: String::new(),
            share: 0.3,
            share_of: "the CPU time",
            by_program: false,
        };
        judgement.undecided = vec![lock.clone()];
        assert_eq!(of(&judgement).sentence, unknown);
        // What is certain stays.
        judgement.diagnoses = vec![lock];
        assert_eq!(of(&judgement).answer, Answer::Yes);
    }

    #[test]
    fn page_faults_on_memory_that_came_again_are_said_beside_operations() {
        let mut judgement = judgement();
        let share = |share| Some(Share { share, error: 0.02 });
        judgement.given_back.again = share(0.83);
        assert!(of(&judgement).sentence.contains("It takes 1 %"));
        judgement.given_back.again_bytes = Bytes(1 << 30);
        let sentence = of(&judgement).sentence;
        assert!(sentence.contains("Its operations take 1 %"), "{sentence}");
        let again = "and page faults on memory that came again 83 %";
        assert!(sentence.contains(again), "{sentence}");
        judgement.given_back.again = share(0.01);
        assert!(of(&judgement).sentence.contains("It takes 1 %"));
    }
}
