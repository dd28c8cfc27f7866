//! Which free blocks the allocator gives out, where it has a choice.

use serde::Serialize;
use ts_rs::TS;

use super::Share;
use super::operations::by_caller;
use crate::read::Tables;

/// Small blocks (1 KiB at most) that a thread allocated soon after it had freed others of their size class, in a sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, TS)]
pub struct Choice {
    /// Blocks.
    pub blocks: u64,
    /// Of these, 64 KiB and more away from what had been freed and from the block before; null where there were none.
    pub far: Option<Share>,
    /// Those blocks.
    pub far_blocks: u64,
    /// Those that lay far away by caller, those with most first: its name, blocks.
    pub sites: Vec<(String, u64)>,
}

pub(super) fn choice(tables: &Tables) -> Choice {
    let rows = tables.choices.iter();
    let (blocks, far) = rows.fold((0, 0), |(blocks, far), row| {
        (blocks + row.blocks, far + row.far.min(row.blocks))
    });
    let by_site = tables.choices.iter().map(|row| (row.site, row.far));
    Choice {
        blocks,
        far: Share::of(far, blocks),
        far_blocks: far,
        sites: by_caller(tables, by_site),
    }
}
