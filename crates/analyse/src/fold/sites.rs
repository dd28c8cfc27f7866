//! Objects of one name, kind and site, taken together: a page counts once however many of them lay on it, one after the
//! other or at once.

use std::collections::HashMap;

use super::{Mark, index, ones};
use crate::chunks::{Bits, CHUNK_PAGES, has, set};
use crate::stats::{Closed, NEVER, Seen};

/// What the pages of the objects of a site are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    /// How many objects.
    pub(crate) objects: u32,
    /// Sum over intervals of the pages touched.
    pub(crate) touches: u64,
    /// The part of pages that objects of other sites lie on too.
    pub(crate) shared: u64,
    pub(crate) huge: u64,
    pub(crate) standing: u64,
    pub(crate) possibly: u64,
    pub(crate) seen: Seen,
    /// Distinct pages.
    pub(crate) touched: u64,
    pub(crate) written: u64,
    pub(crate) cold: u64,
}

const NEW: Site = Site {
    objects: 0,
    touches: 0,
    shared: 0,
    huge: 0,
    standing: 0,
    possibly: 0,
    seen: Seen::NOT,
    touched: 0,
    written: 0,
    cold: 0,
};

/// All sites.
pub(crate) struct Sites {
    /// The site of each object, by position; that of none is [`NEVER`].
    of: Vec<u32>,
    pub(crate) all: Vec<Site>,
    /// Touched, written and cold pages of sites with several objects, by site and chunk.
    pages: HashMap<(u32, u32), Box<[Bits; 3]>>,
    scratch: Vec<u32>,
}

impl Sites {
    /// `of` gives each object its site, from 0 on without gaps.
    pub(crate) fn new(of: Vec<u32>) -> Sites {
        let count = of.iter().map(|&site| site as usize + 1).max().unwrap_or(0);
        let mut all = vec![NEW; count];
        for &site in &of {
            all[site as usize].objects += 1;
        }
        Sites {
            of,
            all,
            pages: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    /// The site of an object.
    pub(crate) fn of(&self, object: usize) -> u32 {
        self.of.get(object).copied().unwrap_or(NEVER)
    }

    /// An object was touched in an interval.
    #[inline]
    pub(super) fn seen(&mut self, object: u32, interval: u32) {
        let site = self.of(object as usize);
        if let Some(site) = self.all.get_mut(site as usize) {
            site.seen.mark(interval);
        }
    }

    /// Calls `each` with the sites of the objects, once each, and whether there are others.
    fn each(&mut self, objects: &[u32], mut each: impl FnMut(&mut Site, bool)) {
        let mut sites = std::mem::take(&mut self.scratch);
        sites.clear();
        sites.extend(objects.iter().map(|&o| self.of(o as usize)));
        sites.sort_unstable();
        sites.dedup();
        for &site in &sites {
            if let Some(site) = self.all.get_mut(site as usize) {
                each(site, sites.len() > 1);
            }
        }
        self.scratch = sites;
    }

    /// So many touches of pages that these objects lie on.
    pub(super) fn touched(&mut self, objects: &[u32], touches: u64) {
        self.each(objects, |site, others| {
            site.touches += touches;
            site.shared += touches * u64::from(others);
        });
    }

    /// So many touches with a mark of pages that these objects lie on.
    pub(super) fn marked(&mut self, objects: &[u32], mark: Mark, touches: u64) {
        self.each(objects, |site, _| match mark {
            Mark::Huge => site.huge += touches,
            Mark::Standing => site.standing += touches,
            Mark::Possibly => site.possibly += touches,
            Mark::Written => (),
        });
    }

    /// What a page was to an object in the end.
    pub(super) fn closed(&mut self, object: u32, key: u64, closed: Closed) {
        let at = self.of(object as usize);
        let Some(site) = self.all.get_mut(at as usize).filter(|_| closed.touched) else {
            return;
        };
        let what = [closed.touched, closed.written, closed.cold];
        let sums = [&mut site.touched, &mut site.written, &mut site.cold];
        if site.objects == 1 {
            for (sum, is) in sums.into_iter().zip(what) {
                *sum += u64::from(is);
            }
            return;
        }
        let page = (key % CHUNK_PAGES) as usize;
        let chunk = index((key / CHUNK_PAGES) as usize);
        let pages = self.pages.entry((at, chunk)).or_default();
        for ((sum, bits), is) in sums.into_iter().zip(pages.iter_mut()).zip(what) {
            if is && !has(bits, page) {
                set(bits, page, page + 1);
                *sum += 1;
            }
        }
        debug_assert!(ones(&pages[0]) <= CHUNK_PAGES);
    }
}
