//! Code and data belong to what was mapped at the time of a sample, in the process that the sample is of.

use std::collections::HashMap;

use crate::common::{Imported, of_bytes};
use crate::perf_file::{Event, USUAL, event, file};
use varve_trace::tables::{MappingRow, ProcessRow, SampleRow, SiteRow, ThreadRow};

const E: Event = event(USUAL);
const CODE: (u64, u64) = (0x40_0000, 0x1000);
const DATA: (u64, u64) = (0x60_0000, 0x1000);

fn imported(records: &[Vec<u8>]) -> Imported {
    of_bytes(&file(&[E], records), None).unwrap()
}

/// The time, the label of the site and the object of each sample.
fn told(of: &Imported) -> Vec<String> {
    let line = |line: String| {
        let words: Vec<&str> = line.split(' ').collect();
        format!("{} {} {}", words[0], words[11], words[8])
    };
    of.samples().into_iter().map(line).collect()
}

#[test]
fn a_program_that_another_replaced_keeps_its_samples() {
    let got = imported(&[
        E.comm((10, 10), "a", 1000, false),
        E.mmap(10, CODE, "/opt/a", 1001),
        E.sample((10, 10), 2000, 0x40_0100, 0x40_0200),
        E.comm((10, 10), "b", 3000, true),
        E.mmap(10, CODE, "/opt/b", 3001),
        E.sample((10, 10), 4000, 0x40_0100, 0x40_0200),
    ]);
    assert_eq!(told(&got), ["2000 a+0x100 /opt/a", "4000 b+0x100 /opt/b"]);
}

#[test]
fn a_library_that_another_replaced_keeps_its_samples() {
    let place = (0x7f00_0000_0000, 0x1000);
    let got = imported(&[
        E.comm((10, 10), "host", 1000, false),
        E.mmap(10, place, "/opt/one.so", 1001),
        E.sample((10, 10), 2000, 0x7f00_0000_0100, 0x50_0000),
        E.mmap(10, place, "/opt/two.so", 3001),
        E.sample((10, 10), 4000, 0x7f00_0000_0100, 0x50_0000),
    ]);
    assert_eq!(told(&got), ["2000 one.so+0x100 -", "4000 two.so+0x100 -"]);
}

/// The same address in two programs is two places, and one program in two processes is one.
#[test]
fn sites_are_by_what_was_mapped() {
    let mut records = Vec::new();
    for (pid, path) in [(10, "/opt/a"), (11, "/opt/b")] {
        records.push(E.comm((pid, pid), "p", 1, false));
        records.push(E.mmap(pid, CODE, path, 2));
    }
    records.push(E.fork((10, 10), (12, 12), 3));
    for pid in [10, 11, 12] {
        records.push(E.sample((pid, pid), 10 + u64::from(pid), 0x40_0100, 0));
    }
    let got = imported(&records);
    let rows: Vec<SampleRow> = got.trace().rows().unwrap();
    let site = |at: usize| rows[at].site.unwrap();
    assert_eq!(told(&got), ["20 a+0x100 -", "21 b+0x100 -", "22 a+0x100 -"]);
    assert!(site(0) != site(1) && site(0) == site(2));
}

/// A call that never returns is the last of its function: what follows it may be another mapping.
#[test]
fn a_return_address_belongs_to_the_mapping_before_it() {
    let chained = event(USUAL | crate::perf_file::CALLCHAIN);
    let chain = [0x40_0100, 0x40_1000];
    let records = [
        chained.mmap(10, CODE, "/opt/a", 1),
        chained.mmap(10, (0x40_1000, 0x1000), "/opt/b", 2),
        chained.sample_of((10, 10), 3, 0x40_0100, 0, &chain),
    ];
    let got = of_bytes(&file(&[chained], &records), None).unwrap();
    let sites: Vec<SiteRow> = got.trace().rows().unwrap();
    let frames = sites[0].frames.iter();
    let frames: Vec<_> = frames.map(|f| (f.in_module(), f.address.0)).collect();
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(
        frames,
        [(named("a+0x100"), 0x40_0100), (named("a+0xfff"), 0x40_1000)]
    );
}

#[test]
fn a_number_that_comes_again_is_another_process() {
    let got = imported(&[
        E.comm((10, 10), "first", 1000, true),
        E.mmap(10, CODE, "/opt/first", 1001),
        E.sample((10, 10), 2000, 0x40_0100, 0x40_0010),
        E.exit((1, 1), (10, 10), 3000),
        E.fork((1, 1), (10, 10), 3500),
        E.sample((10, 10), 3550, 0x40_0100, 0x40_0010),
        E.comm((10, 10), "second", 3600, true),
        E.mmap(10, CODE, "/opt/second", 3601),
        E.sample((10, 10), 4000, 0x40_0100, 0x40_0010),
    ]);
    assert_eq!(
        told(&got),
        [
            "2000 first+0x100 /opt/first",
            "3550 0x400100 -",
            "4000 second+0x100 /opt/second"
        ]
    );
}

#[test]
fn a_forked_child_has_its_parents_code_and_name() {
    let got = imported(&[
        E.comm((10, 10), "srv", 1000, false),
        E.mmap(10, CODE, "/opt/srv", 1001),
        E.sample((10, 10), 2000, 0x40_0100, 0x40_0200),
        E.fork((10, 10), (11, 11), 3000),
        E.sample((11, 11), 4000, 0x40_0100, 0x40_0200),
    ]);
    assert_eq!(
        told(&got),
        ["2000 srv+0x100 /opt/srv", "4000 srv+0x100 /opt/srv"]
    );
    // Each has an object of its own.
    assert_eq!(
        got.objects(),
        [
            "/opt/srv file 0x400000+4096 1001..-",
            "/opt/srv file 0x400000+4096 3000..-"
        ]
    );
    let threads: Vec<ThreadRow> = got.trace().rows().unwrap();
    let names: HashMap<u32, &str> = threads.iter().map(|t| (t.tid.0, &t.name[..])).collect();
    assert_eq!(names, [(10, "srv"), (11, "srv")].into());
}

/// perf tells of processes that ran before with records of forks, and of their mappings by themselves.
#[test]
fn what_ran_before_has_nothing_of_its_parents() {
    let got = imported(&[
        E.comm((10, 10), "shell", 0, false),
        E.mmap(10, CODE, "/opt/shell", 0),
        E.ran_before((10, 10), (11, 11)),
        E.comm((11, 11), "tool", 0, false),
        E.sample((11, 11), 4000, 0x40_0100, 0x40_0200),
    ]);
    assert_eq!(told(&got), ["4000 0x400100 -"]);
}

#[test]
fn a_process_lives_as_long_as_any_thread() {
    let got = imported(&[
        E.comm((10, 10), "a", 1000, false),
        E.data(10, DATA, "/opt/data", 1001),
        E.fork((10, 10), (10, 12), 1500),
        E.sample((10, 12), 2000, 0x40_0100, 0x60_0010),
        E.exit((1, 1), (10, 10), 3000),
        E.sample((10, 12), 4000, 0x40_0100, 0x60_0010),
        E.exit((1, 1), (10, 12), 5000),
        E.sample((10, 12), 5000, 0x40_0100, 0x60_0010),
    ]);
    assert_eq!(
        told(&got),
        [
            "2000 0x400100 /opt/data",
            "4000 0x400100 /opt/data",
            "5000 0x400100 -"
        ]
    );
    let processes: Vec<ProcessRow> = got.trace().rows().unwrap();
    assert_eq!(processes[0].died_ns.unwrap().0, 5000);
}

#[test]
fn mappings_of_the_first_version_have_code() {
    let got = imported(&[
        E.comm((10, 10), "a", 1000, false),
        E.old_mmap(10, CODE, "/opt/app", 1001),
        E.sample((10, 10), 2000, 0x40_0100, 0x50_0000),
    ]);
    assert_eq!(told(&got), ["2000 app+0x100 -"]);
}

/// A mapping that another cut is in the table as what was left of it.
#[test]
fn a_mapping_that_was_cut_is_there_in_parts() {
    let got = imported(&[
        E.mmap(10, (0x40_0000, 0x3000), "/opt/a", 1),
        E.mmap(10, (0x40_1000, 0x1000), "/opt/b", 2),
        E.sample((10, 10), 3, 0x40_2100, 0x40_2100),
    ]);
    assert_eq!(told(&got), ["3 a+0x2100 /opt/a"]);
    let rows: Vec<MappingRow> = got.trace().rows().unwrap();
    let line = |r: &MappingRow| {
        let to = r.to_ns.map(|t| t.0);
        (r.address.0, r.bytes.0, r.offset, r.from_ns.0, to)
    };
    let mut lines: Vec<_> = rows.iter().map(line).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            (0x40_0000, 0x1000, 0, 2, None),
            (0x40_0000, 0x3000, 0, 1, Some(2)),
            (0x40_1000, 0x1000, 0, 2, None),
            (0x40_2000, 0x1000, 0x2000, 2, None),
        ]
    );
}

/// A shell has thousands of children; each has an object for what it touched and for nothing else.
#[test]
fn forks_copy_what_something_falls_into() {
    const CHILDREN: u32 = 500;
    let mut records = vec![E.comm((10, 10), "sh", 1, false)];
    for number in 0..300u64 {
        let place = (0x40_0000 + number * 0x1000, 0x1000);
        records.push(E.mmap(10, place, &format!("/opt/m{number}"), 2));
    }
    for child in 0..CHILDREN {
        let (task, at) = ((100 + child, 100 + child), 1000 + 10 * u64::from(child));
        records.push(E.fork((10, 10), task, at));
        records.push(E.sample(task, at + 1, 0x40_0100, 0x40_0100));
        records.push(E.exit((10, 10), task, at + 5));
    }
    let got = imported(&records);
    assert_eq!(got.summary.objects, 300 + u64::from(CHILDREN));
    assert_eq!(got.summary.owned, u64::from(CHILDREN));
    assert_eq!(got.trace().rows::<SiteRow>().unwrap().len(), 1);
}

/// The vDSO and the kernel of another machine have other functions at the same addresses.
#[test]
fn code_of_another_kernel_has_no_names_of_this_one() {
    let id: [u8; 20] = std::array::from_fn(|at| at as u8);
    let place = (0x7fff_0000_0000, 0x2000);
    let got = imported(&[
        E.comm((10, 10), "a", 1000, false),
        E.mapping(10, place, "[vdso]", 1001, 5, Some(id)),
        E.sample((10, 10), 2000, 0x7fff_0000_0900, 0x50_0000),
        E.sample((10, 10), 3000, 0xffff_ffff_8100_1000, 0x50_0000),
    ]);
    let sites: Vec<SiteRow> = got.trace().rows().unwrap();
    let frames = sites.iter().map(|site| &site.frames[0]);
    let frames: Vec<_> = frames
        .map(|f| (f.function.as_deref(), f.module.as_deref(), f.offset))
        .collect();
    assert_eq!(
        frames,
        [
            (None, Some("[vdso]"), Some(0x900)),
            (None, Some("[kernel]"), None)
        ]
    );
}
