//! What a trace says of its completeness: whether anything was lost, and which parts of the trace that concerns.

use std::collections::{BTreeMap, BTreeSet};

use varve_model::{Capability, Loss, LossPart};

use crate::manifest::NOT_ENDED;
use crate::{Completeness, Manifest, State};

/// The statement of a trace without pages.
const NO_PAGES: &str = "Which pages the program accessed was not recorded.";

impl Manifest {
    /// Derives the completeness statement from the loss counters, where a superset was recorded. Of other traces whoever
    /// made them says what is missing.
    pub fn derive_completeness(&mut self) {
        if !self.has(Capability::Superset) {
            if self.state != State::Recording && self.completeness.statement == NOT_ENDED {
                NO_PAGES.clone_into(&mut self.completeness.statement);
            }
            return;
        }
        let lost = lost(&self.losses);
        self.completeness = if self.state == State::Recording {
            Completeness {
                complete: false,
                statement: NOT_ENDED.to_owned(),
            }
        } else if !self.options.without.is_empty() {
            Completeness {
                complete: false,
                statement: format!(
                    "Some accesses are missing: mechanisms were left out on purpose ({}).",
                    self.options.without.join(", ")
                ),
            }
        } else if lost.is_empty() {
            Completeness {
                complete: true,
                statement: if self.has(Capability::ExactCounts) {
                    "Every access of the program's own instructions was counted. What the kernel \
                     accessed on its behalf is not listed."
                        .into()
                } else {
                    "For every interval, the pages listed are a superset of the pages \
                     accessed in it, by the program or by the kernel on its behalf."
                        .into()
                },
            }
        } else {
            Completeness {
                complete: false,
                statement: statement(&lost),
            }
        };
    }

    /// The parts in which something may be missing, given the losses of the trace: none where it is complete. A trace that promises
    /// no superset of the accessed pages may lack some, and so may one that has not ended or was made without a mechanism.
    pub fn incomplete(&self, losses: &BTreeMap<String, u64>) -> BTreeSet<LossPart> {
        let mut parts: BTreeSet<LossPart> = lost(losses).into_keys().collect();
        let is_running = self.state == State::Recording;
        let is_promised = self.has(Capability::Superset) && self.options.without.is_empty();
        let may_lack_pages = match self.completeness.complete {
            true => is_running,
            false => is_running || !is_promised || parts.is_empty(),
        };
        if may_lack_pages {
            parts.insert(LossPart::Pages);
        }
        parts
    }

    /// Whether no accessed page can be missing, whatever else may be.
    pub fn has_all_pages(&self) -> bool {
        !self.incomplete(&self.losses).contains(&LossPart::Pages)
    }
}

/// What may be missing of each part, in the words of the losses.
fn lost(losses: &BTreeMap<String, u64>) -> BTreeMap<LossPart, Vec<String>> {
    let mut lost: BTreeMap<LossPart, Vec<String>> = BTreeMap::new();
    for (kind, count) in losses.iter().filter(|(_, count)| **count > 0) {
        let words = match kind.parse::<Loss>() {
            Ok(loss) => format!("{} ({kind}: {count})", loss.what()),
            Err(_) => format!("{kind}: {count}"),
        };
        lost.entry(LossPart::of(kind)).or_default().push(words);
    }
    lost
}

/// A sentence for each part in which something may be missing. Pages come first: where they are complete the first sentence says so.
fn statement(lost: &BTreeMap<LossPart, Vec<String>>) -> String {
    let mut sentences = Vec::new();
    for (part, losses) in lost {
        let (first, rest) = part.what().split_at(1);
        let others = match part {
            LossPart::Objects | LossPart::Operations if sentences.is_empty() => {
                ", while the pages are complete"
            }
            _ => "",
        };
        sentences.push(format!(
            "{}{rest} may be missing{others}: {}.",
            first.to_uppercase(),
            losses.join("; ")
        ));
    }
    sentences.join(" ")
}
