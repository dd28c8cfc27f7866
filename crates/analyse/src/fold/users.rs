//! Which processes use memory that several may map, and which pages of it.

use std::collections::HashMap;

use super::{Folded, ones};
use crate::chunks::{Bits, set};
use crate::stats::NEVER;

/// What one process did to an object of memory that several may map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    /// Distinct pages.
    pub(crate) touched: u64,
    pub(crate) written: u64,
    /// Sum over intervals of pages touched.
    pub(crate) touches: u64,
    /// The thread of its first page fault there.
    pub(crate) first_thread: u32,
}

const NEW: User = User {
    touched: 0,
    written: 0,
    touches: 0,
    first_thread: NEVER,
};

/// Distinct pages that a process touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessPages {
    pub(crate) touched: u64,
    /// The part that other processes touched too.
    pub(crate) shared: u64,
}

#[derive(Default)]
struct Pages {
    touched: Bits,
    written: Bits,
    touches: u64,
}

/// Object, process, and the position of a chunk.
type Key = (u32, u32, u32);

/// Pages of objects by process.
#[derive(Default)]
pub(super) struct Users {
    index: HashMap<Key, usize>,
    pages: Vec<Pages>,
    /// The one before: the next is often the same.
    last: Option<(Key, usize)>,
    /// The thread of the first page fault, by object and process.
    first: HashMap<(u32, u32), u32>,
}

impl Users {
    /// Pages of a chunk that a process touched, or that it wrote besides.
    pub(super) fn enter(&mut self, key: Key, first: usize, end: usize, written: bool) {
        let at = match self.last.filter(|(last, _)| *last == key) {
            Some((_, at)) => at,
            None => {
                let next = self.pages.len();
                let at = *self.index.entry(key).or_insert(next);
                if at == next {
                    self.pages.push(Pages::default());
                }
                self.last = Some((key, at));
                at
            }
        };
        let pages = &mut self.pages[at];
        if written {
            set(&mut pages.written, first, end);
        } else {
            set(&mut pages.touched, first, end);
            pages.touches += (end - first) as u64;
        }
    }

    pub(super) fn fault(&mut self, object: u32, process: u32, thread: u32) {
        self.first.entry((object, process)).or_insert(thread);
    }

    /// Sums up.
    pub(super) fn finish(self, folded: &mut Folded) {
        // By chunk: pages of each process, whosever object they are.
        let mut chunks: HashMap<u32, HashMap<u32, Bits>> = HashMap::new();
        for (&(object, process, chunk), &at) in &self.index {
            let pages = &self.pages[at];
            let user = folded.users.entry((object, process)).or_insert(NEW);
            user.touched += ones(&pages.touched);
            let mut both = pages.written;
            both.iter_mut()
                .zip(&pages.touched)
                .for_each(|(w, t)| *w &= t);
            user.written += ones(&both);
            user.touches += pages.touches;
            let of = chunks.entry(chunk).or_default().entry(process).or_default();
            of.iter_mut().zip(&pages.touched).for_each(|(a, b)| *a |= b);
        }
        for (key, thread) in self.first {
            if let Some(user) = folded.users.get_mut(&key) {
                user.first_thread = thread;
            }
        }
        for processes in chunks.values() {
            let (mut once, mut twice) = (Bits::default(), Bits::default());
            for bits in processes.values() {
                for ((once, twice), bits) in once.iter_mut().zip(&mut twice).zip(bits) {
                    *twice |= *once & bits;
                    *once |= bits;
                }
            }
            for (&process, bits) in processes {
                let of = folded.processes.entry(process).or_default();
                of.touched += ones(bits);
                let common = bits.iter().zip(&twice).map(|(a, b)| a & b);
                of.shared += common.map(|w| u64::from(w.count_ones())).sum::<u64>();
            }
        }
    }
}
