//! The pixels of the lanes, from the cells of the map.

use std::ops::Range;

use crate::map::{Lane, Map};

/// The cells of the map, as the columns of the picture see them.
pub(super) struct Cells<'a> {
    pub(super) map: &'a Map,
    /// The time bins of each column.
    columns: Vec<Range<usize>>,
    /// How many intervals the time bins before each have, and all of them.
    intervals: Vec<u64>,
}

/// One row of pixels of a lane. A column may show a part of a time bin, and a time bin many columns: sums up to each time bin let
/// every cell be read once, however many columns there are.
pub(super) struct PixelRow {
    /// Pages of its address bins.
    pages: u64,
    /// Of the time bins before each, and of all of them: the sum of the cells,
    sums: Vec<u64>,
    /// and how many have a cell that others may have touched.
    possibly: Vec<u32>,
}

impl<'a> Cells<'a> {
    pub(super) fn new(map: &'a Map, columns: usize) -> Cells<'a> {
        let edges = map.bin_edges();
        let length = edges.last().map_or(0, |t| t.0) as f64;
        let at = |column: usize| column as f64 / columns as f64 * length;
        let of = |column| {
            let first = edges.partition_point(|e| e.0 as f64 <= at(column));
            let behind = edges.partition_point(|e| (e.0 as f64) < at(column + 1));
            let first = first.saturating_sub(1).min(map.grids.time_bins);
            first..behind.clamp(first, map.grids.time_bins)
        };
        let bins = 0..map.grids.time_bins;
        Cells {
            map,
            columns: (0..columns).map(of).collect(),
            intervals: sums_before(bins.map(|bin| map.intervals_of(bin))),
        }
    }

    /// Reads the cells of a row of pixels. `row` is one of `rows` of a lane.
    pub(super) fn row(&self, lane: usize, (row, rows): (usize, usize)) -> PixelRow {
        let lane: &Lane = &self.map.grids.lanes[lane];
        let width = self.map.grids.time_bins;
        let first = row * lane.address_bins / rows;
        let behind = ((row + 1) * lane.address_bins / rows).max(first + 1);
        let bins = first..behind.min(lane.address_bins);
        let mut sums = vec![0_u64; width];
        let mut possibly = vec![false; width];
        for bin in bins.clone() {
            let cells = bin * width..(bin + 1) * width;
            for (sum, &cell) in sums.iter_mut().zip(&lane.sums[cells.clone()]) {
                *sum += u64::from(cell);
            }
            let others = lane.possibly.get(cells).unwrap_or_default();
            for (any, &cell) in possibly.iter_mut().zip(others) {
                *any |= cell > 0;
            }
        }
        PixelRow {
            pages: bins.map(|bin| lane.bin_pages(bin)).sum(),
            sums: sums_before(sums.into_iter()),
            possibly: sums_before(possibly.into_iter().map(u32::from)),
        }
    }

    /// The share of pages touched per interval in a pixel, 0 to 1, and whether others may have touched some.
    pub(super) fn pixel(&self, row: &PixelRow, column: usize) -> (f64, bool) {
        let Range { start, end } = self.columns[column];
        let sum = row.sums[end] - row.sums[start];
        let all = row.pages * (self.intervals[end] - self.intervals[start]);
        let share = (sum as f64 / all.max(1) as f64).min(1.0);
        (share, row.possibly[end] > row.possibly[start])
    }
}

/// The sum of the numbers before each, and of all of them: one more than there are numbers.
fn sums_before<T: Copy + Default + std::ops::AddAssign>(
    numbers: impl Iterator<Item = T>,
) -> Vec<T> {
    let mut sums = vec![T::default()];
    let mut sum = T::default();
    for number in numbers {
        sum += number;
        sums.push(sum);
    }
    sums
}

#[cfg(test)]
mod tests {
    use varve_model::Time;

    use super::*;
    use crate::map::{Grids, Holds};

    /// The pixel by its definition: every cell of it is read.
    fn model(
        cells: &Cells<'_>,
        lane: usize,
        (row, rows): (usize, usize),
        column: usize,
    ) -> (f64, bool) {
        let lane = &cells.map.grids.lanes[lane];
        let width = cells.map.grids.time_bins;
        let first = row * lane.address_bins / rows;
        let behind = ((row + 1) * lane.address_bins / rows).max(first + 1);
        let (mut sum, mut all, mut possibly) = (0, 0, false);
        for bin in first..behind.min(lane.address_bins) {
            for time in cells.columns[column].clone() {
                let cell = bin * width + time;
                sum += u64::from(lane.sums[cell]);
                all += lane.bin_pages(bin) * cells.map.intervals_of(time);
                possibly |= lane.possibly.get(cell).is_some_and(|&p| p > 0);
            }
        }
        ((sum as f64 / all.max(1) as f64).min(1.0), possibly)
    }

    /// Numbers below a bound, the same ones in each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (self.0 >> 33) % bound
        }
    }

    fn lane(numbers: &mut Numbers, time_bins: usize) -> Lane {
        let page_shift = numbers.below(4) as u32;
        let address_bins = numbers.below(40) as usize;
        let last = numbers.below(1 << page_shift);
        let cells = address_bins * time_bins;
        // Most cells of a map are empty.
        let mut cell = |most| numbers.below(8).saturating_sub(5) * most;
        let sums = (0..cells).map(|_| cell(3) as u32).collect();
        let others: Vec<u32> = (0..cells).map(|_| cell(1) as u32).collect();
        Lane {
            holds: Holds::Untouched,
            title: String::new(),
            objects: 1,
            lived: (Time(0), None),
            pages: ((address_bins as u64) << page_shift).saturating_sub(last),
            segments: Vec::new(),
            page_shift,
            address_bins,
            sums,
            distinct: vec![0; cells],
            possibly: if last.is_multiple_of(2) {
                others
            } else {
                Vec::new()
            },
            first_time: Vec::new(),
            first_threads: Vec::new(),
        }
    }

    #[test]
    fn a_pixel_is_the_share_of_its_cells() {
        let mut numbers = Numbers(1);
        let (mut coloured, mut striped) = (0, 0);
        for _ in 0..60 {
            // Fewer time bins than columns, and more.
            let per_bin = numbers.below(3) as usize + 1;
            let intervals = numbers.below(50);
            let time_bins = (intervals as usize).div_ceil(per_bin);
            let mut edge = 0;
            let edges = (0..=intervals).map(|_| {
                edge += numbers.below(5) + 1;
                Time(edge - 1)
            });
            let edges = edges.collect();
            let map = Map {
                grids: Grids {
                    lanes: (0..2).map(|_| lane(&mut numbers, time_bins)).collect(),
                    time_bins,
                    per_bin,
                    unowned: 0,
                },
                edges,
                ..Map::default()
            };
            let columns = numbers.below(30) as usize + 1;
            let rows = numbers.below(30) as usize + 1;
            let cells = Cells::new(&map, columns);
            for lane in 0..2 {
                for row in 0..rows {
                    let pixels = cells.row(lane, (row, rows));
                    for column in 0..columns {
                        let found = cells.pixel(&pixels, column);
                        assert_eq!(found, model(&cells, lane, (row, rows), column));
                        coloured += u32::from(found.0 > 0.0);
                        striped += u32::from(found.1);
                    }
                }
            }
        }
        assert!(coloured > 1000 && striped > 1000, "{coloured} {striped}");
    }
}
