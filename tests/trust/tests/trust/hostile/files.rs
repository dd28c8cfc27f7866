//! What a target puts in the place of a file that it has mapped.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};
use varve_faults::{Stage, varve_binary};

use crate::hostile::readable;

/// An ELF file of at least so many bytes in the stage's folder.
fn library(stage: &Stage, bytes: u64) -> PathBuf {
    let path = stage.path("library.so");
    fs::copy("/proc/self/exe", &path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    if file.metadata().unwrap().len() < bytes {
        file.set_len(bytes).unwrap();
    }
    path
}

fn replaced_by(kind: &str) {
    let stage = Stage::new();
    let library = library(&stage, 0);
    let program = varve_trust::program("names");
    let command = [program.as_os_str(), kind.as_ref(), library.as_os_str()];
    for options in [&[][..], &["--samples", "300/s"]] {
        // What the run before put there goes, links too.
        if !fs::symlink_metadata(&library).is_ok_and(|m| m.is_file()) {
            let _ = fs::remove_file(&library);
            fs::copy("/bin/sh", &library).unwrap();
        }
        let _ = fs::remove_dir_all(stage.path("trace.varve"));
        let ended = stage.run(stage.record(options, &command)).require(0);
        readable(&stage);
        stage.require_clean(ended.pid);
    }
}

#[test]
fn a_fifo_is_not_opened() {
    replaced_by("fifo");
}

#[test]
fn a_device_is_not_opened() {
    replaced_by("device");
}

#[test]
fn another_file_is_not_read_in_its_place() {
    replaced_by("link");
}

#[test]
fn a_file_that_is_shorter_is_no_reason_to_die() {
    replaced_by("shrink");
}

#[test]
fn a_file_that_shrinks_and_grows_is_no_reason_to_die() {
    let stage = Stage::new();
    let library = library(&stage, 40 << 20);
    let whole = fs::read(&library).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (path, stopped) = (library.clone(), Arc::clone(&stop));
    // Shorter and longer all the time, also while the trace is put in order.
    let writer = std::thread::spawn(move || {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        while !stopped.load(Ordering::Relaxed) {
            let _ = file.set_len(64 << 10);
            std::thread::sleep(Duration::from_millis(1));
            let _ = file.write_all_at(&whole[..whole.len() / 2], 0);
            let _ = file.set_len(whole.len() as u64);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let program = varve_trust::program("holds");
    let command = [program.as_os_str(), library.as_os_str()];
    let ended = stage.run(stage.record(&["--samples", "300/s"], &command));
    stop.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    let ended = ended.require(0);
    readable(&stage);
    stage.require_clean(ended.pid);
}

#[test]
fn a_fifo_in_the_place_of_a_library_of_varve_does_not_hang_the_doctor() {
    let stage = Stage::new();
    let fifo = stage.path("libvarve_preload.so");
    make_fifo(&fifo);
    let mut doctor = stage.command(varve_binary());
    doctor.arg("doctor").env("VARVE_PRELOAD", &fifo);
    stage.run(doctor);
}

#[test]
fn a_fifo_in_the_place_of_an_import_is_refused() {
    let stage = Stage::new();
    let fifo = stage.path("accesses.csv");
    make_fifo(&fifo);
    let mut import = stage.command(varve_binary());
    import.arg("import").arg(&fifo).args(["-o", "t.varve"]);
    let ended = stage.run(import);
    assert_ne!(ended.code, 0);
    assert!(ended.stderr.contains("regular file"), "{}", ended.stderr);
}

fn make_fifo(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

#[test]
fn a_finished_trace_with_a_damaged_table_is_not_in_order() {
    let stage = Stage::new();
    stage.run(stage.record(&[], &["true"])).require(0);
    let recover = || {
        let mut command = stage.command(varve_faults::varve_binary());
        command.args(["recover", "trace.varve"]);
        stage.run(command)
    };
    recover().require(0);
    let table = stage.path("trace.varve/mappings.parquet");
    let whole = std::fs::read(&table).unwrap();
    std::fs::write(&table, &whole[..whole.len() / 2]).unwrap();
    recover()
        .require(1)
        .require_complaint(&["mappings", "damaged"]);
    std::fs::remove_file(&table).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &table).unwrap();
    recover().require(1).require_complaint(&["mappings"]);
}
