//! The counts of an exact recording, from the plugin's files to rows.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use varve_model::{Duration, Interval, Loss, Page, Pid, Tid, Time, TouchSource};
use varve_qemu_counter_abi::{CONTROL, Control, Counts, CountsError, EXTENSION, Image, Segment};
use varve_trace::Append;
use varve_trace::tables::{CountRow, IntervalRow, TouchRow};

use crate::RecordError;

/// Rows that are written at once.
const ROWS_AT_ONCE: usize = 1 << 17;

/// When the target ran, and whose counts are wanted.
pub(crate) struct Run {
    pub(crate) began: Time,
    pub(crate) end: Time,
    /// One process, where its children are not recorded.
    pub(crate) only: Option<u32>,
}

/// Writes `counts` and `touches` of all processes, an interval at a time, and notes the intervals. Returns
/// what was lost, by kind.
pub(crate) fn write(
    folder: &Path,
    run: &Run,
    writer: &mut impl Append,
    intervals: &mut Vec<IntervalRow>,
) -> Result<Vec<(Loss, u64)>, RecordError> {
    let control = Control::open(&folder.join(CONTROL))?;
    let (mut lost, mut unfollowed, mut damaged) = (0, 0, 0);
    let mut files = Vec::new();
    for path in count_files(folder)? {
        match Counts::open(&path).and_then(|counts| Ok((counts.segments()?, counts))) {
            Ok((segments, counts)) => {
                let image = counts.image();
                if run.only.is_none_or(|only| image.pid == only) {
                    lost += image.lost;
                    unfollowed += image.unfollowed;
                    files.push((counts, segments));
                }
            }
            Err(_) => damaged += 1,
        }
    }
    let first = first_stamps(&files, &mut damaged);
    // Whose segments belong to an interval, in the order of intervals.
    let mut by_interval: BTreeMap<u32, Vec<(usize, Segment)>> = BTreeMap::new();
    for (i, (_, segments)) in files.iter().enumerate() {
        for segment in segments {
            let of = by_interval.entry(segment.interval).or_default();
            of.push((i, *segment));
        }
    }
    let count = by_interval.last_key_value().map_or(1, |(last, _)| last + 1);
    let starts = starts(&control, count, run)?;
    for interval in 0..count {
        let segments = by_interval.remove(&interval).unwrap_or_default();
        let threads = segments.len() as u32;
        let mut rows = Vec::new();
        let mut processes: Vec<u32> = Vec::new();
        for (file, segment) in segments {
            let counts = &files[file].0;
            let pid = counts.image().pid;
            processes.push(pid);
            let Ok(entries) = counts.entries(&segment) else {
                damaged += 1;
                continue;
            };
            for entry in entries {
                // Of a program that still runs, what came after the first look is left out.
                let known = first.get(&(pid, entry.page));
                let Some(known) = known.filter(|known| **known <= entry.first_ns) else {
                    continue;
                };
                rows.push(CountRow {
                    interval: Interval(interval),
                    pid: Pid(pid),
                    tid: thread(counts.image(), segment.tid),
                    page: Page(entry.page),
                    reads: entry.reads,
                    writes: entry.writes,
                    first: Some(*known == entry.first_ns),
                });
            }
        }
        processes.sort_unstable();
        processes.dedup();
        rows.sort_unstable_by_key(|r| (r.pid, r.page, r.tid));
        for piece in rows.chunks(ROWS_AT_ONCE) {
            writer.append(piece)?;
        }
        for piece in touches(&rows).chunks(ROWS_AT_ONCE) {
            writer.append(piece)?;
        }
        intervals.push(IntervalRow {
            interval: Interval(interval),
            start_ns: starts[interval as usize],
            end_ns: starts[interval as usize + 1],
            held_ns: Duration(0),
            longest_hold_ns: Duration(0),
            longest_stop_ns: Duration(0),
            holds: 0,
            overlap_ns: Duration(0),
            // The emulator's own memory cannot be distinguished from the program's.
            resident_pages: 0,
            mappings: 0,
            processes: processes.len() as u32,
            threads,
            recorder_cpu_ns: Duration(0),
        });
    }
    Ok(vec![
        (Loss::UncountedAccesses, lost),
        (Loss::UncountedPrograms, unfollowed),
        (Loss::UncountedProcesses, control.uncounted()?),
        (Loss::DamagedCounts, damaged),
    ])
}

/// The thread that called itself so. In a pid namespace of its own, a process numbers its threads anew: there only the first
/// is known.
fn thread(image: &Image, own: u32) -> Option<Tid> {
    let known = image.own_pid == image.pid;
    let first = own == image.own_pid;
    (known || first).then_some(Tid(if first { image.pid } else { own }))
}

/// When the first program began to be counted.
pub(crate) fn began(folder: &Path) -> Result<Option<Time>, RecordError> {
    let files = count_files(folder)?.into_iter();
    let born = files.filter_map(|path| Some(Counts::open(&path).ok()?.image().born_ns));
    Ok(born.min().map(Time))
}

/// The stamp of the first access to each page of each process.
fn first_stamps(files: &[(Counts, Vec<Segment>)], damaged: &mut u64) -> HashMap<(u32, u64), u64> {
    let mut first = HashMap::new();
    for (counts, segments) in files {
        let pid = counts.image().pid;
        for segment in segments {
            let Ok(entries) = counts.entries(segment) else {
                *damaged += 1;
                continue;
            };
            for entry in entries {
                let known = first.entry((pid, entry.page)).or_insert(entry.first_ns);
                *known = entry.first_ns.min(*known);
            }
        }
    }
    first
}

/// When each interval began, and when the last one ended; never falling.
fn starts(control: &Control, count: u32, run: &Run) -> Result<Vec<Time>, RecordError> {
    let mut starts = vec![run.began];
    let noted = control.starts(u64::from(count))?;
    for start in noted.into_iter().skip(1) {
        let before = starts.last().copied().unwrap_or(run.began);
        starts.push(Time(start).clamp(before, run.end.max(before)));
    }
    starts.truncate(count as usize);
    starts.resize(count as usize, run.end);
    starts.push(run.end);
    Ok(starts)
}

fn count_files(folder: &Path) -> Result<Vec<PathBuf>, RecordError> {
    let entries = std::fs::read_dir(folder)
        .map_err(RecordError::system("list the files of counts"))?
        .flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == EXTENSION))
        .collect();
    files.sort();
    Ok(files)
}

/// Runs of neighbouring pages, written ones apart from others. `rows` are of one interval, sorted by process
/// and page.
fn touches(rows: &[CountRow]) -> Vec<TouchRow> {
    let mut runs: Vec<TouchRow> = Vec::new();
    let mut rest = rows;
    while let Some(first) = rest.first() {
        let same = |r: &&CountRow| r.pid == first.pid && r.page == first.page;
        let of_page = rest.iter().take_while(same).count();
        let written = rest[..of_page].iter().any(|r| r.writes > 0);
        rest = &rest[of_page..];
        if let Some(run) = runs.last_mut()
            && run.pid == first.pid
            && run.page.0 + u64::from(run.pages) == first.page.0
            && run.written == Some(written)
            && run.pages < u32::MAX
        {
            run.pages += 1;
            continue;
        }
        runs.push(TouchRow {
            interval: first.interval,
            pid: first.pid,
            page: first.page,
            pages: 1,
            page_bytes: 4096,
            written: Some(written),
            source: TouchSource::Exact,
        });
    }
    runs
}

impl From<CountsError> for RecordError {
    fn from(error: CountsError) -> RecordError {
        RecordError::System {
            action: "read the counts",
            source: std::io::Error::other(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(pid: u32, tid: u32, page: u64, writes: u64) -> CountRow {
        CountRow {
            interval: Interval(3),
            pid: Pid(pid),
            tid: Some(Tid(tid)),
            page: Page(page),
            reads: 1,
            writes,
            first: Some(tid == 1),
        }
    }

    #[test]
    fn pages_become_runs() {
        let rows = [
            row(1, 1, 10, 0),
            row(1, 2, 10, 5),
            row(1, 1, 11, 1),
            row(1, 1, 12, 0),
            row(1, 1, 14, 0),
            row(2, 4, 15, 0),
        ];
        let runs: Vec<_> = touches(&rows)
            .iter()
            .map(|t| (t.pid.0, t.page.0, t.pages, t.written))
            .collect();
        assert_eq!(
            runs,
            [
                (1, 10, 2, Some(true)),
                (1, 12, 1, Some(false)),
                (1, 14, 1, Some(false)),
                (2, 15, 1, Some(false)),
            ]
        );
    }
}
