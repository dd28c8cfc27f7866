//! Namespaces, chroots and containers: who is who is the kernel's word.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use varve_faults::{Ended, Stage, patiently, varve_binary};
use varve_trace::Trace;
use varve_trace::tables::{ObjectRow, ProcessRow, ThreadRow};
use varve_trust::{STRANGER, program, see_an_interval};

/// A recording that is over.
struct Recorded {
    ended: Ended,
    trace: Trace,
}

fn record<S: AsRef<OsStr>>(stage: &Stage, programs: usize, command: &[S]) -> Recorded {
    let command = stage.record(&["--interval", "20ms"], command);
    finish(stage, programs, command)
}

/// Runs what has so many programs of `phases` in it: each goes on when `ready` comes true after it has made its first block, and once
/// more after its second. What stands still shows when it ends, or else after minutes.
fn run(stage: &Stage, programs: usize, mut command: Command, ready: impl Fn() -> bool) -> Ended {
    let (theirs, ours) = std::io::pipe().unwrap();
    command.stdin(theirs);
    let mut running = stage.start(command);
    for word in ["one", "two"] {
        let all_said =
            patiently(|| running.said().matches(word).count() >= programs || running.has_ended());
        if !all_said || running.has_ended() {
            break;
        }
        assert!(ready(), "{}", running.messages());
        let _ = (&ours).write_all(b"+");
    }
    // Still open: it has the bytes as long as somebody could write more.
    let ended = running.end();
    drop(ours);
    ended
}

fn finish(stage: &Stage, programs: usize, command: Command) -> Recorded {
    let trace = stage.path("trace.varve");
    // The recorder has looked at what it is by then.
    let ended = run(stage, programs, command, || see_an_interval(&trace)).require(0);
    // The loader complains of what it cannot preload.
    assert!(!ended.stderr.contains("preload"), "{}", ended.stderr);
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    Recorded { ended, trace }
}

/// A copy of the program with objects, where every user can run it.
fn heap(stage: &Stage) -> PathBuf {
    let copy = stage.path("heap");
    fs::copy(program("phases"), &copy).unwrap();
    fs::set_permissions(stage.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

impl Recorded {
    /// The programs called `heap`, and who reported their objects.
    fn sources(&self) -> Vec<(u32, Option<String>, Option<String>)> {
        let rows: Vec<ProcessRow> = self.trace.rows().unwrap();
        let of_heap = rows.into_iter().filter(|p| p.exe.ends_with("heap"));
        let mut found: Vec<_> = of_heap
            .map(|p| (p.pid.0, p.objects, p.objects_why))
            .collect();
        // What a process was before its exec may have been looked at when it was this already.
        found.dedup_by_key(|p| p.0);
        found
    }

    /// The block of each thread of that process, by its size and the thread that made it; only those whose place in the
    /// code is known, where that is asked for.
    fn blocks(&self, pid: u32, placed: bool) -> Vec<(u64, u32)> {
        let objects: Vec<ObjectRow> = self.trace.rows().unwrap();
        let own = objects
            .iter()
            .filter(|o| o.pid.0 == pid && (o.site.is_some() || !placed));
        let mut blocks: Vec<(u64, u32)> = own
            .filter_map(|o| {
                let size = [5u64 << 20, 3 << 20]
                    .into_iter()
                    .find(|s| (*s..*s + 8192).contains(&o.bytes.0))?;
                // Mappings that were only seen from outside have no maker.
                Some((size, o.tid?.0))
            })
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    /// All that is large, for messages.
    fn large(&self, pid: u32) -> Vec<(String, u64, Option<u32>)> {
        let objects: Vec<ObjectRow> = self.trace.rows().unwrap();
        let own = objects
            .into_iter()
            .filter(|o| o.pid.0 == pid && o.bytes.0 >= 1 << 20);
        own.map(|o| (o.name, o.bytes.0, o.tid.map(|t| t.0)))
            .collect()
    }

    fn threads(&self, pid: u32) -> Vec<u32> {
        let rows: Vec<ThreadRow> = self.trace.rows().unwrap();
        let own = rows.iter().filter(|t| t.pid.0 == pid);
        own.map(|t| t.tid.0).collect()
    }

    /// Requires that each of so many programs has both blocks, made by its two threads, and that they come from there.
    fn require(&self, programs: usize, from: &str, why: Option<&str>) {
        let sources = self.sources();
        assert_eq!(sources.len(), programs, "{sources:?}");
        for (pid, reporter, reason) in sources {
            assert_eq!(
                (reporter.as_deref(), reason.as_deref()),
                (Some(from), why),
                "{}",
                self.ended.stderr
            );
            // The kernel's events have stacks once the recorder has seen what the program is.
            let blocks = self.blocks(pid, from == "preload");
            assert!(self.blocks(pid, true).iter().any(|b| b.0 == 3 << 20));
            let sizes: Vec<u64> = blocks.iter().map(|b| b.0).collect();
            assert_eq!(
                sizes,
                [3 << 20, 5 << 20],
                "{blocks:?} {:?}",
                self.large(pid)
            );
            let threads = self.threads(pid);
            assert_eq!(blocks[1].1, pid);
            assert_ne!(blocks[0].1, pid);
            assert!(threads.contains(&blocks[0].1), "{blocks:?} {threads:?}");
        }
    }
}

#[test]
fn objects_are_named_in_a_pid_namespace() {
    for options in [&["-pf"][..], &["-pf", "--mount-proc"]] {
        let stage = Stage::new();
        let heap = heap(&stage);
        let mut words = vec![OsStr::new("unshare")];
        words.extend(options.iter().map(OsStr::new));
        words.push(heap.as_os_str());
        record(&stage, 1, &words).require(1, "preload", None);
    }
}

#[test]
fn two_containers_with_the_same_numbers_are_two() {
    let stage = Stage::new();
    let heap = heap(&stage);
    let script = format!(
        "exec 3<&0; unshare -pf {0} <&3 & unshare -pf --mount-proc {0} <&3 & wait",
        heap.display()
    );
    record(&stage, 2, &["sh", "-c", &script]).require(2, "preload", None);
}

#[test]
fn a_user_namespace_that_does_not_know_the_recorders_user_is_answered() {
    let stage = Stage::new();
    let heap = heap(&stage);
    let user = STRANGER.to_string();
    let command = [
        "setpriv",
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
        "unshare",
        "-Ur",
        heap.to_str().unwrap(),
    ];
    record(&stage, 1, &command).require(1, "preload", None);
}

/// A root folder with the program and the libraries that it needs, and nothing else.
fn root_folder(stage: &Stage) -> PathBuf {
    let root = stage.path("root");
    let heap = heap(stage);
    let libraries = Command::new("ldd").arg(&heap).output().unwrap();
    let text = String::from_utf8(libraries.stdout).unwrap();
    let paths = text.split_whitespace().filter(|w| w.starts_with('/'));
    for path in paths {
        let place = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        fs::copy(path, place).unwrap();
    }
    for folder in ["proc", "dev", "sys", "tmp"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy(&heap, root.join("heap")).unwrap();
    root
}

#[test]
fn a_root_folder_without_the_library_has_the_kernels_objects_and_no_complaint() {
    let stage = Stage::new();
    let root = root_folder(&stage);
    let command = [OsStr::new("chroot"), root.as_os_str(), OsStr::new("/heap")];
    record(&stage, 1, &command).require(1, "kernel", Some("root"));
    let report = stage.run({
        let mut report = stage.command(varve_binary());
        report.args(["report", "trace.varve", "--all"]);
        report
    });
    let text = report.require(0).text();
    assert!(text.contains("its root folder lacks"), "{text}");
}

#[test]
fn a_cleaned_environment_has_the_kernels_objects() {
    let stage = Stage::new();
    let heap = heap(&stage);
    let command = [OsStr::new("env"), OsStr::new("-i"), heap.as_os_str()];
    record(&stage, 1, &command).require(1, "kernel", Some("cleared"));
}

#[test]
fn a_library_where_the_loader_cannot_find_it_is_found() {
    let stage = Stage::new();
    let heap = heap(&stage);
    let odd = stage.path("a b:c");
    fs::create_dir(&odd).unwrap();
    let library = odd.join("libvarve_preload.so");
    let own = varve_binary().with_file_name("libvarve_preload.so");
    fs::copy(own, &library).unwrap();
    // Nobody but its owner can read it.
    fs::set_permissions(&odd, fs::Permissions::from_mode(0o700)).unwrap();
    let user = STRANGER.to_string();
    let command = [
        "setpriv",
        "--reuid",
        &user,
        "--regid",
        &user,
        "--clear-groups",
        heap.to_str().unwrap(),
    ];
    let mut varve = stage.record(&["--interval", "20ms"], &command);
    varve.env("VARVE_PRELOAD", &library);
    finish(&stage, 1, varve).require(1, "preload", None);
}

/// A container's folder for this runtime, or why it made none.
fn bundle(stage: &Stage, runtime: &str) -> Result<PathBuf, String> {
    let bundle = stage.path("bundle");
    if !bundle.exists() {
        fs::create_dir(&bundle).unwrap();
        fs::rename(root_folder(stage), bundle.join("rootfs")).unwrap();
    }
    let path = bundle.join("config.json");
    let _ = fs::remove_file(&path);
    let made = Command::new(runtime)
        .arg("spec")
        .current_dir(&bundle)
        .output();
    let made = made.map_err(|e| e.to_string())?;
    if !made.status.success() {
        return Err(String::from_utf8_lossy(&made.stderr).into_owned());
    }
    let text = fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["process"]["terminal"] = false.into();
    config["process"]["args"] = vec!["/heap"].into();
    fs::write(&path, config.to_string()).unwrap();
    Ok(bundle)
}

/// The command that runs a container.
fn contained(stage: &Stage, bundle: &Path, runtime: &str, name: &str) -> Vec<String> {
    let id = format!("{name}-{}", std::process::id());
    let state = stage.path("state");
    let words = [
        runtime,
        "--root",
        state.to_str().unwrap(),
        "run",
        "-b",
        bundle.to_str().unwrap(),
        &id,
    ];
    words.map(str::to_owned).to_vec()
}

#[test]
fn a_container_of_a_runtime_has_the_kernels_objects() {
    let stage = Stage::new();
    let mut reasons = Vec::new();
    // crun wants all cgroups in one hierarchy, which not every machine has; runc takes both kinds.
    for runtime in ["crun", "runc"] {
        let bundle = match bundle(&stage, runtime) {
            Ok(bundle) => bundle,
            Err(why) => {
                reasons.push(format!("{runtime}: {why}"));
                continue;
            }
        };
        let words = contained(&stage, &bundle, runtime, "plain");
        let mut plain = stage.command(&words[0]);
        plain.args(&words[1..]);
        let plain = run(&stage, 1, plain, || true);
        if plain.code != 0 {
            reasons.push(format!("{runtime}: {}", plain.stderr));
            continue;
        }
        let words = contained(&stage, &bundle, runtime, "recorded");
        record(&stage, 1, &words).require(1, "kernel", Some("root"));
        return;
    }
    panic!(
        "this machine runs no containers (scripts/setup test installs crun and runc): {reasons:#?}"
    );
}
