//! Memory that goes back to the kernel, and that the allocator takes from it again: the calls take time, and so do first touches of the memory that came
//! again.

use varve_analyse::format;
use varve_model::Duration;

use super::{CALLS_SHARE, Diagnosis, Found, advice, callers_of, calls, percent};
use crate::bounds::Side;
use crate::{Judgement, Share};

/// How memory was given back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By `madvise`.
    Advised,
    /// By `munmap` and `brk`.
    Unmapped,
}

/// The share of CPU time in first touches of memory that came again, where most was given back in this way.
fn touches(judgement: &Judgement, way: Way) -> Option<Share> {
    let given = &judgement.given_back;
    let most = match given.advised_bytes.0 > given.bytes.0 / 2 {
        true => Way::Advised,
        false => Way::Unmapped,
    };
    given
        .again
        .filter(|_| given.again_bytes.0 > 0 && most == way)
}

/// The cost of calls, with the first touches that they cause.
struct Cost {
    side: Side,
    /// Of the CPU time.
    share: f64,
    /// How long both took, as the end of a sentence that begins with the calls.
    took: String,
}

/// `by_calls`: on which side of their bounds the calls lie by themselves. Where memory came again the number of calls does not matter.
fn cost(
    judgement: &Judgement,
    (calls, time): (Share, Duration),
    by_calls: Side,
    touches: Option<Share>,
) -> Cost {
    let Some(again) = touches else {
        return Cost {
            side: by_calls,
            share: calls.share,
            took: format!(
                "{}, {} of the CPU time",
                format::duration(time),
                percent(calls.share)
            ),
        };
    };
    let both = Share {
        share: (calls.share + again.share).min(1.0),
        error: calls.error + again.error,
    };
    let given = &judgement.given_back;
    let of_cpu = |share: f64| Duration((share * judgement.time.cpu_ns.0 as f64) as u64);
    Cost {
        side: by_calls.max(both.side(CALLS_SHARE)),
        share: both.share,
        took: format!(
            "{}. Of {} that operations gave back {} came again at least, and the first touches of that by the program itself, outside of operations, took {} ± {}: with the calls {} of the CPU time",
            format::duration(time),
            format::bytes(given.bytes),
            format::bytes(given.again_bytes),
            format::duration(of_cpu(again.share)),
            format::duration(of_cpu(again.error)),
            percent(both.share)
        ),
    }
}

/// Memory is given back to the kernel only to be taken again.
pub(super) fn storm(judgement: &Judgement) -> Found {
    let (count, time, of_cpu) = calls(judgement, &["madvise"]);
    let by_calls = Side::all([of_cpu.side(CALLS_SHARE), Side::exact(count >= 100)]);
    let touches = touches(judgement, Way::Advised);
    let cost = cost(judgement, (of_cpu, time), by_calls, touches);
    if cost.side == Side::Below {
        return None;
    }
    let operations: u64 = judgement.operations.values().map(|o| o.count).sum();
    let by_program = advice::trims(judgement);
    Some((cost.side, Diagnosis {
        id: "madvise_storm",
        title: match by_program {
            true => "the program has free memory given back to the kernel (malloc_trim) again and again, and takes it anew".into(),
            false => "it gives memory back to the kernel (madvise) again and again, and takes it anew".into(),
        },
        evidence: format!(
            "{} of madvise within {} took {}.{}",
            format::counted(count, "call"),
            format::counted(operations, "operation"),
            cost.took,
            callers_of(judgement, "madvise"),
        ),
        advice: advice::to_keep(judgement),
        share: cost.share,
        share_of: "the CPU time",
        by_program,
    }))
}

/// Blocks are mapped and unmapped one by one, or the heap's end moves to and fro.
pub(super) fn mapping(judgement: &Judgement) -> Found {
    let (count, time, of_cpu) = calls(judgement, &["mmap", "munmap", "mremap", "brk"]);
    // A program that only ever takes more needs it.
    let (taken, _, _) = calls(judgement, &["mmap"]);
    let (given, _, _) = calls(judgement, &["munmap"]);
    let (moved, _, _) = calls(judgement, &["brk"]);
    let brk = judgement.syscalls.iter().find(|c| c.name == "brk");
    let by_program = advice::trims(judgement);
    let trimmed = match by_program {
        true => advice::Returned::of(judgement).all(),
        false => brk.map_or(0, |brk| brk.by_frees),
    };
    let to_and_fro = given * 2 >= taken && given >= 100 || trimmed >= 100;
    let by_calls = Side::all([
        of_cpu.side(CALLS_SHARE),
        Side::exact(count >= 200 && to_and_fro),
    ]);
    let touches = touches(judgement, Way::Unmapped);
    let cost = cost(judgement, (of_cpu, time), by_calls, touches);
    if cost.side == Side::Below {
        return None;
    }
    let name = match moved > taken + given {
        true => "brk",
        false => "munmap",
    };
    let (title, faults) = match touches {
        _ if by_program => (
            "the program has free memory given back to the kernel (malloc_trim), and takes it anew",
            "; each first touch of a page after that is a fault",
        ),
        Some(_) => (
            "it gives memory back to the kernel and gets it again, so that each page is cleared and faulted in anew",
            "",
        ),
        None => (
            "it maps and unmaps memory of the kernel's again and again",
            "; each first touch of a page after that is a fault",
        ),
    };
    Some((
        cost.side,
        Diagnosis {
            id: "needless_mapping",
            title: title.into(),
            evidence: format!(
                "{} of mmap, munmap, mremap and brk within operations took {}{faults}.{}",
                format::counted(count, "call"),
                cost.took,
                callers_of(judgement, name),
            ),
            advice: advice::to_keep(judgement),
            share: cost.share,
            share_of: "the CPU time",
            by_program,
        },
    ))
}

/// Why it is not known what it takes that memory comes again, where that may be so much time that it would be a diagnosis; as a part of a sentence.
pub(crate) fn perhaps(judgement: &Judgement) -> Option<String> {
    let given = &judgement.given_back;
    let unknown = given.unknown.as_ref()?;
    (unknown.at_most.side(CALLS_SHARE) != Side::Below).then(|| {
        format!(
            "it gave up to {} back to the kernel, and what page faults take as that comes again is not known, as {}: up to {} of the CPU time",
            format::bytes(given.bytes.max(given.address_bytes)),
            unknown.why,
            percent(unknown.at_most.share)
        )
    })
}

#[cfg(test)]
mod tests {
    use varve_model::Bytes;

    use super::super::diagnose;
    use super::*;
    use crate::{CallFigures, GivenBack, OperationFigures, Times, UnknownTouches, made};

    const MIB: u64 = 1 << 20;

    fn call(name: &str, count: u64, ms: u64) -> CallFigures {
        CallFigures {
            name: name.to_owned(),
            count,
            by_frees: if name == "mmap" { 0 } else { count },
            failed: 0,
            time_ns: Duration(ms * 1_000_000),
            queued_ns: Duration(0),
            bytes: Bytes(count * 96 * MIB),
            per_operation: 1.0,
            sites: vec![("fill (app.c:7)".to_owned(), count)],
        }
    }

    /// A second of CPU time, in which large blocks came and went: 4 % in calls.
    fn judgement(name: &str, again: Share) -> Judgement {
        let mut of = made::judgement();
        of.trace.allocator = "glibc".into();
        let malloc = OperationFigures {
            count: 40,
            ..OperationFigures::default()
        };
        of.operations.insert("malloc".into(), malloc);
        of.time = Times {
            cpu_ns: Duration(1_000_000_000),
            sampled: Share::of(10, 1000),
            samples: 1000,
            ..Times::default()
        };
        of.syscalls = vec![call("mmap", 20, 1), call(name, 20, 39)];
        of.given_back = GivenBack {
            bytes: Bytes(20 * 96 * MIB),
            advised_bytes: match name {
                "madvise" => Bytes(20 * 96 * MIB),
                _ => Bytes(0),
            },
            again_bytes: Bytes(19 * 96 * MIB),
            again: Some(again),
            ..GivenBack::default()
        };
        of
    }

    fn ids(found: &[Diagnosis]) -> Vec<&'static str> {
        found.iter().map(|d| d.id).collect()
    }

    fn share(share: f64, error: f64) -> Share {
        Share { share, error }
    }

    #[test]
    fn few_calls_are_much_where_their_memory_comes_again() {
        for (name, id) in [("munmap", "needless_mapping"), ("madvise", "madvise_storm")] {
            let (sure, unsure) = diagnose(&judgement(name, share(0.76, 0.03)));
            assert_eq!((ids(&sure), ids(&unsure)), (vec![id], vec![]));
            let calls = if name == "munmap" { 0.04 } else { 0.039 };
            assert!((sure[0].share - 0.76 - calls).abs() < 1e-9, "{sure:?}");
            let evidence = &sure[0].evidence;
            let [given, again] = [20, 19].map(|times| format::bytes(Bytes(times * 96 * MIB)));
            assert!(
                evidence.contains(&format!(
                    "{given} that operations gave back {again} came again"
                )) && evidence.contains("took 760 ms ± 30 ms")
                    && evidence.contains("came from fill (app.c:7)"),
                "{evidence}"
            );
        }
        let (sure, _) = diagnose(&judgement("munmap", share(0.76, 0.03)));
        assert!(sure[0].title.contains("gets it again"), "{}", sure[0].title);
        assert!(sure[0].advice.contains("MALLOC_TRIM_THRESHOLD_"));
    }

    #[test]
    fn what_comes_again_is_little_or_not_certain() {
        let found = |again| diagnose(&judgement("munmap", again));
        assert_eq!(found(share(0.005, 0.005)), (vec![], vec![]));
        let (sure, unsure) = found(share(0.02, 0.02));
        assert_eq!(
            (ids(&sure), ids(&unsure)),
            (vec![], vec!["needless_mapping"])
        );
    }

    #[test]
    fn memory_that_does_not_come_again_is_no_disease() {
        let mut of = judgement("munmap", share(0.0, 0.0));
        of.given_back.again_bytes = Bytes(0);
        // Few calls, however long they take.
        of.syscalls = vec![call("mmap", 20, 10), call("munmap", 20, 90)];
        assert_eq!(diagnose(&of), (vec![], vec![]));
        // Many of them are one by themselves.
        of.syscalls = vec![call("mmap", 120, 10), call("munmap", 120, 90)];
        let (sure, _) = diagnose(&of);
        assert_eq!(ids(&sure), ["needless_mapping"]);
        assert!(sure[0].title.contains("again and again"));
        assert!(sure[0].evidence.contains("each first touch"));
    }

    #[test]
    fn what_is_not_known_is_said_where_it_may_be_much() {
        let mut of = judgement("munmap", share(0.0, 0.0));
        of.given_back.again_bytes = Bytes(0);
        assert_eq!(perhaps(&of), None);
        for (at_most, is_said) in [(0.04, false), (0.3, true)] {
            of.given_back.unknown = Some(UnknownTouches {
                at_most: share(at_most, 0.01),
                why: "the program ran before".into(),
            });
            let said = perhaps(&of);
            assert_eq!(said.is_some(), is_said, "{said:?}");
        }
        let said = perhaps(&of).unwrap();
        assert!(
            said.contains(
                "comes again is not known, as the program ran before: up to 30 % of the CPU time"
            ),
            "{said}"
        );
        assert_eq!(diagnose(&of), (vec![], vec![]));
    }
}
