//! A page of a made-up trace, for work on the page and for its size: ten minutes of a 4 GiB program with
//! 200 objects. `cargo run --release -p varve-report --example synthetic -- FILE [losses]`

use std::env;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

use varve_model::{
    Address, Bytes, Duration, Interval, ObjectKind, Page, PageRange, Pages, Pid, Tid, Time,
};
use varve_objects::Layer;
use varve_report::html::{
    Finding, Footprint, Frame, GridPass, HtmlReport, Loss, Object, Overhead, Placement, Thread,
    TraceSummary, write_html,
};

const INTERVALS: usize = 12_000;
const STEP: u64 = 50_000_000;
const THREADS: u16 = 9;

/// A small generator: the same trace every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.roll() >> 11) % n.max(1)
    }
    fn chance(&mut self, p: f64) -> bool {
        (self.roll() >> 11) as f64 / ((1_u64 << 53) as f64) < p
    }
}

#[derive(Clone, Copy)]
enum Habit {
    /// Swept from end to end, again and again.
    Sweep {
        intervals: u64,
        width: u64,
    },
    /// Pages at random, with a warm part.
    Random {
        per_interval: u64,
    },
    /// The front part always, the rest never.
    Hot {
        share: f64,
    },
    /// Filled once, then cold, then read once.
    Once,
    /// A stencil: all of it, in phases.
    Phases {
        on: u64,
        off: u64,
    },
    Never,
}

struct Thing {
    placement: Placement,
    habit: Habit,
    line: u32,
}

fn things(dice: &mut Dice) -> Vec<Thing> {
    let mut all = Vec::new();
    let mut page = 0x0007_f124_0000_u64;
    let mut low = 0x0005_5d01_c000_u64;
    let big = [
        (
            "matrix",
            262_144,
            Habit::Sweep {
                intervals: 400,
                width: 9000,
            },
        ),
        ("field_new", 131_072, Habit::Phases { on: 30, off: 14 }),
        ("field_old", 131_072, Habit::Phases { on: 22, off: 30 }),
        ("hash table", 196_608, Habit::Random { per_interval: 2600 }),
        ("checkpoint buffer", 98_304, Habit::Once),
        ("mesh", 98_304, Habit::Hot { share: 0.22 }),
        ("spare arena", 65_536, Habit::Never),
        ("halo exchange", 16_384, Habit::Phases { on: 2, off: 7 }),
    ];
    for i in 0..200_usize {
        let (name, pages, habit, kind) = match i {
            0..8 => (big[i].0.to_owned(), big[i].1, big[i].2, ObjectKind::Heap),
            8..26 => (
                format!("stack of worker {}", i - 7),
                33 + dice.below(200),
                Habit::Hot { share: 0.1 },
                ObjectKind::Stack,
            ),
            26..60 => (
                format!(
                    "lib{}.so.6",
                    ["c", "m", "gomp", "stdc++", "z", "numa"][i % 6]
                ),
                12 + dice.below(500),
                Habit::Hot {
                    share: 0.05 + 0.01 * (i % 30) as f64,
                },
                ObjectKind::File,
            ),
            60..90 => (
                format!("table_{i}"),
                1 + dice.below(64),
                Habit::Random { per_interval: 3 },
                ObjectKind::Static,
            ),
            _ => {
                let habit = match i % 4 {
                    0 => Habit::Once,
                    1 => Habit::Random {
                        per_interval: 1 + dice.below(30),
                    },
                    2 => Habit::Phases {
                        on: 5 + dice.below(90),
                        off: 10 + dice.below(200),
                    },
                    _ => Habit::Sweep {
                        intervals: 50 + dice.below(900),
                        width: 40,
                    },
                };
                let pages = if i % 3 == 0 {
                    1 + dice.below(6)
                } else {
                    64 + dice.below(800)
                };
                (format!("block_{i}"), pages, habit, ObjectKind::Heap)
            }
        };
        let at = if kind == ObjectKind::Static {
            &mut low
        } else {
            &mut page
        };
        let first = *at;
        *at += pages + if i % 5 == 0 { 5000 } else { 1 };
        let short = i > 100 && i % 5 == 0;
        let born = if short {
            dice.below(400) * 1_000_000_000
        } else {
            dice.below(3_000_000_000)
        };
        all.push(Thing {
            placement: Placement {
                object: Some(i as u32),
                name: if kind == ObjectKind::Heap {
                    format!("{name} (solver.c:{}, in setup)", 40 + i)
                } else {
                    name
                },
                kind,
                pid: Pid(4242),
                layer: Layer::of(kind, false),
                address: Address(first * 4096 + if kind == ObjectKind::Static { 64 } else { 0 }),
                bytes: Bytes(pages * 4096 - if kind == ObjectKind::Static { 128 } else { 0 }),
                place: (
                    Pid(4242),
                    Address(first * 4096 + if kind == ObjectKind::Static { 64 } else { 0 }),
                ),
                born: Time(born),
                died: short.then(|| Time(born + 60_000_000_000 + dice.below(100) * 1_000_000_000)),
                weight: pages * if i < 8 { 4000 } else { 100 },
            },
            habit,
            line: 40 + i as u32,
        });
    }
    all
}

/// The runs that a thing touches in an interval, as pages within it.
fn touched(habit: Habit, pages: u64, i: u64, dice: &mut Dice, out: &mut Vec<(u64, u64)>) {
    match habit {
        Habit::Sweep { intervals, width } => {
            let at = (i % intervals) * pages / intervals;
            let end = (at + width.min(pages / 3 + 1)).min(pages);
            out.push((at, end - at));
        }
        Habit::Random { per_interval } => {
            for _ in 0..per_interval {
                let n = if dice.chance(0.6) {
                    pages / 6 + 1
                } else {
                    pages
                };
                out.push((dice.below(n), 1));
            }
        }
        Habit::Hot { share } => {
            let hot = ((pages as f64 * share) as u64).max(1);
            out.push((0, hot));
            if dice.chance(0.02) {
                out.push((hot + dice.below((pages - hot).max(1)), 1));
            }
        }
        Habit::Once => {
            let span = 1500;
            for start in [100, 9000] {
                if (start..start + span).contains(&i) {
                    let at = (i - start) * pages / span;
                    let end = ((i - start + 1) * pages / span).max(at + 1).min(pages);
                    out.push((at, end.saturating_sub(at)));
                }
            }
        }
        Habit::Phases { on, off } => {
            if i % (on + off) < on {
                let from = dice.below(pages / 20 + 1);
                out.push((from, pages - from));
            }
        }
        Habit::Never => {}
    }
    out.retain(|&(at, n)| n > 0 && at + n <= pages);
    out.sort_unstable();
    out.dedup();
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "synthetic.html".into());
    let lossy = args.next().is_some();
    let began = Instant::now();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let things = things(&mut dice);
    let placements: Vec<Placement> = things.iter().map(|t| t.placement.clone()).collect();
    let spans: Vec<_> = placements.iter().map(Placement::span).collect();
    let mut map = GridPass::new(&placements, &spans, INTERVALS);
    let mut counts: Vec<Vec<u8>> = things
        .iter()
        .map(|t| vec![0; t.placement.bytes.pages().0 as usize])
        .collect();
    let mut page_touches = vec![0_u64; things.len()];
    let mut by_thread = vec![[0_u64; THREADS as usize]; things.len()];
    let (mut working_set, mut resident, mut edges) = (Vec::new(), Vec::new(), vec![Time(0)]);
    let (mut distinct, mut runs) = (0_u64, Vec::new());
    for i in 0..INTERVALS {
        let (start, end) = (Time(i as u64 * STEP), Time((i as u64 + 1) * STEP));
        map.begin(Interval(i as u32), start, end);
        let mut now = 0;
        for (t, thing) in things.iter().enumerate() {
            let p = &thing.placement;
            if p.born > end || p.died.is_some_and(|d| d < start) {
                continue;
            }
            let pages = p.bytes.pages().0;
            runs.clear();
            touched(thing.habit, pages, i as u64, &mut dice, &mut runs);
            let mut last = 0;
            for &(at, n) in &runs {
                let (at, n) = (at.max(last), (at + n).saturating_sub(at.max(last)));
                if n == 0 {
                    continue;
                }
                last = at + n;
                let first = Page(p.address.page().0 + at);
                map.touch(
                    p.pid,
                    PageRange {
                        first,
                        count: Pages(n),
                    },
                );
                now += n;
                page_touches[t] += n;
                for page in at..at + n {
                    let count = &mut counts[t][page as usize];
                    if *count == 0 {
                        distinct += 1;
                        let thread = match thing.habit {
                            Habit::Phases { .. } => (page * u64::from(THREADS) / pages) as u16,
                            Habit::Random { .. } => dice.below(u64::from(THREADS)) as u16,
                            _ => 0,
                        };
                        by_thread[t][thread as usize] += 1;
                        map.first_touch(p.pid, Page(p.address.page().0 + page), thread);
                    }
                    *count = count.saturating_add(1).min(3);
                }
            }
        }
        working_set.push(Pages(now));
        resident.push(Pages(distinct));
        edges.push(end);
    }
    let objects = things.iter().enumerate().map(|(i, t)| {
        let p = &t.placement;
        let mut reuse = [Pages(0); 4];
        counts[i].iter().for_each(|&c| reuse[c as usize].0 += 1);
        let first_touches: Vec<(u16, Pages)> = (0..THREADS)
            .zip(by_thread[i])
            .filter(|(_, n)| *n > 0)
            .map(|(t, n)| (t, Pages(n)))
            .collect();
        let frame = |function: &str, line: u32| Frame {
            function: Some(function.into()),
            file: Some("src/solver.c".into()),
            line: Some(line),
            module: Some("/usr/bin/solver".into()),
            address: Address(0x5500_0000 + u64::from(line)),
        };
        let heap = p.kind == ObjectKind::Heap;
        Object {
            name: p.name.clone(),
            kind: p.kind,
            site: heap.then(|| format!("solver.c:{}, in setup", t.line)),
            stack: if heap {
                vec![
                    frame("setup", t.line),
                    frame("run_simulation(Options const&)", 310),
                    Frame {
                        function: Some("__libc_start_main".into()),
                        module: Some("/usr/lib/libc.so.6".into()),
                        ..Frame::default()
                    },
                ]
            } else {
                vec![]
            },
            pid: p.pid,
            processes: vec![],
            address: p.address,
            bytes: p.bytes,
            pages: p.bytes.pages(),
            touched_pages: Pages(reuse[1].0 + reuse[2].0 + reuse[3].0),
            page_touches: page_touches[i],
            possibly_others_page_touches: 0,
            written_pages: None,
            born_ns: (p.born.0 > 1_000_000).then_some(p.born),
            died_ns: p.died,
            first_touch_thread: first_touches
                .iter()
                .max_by_key(|(_, n)| *n)
                .map(|(t, _)| *t),
            first_touches,
            reuse: Some(reuse),
        }
    });
    let report = HtmlReport {
        trace: TraceSummary {
            command: "./solver --grid 512x512x256 --steps 4000 --checkpoint out/state.bin".into(),
            machine: Some("AMD EPYC 7B13, 8 CPUs, 32 GiB".into()),
            kernel: Some("Linux 6.12.48 x86_64".into()),
            started: Some("2026-03-14 09:26:53 UTC".into()),
            duration_ns: Duration(INTERVALS as u64 * STEP),
            interval_ns: Duration(STEP),
            intervals: INTERVALS as u32,
            backend: varve_model::Backend::Scan,
            complete: !lossy,
            losses: if lossy { vec![
                Loss { kind: "ring_overflow".into(), count: 12, meaning: Some("Events that found the ring full: first touches may lack their thread.".into()) },
                Loss { kind: "reclaim".into(), count: 3401, meaning: Some("Pages that reclaim looked at: it may have taken their accessed bits.".into()) },
            ] } else { vec![] },
            processes: 1,
            ..TraceSummary::default()
        },
        overhead: Overhead { held_ns: Some(Duration(4_100_000_000)), recorder_cpu_ns: Some(Duration(9_300_000_000)) },
        footprint: Footprint { touched_pages: Some(Pages(distinct)), touched_pages_per_process: Some(Pages(distinct)), peak_resident_pages: resident.last().copied(), ..Footprint::default() },
        unknown: vec!["Whether a touch was a write (null): this kernel has no soft-dirty bits.".into()],
        interval_edges: edges,
        working_set,
        resident: Some(resident),
        threads: (0..THREADS).map(|t| Thread { pid: Pid(4242), tid: Tid(4242 + u32::from(t)), name: if t == 0 { "solver".into() } else { format!("omp-worker-{t}") } }).collect(),
        objects: objects.collect(),
        findings: vec![
            Finding { id: "never-touched".into(), title: "256 MiB were allocated and never touched".into(), evidence: "spare arena: 65,536 pages, none touched in 12,000 intervals.".into(), advice: "Allocate it when it is needed, or make it smaller.".into(), objects: vec![6] },
            Finding { id: "one-thread-first".into(), title: "matrix was first touched by one thread".into(), evidence: "All of its 262,144 pages were first touched by solver (4242), while 9 threads ran.".into(), advice: "On a machine with several memory nodes all of it lies on one. Initialise it in parallel, as it is used.".into(), objects: vec![0] },
            Finding { id: "cold".into(), title: "384 MiB were cold for the last 75 s".into(), evidence: "checkpoint buffer: last touched at 525 s.".into(), advice: "A candidate for a slower tier, or for release after the checkpoint.".into(), objects: vec![4, 5] },
        ],
        map: map.finish(),
        ..HtmlReport::default()
    };
    let built = began.elapsed();
    let mut out = BufWriter::new(File::create(&path)?);
    let size = write_html(report, &mut out)?;
    out.flush()?;
    println!(
        "{path}: {:.2} MB of page, {:.1} MB of data, coarsened {} times; {distinct} pages touched; built in {:.1} s, written in {:.1} s",
        size.page.0 as f64 / 1e6,
        size.data.0 as f64 / 1e6,
        size.coarsened,
        built.as_secs_f64(),
        (began.elapsed() - built).as_secs_f64()
    );
    Ok(())
}
