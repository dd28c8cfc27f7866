//! Cache lines that blocks of several threads share, and whether the threads meet there.
//!
//! Where blocks came to lie is counted; whether their threads write to them is known of samples alone.

use std::collections::HashMap;

use serde::Serialize;
use ts_rs::TS;
use varve_analyse::{Analysis, BlockKind, SharingSource};
use varve_model::ObjectKind;
use varve_trace::tables::{SampleRow, SharedLineRow};
use varve_trace::{Trace, TraceError};

use super::estimate::CONFIDENCE;
use super::operations::{allocates, by_caller};
use crate::read::Tables;

/// Blocks that came to lie on a cache line with a block of another thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct SharedLines {
    /// Blocks.
    pub blocks: u64,
    /// Their share of all that were allocated.
    pub share: f64,
    /// Of them, to whom the allocator gave such memory by itself: active false sharing, if both threads write.
    pub active: u64,
    /// Whose memory another thread had freed than had allocated it: passive false sharing, if both threads write.
    pub passive: u64,
    /// By caller, those with most first: its name, blocks.
    pub sites: Vec<(String, u64)>,
    /// Lines on which samples found two threads that use different bytes, and one that writes; null where nothing was sampled.
    pub confirmed: Option<Confirmed>,
}

/// What samples found of false sharing in the allocator's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct Confirmed {
    /// Cache lines.
    pub lines: u64,
    /// The time at accesses to them, as a share of that at all accesses.
    pub share: f64,
    /// With 95 % confidence that share is no further off than this.
    pub error: f64,
    /// The names of what lies there, those with most time first.
    pub names: Vec<String>,
}

pub(super) fn lines(tables: &Tables, analysis: Option<&Analysis>) -> SharedLines {
    let (mut blocks, mut active) = (0, 0);
    for row in &tables.lines {
        blocks += row.blocks;
        active += row.active.min(row.blocks);
    }
    let allocated = tables.operations.iter().filter(|o| allocates(&o.operation));
    let all: u64 = allocated.map(|o| o.count).sum();
    SharedLines {
        blocks,
        share: blocks as f64 / all.max(1) as f64,
        active,
        passive: blocks - active,
        sites: by_caller(
            tables,
            tables.lines.iter().map(|row| (row.site, row.blocks)),
        ),
        confirmed: analysis.filter(|_| blocks > 0).and_then(confirmed),
    }
}

/// Whether what samples say of such lines is still to be asked: blocks came to lie on one, and there are samples.
pub(crate) fn asks_samples(trace: &Trace) -> Result<bool, TraceError> {
    Ok(trace.count::<SharedLineRow>()? > 0 && trace.count::<SampleRow>()? > 0)
}

/// What the samples say; none where there are too few to say who uses what.
fn confirmed(analysis: &Analysis) -> Option<Confirmed> {
    let sharing = analysis.sharing.as_ref();
    let sharing = sharing.filter(|s| s.source == SharingSource::Samples && s.enough)?;
    let kinds: HashMap<_, ObjectKind> =
        sharing.objects.iter().map(|o| (o.object, o.kind)).collect();
    // What is known to be no heap's is not the allocator's.
    let is_heap = |object: Option<_>| {
        let kind = object.and_then(|object| kinds.get(&object));
        kind.is_none_or(|kind| matches!(kind, ObjectKind::Heap | ObjectKind::Mapping))
    };
    let lines = sharing.lines.iter().filter(|line| {
        line.kind == BlockKind::FalseSharing && line.threads.iter().any(|t| t.writes > 0)
    });
    let mut found = Confirmed::default();
    let mut variance = 0.0;
    for line in lines.filter(|line| is_heap(line.object)) {
        found.lines += 1;
        found.share += line.share;
        variance += line.share_error.powi(2);
        if !line.name.is_empty() && !found.names.contains(&line.name) && found.names.len() < 3 {
            found.names.push(line.name.clone());
        }
    }
    found.error = CONFIDENCE * variance.sqrt();
    Some(found)
}
