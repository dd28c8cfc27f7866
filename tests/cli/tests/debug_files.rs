//! Names of a stripped program: they come from a server of debug files that the environment names, or the screen says where they are.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

/// Its memory is mapped and touched by a function that only debug information names.
const PROGRAM: &str = "
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
static __attribute__((noinline)) char *reserve_arena(size_t bytes) {
    return mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
int main(void) {
    char *arena = reserve_arena(16 << 20);
    for (int round = 0; round < 20; round++) memset(arena, round, 16 << 20);
    return arena[0] != 19;
}
";

fn run(program: &str, arguments: &[&str], folder: &Path) -> String {
    let done = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("it runs");
    assert!(done.status.success(), "{program}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Builds the program, stripped; returns its build id and leaves its debug file beside.
fn stripped(folder: &Path) -> String {
    fs::write(folder.join("arena.c"), PROGRAM).unwrap();
    let compile = ["-g", "-O1", "-Wl,--build-id=sha1", "-o", "arena", "arena.c"];
    run("cc", &compile, folder);
    run(
        "objcopy",
        &["--only-keep-debug", "arena", "arena.debug"],
        folder,
    );
    run("strip", &["arena"], folder);
    let notes = run("readelf", &["-n", "arena"], folder);
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.unwrap().to_owned()
}

/// A server of the debuginfod protocol on loopback, which has one file. What it was asked for is kept.
fn serve(id: &str, file: Vec<u8>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (kept, wanted) = (asked.clone(), format!("/buildid/{id}/debuginfo"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            for line in lines.by_ref().map_while(Result::ok) {
                if line.is_empty() {
                    break;
                }
            }
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            let head = |status: &str, bytes: usize| {
                format!("HTTP/1.1 {status}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n")
            };
            let has = path == wanted;
            let answer = match has {
                true => [head("200 OK", file.len()).as_bytes(), &file].concat(),
                false => head("404 Not Found", 0).into_bytes(),
            };
            kept.lock().unwrap().push(path);
            let _ = stream.write_all(&answer);
        }
    });
    (url, asked)
}

/// Records the program and returns its report, with this in the environment.
fn report(folder: &Path, environment: &[(&str, &str)]) -> Value {
    let varve = |arguments: &[&str]| {
        let mut command = varve_cli_tests::varve();
        command
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::null())
            .env_remove("DEBUGINFOD_URLS")
            .envs(environment.iter().copied());
        let done = command.output().unwrap();
        assert!(done.status.success(), "{done:?}");
        done.stdout
    };
    varve(&["record", "--force", "-o", "t.varve", "--", "./arena"]);
    serde_json::from_slice(&varve(&["report", "t.varve", "--json"])).unwrap()
}

/// The 16 MiB that the program maps.
fn arena(report: &Value) -> String {
    let objects = report["objects"].as_array().unwrap().iter();
    let mut large = objects.filter(|o| o["bytes"].as_u64() == Some(16 << 20));
    large.next().expect("it is listed")["name"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn hints(report: &Value, file: &str) -> Vec<String> {
    let all = report["unknown_files"].as_array().unwrap().iter();
    let of = all.filter(|of| {
        let files = of["files"].as_array().unwrap();
        files.iter().any(|f| f.as_str().unwrap().ends_with(file))
    });
    of.map(|of| of["hint"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_server_that_the_environment_names_has_the_names() {
    let folder = TempDir::new().unwrap();
    let id = stripped(folder.path());
    let debug = folder.path().join("arena.debug");
    let (url, asked) = serve(&id, fs::read(&debug).unwrap());
    // Beside the program it would be found without.
    fs::remove_file(&debug).unwrap();

    let without = report(folder.path(), &[]);
    assert!(
        !arena(&without).contains("reserve_arena"),
        "{}",
        arena(&without)
    );
    let hint = hints(&without, "/arena");
    assert!(hint[0].contains("DEBUGINFOD_URLS=https://"), "{hint:?}");
    assert!(asked.lock().unwrap().is_empty());

    let cache = folder.path().join("cache");
    let environment = [
        ("DEBUGINFOD_URLS", url.as_str()),
        ("DEBUGINFOD_CACHE_PATH", cache.to_str().unwrap()),
    ];
    let with = report(folder.path(), &environment);
    assert!(arena(&with).contains("reserve_arena"), "{}", arena(&with));
    assert!(hints(&with, "/arena").is_empty());
    assert!(asked.lock().unwrap().iter().any(|path| path.contains(&id)));
}

#[test]
fn another_programs_debug_file_is_not_taken() {
    let folder = TempDir::new().unwrap();
    let id = stripped(folder.path());
    // The same program with another build id, and a file without any.
    for link in [
        "-Wl,--build-id=0x0123456789abcdef0123",
        "-Wl,--build-id=none",
    ] {
        let compile = ["-g", "-O1", link, "-o", "other", "arena.c"];
        run("cc", &compile, folder.path());
        let (url, asked) = serve(&id, fs::read(folder.path().join("other")).unwrap());
        let cache = TempDir::new().unwrap();
        let environment = [
            ("DEBUGINFOD_URLS", url.as_str()),
            ("DEBUGINFOD_CACHE_PATH", cache.path().to_str().unwrap()),
        ];
        fs::remove_file(folder.path().join("arena.debug")).ok();
        let report = report(folder.path(), &environment);
        assert!(asked.lock().unwrap().iter().any(|path| path.contains(&id)));
        assert!(
            !arena(&report).contains("reserve_arena"),
            "{link}: {}",
            arena(&report)
        );
        let hint = hints(&report, "/arena");
        assert!(hint[0].contains("those of DEBUGINFOD_URLS"), "{hint:?}");
    }
}

#[test]
fn servers_that_do_not_answer_are_said() {
    let folder = TempDir::new().unwrap();
    stripped(folder.path());
    fs::remove_file(folder.path().join("arena.debug")).unwrap();
    // Nothing listens where something did just now.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
    let (url, cache) = (
        format!("http://{}", address.unwrap()),
        TempDir::new().unwrap(),
    );
    let environment = [
        ("DEBUGINFOD_URLS", url.as_str()),
        ("DEBUGINFOD_CACHE_PATH", cache.path().to_str().unwrap()),
    ];
    let hint = hints(&report(folder.path(), &environment), "/arena");
    assert!(
        hint[0].contains("when the servers of DEBUGINFOD_URLS answer ("),
        "{hint:?}"
    );
}

#[test]
fn servers_without_their_client_are_said() {
    let folder = TempDir::new().unwrap();
    stripped(folder.path());
    fs::remove_file(folder.path().join("arena.debug")).unwrap();
    let environment = [
        ("DEBUGINFOD_URLS", "http://127.0.0.1:1"),
        ("PATH", "/nowhere"),
    ];
    let report = report(folder.path(), &environment);
    let hint = hints(&report, "/arena");
    assert!(hint[0].contains("install debuginfod-find"), "{hint:?}");
}
