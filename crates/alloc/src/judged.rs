//! The result for a program: figures and what follows from them, or that nothing was counted.

use serde::Serialize;
use ts_rs::TS;

use crate::{About, Diagnosis, Judgement, SCHEMA, Verdict, verdict};

/// What a trace says of its program's allocator, as far as operations were counted.
#[derive(Clone, Debug, PartialEq, Serialize, TS)]
#[serde(untagged)]
pub enum Judged {
    /// Those of a process at least were.
    Counted(Box<Judgement>),
    /// None were.
    Uncounted(Box<Uncounted>),
}

/// What a trace says of a program of which no operation was counted, because what counts did not come into it. There are no figures: zeros would say
/// that the program had called nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct Uncounted {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The recording. `limited` and `uncounted` say why nothing was counted.
    pub trace: About,
    /// That it is not known whether it is the allocator.
    pub verdict: Verdict,
    /// Null, as all that follows, which has the names of the figures.
    diagnoses: (),
    undecided: (),
    operations: (),
    time: (),
    times: (),
    syscalls: (),
    mmap_lock: (),
    faults: (),
    given_back: (),
    memory: (),
    pages: (),
    lines: (),
    choice: (),
    sites: (),
    blocks: (),
    classes: (),
    threads: (),
    processes: (),
}

impl Uncounted {
    pub(crate) fn of(trace: About) -> Uncounted {
        Uncounted {
            schema: SCHEMA,
            trace,
            verdict: verdict::uncounted(),
            ..Uncounted::default()
        }
    }
}

impl Judged {
    /// The figures, where there are any.
    #[must_use]
    pub fn counted(&self) -> Option<&Judgement> {
        match self {
            Judged::Counted(judgement) => Some(judgement),
            Judged::Uncounted(_) => None,
        }
    }

    /// The recording.
    #[must_use]
    pub fn trace(&self) -> &About {
        match self {
            Judged::Counted(judgement) => &judgement.trace,
            Judged::Uncounted(of) => &of.trace,
        }
    }

    /// Whether it is the allocator.
    #[must_use]
    pub fn verdict(&self) -> &Verdict {
        match self {
            Judged::Counted(judgement) => &judgement.verdict,
            Judged::Uncounted(of) => &of.verdict,
        }
    }

    /// The diagnoses, the costliest first; none where nothing was counted.
    #[must_use]
    pub fn diagnoses(&self) -> &[Diagnosis] {
        self.counted().map_or(&[], |of| of.diagnoses.as_slice())
    }

    /// Those that are not certain, likewise.
    #[must_use]
    pub fn undecided(&self) -> &[Diagnosis] {
        self.counted().map_or(&[], |of| of.undecided.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::made::judgement;

    #[test]
    fn what_was_not_counted_is_null_under_the_names_of_the_figures() {
        let counted = judgement();
        let uncounted = Judged::Uncounted(Box::new(Uncounted::of(counted.trace.clone())));
        let fields = |of: &Judged| match serde_json::to_value(of) {
            Ok(Value::Object(fields)) => fields,
            other => panic!("{other:?}"),
        };
        let known = ["schema", "trace", "verdict"];
        let of_uncounted = fields(&uncounted);
        for (name, value) in &of_uncounted {
            assert_eq!(value.is_null(), !known.contains(&name.as_str()), "{name}");
        }
        let of_counted = fields(&Judged::Counted(Box::new(counted)));
        let names = of_counted.keys().collect::<Vec<_>>();
        assert_eq!(of_uncounted.keys().collect::<Vec<_>>(), names);
        assert!(uncounted.counted().is_none() && uncounted.diagnoses().is_empty());
    }
}
