//! Sampled blocks. One of `s` bytes is sampled with the probability `p = 1 - exp(-s / m)`, so one that was stands for `1 / p` blocks.

use std::collections::HashMap;
use std::ops::Range;

use varve_model::{Bytes, PAGE_BYTES, Pid, SiteId, Tid, Time};
use varve_trace::tables::SampledBlockRow;

/// Addresses of programs are lower.
const MAX_ADDRESS: u64 = 1 << 57;

/// A sampled block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) pid: Pid,
    pub(crate) tid: Tid,
    pub(crate) site: Option<SiteId>,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// How many blocks it stands for.
    pub(crate) weight: f64,
    pub(crate) born: Time,
    pub(crate) freed: Option<(Time, Tid)>,
}

impl Block {
    /// How many bytes it stands for.
    pub(crate) fn stands_for(&self) -> f64 {
        self.bytes as f64 * self.weight
    }

    /// The first byte behind it.
    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    /// Its first and its last page.
    pub(crate) fn pages(&self) -> (u64, u64) {
        (self.address / PAGE_BYTES, (self.end() - 1) / PAGE_BYTES)
    }

    /// The part of it that is on one of its pages.
    pub(crate) fn part(&self, page: u64) -> Range<u64> {
        self.address.max(page * PAGE_BYTES)..self.end().min((page + 1) * PAGE_BYTES)
    }
}

/// Makes blocks of their beginnings and ends.
pub(crate) fn pair(mut rows: Vec<SampledBlockRow>, mean: Bytes) -> Vec<Block> {
    // Rows of one process are in order; a free and the next beginning at the same address may have the same time.
    rows.sort_by_key(|row| row.time_ns);
    let mut live: HashMap<(Pid, u64), usize> = HashMap::new();
    let mut blocks: Vec<Block> = Vec::new();
    for row in rows {
        let key = (row.pid, row.address.0);
        let is_absurd = row.bytes.0 > MAX_ADDRESS || row.address.0 > MAX_ADDRESS - row.bytes.0;
        // A target that lies, or a damaged table.
        if is_absurd {
            continue;
        }
        if row.freed {
            if let Some(block) = live.remove(&key).and_then(|at| blocks.get_mut(at)) {
                block.freed = Some((row.time_ns, row.tid));
            }
            continue;
        }
        let chance = -(-(row.bytes.0 as f64) / mean.0 as f64).exp_m1();
        let before = live.insert(key, blocks.len());
        // What was there is gone: its end was lost, or the process has run another program since.
        if let Some(block) = before.and_then(|at| blocks.get_mut(at)) {
            block.freed = Some((row.time_ns, row.tid));
        }
        blocks.push(Block {
            pid: row.pid,
            tid: row.tid,
            site: row.site,
            address: row.address.0,
            bytes: row.bytes.0,
            // Of a block without a byte nobody asks.
            weight: 1.0 / chance.max(1e-12),
            born: row.time_ns,
            freed: None,
        });
    }
    blocks.retain(|block| block.bytes > 0);
    blocks
}

/// When the recording began and ended, and its processes.
pub(crate) struct Span<'a> {
    pub(crate) began: Time,
    pub(crate) ended: Time,
    pub(crate) processes: &'a HashMap<Pid, Time>,
}

impl Span<'_> {
    /// When what a process had was given back at the latest.
    pub(crate) fn end_of(&self, pid: Pid) -> Time {
        let own = self.processes.get(&pid).copied();
        own.map_or(self.ended, |at| self.ended.min(at))
    }

    /// When a block was freed, or given back with its process.
    pub(crate) fn end(&self, block: &Block) -> Time {
        block
            .freed
            .map_or_else(|| self.end_of(block.pid), |(freed, _)| freed)
    }

    /// Whether a block lived at a time.
    pub(crate) fn lives(&self, block: &Block, at: Time) -> bool {
        let end = self.end(block);
        // What was never freed lived to the end of the recording.
        block.born <= at && (end > at || block.freed.is_none() && end >= at)
    }

    /// Which quarter of the recording a time lies in, from 0.
    pub(crate) fn quarter(&self, time: Time) -> usize {
        let all = (self.ended - self.began).0.max(1);
        (4 * (time - self.began).0 / all).min(3) as usize
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use varve_model::Address;

    use super::*;

    /// A block that lives from the beginning, and stands for itself.
    pub(crate) fn block(address: u64, bytes: u64) -> Block {
        Block {
            pid: Pid(1),
            tid: Tid(1),
            site: None,
            address,
            bytes,
            weight: 1.0,
            born: Time(0),
            freed: None,
        }
    }

    fn row(time: u64, address: u64, bytes: u64, freed: bool) -> SampledBlockRow {
        SampledBlockRow {
            time_ns: Time(time),
            pid: Pid(1),
            tid: Tid(1),
            freed,
            address: Address(address),
            bytes: Bytes(bytes),
            site: None,
        }
    }

    #[test]
    fn a_block_stands_for_as_many_as_its_chance_says() {
        let mean = Bytes(1000);
        let blocks = pair(
            vec![row(1, 4096, 1000, false), row(2, 4096, 1000, true)],
            mean,
        );
        // 1 - 1/e of the blocks that are as large as the mean are sampled.
        assert!((blocks[0].weight - 1.0 / (1.0 - (-1.0f64).exp())).abs() < 1e-12);
        assert_eq!(blocks[0].freed.map(|(at, _)| at), Some(Time(2)));
        let large = pair(vec![row(1, 4096, 1 << 40, false)], mean);
        assert!((large[0].weight - 1.0).abs() < 1e-12);
    }

    #[test]
    fn absurd_blocks_are_left_out() {
        let rows = vec![
            row(1, 4096, 1 << 62, false),
            row(1, u64::MAX, 4096, false),
            row(1, 4096, 0, false),
            row(1, 1 << 30, 8 << 20, false),
            // Within the one before.
            row(2, (1 << 30) + 4096, 1 << 40, false),
            row(3, 1 << 40, 1, false),
        ];
        let blocks = pair(rows, Bytes(512 << 10));
        assert_eq!(blocks.len(), 3);
    }

    #[test]
    fn what_its_process_has_given_back_does_not_live() {
        let processes = HashMap::from([(Pid(1), Time(50))]);
        let span = Span {
            began: Time(0),
            ended: Time(100),
            processes: &processes,
        };
        let mut rows = vec![row(10, 4096, 100, false), row(60, 8192, 40, false)];
        rows[1].pid = Pid(2);
        let blocks = pair(rows, Bytes(1));
        assert!(span.lives(&blocks[0], Time(49)) && !span.lives(&blocks[0], Time(60)));
        assert!(span.lives(&blocks[1], Time(100)));
        assert_eq!(super::super::peak(&blocks, &span), Time(10));
    }
}
