//! Each format's files become the rows that they say, worked out by hand.

use crate::common::{Imported, golden, imported, of_bytes, of_paths};
use varve_model::{Capability, ImportFormat};
use varve_trace::ClockUnit;
use varve_trace::tables::{MappingRow, ProcessRow, ThreadRow};

#[test]
fn perf_script_of_intel() {
    let got = imported(&["intel.perf-script.txt"]);
    assert_eq!(
        got.samples(),
        [
            "1100000000 100 100 0 0x401136 0x7f0000001000 - false anonymous memory 33 l1 step(int)",
            "1200000000 100 101 1 0x401140 0x7f0000002008 - true anonymous memory - - step(int)",
            "1300000000 100 100 0 0x401136 0x7f0000001008 - false /data/input 310 local_dram step(int)",
        ]
    );
    let trace = got.trace();
    assert_eq!(trace.manifest.losses["perf_lost"], 5);
    assert_eq!(trace.manifest.backend.as_str(), "import/perf-script");
    assert!(!trace.manifest.completeness.complete);
    let threads: Vec<ThreadRow> = trace.rows().unwrap();
    let names: Vec<_> = threads
        .iter()
        .map(|t| (t.pid.0, t.tid.0, t.name.as_str()))
        .collect();
    assert_eq!(names, [(100, 100, "solver"), (100, 101, "worker")]);
    let mappings: Vec<MappingRow> = trace.rows().unwrap();
    assert_eq!(
        (
            mappings[0].perms.as_str(),
            mappings[0].offset,
            mappings[0].inode
        ),
        ("r-xp", 0x1000, 77)
    );
    assert_eq!(mappings[1].to_ns.unwrap().0, 1_250_000_000);
}

#[test]
fn perf_script_of_amd_with_call_chains() {
    let got = imported(&["amd.perf-script.txt"]);
    assert_eq!(
        got.samples(),
        [
            "5000000001 200 201 3 - 0x7f0000001000 - false - 412 remote_cache inner",
            "5000000002 200 200 3 - - - - - - - inner",
        ]
    );
    let sites: Vec<varve_trace::tables::SiteRow> = got.trace().rows().unwrap();
    assert_eq!(sites[0].frames.len(), 2);
    assert_eq!(sites[0].frames[1].function.as_deref(), Some("outer"));
    // Without mappings it is not known whether a frame is an address or a place in its file.
    assert_eq!(sites[0].frames[1].offset, Some(0x40_1200));
    assert_eq!(sites[0].frames[1].module.as_deref(), Some("/usr/bin/a b"));
}

#[test]
fn a_text_that_ends_within_a_line_says_so() {
    let whole = std::fs::read(golden("arm.perf-script.txt")).unwrap();
    let of = |bytes: &[u8]| of_bytes(bytes, Some(ImportFormat::PerfScript)).unwrap();
    let statement = |got: &Imported| got.trace().manifest.completeness.statement.clone();
    let losses = |got: &Imported| got.trace().manifest.losses.clone();
    let first = of(&whole);
    assert!(losses(&first).is_empty() && !statement(&first).contains("ends within"));
    // The last line is a sample with an address, of which half would be another address.
    let last = whole.trim_ascii_end().len();
    let begin = memchr::memrchr(b'\n', &whole[..last]).unwrap() + 1;
    for end in [begin + 10, last - 5, last] {
        let cut = of(&whole[..end]);
        assert_eq!(cut.samples(), first.samples()[..1], "{end}");
        assert_eq!(losses(&cut), [("cut_line".to_owned(), 1)].into(), "{end}");
        assert!(statement(&cut).contains("The text ends within a line"));
    }
    // Between two lines nothing is known.
    assert!(losses(&of(&whole[..begin])).is_empty());
}

#[test]
fn perf_script_of_arm_without_processes() {
    let got = imported(&["arm.perf-script.txt"]);
    assert_eq!(
        got.samples(),
        [
            "2500000000 0 30 - 0xaaaac0001000 0xffff80001000 - false - 7 l2 run",
            "2600000000 0 30 - 0xaaaac0001010 0xffff80002000 - true - 90 l3 run",
        ]
    );
}

/// What `perf script -F +addr,+pid` prints of the same file, for the first three columns.
#[test]
fn perf_data_of_a_real_recording() {
    let got = imported(&["page-faults.perf.data"]);
    let samples = got.samples();
    let address = |line: &String| {
        let words: Vec<&str> = line.split(' ').collect();
        words[..6].join(" ")
    };
    assert_eq!(
        samples.iter().map(address).collect::<Vec<_>>(),
        [
            "15679442707894 15526 15526 1 0xffffffff81752b6a 0x561c0a2c61e0",
            "15679442731294 15526 15526 1 0xffffffff81752b6a 0x7fdc25515110",
            "15679442757224 15526 15526 1 0x7fdc254fbb70 0x7fdc254fbb70",
            "15679442760464 15526 15526 1 0x7fdc254fc7ad 0x7fdc25514e06",
            "15679442767724 15526 15526 1 0x7fdc254fca07 0x7fdc25512910",
            "15679442955104 15526 15526 1 0x7fdc254ff620 0x561c0a2c5eb0",
        ]
        .map(str::to_owned)
        .iter()
        .zip(&samples)
        .map(|(expected, got)| {
            // perf prints microseconds; the last three digits are the file's.
            let rest = expected.split_once(' ').unwrap().1;
            let time = got.split(' ').next().unwrap();
            assert_eq!(time[..11], expected[..11]);
            format!("{time} {rest}")
        })
        .collect::<Vec<_>>()
    );
    assert!(samples[0].contains(" /usr/bin/true "), "{}", samples[0]);
    assert!(
        samples[1].contains("ld-linux-x86-64.so.2"),
        "{}",
        samples[1]
    );
    let manifest = got.trace().manifest;
    assert_eq!(manifest.machine.architecture, "x86_64");
    assert_eq!(manifest.target.command, ["true"]);
    assert!(manifest.has(Capability::Machine));
    let processes: Vec<ProcessRow> = got.trace().rows().unwrap();
    assert!(
        processes
            .iter()
            .any(|p| p.pid.0 == 15526 && p.died_ns.is_some())
    );
}

#[test]
fn mitos_of_both_generations() {
    let old = imported(&["old.mitos.csv"]);
    assert_eq!(
        old.samples(),
        [
            "16 0 - 9 - - - - m_x 369 - LULESH_OMP.cc:961",
            "31 0 - 21 - - - - m_z 388 local_dram -",
        ]
    );
    assert_eq!(old.trace().manifest.clock.unit, ClockUnit::Ticks);
    assert!(!old.trace().manifest.has(Capability::Places));
    let new = imported(&["new.mitos.csv"]);
    assert_eq!(
        new.samples(),
        [
            "1000 500 501 2 0x401136 0x7f544a44c000 8 false a 57 local_dram matmul.cpp:12",
            "1001 500 500 1 0x401140 0x7f544a44d000 - - - - - -",
        ]
    );
    assert_eq!(new.trace().manifest.clock.unit, ClockUnit::Nanoseconds);
}

/// `100.5` of a mapping is 100 s and 5 ns: were it half a second, the mapping would come after the first sample and together
/// with the second mapping.
#[test]
fn iiswc22_with_times_mended() {
    // Whatever the order of the files.
    let got = imported(&[
        "memory_trace.iiswc22.csv",
        "munmap_trace.iiswc22.csv",
        "mmap_trace.iiswc22.csv",
    ]);
    assert_eq!(
        got.samples(),
        [
            "100000001000 0 41 - - 0x7f0000001008 - false mmap from 0x55d0 412 dram -",
            "100600000000 0 42 - - 0x7f0000001008 - false mmap from 0x55f0 900 pmem -",
            "100950000000 0 42 - - 0x7f0000001008 - false - - l1 -",
        ]
    );
    assert_eq!(
        got.objects(),
        [
            "mmap from 0x55d0 mapping 0x7f0000000000+8192 100000000005..100500000000",
            "mmap from 0x55d0 mapping 0x7f0000000000+4096 100500000000..-",
            "mmap from 0x55f0 mapping 0x7f0000001000+4096 100500000000..100900000000",
        ]
    );
}

#[test]
fn damon_in_all_forms() {
    let json = imported(&["two_targets.damon.json"]);
    assert_eq!(
        json.touches(),
        [
            "0 1000..2001 3 0x1+2 - damon",
            "0 1000..2001 4 0x0+1 - damon",
            "1 2000..3000 3 0x1+4 - damon",
        ]
    );
    let text = imported(&["text.damon.txt"]);
    assert_eq!(
        text.touches(),
        [
            "0 900002000..1000001000 0 0x1+1 - damon",
            "1 1000001000..1100000000 0 0x1+3 - damon",
        ]
    );
    assert_eq!(text.summary.format, ImportFormat::Damon);
    assert!(text.summary.samples == 0 && text.trace().manifest.has(Capability::Touches));
}

#[test]
fn lackey_counts_every_access_and_every_page() {
    let got = imported(&["small.lackey.txt"]);
    assert_eq!(got.trace().manifest.clock.unit, ClockUnit::Accesses);
    assert_eq!(
        got.samples(),
        [
            "0 0 - - - 0x1ffefffe78 8 true - - - -",
            "1 0 - - - 0x4222c6c 8 false - - - -",
            "2 0 - - - 0x1ffefffffc 8 false - - - -",
            "3 0 - - - 0x1ffefffffc 8 true - - - -",
        ]
    );
    // The last access lies on two pages.
    assert_eq!(
        got.touches(),
        [
            "0 0..4 0 0x4222+1 false imported",
            "0 0..4 0 0x1ffefff+2 true imported",
        ]
    );
}

#[test]
fn moca_by_the_ends_of_its_chunks() {
    let got = imported(&["trace.moca.csv", "structs.moca.csv"]);
    assert_eq!(
        got.counts(),
        [
            "0 0 0x7f0000000 3 0 -",
            "0 0 0x7f0000001 0 2 -",
            "1 1 0x7f0000000 1 1 -",
        ]
    );
    assert_eq!(
        got.touches(),
        [
            "0 10..20 0 0x7f0000000+1 false imported",
            "0 10..20 0 0x7f0000001+1 true imported",
            "1 20..30 0 0x7f0000000+1 true imported",
        ]
    );
    assert_eq!(got.objects(), ["grid#0 heap 0x7f0000000000+8192 0..-"]);
}

#[test]
fn tabarnac_by_page_and_thread() {
    let got = imported(&[
        "a.full.page.tabarnac.csv",
        "a.structs.tabarnac.csv",
        "a.stackmap.tabarnac.csv",
    ]);
    assert_eq!(
        got.counts(),
        [
            "0 0 0x2083127 5 1 true",
            "0 1 0x2083127 0 7 false",
            "0 1 0x2083128 9 0 true",
        ]
    );
    assert_eq!(
        got.touches(),
        [
            "0 0..1 0 0x2083127+1 true imported",
            "0 0..1 0 0x2083128+1 false imported",
        ]
    );
    let objects = got.objects();
    assert_eq!(objects[0], "field heap 0x2083127000+4096 0..-");
    assert_eq!(objects[1], "stack of thread 1 stack 0x2083128000+4096 0..-");
}

/// The same file under two paths is one.
#[test]
fn a_file_that_is_named_twice_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(golden("small.lackey.txt"), &link).unwrap();
    let got = of_paths(&[golden("small.lackey.txt"), link.clone()], None).unwrap();
    assert_eq!(got.summary.samples, 4);
    assert_eq!(got.summary.repeated, [link]);
    let notes = got.trace().manifest.notes;
    assert!(
        notes.iter().any(|note| note.contains("was read once")),
        "{notes:?}"
    );
}

/// What the source lost stands in the statement, in words.
#[test]
fn losses_of_the_source_are_said() {
    let got = imported(&["intel.perf-script.txt"]);
    let statement = got.trace().manifest.completeness.statement;
    assert!(
        statement.contains("records that perf had no room for (perf_lost: 5)"),
        "{statement}"
    );
}
