//! Which pages trapped.

use std::collections::HashMap;

use varve_bpf::Bitmap;
use varve_model::{Address, PAGE_BYTES, Pid};
use varve_preload_abi::{Protect, is_chosen};

use crate::recorder::touch_rows::FirstAccesses;

/// Which pages trapped in an interval.
#[derive(Debug, Default)]
pub(crate) struct Trapped {
    /// What was protected for it: other pages may trap as well, and do not count.
    pub(crate) protected: Option<Protect>,
    regions: HashMap<(Pid, Address), Bits>,
}

#[derive(Debug, Default)]
struct Bits {
    any: Bitmap,
    wrote: Bitmap,
}

impl Trapped {
    /// A fault reported an access; the first to a page counts.
    pub(crate) fn note(&mut self, pid: Pid, address: Address, is_write: bool) {
        let region = Address(address.0 & !(512 * PAGE_BYTES - 1));
        let page = (address.0 - region.0) / PAGE_BYTES;
        let (word, bit) = ((page / 64) as usize, 1 << (page % 64));
        let bits = self.regions.entry((pid, region)).or_default();
        if bits.any[word] & bit == 0 {
            bits.any[word] |= bit;
            if is_write {
                bits.wrote[word] |= bit;
            }
        }
    }

    /// Of the 512 pages from `base` on: those that trapped, and those of them whose first access was a write.
    pub(crate) fn of(&self, pid: Pid, base: Address) -> FirstAccesses {
        let Some(bits) = self.regions.get(&(pid, base)) else {
            return FirstAccesses::default();
        };
        let Some(protect) = self.protected.filter(|a| a.threshold != u64::MAX) else {
            return FirstAccesses {
                pages: bits.any,
                written: bits.wrote,
            };
        };
        let chosen = std::array::from_fn(|i| {
            let bit = |b: u64| {
                let page = base.page().0 + i as u64 * 64 + b;
                u64::from(is_chosen(page, protect.seed, protect.threshold)) << b
            };
            (0..64).map(bit).sum::<u64>()
        });
        let and = |a: &Bitmap, b: &Bitmap| std::array::from_fn(|i| a[i] & b[i]);
        FirstAccesses {
            pages: and(&bits.any, &chosen),
            written: and(&bits.wrote, &chosen),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_access_says_whether_it_was_a_write() {
        let mut trapped = Trapped::default();
        let base = 7 << 21;
        let at = |page: u64| Address(base + page * PAGE_BYTES + 5);
        trapped.note(Pid(1), at(0), false);
        trapped.note(Pid(1), at(0), true);
        trapped.note(Pid(1), at(65), true);
        trapped.note(Pid(1), at(65), false);
        let first = trapped.of(Pid(1), Address(base));
        assert_eq!((first.pages[0], first.pages[1]), (1, 2));
        assert_eq!((first.written[0], first.written[1]), (0, 2));
        let none = FirstAccesses::default();
        assert_eq!(trapped.of(Pid(2), Address(base)), none);
    }
}
