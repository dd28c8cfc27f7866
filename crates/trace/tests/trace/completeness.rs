//! Which part of a trace a loss leaves incomplete, and what the manifest says of it.

use std::collections::BTreeSet;

use varve_model::{Capability, Loss, LossPart};
use varve_trace::{Manifest, State};

use crate::common::manifest;

/// A recording that ended, with 3 of each of these losses.
fn ended(losses: &[Loss]) -> Manifest {
    let mut ended = manifest();
    ended.state = State::Finished;
    let counted = losses.iter().map(|loss| (loss.as_str().to_owned(), 3));
    ended.losses = counted.collect();
    ended.derive_completeness();
    ended
}

fn words(loss: Loss) -> String {
    format!("{} ({loss}: 3)", loss.what())
}

fn parts(manifest: &Manifest) -> BTreeSet<LossPart> {
    manifest.incomplete(&manifest.losses)
}

#[test]
fn each_loss_is_said_of_the_part_that_it_concerns() {
    for &loss in Loss::ALL {
        let manifest = ended(&[loss]);
        let begins = match loss.part() {
            LossPart::Pages => "Some accesses may be missing",
            LossPart::Objects => {
                "Objects or call stacks may be missing, while the pages are complete"
            }
            LossPart::Operations => {
                "Allocator operations may be missing, while the pages are complete"
            }
        };
        let statement = &manifest.completeness.statement;
        assert_eq!(*statement, format!("{begins}: {}.", words(loss)));
        assert!(!manifest.completeness.complete, "{loss}");
        assert_eq!(parts(&manifest), BTreeSet::from([loss.part()]), "{loss}");
        let is_of_pages = loss.part() == LossPart::Pages;
        assert_eq!(manifest.has_all_pages(), !is_of_pages, "{loss}");
    }
}

#[test]
fn each_part_has_a_sentence_of_its_own() {
    let of_objects = [Loss::PreloadRecords, Loss::Stacks].map(words).join("; ");
    let operations = words(Loss::Operations);
    let both = [Loss::Stacks, Loss::Operations, Loss::PreloadRecords];
    assert_eq!(
        ended(&both).completeness.statement,
        format!(
            "Objects or call stacks may be missing, while the pages are complete: {of_objects}. \
             Allocator operations may be missing: {operations}."
        )
    );
    let all = ended(&[&both[..], &[Loss::Faults]].concat());
    assert_eq!(
        all.completeness.statement,
        format!(
            "Some accesses may be missing: {}. Objects or call stacks may be missing: {of_objects}. \
             Allocator operations may be missing: {operations}.",
            words(Loss::Faults)
        )
    );
    assert_eq!(
        parts(&all),
        LossPart::ALL.iter().copied().collect::<BTreeSet<_>>()
    );
}

#[test]
fn a_trace_that_promises_no_pages_may_lack_some() {
    assert!(parts(&ended(&[])).is_empty());
    let pages = BTreeSet::from([LossPart::Pages]);
    assert_eq!(parts(&manifest()), pages);
    let mut without = manifest();
    without.state = State::Finished;
    without.options.without = vec!["flush".into()];
    without.derive_completeness();
    assert_eq!(parts(&without), pages);
    let mut other = manifest();
    other.state = State::Finished;
    other.capabilities.remove(&Capability::Superset);
    other.derive_completeness();
    assert_eq!(parts(&other), pages);
    // What a loss counter of another part says comes on top.
    other.losses.insert(Loss::Operations.as_str().into(), 1);
    let both = BTreeSet::from([LossPart::Pages, LossPart::Operations]);
    assert_eq!(parts(&other), both);
}
