//! What a tool would print is read back as it was, and whatever a file holds, importing it ends in a trace or in an error.

use std::fmt::Write;

use crate::common::{GOLDEN, of_bytes};
use proptest::prelude::*;
use varve_model::ImportFormat;
use varve_model::{Address, MemoryLevel};
use varve_trace::tables::SampleRow;

/// A line of `perf script` and what it says.
#[derive(Clone, Debug)]
struct Line {
    time: u64,
    pid: u32,
    tid: u32,
    cpu: Option<u32>,
    address: u64,
    write: Option<bool>,
    level: usize,
    weight: u32,
    ip: Option<u64>,
}

const LEVELS: [(&str, Option<MemoryLevel>); 8] = [
    ("L1 hit", Some(MemoryLevel::L1)),
    ("L2 hit", Some(MemoryLevel::L2)),
    ("LFB/MAB hit", Some(MemoryLevel::FillBuffer)),
    ("Remote RAM (2 hops) hit", Some(MemoryLevel::RemoteDram)),
    ("Local RAM or RAM hit", Some(MemoryLevel::LocalDram)),
    ("PMEM hit", Some(MemoryLevel::Pmem)),
    ("L3 miss", None),
    ("N/A or N/A", None),
];

fn lines() -> impl Strategy<Value = Vec<Line>> {
    let line = (
        (0..1u64 << 40, 1..1u32 << 22, 1..1u32 << 22),
        (proptest::option::of(0..512u32), 0..1u64 << 47),
        (proptest::option::of(any::<bool>()), 0..LEVELS.len()),
        (any::<u32>(), proptest::option::of(0x1000..1u64 << 47)),
    );
    let made = line.prop_map(
        |((time, pid, tid), (cpu, address), (write, level), (weight, ip))| Line {
            time,
            pid,
            tid,
            cpu,
            address,
            write,
            level,
            weight,
            ip,
        },
    );
    proptest::collection::vec(made, 1..40).prop_map(|mut lines| {
        lines.sort_by_key(|line| line.time);
        lines
    })
}

fn print(lines: &[Line]) -> String {
    let mut text = String::new();
    for l in lines {
        let _ = write!(text, "a program {:>5}/{:<5} ", l.pid, l.tid);
        if let Some(cpu) = l.cpu {
            let _ = write!(text, "[{cpu:03}] ");
        }
        let (seconds, rest) = (l.time / 1_000_000_000, l.time % 1_000_000_000);
        let operation = match l.write {
            Some(true) => "STORE",
            Some(false) => "LOAD",
            None => "N/A",
        };
        let level = LEVELS[l.level].0;
        let _ = write!(
            text,
            "{seconds:>5}.{rest:09}: {:>10} mem: {:>16x}{:>16x} |OP {operation}|LVL {level}|SNP None|TLB L1 or L2 hit|LCK No|BLK  N/A{:>16}",
            1, l.address, 0x5080021, l.weight
        );
        if let Some(ip) = l.ip {
            let _ = write!(text, " {ip:>16x} f(int, char)+0x4 (/bin/a program)");
        }
        text.push('\n');
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn perf_script_is_read_as_it_was_printed(lines in lines()) {
        let got = of_bytes(print(&lines).as_bytes(), None).unwrap();
        prop_assert_eq!(got.summary.format, ImportFormat::PerfScript);
        let rows: Vec<SampleRow> = got.trace().rows().unwrap();
        prop_assert_eq!(rows.len(), lines.len());
        for (row, line) in rows.iter().zip(&lines) {
            prop_assert_eq!(row.time_ns.0, line.time);
            prop_assert_eq!((row.pid.0, row.tid.unwrap().0), (line.pid, line.tid));
            prop_assert_eq!(row.cpu.map(|c| c.0), line.cpu);
            prop_assert_eq!(row.address, Some(Address(line.address)).filter(|a| a.0 != 0));
            prop_assert_eq!(row.write, line.write);
            prop_assert_eq!(row.level, LEVELS[line.level].1);
            prop_assert_eq!(row.latency_cycles, Some(line.weight).filter(|w| *w != 0));
            prop_assert_eq!(row.ip.map(|i| i.0), line.ip);
        }
    }

    #[test]
    fn lackey_is_read_as_it_was_printed(accesses in proptest::collection::vec((0..3usize, any::<u64>(), 1..64u64), 1..60)) {
        let mut text = "==1== Lackey\n".to_owned();
        let mut expected = Vec::new();
        for (kind, address, bytes) in accesses {
            let address = address >> 1;
            let _ = writeln!(text, "I  04000000,4\n {} {address:08x},{bytes}", ["L", "S", "M"][kind]);
            let writes: &[bool] = [&[false][..], &[true], &[false, true]][kind];
            expected.extend(writes.iter().map(|w| (address, bytes, *w)));
        }
        let got = of_bytes(text.as_bytes(), None).unwrap();
        let rows: Vec<SampleRow> = got.trace().rows().unwrap();
        let rows = rows.iter().map(|r| (r.address.unwrap().0, r.bytes.unwrap().0, r.write.unwrap()));
        prop_assert_eq!(rows.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn any_bytes_end_in_a_trace_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for format in ImportFormat::ALL.iter().copied().map(Some).chain([None]) {
            let _ = of_bytes(&bytes, format);
        }
    }
}

/// Every golden file with bytes changed, cut out, doubled, and cut off, read as what it is and as everything else.
#[test]
fn damaged_files_end_in_a_trace_or_an_error() {
    let mut seed = 1u64;
    let mut next = |below: usize| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below.max(1)
    };
    let mut files: Vec<_> = std::fs::read_dir(GOLDEN)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 15);
    for file in files {
        let whole = std::fs::read(&file).unwrap();
        for round in 0..40 {
            let mut bytes = whole.clone();
            for _ in 0..=next(4) {
                let at = next(bytes.len());
                match next(5) {
                    0 => bytes[at] = next(256) as u8,
                    1 => bytes[at] ^= 1 << next(8),
                    2 => bytes.truncate(at.max(1)),
                    3 => {
                        let end = (at + next(16)).min(bytes.len());
                        let piece = bytes[at..end].to_vec();
                        bytes.splice(at..at, piece);
                    }
                    _ => {
                        let end = (at + 8).min(bytes.len());
                        bytes[at..end].fill(0xff);
                    }
                }
            }
            let forced = ImportFormat::ALL[round % ImportFormat::ALL.len()];
            for format in [None, Some(forced)] {
                if let Err(error) = of_bytes(&bytes, format) {
                    assert!(error.to_string().contains("file"), "{error}");
                }
            }
        }
    }
}
