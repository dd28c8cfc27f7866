//! Recordings that only the machine's own reclaim has made incomplete.

use varve_trace::Trace;
use varve_truth::only_reclaim_was_lost;

/// A machine that reclaims in each of so many recordings in a row has too little memory for these tests.
const MOST: usize = 20;

/// Records, and records again as long as reclaim is all that the trace has lost. What else a trace has lost is the
/// recorder's, and is handed over as it is; so is what has no trace.
///
/// # Panics
/// Where the machine reclaims memory all the time.
pub fn unless_reclaimed<R>(
    mut record: impl FnMut() -> R,
    trace: impl Fn(&R) -> Option<&Trace>,
) -> R {
    for _ in 0..MOST {
        let recorded = record();
        let Some(trace) = trace(&recorded) else {
            return recorded;
        };
        if !only_reclaim_was_lost(&trace.manifest) {
            return recorded;
        }
        eprintln!("recorded again: the machine has reclaimed memory meanwhile");
    }
    panic!("the machine reclaims memory all the time: these recordings need some that is free");
}
