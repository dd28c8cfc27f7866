//! The pixels of the lanes, from the cells of the map.

use crate::map::Map;

/// The cells of the map, as the columns of the picture see them.
pub(super) struct Cells<'a> {
    pub(super) map: &'a Map,
    /// The time bins of each column: the first, and the one behind the last.
    columns: Vec<(usize, usize)>,
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
            (first, behind.clamp(first, map.grids.time_bins))
        };
        Cells {
            map,
            columns: (0..columns).map(of).collect(),
        }
    }

    /// The share of pages touched per interval in a pixel, 0 to 1, and whether others may have touched some. `row` is one of
    /// `rows` of a lane.
    pub(super) fn pixel(
        &self,
        lane: usize,
        (row, rows): (usize, usize),
        column: usize,
    ) -> (f64, bool) {
        let lane = &self.map.grids.lanes[lane];
        let width = self.map.grids.time_bins;
        let first = row * lane.address_bins / rows;
        let behind = ((row + 1) * lane.address_bins / rows).max(first + 1);
        let (from, to) = self.columns[column];
        let (mut sum, mut all, mut possibly) = (0, 0, false);
        for bin in first..behind.min(lane.address_bins) {
            for time in from..to {
                let cell = bin * width + time;
                sum += u64::from(lane.sums[cell]);
                all += lane.bin_pages(bin) * self.map.intervals_of(time);
                possibly |= lane.possibly.get(cell).is_some_and(|&p| p > 0);
            }
        }
        ((sum as f64 / all.max(1) as f64).min(1.0), possibly)
    }
}
