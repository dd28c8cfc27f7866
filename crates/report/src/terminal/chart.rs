//! Bars and the area chart, of block characters.

use varve_analyse::{WorkingSet, format};
use varve_model::{Duration, Pages, Time};

const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const BAR: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
/// Lines of the chart where it has room.
pub(super) const HEIGHT: usize = 6;
/// Columns for the scale.
const SCALE: usize = 10;

/// A bar for a share of `columns`; what is above nothing shows.
pub(super) fn bar(share: f64, columns: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * columns as f64 * 8.0).round() as usize;
    let eighths = if share > 0.0 { eighths.max(1) } else { 0 };
    let mut bar = "█".repeat(eighths / 8);
    if eighths % 8 > 0 {
        bar.push(BAR[eighths % 8]);
    }
    bar
}

/// The working set over time, in so many columns and lines: each column is the largest of its intervals, so that no peak is lost. `label` says how long
/// something is in what the trace's clock counts.
pub(super) fn area(
    working_set: &[WorkingSet],
    start: Time,
    (width, height): (usize, usize),
    label: &dyn Fn(Duration) -> String,
) -> Vec<String> {
    let columns = width.saturating_sub(SCALE + 2).max(10);
    let end = working_set.last().map_or(start, |w| w.end_ns);
    let length = (end - start).0.max(1);
    let mut peaks = vec![0_u64; columns];
    let column = |t: Time| {
        let share = (t - start).0 as f64 / length as f64;
        ((share * columns as f64) as usize).min(columns - 1)
    };
    for w in working_set {
        // The end lies in the next column where the interval ends with this one.
        let (from, to) = (
            column(w.start_ns),
            column(Time(w.end_ns.0.saturating_sub(1))),
        );
        for peak in &mut peaks[from..=to.max(from)] {
            *peak = w.pages.0.max(*peak);
        }
    }
    let top = peaks.iter().copied().max().unwrap_or(0);
    let mut lines = Vec::new();
    for row in (0..height).rev() {
        let scale = match row {
            r if r == height - 1 => format::pages_size(Pages(top)),
            0 => "0".to_owned(),
            _ => String::new(),
        };
        let mark = if scale.is_empty() { '│' } else { '┤' };
        let cells: String = peaks
            .iter()
            .map(|&peak| {
                let eighths =
                    (peak as f64 / top.max(1) as f64 * (height * 8) as f64).round() as usize;
                let eighths = if peak > 0 { eighths.max(1) } else { 0 };
                EIGHTHS[eighths.saturating_sub(row * 8).min(8)]
            })
            .collect();
        lines.push(format!("{scale:>SCALE$} {mark}{cells}"));
    }
    lines.push(format!("{:>SCALE$} └{}", "", "─".repeat(columns)));
    let at = |share: f64| label(Duration((length as f64 * share) as u64));
    let (first, middle, last) = (at(0.0), at(0.5), at(1.0));
    let half = columns / 2;
    let mut axis = format!("{first:<half$}");
    axis += &format!(
        "{middle:<rest$}",
        rest = columns - half - last.chars().count().min(columns - half)
    );
    axis += &last;
    lines.push(format!("{:>SCALE$}  {axis}", ""));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_is_not_nothing() {
        assert_eq!(bar(0.0, 8), "");
        assert_eq!(bar(0.0001, 8), "▏");
        assert_eq!(bar(0.5, 8), "████");
    }

    #[test]
    fn a_peak_of_one_interval_shows() {
        let set: Vec<WorkingSet> = (0..10_000)
            .map(|i| WorkingSet {
                pages_per_process: Pages(1),
                start_ns: Time(i),
                end_ns: Time(i + 1),
                pages: Pages(if i == 5000 { 800 } else { 1 }),
                resident_pages: varve_analyse::Known::Exact(Pages(0)),
            })
            .collect();
        let lines = area(&set, Time(0), (80, HEIGHT), &format::duration);
        assert_eq!(lines[0].matches('█').count(), 1);
        assert!(lines.iter().all(|l| l.chars().count() <= 80));
    }
}
