//! The preload library's channel: only tracked processes are answered.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use varve_faults::{Running, Stage, patiently, socket_folder};
use varve_model::{Loss, ObjectKind};
use varve_trace::Trace;
use varve_trace::tables::{ObjectRow, ProcessRow};
use varve_trust::{STRANGER, as_user, build, program, see_an_interval};

/// The folder of the socket of a recorder that has begun.
fn run_folder(recorder: &Running) -> PathBuf {
    let mut found = None;
    assert!(patiently(|| {
        found = socket_folder(recorder.pid());
        found.is_some()
    }));
    found.unwrap()
}

/// A recording of the program with objects, once it has a ring. It ends when there is a file `over` in the stage's folder.
fn recording(stage: &Stage) -> (Running, PathBuf) {
    let heap = program("heap");
    let command = [heap.as_os_str(), "over".as_ref()];
    let recorder = stage.start(stage.record(&["--interval", "20ms"], &command));
    let folder = run_folder(&recorder);
    (recorder, folder)
}

/// What the recorder has open that a caller can make it open: a connection, a handle of a process, a ring. Not its tables, which
/// it opens with their first rows, nor what it reads.
fn opened_for_callers(pid: u32) -> usize {
    let opened = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    // One that is closed meanwhile is not there any more.
    let targets = opened.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets
        .filter(|target| {
            let target = target.to_string_lossy();
            let kinds = ["socket:", "anon_inode:[pidfd]", "pidfd:", "/memfd:"];
            kinds.iter().any(|kind| target.starts_with(kind)) || target.contains(".ring")
        })
        .count()
}

/// What a caller is answered in that folder.
fn ask(stage: &Stage, folder: &Path, times: &str, user: Option<u32>) -> String {
    // In a place that every user can reach.
    let caller = stage.path("caller");
    if !caller.exists() {
        fs::copy(program("caller"), &caller).unwrap();
        fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = stage.command(caller);
    command.arg(folder).arg(times);
    if let Some(user) = user {
        as_user(&mut command, user);
    }
    stage.run(command).require(0).text().trim().to_owned()
}

/// The blocks of memory that the program with objects makes, as the preload library tells of them.
fn blocks(trace: &Trace) -> usize {
    let objects: Vec<ObjectRow> = trace.rows().unwrap();
    let sizes = [5 << 20, 3 << 20];
    let is_block = |o: &&ObjectRow| sizes.contains(&o.bytes.0) && o.site.is_some();
    objects.iter().filter(is_block).count()
}

#[test]
fn who_is_not_recorded_gets_no_ring_and_costs_nothing() {
    let stage = Stage::new();
    let (recorder, folder) = recording(&stage);
    let metadata = fs::metadata(&folder).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o711, 0));
    // Strangers cannot find it, to begin with.
    let outer = folder.parent().unwrap();
    let mut list = stage.command("ls");
    as_user(list.arg(outer), STRANGER);
    assert_ne!(stage.run(list).code, 0);
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    assert!(sockets.contains(outer.to_str().unwrap()), "{sockets}");
    assert!(!sockets.contains(folder.to_str().unwrap()), "{sockets}");
    assert_eq!(ask(&stage, outer, "1", Some(STRANGER)), "nobody");
    // One who was told.
    let mut touch = stage.command("touch");
    touch.arg(folder.join("1-1-1.ring"));
    as_user(&mut touch, STRANGER);
    assert_ne!(stage.run(touch).code, 0);
    assert_eq!(ask(&stage, &folder, "1", Some(STRANGER)), "closed");
    // The recorder's own user, but no process of the target's.
    assert_eq!(ask(&stage, &folder, "1", None), "closed");
    let before = opened_for_callers(recorder.pid());
    assert_eq!(ask(&stage, &folder, "3000", Some(STRANGER)), "3000 closed");
    // A connection is open for a moment.
    let after = || opened_for_callers(recorder.pid());
    assert!(
        patiently(|| after() <= before),
        "{before} descriptors, then {}",
        after()
    );
    fs::write(stage.path("over"), "").unwrap();
    recorder.end().require(0);

    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let losses = &trace.manifest.losses;
    // Reclaim is the machine's.
    let mut lost = losses.iter().filter(|(_, count)| **count > 0);
    assert!(
        lost.all(|(kind, _)| kind == "reclaim_scanned_pages"),
        "{losses:?}"
    );
    let notes = trace.manifest.notes.join("\n");
    assert!(
        notes.contains("3002 of processes that are not recorded"),
        "{notes}"
    );
    assert_eq!(blocks(&trace), 2);
}

#[test]
fn a_recorded_process_gets_one_ring() {
    let stage = Stage::new();
    let caller = program("caller");
    let ended = stage.run(stage.record(&[], &[caller])).require(0);
    assert_eq!(ended.text().trim(), "closed");
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let notes = trace.manifest.notes.join("\n");
    assert!(notes.contains("1 of recorded processes"), "{notes}");
    let processes: Vec<ProcessRow> = trace.rows().unwrap();
    assert!(
        processes
            .iter()
            .all(|p| p.objects.as_deref() == Some("preload"))
    );
}

/// A shell that waits for a file of the stage's and then runs the program with objects.
fn waiting(stage: &Stage, options: &[&str]) -> (Running, PathBuf) {
    let heap = program("heap");
    let script = format!(
        "touch begun; while [ ! -e go ]; do sleep 0.02; done; {} 10; echo $? > code; mv code done",
        heap.display()
    );
    let recorder = stage.start(stage.record(options, &["sh", "-c", &script]));
    let folder = run_folder(&recorder);
    assert!(
        patiently(|| stage.path("begun").exists()),
        "{}",
        recorder.messages()
    );
    (recorder, folder)
}

#[test]
fn who_remakes_the_folder_of_a_dead_recorder_hears_nothing() {
    for options in [&["--writes", "on"][..], &["--backend", "fault"]] {
        let stage = Stage::new();
        fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o755)).unwrap();
        let (recorder, folder) = waiting(&stage, options);
        recorder.signal(Signal::KILL);
        recorder.end();
        let outer = folder.parent().unwrap();
        assert!(patiently(|| !outer.exists()));
        fs::create_dir(outer).unwrap();
        std::os::unix::fs::chown(outer, Some(STRANGER), Some(STRANGER)).unwrap();
        let impostor = stage.path("impostor");
        fs::copy(program("impostor"), &impostor).unwrap();
        let mut listen = stage.command(impostor);
        as_user(listen.arg(&folder), STRANGER);
        let mut listener = stage.start(listen);
        let said = || fs::read_to_string(stage.path("stdout-1")).unwrap_or_default();
        assert!(
            patiently(|| said().contains("listening")),
            "{}",
            listener.messages()
        );
        fs::write(stage.path("go"), "").unwrap();
        assert!(patiently(|| stage.path("done").exists()));
        let code = || fs::read_to_string(stage.path("done")).unwrap();
        assert!(patiently(|| code().trim() == "0"));
        let heard = said();
        listener.signal(Signal::KILL);
        patiently(|| listener.has_ended());
        fs::remove_dir_all(outer).unwrap();
        assert!(!heard.contains("bytes"), "{options:?}: {heard}");
    }
}

#[test]
fn a_stopped_recorder_does_not_keep_programs_from_starting() {
    let stage = Stage::new();
    let (mut recorder, _) = waiting(&stage, &[]);
    assert!(recorder.stop());
    fs::write(stage.path("go"), "").unwrap();
    // It has run and ended before the recorder goes on.
    assert!(patiently(|| stage.path("done").exists()));
    let code = fs::read_to_string(stage.path("done")).unwrap();
    recorder.signal(Signal::CONT);
    recorder.end().require(0);
    assert_eq!(code.trim(), "0");
}

/// A program whose libraries take half a second to load: what is the library's own, and what the program allocates through it, are no
/// mappings of the program's.
#[test]
fn a_program_that_loads_slowly_is_waited_for() {
    let slow = build("late", &["-shared", "-fPIC", "-DLIBRARY", "-O1", "-g"]);
    let slow = slow.to_str().unwrap();
    let late = build("late", &["-O1", "-g", "-Wl,--no-as-needed", slow]);
    let stage = Stage::new();
    stage.run(stage.record(&[], &[&late])).require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let processes: Vec<ProcessRow> = trace.rows().unwrap();
    let from = processes.last().unwrap().objects.as_deref();
    assert_eq!(from, Some("preload"));
    let objects: Vec<ObjectRow> = trace.rows().unwrap();
    let named = |name: &str| objects.iter().filter(|o| o.name.contains(name)).count();
    assert_eq!(
        (
            named("table (late.c"),
            named("system_call"),
            named("varve-ring")
        ),
        (1, 0, 0),
        "{objects:#?}"
    );
}

/// What `malloc` gave out, as the preload library told of it.
fn given_out(trace: &Trace) -> Vec<ObjectRow> {
    let objects: Vec<ObjectRow> = trace.rows().unwrap();
    let is_heap = |o: &ObjectRow| o.kind == ObjectKind::Heap && o.site.is_some();
    objects.into_iter().filter(is_heap).collect()
}

/// Those of a size.
fn of_bytes(objects: &[ObjectRow], bytes: u64) -> Vec<&ObjectRow> {
    objects.iter().filter(|o| o.bytes.0 == bytes).collect()
}

/// The program knows its blocks by their sizes. Each is there once, in the order of their making, and ended where it was freed.
#[test]
fn every_block_has_its_beginning_and_its_end() {
    const BLOCKS: u64 = 1000;
    let stage = Stage::new();
    let command = [program("blocks"), BLOCKS.to_string().into()];
    let recorded = stage.run(stage.record(&["--interval", "50ms"], &command));
    recorded.require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let objects = given_out(&trace);
    let last = of_bytes(&objects, 3 << 20)[0].born_ns;
    let mut before = trace.manifest.clock.start_ns;
    for i in 0..BLOCKS {
        let found = of_bytes(&objects, 10_008 + 16 * i);
        let [block] = found[..] else {
            panic!("block {i}: {found:?}");
        };
        assert!(before <= block.born_ns, "block {i}: {block:?}");
        before = block.born_ns;
        let is_freed = block.died_ns.is_some_and(|died| died <= last);
        assert_eq!(is_freed, i % 2 == 1, "block {i}: {block:?}, {last:?}");
    }
    assert!(before <= last);
}

/// While the recorder stands nobody empties the ring. The trace says how much is missing.
#[test]
fn blocks_for_which_the_ring_has_no_room_are_counted() {
    const BLOCKS: u64 = 200_000;
    let stage = Stage::new();
    let words = [&BLOCKS.to_string(), "go", "done"].map(PathBuf::from);
    let command = [&[program("blocks")], &words[..]].concat();
    let mut recorder = stage.start(stage.record(&["--interval", "20ms"], &command));
    assert!(see_an_interval(&stage.path("trace.varve")));
    assert!(recorder.stop());
    fs::write(stage.path("go"), "").unwrap();
    let is_done = patiently(|| stage.path("done").exists());
    recorder.signal(Signal::CONT);
    assert!(is_done);
    recorder.end().require(0);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let found = of_bytes(&given_out(&trace), 10_008).len() as u64;
    let losses = &trace.manifest.losses;
    let lost = losses.get(Loss::PreloadRecords.as_str()).copied();
    assert!(found < BLOCKS, "{found} blocks: the ring had room for all");
    assert!(
        lost.is_some_and(|lost| lost >= BLOCKS - found),
        "{found} of {BLOCKS} blocks: {losses:?}"
    );
}
