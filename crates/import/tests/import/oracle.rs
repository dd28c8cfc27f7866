//! What `perf` itself reads of its recordings, field by field. Software events need no PMU; where this machine lets nobody record,
//! or an option is not known, that is said and nothing is compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{Imported, of_paths};
use varve_trace::tables::{MappingRow, SampleRow};

/// Faults, forks and execs.
const WORKLOAD: &str = "for i in 1 2 3; do /bin/ls / >/dev/null; (: $(/bin/true)); done";

/// What is recorded, and whether samples have addresses.
struct Recording {
    options: &'static [&'static str],
    has_address: bool,
}

const fn faults(options: &'static [&'static str]) -> Recording {
    Recording {
        options,
        has_address: true,
    }
}

const fn clock(options: &'static [&'static str]) -> Recording {
    Recording {
        options,
        has_address: false,
    }
}

const RECORDINGS: [Recording; 19] = [
    faults(&["-e", "page-faults", "-c", "1", "-d"]),
    faults(&["-e", "page-faults:u", "-c", "1", "-d"]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "-g"]),
    faults(&[
        "-e",
        "page-faults",
        "-c",
        "50",
        "-d",
        "--call-graph",
        "dwarf",
    ]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "-W"]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "--phys-data"]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "--data-page-size"]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "-D", "1"]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "--namespaces"]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "--all-cgroups"]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "--switch-events"]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "-z"]),
    faults(&["-e", "page-faults", "-c", "1", "-d", "--threads"]),
    faults(&["-e", "page-faults,minor-faults", "-c", "1", "-d"]),
    faults(&["-e", "{page-faults,minor-faults}", "-c", "1", "-d"]),
    clock(&["-e", "cpu-clock", "-F", "5000"]),
    clock(&["-e", "cpu-clock", "-F", "5000", "-g"]),
    clock(&["-e", "cpu-clock,task-clock", "-c", "200000"]),
    clock(&["-e", "context-switches", "-c", "1"]),
];

fn perf(arguments: &[&str], folder: &Path) -> Option<String> {
    let output = Command::new("perf")
        .args(arguments)
        .current_dir(folder)
        .env("PERF_CONFIG", "/dev/null")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

/// Records the workload as `perf.data`; none where that is not possible.
fn record(of: &Recording, folder: &Path) -> Option<PathBuf> {
    let mut arguments = vec![
        "record",
        "-q",
        "-B",
        "-N",
        "--sample-cpu",
        "-o",
        "perf.data",
    ];
    arguments.extend(of.options);
    arguments.extend(["--", "/bin/sh", "-c", WORKLOAD]);
    perf(&arguments, folder)?;
    Some(folder.join("perf.data"))
}

/// `time pid tid cpu event address ip`, sorted.
fn of_varve(of: &Imported, has_address: bool) -> Vec<String> {
    let rows: Vec<SampleRow> = of.trace().rows().unwrap();
    let mut lines: Vec<String> = rows
        .iter()
        .map(|row| {
            let address = match has_address {
                true => format!("{:x} ", row.address.map_or(0, |a| a.0)),
                false => String::new(),
            };
            format!(
                "{} {} {} {} {} {address}{:x}",
                row.time_ns.0,
                row.pid,
                row.tid.unwrap(),
                row.cpu.unwrap(),
                row.event.as_deref().unwrap_or_default(),
                row.ip.unwrap().0
            )
        })
        .collect();
    lines.sort();
    lines
}

/// The same of what perf prints.
fn of_perf(folder: &Path, has_address: bool) -> Option<Vec<String>> {
    let fields = match has_address {
        true => "pid,tid,cpu,time,event,addr,ip",
        false => "pid,tid,cpu,time,event,ip",
    };
    let text = perf(
        &["script", "-i", "perf.data", "--ns", "-G", "-F", fields],
        folder,
    )?;
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (pid, tid) = words[0].split_once('/').unwrap();
        let cpu: u32 = words[1].trim_matches(['[', ']']).parse().unwrap();
        let (seconds, rest) = words[2].trim_end_matches(':').split_once('.').unwrap();
        let time: u64 = format!("{seconds}{rest}").parse().unwrap();
        let event = words[3].strip_suffix(':').unwrap();
        format!("{time} {pid} {tid} {cpu} {event} {}", words[4..].join(" "))
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut lines: Vec<String> = lines.map(line).collect();
    lines.sort();
    Some(lines)
}

/// Each mapping of a process that perf prints: time, process, place and path.
fn mappings_of_perf(folder: &Path) -> Vec<(u64, u32, u64, u64, String)> {
    let arguments = [
        "script",
        "-i",
        "perf.data",
        "--ns",
        "-F",
        "time",
        "--show-mmap-events",
    ];
    let text = perf(&arguments, folder).unwrap_or_default();
    let mapping = |line: &str| {
        let (time, rest) = line.trim().split_once(": PERF_RECORD_MMAP2 ")?;
        let (seconds, fraction) = time.trim().split_once('.')?;
        let (pid, rest) = rest.split_once('/')?;
        let (place, rest) = rest.split_once("[0x")?.1.split_once(") @ ")?;
        let (address, bytes) = place.split_once("(0x")?;
        let path = rest.split_once("]: ")?.1.split_once(' ')?.1;
        Some((
            format!("{seconds}{fraction}").parse().ok()?,
            pid.parse().ok()?,
            u64::from_str_radix(address, 16).ok()?,
            u64::from_str_radix(bytes, 16).ok()?,
            path.to_owned(),
        ))
    };
    text.lines().filter_map(mapping).collect()
}

#[test]
fn recordings_are_read_as_perf_reads_them() {
    let mut compared = 0;
    for recording in &RECORDINGS {
        let folder = tempfile::tempdir().unwrap();
        let options = recording.options.join(" ");
        let Some(file) = record(recording, folder.path()) else {
            eprintln!("skipped: perf record {options}");
            continue;
        };
        let Some(expected) = of_perf(folder.path(), recording.has_address) else {
            eprintln!("skipped: perf script of {options}");
            continue;
        };
        if expected.is_empty() {
            eprintln!("skipped: no samples of {options}");
            continue;
        }
        let got = of_paths(&[file], None).unwrap_or_else(|error| panic!("{options}: {error}"));
        assert_eq!(of_varve(&got, recording.has_address), expected, "{options}");
        let rows: Vec<MappingRow> = got.trace().rows().unwrap();
        let mut known: BTreeMap<_, usize> = BTreeMap::new();
        for row in rows {
            let key = (
                row.from_ns.0,
                row.pid.0,
                row.address.0,
                row.bytes.0,
                row.path,
            );
            *known.entry(key).or_default() += 1;
        }
        for mapping in mappings_of_perf(folder.path()) {
            assert!(known.contains_key(&mapping), "{options}: {mapping:?}");
        }
        compared += 1;
    }
    eprintln!("compared: {compared} of {} recordings", RECORDINGS.len());
}

/// The text of the same recording says the same, whatever fields it has, or is refused.
#[test]
fn texts_of_perf_say_what_their_recording_says() {
    const FIELDS: [&str; 15] = [
        "comm,pid,tid,cpu,time,event,addr,ip",
        "comm,pid,tid,cpu,time,event,addr,ip,sym",
        "comm,pid,tid,cpu,time,event,addr,ip,dso",
        "comm,pid,tid,cpu,time,event,addr,ip,sym,dso",
        "comm,pid,tid,cpu,time,event,addr,ip,sym,symoff,dso",
        "comm,pid,tid,cpu,time,period,event,addr,ip,sym,symoff,dso",
        "comm,pid,tid,cpu,misc,time,event,addr,ip,sym,dso",
        "pid,tid,cpu,time,event,addr,ip,sym,dso",
        "comm,pid,tid,cpu,tod,time,event,addr,ip,sym,dso",
        "comm,pid,tid,cpu,time,event,addr,ip,sym,dso,phys_addr",
        "comm,pid,tid,cpu,time,event,addr,ip,sym,dso,data_page_size",
        "comm,pid,tid,cpu,time,event,addr,ip,sym,dso,phys_addr,data_page_size",
        "comm,pid,tid,cpu,time,event,addr,ip,sym,dso,srcline",
        "comm,pid,tid,cpu,time,event,addr,weight,ip,sym,dso",
        "comm,pid,tid,cpu,time,event,addr,data_src,weight,ip,sym,dso",
    ];
    let folder = tempfile::tempdir().unwrap();
    let recording = faults(&[
        "-e",
        "page-faults",
        "-c",
        "1",
        "-d",
        "-W",
        "--phys-data",
        "--data-page-size",
    ]);
    let Some(file) = record(&recording, folder.path()) else {
        eprintln!("skipped: perf record is not possible here");
        return;
    };
    let whole = of_varve(&of_paths(&[file], None).unwrap(), true);
    for fields in FIELDS {
        let arguments = ["script", "-i", "perf.data", "--ns", "-G", "-F", fields];
        let Some(text) = perf(&arguments, folder.path()) else {
            eprintln!("skipped: perf script -F {fields}");
            continue;
        };
        let path = folder.path().join("samples.txt");
        std::fs::write(&path, text).unwrap();
        let got = of_paths(&[path], None).unwrap_or_else(|error| panic!("{fields}: {error}"));
        assert_eq!(of_varve(&got, true), whole, "{fields}");
    }
}

/// Valgrind's own output: each line of an access is one, of a modification two.
#[test]
fn lackey_is_read_as_valgrind_prints_it() {
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--log-file=accesses"])
        .arg("/bin/true")
        .current_dir(folder.path())
        .output();
    let text = std::fs::read_to_string(folder.path().join("accesses")).unwrap_or_default();
    if !ran.is_ok_and(|output| output.status.success()) || text.is_empty() {
        eprintln!("skipped: valgrind does not run here");
        return;
    }
    let (mut reads, mut writes) = (0, 0);
    let mut first = None;
    for line in text.lines() {
        let address = match line.get(..3) {
            Some(" L ") => {
                reads += 1;
                &line[3..]
            }
            Some(" S ") => {
                writes += 1;
                &line[3..]
            }
            Some(" M ") => {
                (reads, writes) = (reads + 1, writes + 1);
                &line[3..]
            }
            _ => continue,
        };
        first.get_or_insert_with(|| address.to_owned());
    }
    let got = of_paths(&[folder.path().join("accesses")], None).unwrap();
    let rows: Vec<SampleRow> = got.trace().rows().unwrap();
    let written = rows.iter().filter(|row| row.write == Some(true)).count();
    assert_eq!((rows.len() - written, written), (reads, writes));
    let row = &rows[0];
    let (address, bytes) = (row.address.unwrap().0, row.bytes.unwrap().0);
    let (start, size) = first.as_deref().unwrap().split_once(',').unwrap();
    assert_eq!(address, u64::from_str_radix(start, 16).unwrap());
    assert_eq!(bytes, size.parse::<u64>().unwrap());
}
