//! Call stacks, each written once.

use std::collections::HashMap;

use varve_model::{Address, Pid, SiteId, Time};
use varve_trace::tables::StackRow;

/// Frames of a recording that are kept whole. What has names at the end takes some 200 bytes a frame.
const MAX_FRAMES: usize = 1 << 20;
/// From there on stacks keep this many, the innermost ...
const FEW_FRAMES: usize = 8;
/// ... and this many frames in all. Stacks beyond are lost.
const MAX_CUT_FRAMES: usize = 1 << 19;

/// Gives each distinct stack of a process a number of the trace.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    next: u32,
    known: HashMap<(Pid, Vec<Address>), SiteId>,
    pub(crate) rows: Vec<StackRow>,
    /// Frames that were kept.
    frames: usize,
    /// Stacks that were cut, or that have no frames at all. A program can make as many stacks as it likes.
    pub(crate) lost: u64,
}

impl Stacks {
    /// A site whose stack is to come; none where there are too many.
    pub(crate) fn reserve(&mut self) -> Option<SiteId> {
        if self.next as usize >= MAX_FRAMES + MAX_CUT_FRAMES {
            self.lost += 1;
            return None;
        }
        let site = SiteId(self.next);
        self.next += 1;
        Some(site)
    }

    /// The stack of a site that was reserved.
    pub(crate) fn fill(&mut self, site: SiteId, pid: Pid, time: Time, mut frames: Vec<Address>) {
        if !self.cut(&mut frames) {
            return;
        }
        self.frames += frames.len();
        self.rows.push(StackRow {
            site,
            pid,
            time_ns: time,
            frames,
            first_is_return: true,
        });
    }

    /// The site of a stack; `first_is_return` says whether its innermost address is a return address.
    pub(crate) fn site(
        &mut self,
        pid: Pid,
        time: Time,
        frames: Vec<Address>,
        first_is_return: bool,
    ) -> Option<SiteId> {
        let whole = (pid, frames);
        if let Some(site) = self.known.get(&whole) {
            return Some(*site);
        }
        let (_, mut frames) = whole;
        if !self.cut(&mut frames) {
            return None;
        }
        let next = SiteId(self.next);
        match self.known.entry((pid, frames)) {
            std::collections::hash_map::Entry::Occupied(e) => Some(*e.get()),
            std::collections::hash_map::Entry::Vacant(e) => {
                self.frames += e.key().1.len();
                self.rows.push(StackRow {
                    site: next,
                    pid,
                    time_ns: time,
                    frames: e.key().1.clone(),
                    first_is_return,
                });
                self.next += 1;
                Some(*e.insert(next))
            }
        }
    }

    /// Cuts a stack to what there is room for; false where there is none. Counts what it takes away.
    fn cut(&mut self, frames: &mut Vec<Address>) -> bool {
        if self.frames + frames.len() <= MAX_FRAMES {
            return true;
        }
        self.lost += 1;
        frames.truncate(FEW_FRAMES);
        self.frames + frames.len() <= MAX_FRAMES + MAX_CUT_FRAMES
    }

    /// Forgets the stacks of a program that is gone: the same addresses mean something else now.
    pub(crate) fn forget(&mut self, pid: Pid) {
        self.known.retain(|(p, _), _| *p != pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(number: u64) -> Vec<Address> {
        (0..256).map(|i| Address(number << 16 | i)).collect()
    }

    #[test]
    fn stacks_without_end_are_cut_and_counted() {
        let mut stacks = Stacks::default();
        let mut kept = 0;
        // As many as a ring brings in a minute; half by way of a ring, half of the kernel's.
        for number in 0..300_000 {
            let site = match number % 2 {
                0 => stacks.reserve().inspect(|site| {
                    stacks.fill(*site, Pid(1), Time(number), stack(number));
                }),
                _ => stacks.site(Pid(1), Time(number), stack(number), true),
            };
            assert!(number > 4000 || site.is_some());
            kept += stacks.rows.iter().map(|r| r.frames.len()).sum::<usize>();
            stacks.rows.clear();
        }
        assert!(kept <= MAX_FRAMES + MAX_CUT_FRAMES, "{kept}");
        let known: usize = stacks.known.keys().map(|k| k.1.len()).sum();
        assert!(known <= MAX_FRAMES + MAX_CUT_FRAMES, "{known}");
        assert_eq!(stacks.lost, 300_000 - 4096);
        // What is known is not lost again.
        let lost = stacks.lost;
        assert!(stacks.site(Pid(1), Time(9), stack(1), true).is_some());
        assert_eq!(stacks.lost, lost);
    }

    #[test]
    fn sites_without_stacks_come_to_an_end() {
        let mut stacks = Stacks::default();
        let given = (0..2_000_000)
            .filter(|_| stacks.reserve().is_some())
            .count();
        assert_eq!(given, MAX_FRAMES + MAX_CUT_FRAMES);
        assert_eq!(stacks.lost, 2_000_000 - given as u64);
    }
}
