//! `varve push`: what is in a store is whole, and is there once.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn run(arguments: &[&str], folder: &Path) -> Output {
    let output = varve_cli_tests::varve()
        .args(arguments)
        .current_dir(folder)
        .env("VARVE_PYTHON", "/none/python3")
        .stdin(Stdio::null())
        .output();
    output.expect("varve runs")
}

/// A folder with a recorded trace, `t.varve`.
fn recorded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let done = run(&["record", "-o", "t.varve", "--", "true"], folder.path());
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    folder
}

fn push(folder: &Path, more: &[&str]) -> Output {
    run(
        &[&["push", "t.varve", "--to", "store"], more].concat(),
        folder,
    )
}

/// The one trace of the store.
fn pushed(folder: &Path) -> PathBuf {
    let mut at = folder.join("store");
    for level in ["service=", "build=", "host=", "date=", ""] {
        let mut entries = fs::read_dir(&at)
            .expect("a folder")
            .map(|e| e.expect("an entry").path());
        let only = entries.next().expect("an entry");
        assert!(entries.next().is_none(), "{} has two", at.display());
        let name = only.file_name().and_then(|n| n.to_str()).expect("a name");
        assert!(name.starts_with(level), "{name}");
        at = only;
    }
    at
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder)
        .expect("a folder")
        .map(|e| e.expect("an entry").path());
    let mut all: Vec<_> = entries
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                fs::read(&path).unwrap(),
            )
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_trace_is_there_whole_and_once() {
    let folder = recorded();
    let folder = folder.path();
    let done = push(folder, &[]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let there = pushed(folder);
    assert!(
        there.to_string_lossy().contains("service=true/build="),
        "{}",
        there.display()
    );
    let own: Vec<_> = files(&folder.join("t.varve"));
    let copied = files(&there);
    assert!(copied.iter().all(|file| own.contains(file)));
    assert!(copied.len() > 10, "{}", copied.len());
    let again = push(folder, &[]);
    assert_eq!(again.status.code(), Some(0));
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(said.contains("is there already"), "{said}");
    assert_eq!(pushed(folder), there);
    let report = run(&["report", &there.to_string_lossy(), "--json"], folder);
    assert_eq!(report.status.code(), Some(0));
}

#[test]
fn a_trace_is_as_closed_in_the_store_as_it_was() {
    let folder = recorded();
    let folder = folder.path();
    let modes = |of: &Path| {
        let entries = fs::read_dir(of).unwrap().map(|e| e.unwrap().path());
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let mut all: Vec<u32> = entries.chain([of.to_owned()]).map(mode).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    push(folder, &[]);
    assert_eq!(modes(&pushed(folder)), [0o600, 0o700]);
    fs::remove_dir_all(folder.join("store")).unwrap();
    let shared = [
        "record", "--force", "--share", "-o", "t.varve", "--", "true",
    ];
    assert_eq!(run(&shared, folder).status.code(), Some(0));
    push(folder, &[]);
    assert_eq!(modes(&pushed(folder)), modes(&folder.join("t.varve")));
    assert_eq!(modes(&pushed(folder)), [0o644, 0o755]);
}

#[test]
fn what_was_cut_off_is_gone_on_with() {
    let folder = recorded();
    let folder = folder.path();
    push(folder, &[]);
    let there = pushed(folder);
    let whole = files(&there);
    // As a pusher leaves it that is killed after some tables, and within one.
    fs::remove_file(there.join("manifest.json")).unwrap();
    fs::remove_file(there.join("touches.parquet")).unwrap();
    fs::remove_file(there.join("sites.parquet")).unwrap();
    fs::write(there.join("touches.parquet.partial-1"), b"PAR1").unwrap();
    assert_eq!(push(folder, &[]).status.code(), Some(0));
    assert_eq!(files(&there), whole);
    // Also where nothing is missing.
    fs::write(there.join("manifest.json.partial-1-2"), b"{").unwrap();
    assert_eq!(push(folder, &[]).status.code(), Some(0));
    assert_eq!(files(&there), whole);
}

#[test]
fn what_is_there_is_compared() {
    let folder = recorded();
    let folder = folder.path();
    push(folder, &[]);
    let there = pushed(folder);
    let whole = files(&there);
    let touches = there.join("touches.parquet");
    fs::remove_file(there.join("manifest.json")).unwrap();
    fs::write(&touches, b"").unwrap();
    assert_eq!(push(folder, &[]).status.code(), Some(0));
    assert_eq!(files(&there), whole);
    let mut bytes = fs::read(&touches).unwrap();
    bytes[10] ^= 1;
    fs::write(&touches, &bytes).unwrap();
    let done = push(folder, &[]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(files(&there), whole);
}

#[test]
fn a_store_of_somebody_elses_leads_nowhere_else() {
    let folder = recorded();
    let folder = folder.path();
    push(folder, &[]);
    let there = pushed(folder);
    let whole = files(&there);
    let victim = folder.join("victim");
    fs::write(&victim, "victim").unwrap();
    // Names that a push could give to files that are not whole yet.
    for pid in std::process::id()..std::process::id() + 3000 {
        symlink(
            &victim,
            there.join(format!("counters.parquet.partial-{pid}")),
        )
        .unwrap();
    }
    for name in ["counters.parquet", "manifest.json"] {
        fs::remove_file(there.join(name)).unwrap();
        symlink(&victim, there.join(name)).unwrap();
    }
    let done = push(folder, &[]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "victim");
    let mut now = files(&there);
    now.retain(|(name, _)| !name.contains(".partial-"));
    assert_eq!(now, whole);
    // A folder of the store that is elsewhere.
    fs::remove_dir_all(folder.join("store")).unwrap();
    fs::create_dir(folder.join("outside")).unwrap();
    fs::create_dir(folder.join("store")).unwrap();
    symlink("../outside", folder.join("store/service=true")).unwrap();
    let done = push(folder, &[]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("a symbolic link in its place"), "{said}");
    assert!(files(&folder.join("outside")).is_empty());
}

#[test]
fn a_trace_of_somebody_elses_says_nothing_of_files_that_they_may_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("p.c"), "int main(void) { return 0; }").unwrap();
    let made = Command::new("cc")
        .args(["-Wl,--build-id=none", "-o", "secret", "p.c"])
        .current_dir(folder)
        .status();
    assert!(made.unwrap().success());
    let mode = fs::Permissions::from_mode(0o700);
    fs::set_permissions(folder.join("secret"), mode).unwrap();
    let done = run(&["record", "-o", "t.varve", "--", "./secret"], folder);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let build = || {
        assert_eq!(push(folder, &[]).status.code(), Some(0));
        let there = pushed(folder).to_string_lossy().into_owned();
        fs::remove_dir_all(folder.join("store")).unwrap();
        there.split_once("/build=").unwrap().1[..8].to_owned()
    };
    assert!(build().starts_with("htl-"));
    chown(folder.join("t.varve"), Some(65534), None).unwrap();
    assert_eq!(build(), "unknown/");
}

#[test]
fn names_that_are_too_long_are_shortened() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name = "\u{6f22}".repeat(60);
    fs::copy("/usr/bin/true", folder.join(&name)).unwrap();
    let program = format!("./{name}");
    let done = run(&["record", "-o", "t.varve", "--", &program], folder);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let done = push(folder, &[]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let there = pushed(folder).to_string_lossy().into_owned();
    let service = format!("/service={}-", "%E6%BC%A2".repeat(20));
    assert!(there.contains(&service), "{there}");
}

#[test]
fn names_are_folders_below_the_store() {
    let folder = recorded();
    let folder = folder.path();
    let names = ["--service", "../a b", "--build", "1/2", "--host", ".."];
    assert_eq!(push(folder, &names).status.code(), Some(0));
    let there = pushed(folder).to_string_lossy().into_owned();
    assert!(
        there.contains("/store/service=..%2Fa%20b/build=1%2F2/host=../date="),
        "{there}"
    );
    assert_eq!(push(folder, &["--service", ""]).status.code(), Some(2));
}

#[test]
fn a_manifest_names_no_file_elsewhere() {
    let folder = recorded();
    let folder = folder.path();
    fs::copy(
        folder.join("t.varve/touches.parquet"),
        folder.join("evil.parquet"),
    )
    .unwrap();
    let path = folder.join("t.varve/manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut manifest: serde_json::Value = serde_json::from_str(&text).unwrap();
    let sums = manifest["checksums"].as_object_mut().unwrap();
    let sum = sums["touches"].clone();
    sums.insert("../evil".to_owned(), sum);
    fs::write(&path, manifest.to_string()).unwrap();
    let done = push(folder, &[]);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    // Nothing is made for what is refused.
    assert!(!folder.join("store").exists());
}

#[test]
fn what_is_damaged_or_no_trace_stays_out_and_the_others_go_in() {
    let folder = recorded();
    let folder = folder.path();
    let copy = |name: &str| {
        let to = folder.join(name);
        fs::create_dir(&to).unwrap();
        for (file, bytes) in files(&folder.join("t.varve")) {
            fs::write(to.join(file), bytes).unwrap();
        }
        to
    };
    let damaged = copy("damaged.varve").join("touches.parquet");
    let bytes = fs::read(&damaged).unwrap();
    fs::write(&damaged, &bytes[..bytes.len() / 2]).unwrap();
    let linked = copy("linked.varve").join("sites.parquet");
    fs::rename(&linked, folder.join("elsewhere")).unwrap();
    symlink(folder.join("elsewhere"), &linked).unwrap();
    let all = [
        "push",
        "damaged.varve",
        "none.varve",
        "linked.varve",
        "t.varve",
        "--to",
        "store",
    ];
    let done = run(&all, folder);
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(said.matches("error: ").count(), 3, "{said}");
    pushed(folder);
}

#[test]
fn what_is_no_folder_is_for_python_or_refused() {
    let folder = recorded();
    let folder = folder.path();
    for (store, code, said) in [
        (
            "s3://bucket/fleet",
            2,
            "/none/python3 does not have the Python package",
        ),
        ("ftp://host/fleet", 1, "is neither a folder nor in S3"),
    ] {
        let done = run(&["push", "t.varve", "--to", store], folder);
        assert_eq!(done.status.code(), Some(code), "{done:?}");
        assert!(
            String::from_utf8_lossy(&done.stderr).contains(said),
            "{done:?}"
        );
    }
    assert!(!folder.join("s3:").exists());
}
