//! Accesses that leave no accessed bit behind: each is in the trace all the same, or the trace does not say complete.

use std::collections::HashSet;
use std::fs;

use rustix::process::Signal;
use varve_faults::{Stage, patiently, stat};
use varve_trace::Trace;
use varve_trace::tables::TouchRow;
use varve_trust::{program, unless_reclaimed, wait_for_flushes};

use crate::handler::target_of;
use crate::rounds::{Group, attach, compare, go_on, stop};

/// Records a program whose pages are all accessed in each round, in a way that a look at the end of an interval does not see; none
/// where this kernel does not do it.
fn unseen(how: &str, options: &[&str]) -> Option<Stage> {
    let once = || {
        let stage = Stage::new();
        let words = [
            program("unseen").into_os_string(),
            how.into(),
            stage.folder().into(),
            "300".into(),
        ];
        let options = [&["--interval", "10ms"], options].concat();
        let ran = stage.run(stage.record(&options, &words));
        if ran.code == 77 {
            eprintln!("skipped: this kernel does not do it");
            return None;
        }
        ran.require(7);
        let trace = Trace::open(&stage.path("trace.varve")).unwrap();
        Some((stage, trace))
    };
    let recorded = unless_reclaimed(once, |recorded| Some(&recorded.as_ref()?.1));
    recorded.map(|(stage, _)| stage)
}

fn seen_all_the_same(how: &str) {
    if let Some(stage) = unseen(how, &[]) {
        compare(&stage, &stage).require_all("cgroup");
    }
}

/// Pages that the program gives back in a way that is known too late to read their accessed bits, or not known: each time is a
/// loss.
fn counted(how: &str, options: &[&str]) {
    let Some(stage) = unseen(how, options) else {
        return;
    };
    require_incomplete(&stage);
    // The control: nobody looks at what takes pages away, so that nobody counts it.
    let blind = unseen(how, &["--without", "vanish"]).expect("a kernel that does it");
    assert_eq!(lost(&blind), 0);
}

/// Pages that go while nobody looks, and are missed from what is resident. Who looks at calls counts that.
fn missed_from_what_is_there(how: &str) {
    seen_all_the_same(how);
    counted(how, EXACT);
    // The control: nothing is compared either.
    if let Some(blind) = unseen(how, &["--without", "vanish"]) {
        assert!(!compare(&blind, &blind).short.is_empty());
    }
}

/// A look at every system call.
const EXACT: &[&str] = &["--vanish", "exact"];

/// What a large process had as it ended need not be in the records of its end: it was there, and it is gone.
#[test]
fn a_large_process_that_ends_while_the_recorder_stands() {
    const REGION: u64 = 2 << 20;
    let once = || {
        let stage = Stage::new();
        let (ready, go) = (stage.path("ready"), stage.path("go"));
        let words = [
            program("sparse").into_os_string(),
            ready.clone().into(),
            go.clone().into(),
        ];
        let options = ["--interval", "5s", "--samples", "off"];
        let mut recorder = stage.start(stage.record(&options, &words));
        assert!(patiently(|| ready.exists()), "{}", recorder.messages());
        // A hold is over by then, and the next one is seconds away.
        wait_for_flushes(&stage, &recorder, "intervals", 1);
        let target = target_of(&recorder);
        assert!(recorder.stop());
        fs::write(&go, "").unwrap();
        // Nobody has waited for it yet.
        let has_ended = || stat(target).is_none_or(|stat| stat.state == 'Z');
        assert!(patiently(has_ended), "{}", recorder.messages());
        recorder.signal(Signal::CONT);
        let ended = recorder.end().require(0);
        let first = u64::from_str_radix(ended.text().trim().trim_start_matches("0x"), 16).unwrap();
        (
            Trace::open(&stage.path("trace.varve")).unwrap(),
            first,
            stage,
        )
    };
    let (trace, first, _stage) = unless_reclaimed(once, |(trace, ..)| Some(trace));
    let manifest = &trace.manifest;
    assert!(manifest.completeness.complete, "{:?}", manifest.losses);
    let touches: Vec<TouchRow> = trace.rows().unwrap();
    let last = touches.iter().map(|t| t.interval).max().unwrap();
    let touched: HashSet<u64> = touches
        .iter()
        .filter(|t| t.interval == last)
        .map(|t| t.page.address().0)
        .collect();
    let missed = (80_920..81_920).filter(|i| !touched.contains(&(first + i * REGION)));
    assert_eq!(missed.count(), 0);
}

#[test]
fn process_vm_readv_of_itself() {
    seen_all_the_same("readv");
}

#[test]
fn process_vm_writev_of_itself() {
    seen_all_the_same("writev");
}

#[test]
fn process_vm_readv_by_the_number_of_a_thread() {
    seen_all_the_same("thread");
}

#[test]
fn process_vm_readv_of_a_child() {
    seen_all_the_same("child");
}

#[test]
fn a_tracer_that_is_recorded_too() {
    seen_all_the_same("ptrace");
}

#[test]
fn its_memory_as_a_file() {
    seen_all_the_same("pread");
}

#[test]
fn its_memory_as_a_file_by_vectors() {
    seen_all_the_same("preadv");
}

#[test]
fn its_memory_as_a_file_by_position() {
    seen_all_the_same("read");
}

#[test]
fn writing_its_memory_as_a_file() {
    seen_all_the_same("write");
}

#[test]
fn its_environment_as_a_file() {
    seen_all_the_same("environ");
}

#[test]
fn a_userfaultfd_that_moves_pages_away() {
    // They come without a fault, too, and go so.
    counted("move", &[]);
    if let Some(stage) = unseen("move", EXACT) {
        compare(&stage, &stage).require_all("cgroup");
    }
}

#[test]
fn giving_memory_back_before_its_mapping() {
    seen_all_the_same("drop");
}

#[test]
fn collapsing_a_file_through_another_mapping() {
    seen_all_the_same("collapse");
    if let Some(stage) = unseen("collapse", EXACT) {
        compare(&stage, &stage).require_all("cgroup");
    }
}

#[test]
fn process_mrelease_of_a_child() {
    seen_all_the_same("mrelease");
}

#[test]
fn attaching_a_segment_over_other_pages() {
    seen_all_the_same("remap");
}

/// Which the recorder did not see it open.
#[test]
fn its_memory_as_a_file_that_it_had_open_before() {
    let group = Group::new("open");
    let (targets, recorders) = (Stage::new(), Stage::new());
    let mut command = targets.command(program("unseen"));
    command.arg("pread").arg(targets.folder()).arg("20000");
    let target = targets.start(command);
    assert!(patiently(|| targets.path("started").exists()));
    group.take(target.pid());
    let recorder = attach(&recorders, target.pid(), &["--hold", "cgroup"]);
    go_on(&targets, 100);
    stop(recorder, target);
    compare(&recorders, &targets).require_all("own cgroup");
}

fn lost(stage: &Stage) -> u64 {
    let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    manifest.losses.get("vanish_walks").copied().unwrap_or(0)
}

fn require_incomplete(stage: &Stage) {
    let manifest = Trace::open(&stage.path("trace.varve")).unwrap().manifest;
    assert!(!manifest.completeness.complete);
    assert!(lost(stage) > 0, "{:?}", manifest.losses);
}

#[test]
fn punching_a_mapped_file_by_ioctl() {
    missed_from_what_is_there("unreserve");
}

#[test]
fn zeroing_a_mapped_file_by_ioctl() {
    missed_from_what_is_there("zero");
}

#[test]
fn an_io_uring_that_gives_memory_back_is_a_loss() {
    counted("queue-advice", &[]);
}

#[test]
fn an_io_uring_that_punches_a_mapped_file() {
    missed_from_what_is_there("queue-punch");
}

#[test]
fn an_io_uring_that_cuts_a_mapped_file() {
    missed_from_what_is_there("queue-cut");
}

/// The control of the cases above: a queue by itself loses nothing.
#[test]
fn an_io_uring_that_takes_nothing_away_is_no_loss() {
    seen_all_the_same("queue-nothing");
}

#[test]
fn a_program_that_clears_its_own_accessed_bits_is_not_complete() {
    let stage = Stage::new();
    let script = "exec 3<> /proc/self/clear_refs; echo 1 >&3";
    stage
        .run(stage.record(&[], &["sh", "-c", script]))
        .require(0);
    require_incomplete(&stage);
}

#[test]
fn accessed_bits_that_somebody_else_clears_are_a_loss() {
    let stage = Stage::new();
    let script = "echo $$ > pid; while [ ! -e go ]; do sleep 0.02; done";
    let running = stage.start(stage.record(&[], &["sh", "-c", script]));
    let pid = || {
        let text = fs::read_to_string(stage.path("pid")).ok()?;
        text.trim().parse::<u32>().ok()
    };
    assert!(patiently(|| pid().is_some()), "{}", running.messages());
    let file = format!("/proc/{}/clear_refs", pid().unwrap());
    fs::write(file, "1").unwrap();
    fs::write(stage.path("go"), "").unwrap();
    running.end().require(0);
    require_incomplete(&stage);
}
