//! What the kernel does for an allocator: waits for the lock of mappings, first touches behind operations, resident pages and who shares them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::diseases::stolen_ns;
use crate::support::{Recorded, record, record_until, varve, wait_for, workload};

fn under(library: Option<&str>, options: &[&str], work: &[&str]) -> Recorded {
    let program = workload("alloc_kernel");
    let library = library.map(|name| workload(&format!("libsick_{name}.so")));
    let library = library.as_ref().map(|path| path.to_str().unwrap());
    let allocator = library.map_or_else(Vec::new, |path| vec!["--allocator", path]);
    let command = [&[program.to_str().unwrap()], work].concat();
    record(&[&allocator, options].concat(), &command)
}

/// What the program says of itself.
fn truth(of: &Recorded, name: &str) -> u64 {
    let said = of.said();
    let line = said.lines().find_map(|l| l.strip_prefix(name));
    line.unwrap().trim().parse().unwrap()
}

/// What is said of locks, and the advice.
fn lock_of(of: &Recorded) -> [String; 2] {
    let all = of.judgement["diagnoses"].as_array().unwrap();
    let lock = all.iter().find(|d| d["id"] == "lock");
    let lock = lock.expect("it is found");
    ["title", "advice"].map(|field| lock[field].as_str().unwrap().to_owned())
}

/// The thread's own clocks say how long its operations slept, and they sleep for nothing else.
#[test]
fn waits_for_the_lock_of_mappings() {
    let every = ["--time-every", "1"];
    let stolen = stolen_ns();
    let sick = under(None, &every, &["waits", "3000", "1"]);
    let stolen = stolen_ns() - stolen;
    let lock = &sick.judgement["mmap_lock"];
    let figure = |name: &str| lock[name].as_u64().unwrap();
    let (least, most) = (truth(&sick, "slept"), truth(&sick, "at most"));
    // The recorder looks what is resident, and holds the lock for that now and then. Who keeps its CPU while it waits does not sleep.
    // What a host takes from a virtual machine is no sleep either, and the program cannot tell it from one. How exact times are
    // `benches/goals.rs` has: here half of the sleep is enough to see that they are those of the waits, and all of it is the most.
    let found = figure("time_ns") - figure("spun_ns") + figure("others_ns");
    assert!(
        (least.saturating_sub(stolen) / 2..=most).contains(&found),
        "{found}, in truth {least} to {most}, {stolen} stolen: {lock}"
    );
    assert!(figure("waits") > 0 && least >= 200_000_000, "{lock}");
    let [title, advice] = lock_of(&sick);
    let in_turn = "(mmap_lock), as it maps and unmaps memory again and again";
    assert!(title.ends_with(in_turn), "{title}");
    assert!(advice.contains("MALLOC_MMAP_THRESHOLD_"), "{advice}");
    let waited = sick.judgement["time"]["waited_ns"].as_u64().unwrap();
    assert!(waited <= found, "{waited}, in truth {most} at most");

    let alone = under(None, &every, &["waits", "3000", "0"]);
    // The recorder looks what is resident now and then, and so may others: a process of one thread never waits for itself.
    let control = &alone.judgement["mmap_lock"];
    for name in ["waits", "time_ns", "spun_ns", "outside", "outside_ns"] {
        assert_eq!(control[name], 0, "{name}: {control}");
    }
    assert!(!alone.diseases().contains(&"lock".to_owned()));
}

/// An arena that only grows unmaps nothing, and no bound of glibc's changes that.
#[test]
fn waits_for_the_lock_of_mappings_as_an_arena_grows() {
    let sick = under(None, &["--time-every", "1"], &["grows", "3000"]);
    let (grown, blocks) = (sick.calls("mprotect"), sick.count("malloc"));
    // Where it comes to the end of its memory it gets more, which has room for a block or two.
    assert!(grown >= blocks * 9 / 10, "{grown} of {blocks}");
    let [title, advice] = lock_of(&sick);
    let grows = "(mmap_lock), as its memory grows by many calls (mprotect)";
    assert!(title.ends_with(grows), "{title}");
    assert!(advice.contains("arenas") && !advice.contains("THRESHOLD"));
}

/// The kernel's own count of the faults of the two loops that touch blocks; what the program maps itself is not among them.
#[test]
fn first_touches_of_what_was_allocated() {
    for options in [&[][..], &["--pages", "on"]] {
        let recorded = under(None, options, &["fresh", "40000000"]);
        let behind = recorded.judgement["faults"]["behind"].as_u64().unwrap();
        let touched = truth(&recorded, "touched");
        // The array of the blocks, and what the C library prints through.
        assert!(
            (touched..touched + 10).contains(&behind),
            "{options:?}: {behind}, in truth {touched}"
        );
        // It reads into 19 blocks. Their first page malloc touches itself, and they end on a page more.
        let read = 19 * (1 << 20) / 4096;
        let by_kernel = recorded.judgement["faults"]["behind_by_kernel"].as_u64();
        assert!(
            (read..read + 10).contains(&by_kernel.unwrap()),
            "{options:?}: {by_kernel:?}, in truth {read}"
        );
        let outside = recorded.judgement["faults"]["outside"].as_u64().unwrap();
        assert!(outside >= behind + 40_000_000 / 4096, "{outside}");
    }
}

/// Of an allocator whose memory nobody saw it map it is not known what is behind its operations.
#[test]
fn first_touches_of_what_nobody_saw_mapped() {
    let program = workload("alloc_work");
    let library = workload("libsick_early.so");
    let recorded = record(
        &["--allocator", library.to_str().unwrap()],
        &[program.to_str().unwrap(), "grow", "60000000", "1000"],
    );
    for figure in ["behind", "behind_share"] {
        assert!(recorded.judgement["faults"][figure].is_null(), "{figure}");
    }
}

/// The program knows whose blocks lie where.
#[test]
fn pages_with_blocks_of_several_threads() {
    const WORK: [&str; 3] = ["sides", "4", "1000"];
    let under = |allocator: &str| {
        let (program, library) = (
            workload("alloc_kernel"),
            workload(&format!("libsick_{allocator}.so")),
        );
        let command = [&[program.to_str().unwrap()], &WORK[..]].concat();
        let options = ["--allocator", library.to_str().unwrap()];
        // 4 threads have 1,000 times 8 blocks of 256 bytes and a header of 16 each: it is looked when all of them are there, but for a MiB
        // of all threads together, or of each.
        const PAGES: u64 = 4 * 1000 * 8 * (256 + 16) / 4096;
        let is_looked_at = |of: &Value| {
            let peak = &of["pages"]["peak"];
            let figure = |name: &str| peak[name].as_u64().unwrap_or(0);
            match allocator {
                "shared" => figure("shared_pages") >= PAGES - 261,
                _ => figure("live_bytes") >= (PAGES - 4 * 275) * 4096,
            }
        };
        record_until(&options, &command, "it is looked", is_looked_at)
    };
    let together = under("shared");
    let shared = &together.judgement["pages"]["peak"]["shared_pages"];
    let truth = truth(&together, "shared");
    // As it is looked, a MiB may still be missing.
    let seen = truth - 260..=truth;
    assert!(truth > 1000);
    assert!(
        seen.contains(&shared.as_u64().unwrap()),
        "{shared}, in truth {truth}"
    );
    let apart = under("none");
    assert_eq!(apart.judgement["pages"]["peak"]["shared_pages"], 0);
}

/// Resident bytes of a process as the kernel's smaps has them: those of its heap, and all that are anonymous.
fn resident(pid: &str) -> (u64, u64) {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut heap, mut anonymous, mut is_heap) = (0, 0, false);
    for line in text.lines() {
        let kilobytes = |name: &str| -> Option<u64> {
            let rest = line.strip_prefix(name)?;
            rest.trim().strip_suffix(" kB")?.parse().ok()
        };
        if let Some(kb) = kilobytes("Rss:") {
            heap += if is_heap { kb * 1024 } else { 0 };
        } else if let Some(kb) = kilobytes("Anonymous:") {
            anonymous += kb * 1024;
        } else if line.split(' ').next().is_some_and(|w| w.contains('-')) {
            is_heap = line.ends_with("[heap]");
        }
    }
    (heap, anonymous)
}

/// The process with this command line.
fn running(command: &str) -> String {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut found = processes.filter(|process| {
        let words = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|b| *b == 0).filter(|w| !w.is_empty()).collect();
        words.join(&b' ') == command.as_bytes()
    });
    let process = found.next().expect("it runs").file_name();
    process.to_str().unwrap().to_owned()
}

/// While the program waits with all of its blocks, the kernel says what is resident of its heap; all of that is what glibc took by `brk`.
#[test]
fn resident_memory_is_what_smaps_says() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("t.varve");
    let program = workload("alloc_work");
    let mut recorder = Command::new(varve())
        .args(["alloc", "record", "--pages", "off", "-o"])
        .arg(&trace)
        .arg("--")
        .arg(&program)
        .args(["hold", "50001000", "1000"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(recorder.stderr.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("50002 ") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended");
    }
    let pid = running(&format!("{} hold 50001000 1000", program.display()));
    let (heap, anonymous) = resident(&pid);
    // It is looked several times a second.
    let peak = |of: &Value| of["memory"]["peak_heap_resident_bytes"].as_u64();
    wait_for(&trace, "it is looked", |of| peak(of) >= Some(heap));
    drop(recorder.stdin.take());
    std::io::copy(&mut said, &mut std::io::sink()).unwrap();
    assert!(recorder.wait().unwrap().success());
    let report = Command::new(varve())
        .args(["alloc", "report", "--json"])
        .arg(&trace)
        .output()
        .unwrap();
    let judgement: Value = serde_json::from_slice(&report.stdout).unwrap();
    let memory = |name: &str| judgement["memory"][name].as_u64().unwrap();
    let found = memory("peak_heap_resident_bytes");
    assert!(heap > 50_000_000, "{heap}");
    // The array of the blocks has a mapping of its own.
    let of_array = 50_001 * 8 + 8192;
    assert!(
        (heap..=heap + of_array).contains(&found),
        "{found}, in truth {heap} and {of_array}"
    );
    let (all, own) = (memory("peak_resident_bytes"), memory("own_bytes"));
    assert!(
        all <= anonymous && anonymous - all <= own + (1 << 20),
        "{all}, in truth {anonymous} with {own} of counting"
    );
}
