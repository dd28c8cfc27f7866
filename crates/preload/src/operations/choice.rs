//! Which free block the allocator gives out, where it has a choice.
//!
//! After an allocation that was timed, those of its size class that the thread frees are remembered up to its next allocation of the class. An
//! allocator that gives out what was freed last, or goes through one piece of memory after another, gives one close to these or to
//! the block before; one that chooses at random among all that are free mostly does not.

use varve_preload_abi::operations::{
    CHOICE_CLASS, FAR_BYTES, LAST_CHOICE_CLASS, WATCHED_FREES, block, row_key,
};

use super::table::Block;

const CLASS: u64 = 0xff;
const FREES: u32 = 8;

impl Block {
    /// A block was allocated; `begins`: its successor is to be looked at.
    #[inline(always)]
    pub(super) fn chosen(self, running: u64, class: u8, at: u64, begins: bool) {
        let watch = self.get(block::WATCH);
        if watch & CLASS == u64::from(class) + 1 {
            self.judge(running, watch >> FREES, at);
        }
        if begins && class <= LAST_CHOICE_CLASS {
            self.set(block::WATCHED, at);
            self.set(block::WATCH, u64::from(class) + 1);
        }
    }

    /// A block was freed.
    #[inline(always)]
    pub(super) fn given_back(self, class: u8, at: u64) {
        let watch = self.get(block::WATCH);
        if watch & CLASS == u64::from(class) + 1 {
            self.remember(watch, at);
        }
    }

    #[cold]
    #[inline(never)]
    fn remember(self, watch: u64, at: u64) {
        let count = (watch >> FREES) as usize;
        if count < WATCHED_FREES {
            self.set(block::WATCHED_FREED + count * 8, at);
        }
        self.set(block::WATCH, watch + (1 << FREES));
    }

    /// Where nothing was freed there was no choice, and of many that were freed not all are known.
    #[cold]
    #[inline(never)]
    fn judge(self, running: u64, frees: u64, at: u64) {
        self.set(block::WATCH, 0);
        let frees = frees as usize;
        if frees == 0 || frees > WATCHED_FREES {
            return;
        }
        let is_far = |from: usize| self.get(from).abs_diff(at) >= FAR_BYTES;
        let freed = (0..frees).map(|i| block::WATCHED_FREED + i * 8);
        let all_far = is_far(block::WATCHED) && freed.into_iter().all(is_far);
        self.count_special(row_key(running, CHOICE_CLASS), all_far);
    }
}
