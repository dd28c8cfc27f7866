//! Threads that meet in one cache line, or in one page.

use varve_model::ObjectId;

use super::{Facts, NAMES, finding};
use crate::analysis::*;
use crate::format;
use crate::sections::sharing::{
    BlockKind, MIN_EVENTS, MIN_TURNS, SURE, SharedBlock, SharingSource, SharingUse, WeightUnit,
};

/// Blocks that together have less of the weight are not worth a sentence.
const WORTH: f64 = 0.01;

/// Cache lines in which the two busiest threads use different bytes and one writes: each with 5 events and in turns at
/// least 4 times, such that the chance that they keep apart by luck is below 1 % for all lines together (permutation
/// test), and at least 1 % of the weight of all accesses together, by two standard errors.
pub(super) fn false_sharing_lines(f: &Facts<'_>) -> Option<Finding> {
    let sharing = f.analysis.sharing.as_ref()?;
    let found = Found::of(&sharing.lines, BlockKind::FalseSharing)?;
    let title = format!(
        "{}: {} of {}, {} {}",
        match of_firsts(sharing) {
            true => "Possible false sharing",
            false => "False sharing",
        },
        format::counted(found.blocks.len() as u64, "cache line"),
        names(&found.blocks),
        found.share(),
        unit(sharing)
    );
    let advice = match of_firsts(sharing) {
        true => {
            "If the threads use these bytes only, and often, the line goes to and fro between CPUs although no byte is \
             shared: samples (--samples) or counts (--backend exact) show it. Then give each thread's data lines of its own: \
             alignas(64), padding, or one array per thread."
        }
        false => {
            "The line goes to and fro between CPUs although no byte is shared. Give each thread's data lines of its \
             own: alignas(64), padding, or one array per thread."
        }
    };
    let (evidence, objects) = (found.evidence(sharing), found.objects());
    Some(finding(
        FindingId::FalseSharing,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// The same where both use the same bytes. There is nothing to be lucky in: 1 % of the weight and 4 turns are asked for.
pub(super) fn true_sharing(f: &Facts<'_>) -> Option<Finding> {
    let sharing = f.analysis.sharing.as_ref()?;
    let found = Found::of(&sharing.lines, BlockKind::TrueSharing)?;
    let title = format!(
        "Threads contend for {} of {}, {} {}",
        format::counted(found.blocks.len() as u64, "cache line"),
        names(&found.blocks),
        found.share(),
        unit(sharing)
    );
    let advice = "These bytes are really shared, and padding does not help. Write them less often: a copy for each \
                  thread that is added up at the end, fewer updates, or an owner.";
    let (evidence, objects) = (found.evidence(sharing), found.objects());
    Some(finding(
        FindingId::TrueSharing,
        title,
        evidence,
        advice,
        objects,
    ))
}

/// Pages in which the two busiest threads use different lines and one writes, by the rules of
/// [`false_sharing_lines`].
pub(super) fn false_sharing_pages(f: &Facts<'_>) -> Option<Finding> {
    let sharing = f.analysis.sharing.as_ref()?;
    let found = Found::of(&sharing.pages, BlockKind::FalseSharing)?;
    let title = format!(
        "{} of {} {} data of several threads side by side, {} {}",
        format::counted(found.blocks.len() as u64, "page"),
        names(&found.blocks),
        match (of_firsts(sharing), found.blocks.len()) {
            (true, _) => "may hold",
            (false, 1) => "holds",
            (false, _) => "hold",
        },
        found.share(),
        unit(sharing)
    );
    let advice = match of_firsts(sharing) {
        true => {
            "If the threads use these lines only, each part belongs on a page of its own (aligned_alloc): a page lies on one \
             memory node. Samples (--samples) show what they use later in an interval."
        }
        false => {
            "A page lies on one memory node, so for some of its threads it is always the wrong one, and no policy \
             can mend that. Begin each thread's part on a page of its own (aligned_alloc)."
        }
    };
    let (evidence, objects) = (found.evidence(sharing), found.objects());
    Some(finding(
        FindingId::PageFalseSharing,
        title,
        evidence,
        advice,
        objects,
    ))
}

struct Found<'a> {
    blocks: Vec<&'a SharedBlock>,
    share: f64,
    error: f64,
}

impl<'a> Found<'a> {
    fn of(all: &'a [SharedBlock], kind: BlockKind) -> Option<Found<'a>> {
        let blocks: Vec<&SharedBlock> = all.iter().filter(|b| b.kind == kind).collect();
        let share: f64 = blocks.iter().map(|b| b.share).sum();
        let error = blocks
            .iter()
            .map(|b| b.share_error.powi(2))
            .sum::<f64>()
            .sqrt();
        (share >= WORTH && share >= 2.0 * error).then_some(Found {
            blocks,
            share,
            error,
        })
    }

    fn share(&self) -> String {
        percent(self.share, self.error, 1)
    }

    fn objects(&self) -> Vec<ObjectId> {
        let mut objects: Vec<ObjectId> = Vec::new();
        for object in self.blocks.iter().filter_map(|b| b.object) {
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
        objects
    }

    fn evidence(&self, sharing: &SharingUse) -> String {
        let blocks: Vec<String> = self.blocks.iter().take(NAMES).map(|b| block(b)).collect();
        let more = match self.blocks.len().saturating_sub(NAMES) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        format!(
            "{}{more}. {}Listed where each thread was seen {MIN_EVENTS} times and they took turns {MIN_TURNS} times; {} tested, \
             and the chance that any is listed by luck is below {:.0} %. {}",
            blocks.join("; "),
            match of_firsts(sharing) {
                true => "",
                false => "± is one standard error of the sampling. ",
            },
            match sharing.tested {
                1 => "1 block was".to_owned(),
                n => format!("{} blocks were", format::count(n)),
            },
            100.0 * SURE,
            sharing.weight
        )
    }
}

/// `counters at 0x1040: thread 7 at 0-8 (12 of 14 write), thread 8 at 8-16 (none of 13 writes), 3.1 % ± 0.2 %`
fn block(b: &SharedBlock) -> String {
    let threads: Vec<String> = b
        .threads
        .iter()
        .map(|t| {
            let bytes: Vec<String> = t
                .bytes
                .iter()
                .take(4)
                .map(|(from, to)| format!("{from}-{to}"))
                .collect();
            let more = if t.bytes.len() > 4 { ", ..." } else { "" };
            format!(
                "thread {} at bytes {}{more} ({} of {} events write)",
                t.tid,
                bytes.join(", "),
                format::count(t.writes),
                format::count(t.events)
            )
        })
        .collect();
    format!(
        "{} at {}: {}, {}",
        name(b),
        b.address,
        threads.join(", "),
        percent(b.share, b.share_error, 2)
    )
}

/// A share with its standard error, where there is one.
fn percent(share: f64, error: f64, digits: usize) -> String {
    match error > 0.0 {
        true => format!(
            "{:.digits$} % ± {:.digits$} %",
            100.0 * share,
            100.0 * error
        ),
        false => format!("{:.digits$} %", 100.0 * share),
    }
}

/// Whether only the first accesses to pages in intervals are known: what a thread did later may be elsewhere.
fn of_firsts(sharing: &SharingUse) -> bool {
    sharing.source == SharingSource::Traps
}

fn name(b: &SharedBlock) -> &str {
    match b.name.is_empty() {
        true => "no known object",
        false => &b.name,
    }
}

fn names(blocks: &[&SharedBlock]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for block in blocks {
        if !names.contains(&name(block)) {
            names.push(name(block));
        }
    }
    match names.len() {
        0..=2 => names.join(" and "),
        n => format!("{} and {} more objects", names[0], n - 1),
    }
}

fn unit(sharing: &SharingUse) -> &'static str {
    match sharing.unit {
        WeightUnit::Accesses => "of the accesses",
        WeightUnit::Nanoseconds => "of the time at accesses",
        WeightUnit::Samples => "of the samples",
        WeightUnit::FirstAccesses => "of the first accesses",
        WeightUnit::Pages => "of the page faults",
    }
}
