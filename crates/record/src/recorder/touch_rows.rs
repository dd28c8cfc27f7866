//! Bitmaps of touched pages to runs of them.

use varve_bpf::{Bitmap, Leaf, Region};
use varve_model::{Interval, PAGE_BYTES, Page, Pid, TouchSource};
use varve_trace::tables::TouchRow;

/// What the bitmaps tell of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writes {
    /// Every page that was not written was read, but for those of which a probe says otherwise ([`Details::perhaps_written`]).
    Known,
    /// Pages that are neither written nor intact are not known.
    Partly,
    Unknown,
}

/// Pages of a region whose first access in an interval is known by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FirstAccesses {
    pub(crate) pages: Bitmap,
    /// Those of them to which it was a write.
    pub(crate) written: Bitmap,
}

/// What probes know of a region beside what it says itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Details {
    pub(crate) first: FirstAccesses,
    /// Pages that may have been written though nothing shows it any more.
    pub(crate) perhaps_written: Bitmap,
}

/// Appends the runs of the regions of one process in one interval, sorted by page.
///
/// A page with several causes counts once, under the strongest: an accessed bit, then a page flag,
/// then a pin, then a bit that cannot be cleared. `source` replaces all of these where it is given. A page whose first
/// access trapped counts as that whatever its causes. What only a flag shows that others may have set comes last, and
/// stays that whatever `source`.
pub(crate) fn append_runs(
    rows: &mut Vec<TouchRow>,
    interval: Interval,
    pid: Pid,
    regions: &[Region],
    writes: Writes,
    source: Option<TouchSource>,
    details: impl Fn(&Region) -> Details,
) {
    let from = rows.len();
    for region in regions {
        let details = details(region);
        let (caught, wrote) = (details.first.pages, details.first.written);
        let young: Bitmap = std::array::from_fn(|i| {
            // Whoever set the flag: what was written through this mapping was touched.
            let wrote = region.others[i] & region.written[i];
            region.young[i] | region.referenced[i] | wrote
        });
        let mut seen: Bitmap = [0; 8];
        for (bits, cause) in [
            (&region.accessed, TouchSource::Scan),
            (&young, TouchSource::PageFlag),
            (&region.pinned, TouchSource::Pinned),
            (&region.sticky, TouchSource::Sticky),
            (&region.others, TouchSource::PossiblyOthers),
        ] {
            let fresh: Bitmap = std::array::from_fn(|i| bits[i] & !seen[i]);
            for (seen, bits) in seen.iter_mut().zip(bits) {
                *seen |= bits;
            }
            if fresh == [0; 8] {
                continue;
            }
            let cause = match cause {
                TouchSource::PossiblyOthers => cause,
                _ => source.unwrap_or(cause),
            };
            let fresh = if caught == [0; 8] {
                fresh
            } else {
                // A page that was read first may have been written later.
                for (bits, written) in [(&wrote, Some(true)), (&not(&caught, &wrote), None)] {
                    let bits = std::array::from_fn(|i| fresh[i] & caught[i] & bits[i]);
                    push(
                        rows,
                        interval,
                        pid,
                        region,
                        &bits,
                        written,
                        TouchSource::Fault,
                    );
                }
                not(&fresh, &caught)
            };
            match writes {
                Writes::Unknown => push(rows, interval, pid, region, &fresh, None, cause),
                Writes::Partly => {
                    let (written, intact) = (&region.written, &region.intact);
                    let yes = std::array::from_fn(|i| fresh[i] & written[i]);
                    let no = std::array::from_fn(|i| fresh[i] & intact[i] & !written[i]);
                    let rest = std::array::from_fn(|i| fresh[i] & !written[i] & !intact[i]);
                    for (bits, written) in [(yes, Some(true)), (no, Some(false)), (rest, None)] {
                        push(rows, interval, pid, region, &bits, written, cause);
                    }
                }
                Writes::Known => {
                    let written = std::array::from_fn(|i| fresh[i] & region.written[i]);
                    let rest = not(&fresh, &region.written);
                    let read = not(&rest, &details.perhaps_written);
                    let unknown = not(&rest, &read);
                    for (bits, written) in
                        [(written, Some(true)), (read, Some(false)), (unknown, None)]
                    {
                        push(rows, interval, pid, region, &bits, written, cause);
                    }
                }
            }
        }
    }
    rows[from..].sort_by_key(|r| r.page);
    join(rows, from);
}

fn not(bits: &Bitmap, without: &Bitmap) -> Bitmap {
    std::array::from_fn(|i| bits[i] & !without[i])
}

fn push(
    rows: &mut Vec<TouchRow>,
    interval: Interval,
    pid: Pid,
    region: &Region,
    bits: &Bitmap,
    written: Option<bool>,
    source: TouchSource,
) {
    let first = region.base.page().0;
    let bytes = region.leaf.bytes().0;
    let mut row = |page: u64, pages: u64| {
        rows.push(TouchRow {
            interval,
            pid,
            page: Page(page),
            pages: pages as u32,
            page_bytes: bytes as u32,
            written,
            source,
        });
    };
    if region.leaf != Leaf::Small {
        if bits[0] & 1 != 0 {
            row(first, bytes / PAGE_BYTES);
        }
        return;
    }
    // Runs within each word; `join` puts together what a word boundary cuts.
    for (index, word) in bits.iter().enumerate() {
        let mut word = *word;
        let mut at = 0;
        while word != 0 {
            let gap = word.trailing_zeros();
            word >>= gap;
            let length = word.trailing_ones();
            row(
                first + index as u64 * 64 + u64::from(at + gap),
                u64::from(length),
            );
            at += gap + length;
            word = if length == 64 { 0 } else { word >> length };
        }
    }
}

/// Joins neighbouring runs of the same kind from row `from` on.
fn join(rows: &mut Vec<TouchRow>, from: usize) {
    let mut kept = from;
    for i in from..rows.len() {
        if kept > from {
            let row = rows[i].clone();
            let last = &mut rows[kept - 1];
            let same = last.source == row.source
                && last.written == row.written
                && last.page_bytes == row.page_bytes;
            if same
                && last.page.0 + u64::from(last.pages) == row.page.0
                && let Some(pages) = last.pages.checked_add(row.pages)
            {
                last.pages = pages;
                continue;
            }
        }
        rows.swap(kept, i);
        kept += 1;
    }
    rows.truncate(kept);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use varve_model::Address;

    use super::*;

    fn region(base: u64, accessed: Bitmap, young: Bitmap, written: Bitmap) -> Region {
        Region {
            accessed,
            young,
            written,
            present: 512,
            ..Region::untouched(Address(base << 21), Leaf::Small)
        }
    }

    fn rows_of(
        regions: &[Region],
        writes: Writes,
        source: Option<TouchSource>,
        details: Details,
    ) -> Vec<TouchRow> {
        let mut rows = Vec::new();
        append_runs(
            &mut rows,
            Interval(0),
            Pid(1),
            regions,
            writes,
            source,
            |_| details,
        );
        rows
    }

    #[test]
    fn a_huge_page_is_one_run_of_its_own_size() {
        let mut huge = region(1, [1, 0, 0, 0, 0, 0, 0, 0], [0; 8], [0; 8]);
        huge.leaf = Leaf::Huge2M;
        let rows = rows_of(&[huge], Writes::Unknown, None, Details::default());
        assert_eq!(
            (rows.len(), rows[0].pages, rows[0].page_bytes),
            (1, 512, 2 << 20)
        );
    }

    #[test]
    fn full_neighbours_become_one_run() {
        let full = [u64::MAX; 8];
        let regions = [
            region(4, full, [0; 8], [0; 8]),
            region(5, full, [0; 8], [0; 8]),
        ];
        let rows = rows_of(&regions, Writes::Unknown, None, Details::default());
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].page, rows[0].pages), (Page(4 * 512), 1024));
    }

    #[test]
    fn what_is_neither_written_nor_intact_is_not_known() {
        let mut r = region(2, [0b111, 0, 0, 0, 0, 0, 0, 0], [0; 8], [0b001; 8]);
        r.intact = [0b010; 8];
        let rows = rows_of(&[r], Writes::Partly, None, Details::default());
        let known: Vec<_> = rows.iter().map(|r| (r.pages, r.written)).collect();
        assert_eq!(known, [(1, Some(true)), (1, Some(false)), (1, None)]);
    }

    #[test]
    fn what_may_have_been_written_is_not_said_to_have_been_read() {
        let mut r = region(2, [0b111, 0, 0, 0, 0, 0, 0, 0], [0; 8], [0b001; 8]);
        r.intact = [0b100; 8];
        let details = Details {
            perhaps_written: [0b011; 8],
            ..Details::default()
        };
        let rows = rows_of(&[r], Writes::Known, None, details);
        let known: Vec<_> = rows.iter().map(|r| (r.pages, r.written)).collect();
        assert_eq!(known, [(1, Some(true)), (1, None), (1, Some(false))]);
    }

    #[test]
    fn what_others_may_have_touched_stays_that() {
        let word = |bits| [bits, 0, 0, 0, 0, 0, 0, 0];
        let mut r = region(2, word(0b00001), word(0b00010), word(0b10000));
        r.pinned = word(0b00100);
        r.others = word(0b11111);
        for (replaced, strong) in [
            (
                None,
                [
                    TouchSource::Scan,
                    TouchSource::PageFlag,
                    TouchSource::Pinned,
                ],
            ),
            (Some(TouchSource::Vanish), [TouchSource::Vanish; 3]),
        ] {
            let rows = rows_of(&[r], Writes::Known, replaced, Details::default());
            let sources: Vec<TouchSource> = rows
                .iter()
                .flat_map(|r| (0..r.pages).map(|_| r.source))
                .collect();
            // The last was written through this mapping, which no other process does.
            let wrote = replaced.unwrap_or(TouchSource::PageFlag);
            let possibly = TouchSource::PossiblyOthers;
            assert_eq!(sources, [strong[0], strong[1], strong[2], possibly, wrote]);
        }
    }

    proptest! {
        #[test]
        fn runs_hold_exactly_the_bits(
            accessed in any::<[u64; 8]>(), young in any::<[u64; 8]>(), written in any::<[u64; 8]>(),
            sparse in any::<bool>(),
        ) {
            let thin = |w: u64| if sparse { w & (w >> 7) & (w << 9) } else { w };
            let regions = [
                region(2, accessed.map(thin), young, written),
                region(3, young, accessed, written),
            ];
            let rows = rows_of(&regions, Writes::Known, None, Details::default());
            let mut got = BTreeMap::new();
            let mut last = 0;
            for row in &rows {
                prop_assert!(row.page.0 >= last && row.pages > 0);
                last = row.page.0 + u64::from(row.pages);
                for page in row.page.0..last {
                    prop_assert!(got.insert(page, (row.source, row.written)).is_none());
                }
            }
            let mut expected = BTreeMap::new();
            for r in &regions {
                for bit in 0..512usize {
                    let is = |b: &Bitmap| b[bit / 64] >> (bit % 64) & 1 == 1;
                    let source = match (is(&r.accessed), is(&r.young)) {
                        (true, _) => TouchSource::Scan,
                        (false, true) => TouchSource::PageFlag,
                        _ => continue,
                    };
                    expected.insert(r.base.page().0 + bit as u64, (source, Some(is(&r.written))));
                }
            }
            prop_assert_eq!(got, expected);
        }
    }
}
