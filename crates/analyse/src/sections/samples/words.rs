//! What is said of samples in words.

use varve_model::SampleSource;
use varve_trace::SamplesNote;

use crate::format;

/// Of fewer samples no mean rate is said.
const MIN_FOR_MEAN: u64 = 30;

/// At which rate samples were taken: `1,000/s of each CPU`.
pub(super) fn rate_in_words(note: &SamplesNote) -> String {
    let asked = format!("{}/s of each CPU", format::count(note.rate.into()));
    match note.by_overhead && note.least_rate < note.rate {
        // Of a few samples the mean is chance.
        true if note.taken < MIN_FOR_MEAN => format!(
            "{asked} at most, of which the permitted overhead chose fewer (at times {}/s)",
            format::count(note.least_rate.into())
        ),
        true => format!(
            "{}/s of CPU time on average, which the permitted overhead chose (at times {}/s; {asked} at most)",
            format::count(note.mean_rate.into()),
            format::count(note.least_rate.into())
        ),
        false => asked,
    }
}

/// What one sample stands for.
pub(super) fn weight(sources: &[u64], has_addresses: bool) -> &'static str {
    let most = SampleSource::ALL
        .iter()
        .zip(sources)
        .max_by_key(|(_, n)| **n);
    match most.map(|(source, _)| *source) {
        Some(SampleSource::CpuClock) => {
            "A sample stands for time spent waiting at an access, not for a number of accesses."
        }
        Some(SampleSource::Lackey) => "Each access is counted once.",
        Some(SampleSource::Moca | SampleSource::Fault) => {
            "A sample is the first access to a page in an interval."
        }
        _ if !has_addresses => {
            "A sample stands for as many of its event as the recording tool's period says; its address is not known."
        }
        _ => {
            "A sample stands for as many accesses as the recording tool's period says; loads may have been sampled from a latency on only."
        }
    }
}

#[cfg(test)]
mod tests {
    use varve_model::Duration;

    use super::*;

    #[test]
    fn a_rate_that_the_overhead_lowered_is_not_called_the_one_asked_for() {
        let mut note = SamplesNote::new(SampleSource::CpuClock, 1000);
        assert_eq!(rate_in_words(&note), "1,000/s of each CPU");
        note.by_overhead = true;
        assert_eq!(rate_in_words(&note), "1,000/s of each CPU");
        // 10 samples of 1 ms, and 30 of 3 ms.
        (0..10).for_each(|_| note.take(Duration(1_000_000)));
        assert_eq!(note.mean_rate, 1000);
        note.least_rate = 31;
        assert_eq!(
            rate_in_words(&note),
            "1,000/s of each CPU at most, of which the permitted overhead chose fewer (at times 31/s)"
        );
        (0..30).for_each(|_| note.take(Duration(3_000_000)));
        note.least_rate = 333;
        assert_eq!(
            rate_in_words(&note),
            "400/s of CPU time on average, which the permitted overhead chose (at times 333/s; 1,000/s of each CPU at most)"
        );
        // Who asks for a rate gets that rate, whatever it costs.
        note.by_overhead = false;
        assert_eq!(rate_in_words(&note), "1,000/s of each CPU");
    }
}
