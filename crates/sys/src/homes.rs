//! Where the pages in a shadow belong, while mappings change.

use varve_preload_abi::journal::Change;

use crate::MapEntry;

pub(crate) const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;

/// Where the pages of a range lie while they are moved.
#[derive(Clone, Copy, Debug)]
pub struct Shadow {
    /// The shadow address of an address.
    pub of: fn(u64) -> u64,
    /// Addresses below and from here on have their shadows in different directions.
    pub middle: u64,
    /// Addresses from here on are nobody's.
    pub top: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Range {
    fn common(self, other: Range) -> Range {
        Range {
            start: self.start.max(other.start),
            end: self.end.min(other.end),
        }
    }

    fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// What of it lies outside another.
    fn without(self, other: Range) -> impl Iterator<Item = Range> {
        let before = self.common(Range {
            start: 0,
            end: other.start,
        });
        let behind = self.common(Range {
            start: other.end.max(other.start),
            end: u64::MAX,
        });
        [before, behind].into_iter().filter(|r| !r.is_empty())
    }
}

pub(crate) fn range_of(mapping: &MapEntry) -> Range {
    Range {
        start: mapping.address.0,
        end: mapping.address.0 + mapping.bytes.0,
    }
}

/// Pages side by side in the shadow, and where they belong now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) shadow: u64,
    pub(crate) home: u64,
    pub(crate) bytes: u64,
    /// Whether all its pages are there.
    pub(crate) is_present: bool,
}

impl Piece {
    /// A part of it, by addresses in the shadow.
    pub(crate) fn part(self, start: u64, end: u64) -> Piece {
        Piece {
            shadow: start,
            home: self.home + (start - self.shadow),
            bytes: end - start,
            is_present: self.is_present,
        }
    }

    fn home(self) -> Range {
        Range {
            start: self.home,
            end: self.home + self.bytes,
        }
    }

    fn part_at(self, home: Range) -> Piece {
        let start = self.shadow + (home.start - self.home);
        self.part(start, start + (home.end - home.start))
    }
}

/// The pages of a shadow that are to be brought back, and where to.
#[derive(Clone, Debug)]
pub(crate) struct Homes {
    rule: Shadow,
    /// What is to be brought back, the next at the end.
    pieces: Vec<Piece>,
    /// What could not be brought to where it belongs, which is not there: it may have moved.
    passed: Vec<Piece>,
    /// All of the shadow that was ever in `pieces`.
    known: Vec<Range>,
}

impl Homes {
    /// All pages that mappings may have in their shadows.
    pub(crate) fn new(rule: Shadow, mappings: &[MapEntry]) -> Homes {
        let mut homes = Homes {
            rule,
            pieces: Vec::new(),
            passed: Vec::new(),
            known: Vec::new(),
        };
        let mapped: Vec<Range> = mappings.iter().map(range_of).collect();
        for range in &mapped {
            for piece in homes.in_shadow(*range, range.start) {
                let at = mapped.partition_point(|m| m.end <= piece.shadow);
                if mapped
                    .get(at)
                    .is_some_and(|m| m.start < piece.shadow + piece.bytes)
                {
                    homes.add(piece);
                }
            }
        }
        homes.pieces.reverse();
        homes
    }

    /// The shadow of a range whose pages are now at `to`: each piece lies in one direction.
    fn in_shadow(&self, range: Range, to: u64) -> Vec<Piece> {
        let Shadow { of, middle, top } = self.rule;
        [(0, middle), (middle, top)]
            .map(|(start, end)| range.common(Range { start, end }))
            .into_iter()
            .filter(|r| !r.is_empty())
            .map(|r| Piece {
                shadow: of(r.start),
                home: to + (r.start - range.start),
                bytes: r.end - r.start,
                is_present: false,
            })
            .collect()
    }

    fn add(&mut self, piece: Piece) {
        self.known.push(Range {
            start: piece.shadow,
            end: piece.shadow + piece.bytes,
        });
        self.pieces.push(piece);
    }

    /// What is to be brought back next; whoever does not do all of it gives back the rest.
    pub(crate) fn pop(&mut self) -> Option<Piece> {
        self.pieces.pop()
    }

    pub(crate) fn push(&mut self, piece: Piece) {
        self.pieces.push(piece);
    }

    /// Notes that a page cannot be brought to where it belongs.
    pub(crate) fn pass(&mut self, piece: Piece) {
        match self.passed.last_mut() {
            Some(last)
                if last.shadow + last.bytes == piece.shadow
                    && last.home + last.bytes == piece.home =>
            {
                last.bytes += piece.bytes;
            }
            _ => self.passed.push(piece),
        }
    }

    /// Follows a change of mappings. What a fork means is for others.
    pub(crate) fn follow(&mut self, change: Change) {
        let [a, b, c] = change.words;
        match change.event as u8 {
            EVENT_REMAP => self.remap(a, b, c),
            EVENT_REMOVE | EVENT_UNMAP => {
                self.take(Range { start: a, end: b });
            }
            _ => {}
        }
    }

    /// Memory was moved within the address space.
    fn remap(&mut self, from: u64, to: u64, bytes: u64) {
        let range = Range {
            start: from,
            end: from.saturating_add(bytes),
        };
        let taken = self.take(range);
        // Mappings that were listed after it had moved do not show that there was something.
        let mut unknown = self.in_shadow(range, to);
        for known in &self.known {
            unknown = unknown
                .into_iter()
                .flat_map(|piece| {
                    let place = Range {
                        start: piece.shadow,
                        end: piece.shadow + piece.bytes,
                    };
                    place
                        .without(*known)
                        .map(move |r| piece.part(r.start, r.end))
                })
                .collect();
        }
        unknown.into_iter().for_each(|piece| self.add(piece));
        self.pieces.extend(taken.into_iter().map(|piece| Piece {
            home: to + (piece.home - from),
            ..piece
        }));
    }

    /// Takes out what belongs into a range.
    fn take(&mut self, range: Range) -> Vec<Piece> {
        let mut taken = Vec::new();
        for list in [&mut self.pieces, &mut self.passed] {
            let mut kept = Vec::with_capacity(list.len());
            for piece in list.drain(..) {
                let common = piece.home().common(range);
                if common.is_empty() {
                    kept.push(piece);
                } else {
                    taken.push(piece.part_at(common));
                    kept.extend(piece.home().without(common).map(|rest| piece.part_at(rest)));
                }
            }
            *list = kept;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use varve_model::PAGE_BYTES;

    use super::*;

    const GAP: u64 = 1 << 45;
    const RULE: Shadow = Shadow {
        of: |address| address - GAP,
        middle: 1 << 46,
        top: 1 << 47,
    };
    const HOME: u64 = 0x7f00_0000_0000;

    fn mapping(start: u64, pages: u64) -> MapEntry {
        let end = start + pages * PAGE_BYTES;
        let line = format!("{start:x}-{end:x} rw-p 00000000 00:00 0\n");
        crate::parse_maps(line.as_bytes()).remove(0)
    }

    fn homes(pages: u64) -> Homes {
        Homes::new(RULE, &[mapping(HOME - GAP, pages), mapping(HOME, pages)])
    }

    /// Where each page of the shadow belongs, in pages from their starts.
    fn places(mut homes: Homes) -> Vec<(u64, i64)> {
        let mut all = Vec::new();
        while let Some(piece) = homes.pop() {
            for page in 0..piece.bytes / PAGE_BYTES {
                let shadow =
                    (piece.shadow / PAGE_BYTES + page).wrapping_sub((HOME - GAP) / PAGE_BYTES);
                let home = piece.home / PAGE_BYTES + page;
                // Where nothing was ever moved to, there are no pages.
                if shadow < 4 {
                    all.push((shadow, home as i64 - (HOME / PAGE_BYTES) as i64));
                }
            }
        }
        all.sort_unstable();
        all
    }

    const fn page(index: i64) -> u64 {
        (HOME as i64 + index * PAGE_BYTES as i64) as u64
    }

    #[test]
    fn pages_belong_where_their_mapping_is() {
        assert_eq!(places(homes(3)), [(0, 0), (1, 1), (2, 2)]);
        let without_shadow = Homes::new(RULE, &[mapping(HOME, 3)]);
        assert_eq!(places(without_shadow), []);
    }

    #[test]
    fn pages_follow_their_mapping() {
        let mut homes = homes(4);
        homes.remap(page(2), page(-8), 2 * PAGE_BYTES);
        // The kernel also says that the old place is unmapped.
        homes.take(Range {
            start: page(2),
            end: page(4),
        });
        assert_eq!(places(homes.clone()), [(0, 0), (1, 1), (2, -8), (3, -7)]);
        homes.remap(page(-7), page(20), PAGE_BYTES);
        assert_eq!(places(homes), [(0, 0), (1, 1), (2, -8), (3, 20)]);
    }

    #[test]
    fn pages_that_were_given_back_belong_nowhere() {
        let mut homes = homes(4);
        homes.take(Range {
            start: page(1),
            end: page(3),
        });
        assert_eq!(places(homes.clone()), [(0, 0), (3, 3)]);
        // Nor do they come back when the place is moved.
        homes.remap(page(0), page(10), 4 * PAGE_BYTES);
        assert_eq!(places(homes), [(0, 10), (3, 13)]);
    }

    #[test]
    fn pages_whose_place_has_moved_are_brought_once_that_is_known() {
        let mut homes = homes(3);
        while let Some(piece) = homes.pop() {
            let page = piece.shadow + PAGE_BYTES;
            homes.pass(piece.part(piece.shadow, page));
            homes.pass(piece.part(page, piece.shadow + piece.bytes));
        }
        homes.remap(page(1), page(9), 2 * PAGE_BYTES);
        assert_eq!(places(homes), [(1, 9), (2, 10)]);
    }

    #[test]
    fn mappings_that_were_listed_too_late_are_known_by_what_the_kernel_says() {
        let mut homes = Homes::new(RULE, &[mapping(HOME - GAP, 2), mapping(page(-8), 2)]);
        assert_eq!(places(homes.clone()), []);
        homes.remap(HOME, page(-8), 2 * PAGE_BYTES);
        assert_eq!(places(homes.clone()), [(0, -8), (1, -7)]);
        homes.remap(HOME, page(30), 2 * PAGE_BYTES);
        assert_eq!(places(homes), [(0, -8), (1, -7)]);
    }
}
