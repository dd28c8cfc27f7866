//! A made-up trace of a given size: an 8 GiB program at 50 ms, with 12,000 objects.

use std::path::Path;

use varve_model::{
    Address, Backend, Bytes, Capability, Cpu, Duration, Interval, ObjectId, ObjectKind, Page, Pid,
    SiteId, Tid, Time, TouchSource,
};
use varve_trace::tables::{
    FaultRow, Frame, IntervalRow, ObjectRow, ProcessRow, SiteRow, ThreadRow, TouchRow,
};
use varve_trace::{
    Clock, Completeness, FORMAT_VERSION, Features, IntervalChoice, Machine, Manifest, Options,
    Overhead, State, Target, TraceWriter, finish_tables, write_table,
};

use crate::error::Result;

const PAGES: u64 = 2 << 20;
const OBJECTS: u64 = 10_000;
const STEP: u64 = 50_000_000;
const BASE: u64 = 0x0007_f000_0000;

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n.max(1)
    }
}

/// Writes about so many rows of touches, the same for the same arguments; traces of other seeds differ. Returns how many.
pub(crate) fn write(folder: &Path, rows: u64, intervals: u64, seed: u64) -> Result<u64> {
    let mut manifest = manifest(intervals);
    let mut writer = TraceWriter::create(folder, &manifest)?;
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ seed);
    let objects = objects(&mut dice, intervals);
    let per_interval = (rows / intervals).max(1);
    let (mut touches, mut table, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen = vec![false; PAGES as usize];
    let mut written = 0_u64;
    for i in 0..intervals {
        // Half the runs sweep a window of the address space, half lie anywhere.
        let sweep = i * PAGES / 900 % PAGES;
        let mut starts: Vec<(u64, u64)> = (0..per_interval)
            .map(|n| match n % 2 {
                0 => ((sweep + n * 40) % PAGES, 1 + dice.below(60)),
                _ => (dice.below(PAGES), 1 + dice.below(6)),
            })
            .collect();
        starts.sort_unstable();
        let mut last = 0;
        for (start, length) in starts {
            let start = start.max(last);
            let end = (start + length).min(PAGES);
            if start >= end {
                continue;
            }
            last = end + 1;
            touches.push(touch(i, start, end));
            written += 1;
            for page in start..end {
                if !std::mem::replace(&mut seen[page as usize], true) {
                    faults.push(fault(i, page, &mut dice));
                }
            }
        }
        table.push(IntervalRow {
            interval: Interval(i as u32),
            start_ns: Time(i * STEP),
            end_ns: Time((i + 1) * STEP - 400_000),
            held_ns: Duration(400_000),
            longest_hold_ns: Duration(400_000),
            longest_stop_ns: Duration(0),
            holds: 1,
            overlap_ns: Duration(0),
            resident_pages: PAGES * (i + 1).min(2000) / 2000,
            mappings: 0,
            processes: 1,
            threads: 9,
            recorder_cpu_ns: Duration(1_500_000),
        });
        if touches.len() >= 1 << 20 {
            writer.append(&touches)?;
            writer.append(&table)?;
            writer.append(&faults)?;
            touches.clear();
            table.clear();
            faults.clear();
        }
    }
    writer.append(&touches)?;
    writer.append(&table)?;
    writer.append(&faults)?;
    write_table(writer.folder(), &objects)?;
    write_table(writer.folder(), &sites())?;
    writer.append(&threads())?;
    writer.append(&[ProcessRow {
        pid: Pid(4242),
        parent: Pid(1),
        exe: "/usr/bin/solver".into(),
        file: None,
        command: manifest.target.command.join(" "),
        born_ns: Time(0),
        died_ns: Some(Time(intervals * STEP)),
        exit_code: Some(0),
        objects: None,
        objects_why: None,
        peak_resident_bytes: None,
        peak_resident_why: None,
    }])?;
    finish_tables(writer.folder(), &mut |_| ())?;
    manifest.state = State::Finished;
    manifest.derive_completeness();
    writer.folder().write_manifest(&manifest)?;
    Ok(written)
}

fn touch(i: u64, start: u64, end: u64) -> TouchRow {
    TouchRow {
        interval: Interval(i as u32),
        pid: Pid(4242),
        page: Page(BASE + start),
        pages: (end - start) as u32,
        page_bytes: 4096,
        written: None,
        source: if start.is_multiple_of(97) {
            TouchSource::PageFlag
        } else {
            TouchSource::Scan
        },
    }
}

fn fault(i: u64, page: u64, dice: &mut Dice) -> FaultRow {
    let thread = if page < PAGES / 4 {
        0
    } else {
        dice.below(9) as u32
    };
    FaultRow {
        time_ns: Time(i * STEP + 1000),
        pid: Pid(4242),
        tid: Tid(4242 + thread),
        cpu: Cpu(thread % 2),
        ip: Address(0x5555_0000),
        address: Address((BASE + page) * 4096 + 8),
        write: Some(true),
        kernel: false,
    }
}

/// Objects of very different sizes, side by side; every fifth dies and is followed by another.
fn objects(dice: &mut Dice, intervals: u64) -> Vec<ObjectRow> {
    let mut rows = Vec::new();
    let mut at = 0;
    for i in 0..OBJECTS {
        let left = OBJECTS - i;
        let mean = (PAGES - at) / left;
        let pages = match i % 500 {
            0 => mean * 200,
            _ => 1 + dice.below(mean.max(1)),
        };
        let pages = pages.min(PAGES - at - left);
        let moment = intervals * STEP / 2 + dice.below(intervals * STEP / 4);
        let row = |object: u64, born: u64, died: Option<u64>| ObjectRow {
            object: ObjectId(object),
            pid: Pid(4242),
            kind: if i % 50 == 7 {
                ObjectKind::Mapping
            } else {
                ObjectKind::Heap
            },
            name: format!("block_{} (solver.c:{}, in setup)", i % 300, i % 300 + 40),
            site: Some(SiteId((i % 300) as u32)),
            address: Address((BASE + at) * 4096 + i % 3 * 256),
            bytes: Bytes(pages * 4096 - 300),
            born_ns: Time(born),
            died_ns: died.map(Time),
            tid: Some(Tid(4242)),
            pool: false,
            layer: if i % 50 == 7 { 2 } else { 5 },
            continues: None,
        };
        match i % 5 {
            3 => {
                rows.push(row(2 * i, 0, Some(moment)));
                rows.push(row(2 * i + 1, moment + 7 * STEP, None));
            }
            _ => rows.push(row(2 * i, 0, None)),
        }
        at += pages;
    }
    rows
}

fn sites() -> Vec<SiteRow> {
    let site = |i: u32| SiteRow {
        site: SiteId(i),
        label: format!("solver.c:{}, in setup", i + 40),
        frames: vec![Frame {
            function: Some("setup".into()),
            file: Some("solver.c".into()),
            line: Some(i + 40),
            column: None,
            function_line: Some(30),
            module: Some("/usr/bin/solver".into()),
            offset: None,
            address: Address(0x5555_0000 + u64::from(i)),
        }],
    };
    (0..300).map(site).collect()
}

fn threads() -> Vec<ThreadRow> {
    let thread = |i: u32| ThreadRow {
        pid: Pid(4242),
        tid: Tid(4242 + i),
        name: if i == 0 {
            "solver".into()
        } else {
            format!("worker-{i}")
        },
        born_ns: Time(0),
        died_ns: None,
    };
    (0..9).map(thread).collect()
}

/// What a trace of a made-up program says of itself while it is written.
pub(crate) fn manifest(intervals: u64) -> Manifest {
    Manifest {
        format: "varve-trace".into(),
        version: FORMAT_VERSION,
        varve: "0.1.0".into(),
        state: State::Recording,
        recorder_pid: None,
        backend: Backend::Scan,
        capabilities: Capability::RECORDED
            .into_iter()
            .chain([Capability::HeapObjects])
            .collect(),
        target: Target {
            command: ["./solver", "--grid", "1024x1024x512"]
                .map(String::from)
                .into(),
            pid: 4242,
            attached: false,
            exit_code: Some(0),
        },
        options: Options {
            interval: IntervalChoice::Fixed(Duration(STEP)),
            follow: true,
            delay_ns: Duration(0),
            min_object_bytes: Bytes(4096),
            max_hold_ns: None,
            thp_never: false,
            without: vec![],
        },
        features: Features {
            writes: None,
            page_flags: true,
            hold: "cgroup".into(),
            objects: Some("preload".into()),
            vanish: None,
        },
        machine: Machine {
            kernel: "6.12.48".into(),
            architecture: "x86_64".into(),
            cpu: "made up".into(),
            cpus: 2,
            memory_bytes: Bytes(32 << 30),
            nodes: None,
        },
        clock: Clock {
            start_ns: Time(0),
            end_ns: Time(intervals * STEP),
            start_unix_ns: 1_773_480_413_000_000_000,
            unit: Default::default(),
        },
        completeness: Completeness {
            complete: false,
            statement: String::new(),
        },
        overhead: Overhead {
            held_ns: Duration(intervals * 400_000),
            recorder_cpu_ns: Duration(intervals * 1_500_000),
            recorder_peak_bytes: Bytes(80 << 20),
            ..Overhead::default()
        },
        checksums: Default::default(),
        losses: Default::default(),
        samples: None,
        traps: None,
        operations: None,
        modules: vec![],
        notes: vec![],
    }
}
