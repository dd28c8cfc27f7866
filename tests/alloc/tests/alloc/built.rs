//! Programs run with the allocators that are built here as they run without: whatever they do.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::support::{varve, workload};

fn library() -> PathBuf {
    let path = varve().with_file_name("libvarve_snmalloc.so");
    assert!(path.is_file(), "build it first: make build");
    path
}

fn run(command: &mut Command) -> Output {
    let output = command.env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// The program says the same, and nothing more: the loader would complain of a library that it cannot load.
#[test]
fn real_programs_say_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.cpp");
    std::fs::write(&source, "#include <map>\n#include <string>\n#include <iostream>\nint main() { std::map<std::string, int> m; m[\"x\"] = 7; std::cout << m[\"x\"]; }\n").unwrap();
    let compiled = folder.path().join("a");
    let compile = format!(
        "g++ -O1 -o {1} {0} && {1}",
        source.display(),
        compiled.display()
    );
    let commands = [
        "ls -la /usr/bin",
        "bash -c 'for i in 1 2 3; do x=$(seq 1000 | sort -r | tail -n 1); echo $x; done'",
        "python3 -c 'import json, threading; t = [threading.Thread(target=lambda: json.dumps(list(range(50000)))) for _ in range(8)]; [x.start() for x in t]; [x.join() for x in t]; print(len(json.dumps(list(range(200000)))))'",
        "sqlite3 :memory: 'with recursive n(i) as (select 1 union all select i + 1 from n where i < 50000) select sum(length(hex(i))) from n'",
        &compile,
    ];
    for command in commands {
        let with = |library: Option<PathBuf>| {
            let mut shell = Command::new("sh");
            shell.args(["-c", command]);
            if let Some(library) = library {
                shell.env("LD_PRELOAD", library);
            }
            run(&mut shell)
        };
        let (plain, preloaded) = (with(None), with(Some(library())));
        assert!(!plain.stdout.is_empty(), "{command}");
        assert_eq!(plain.stdout, preloaded.stdout, "{command}");
        assert_eq!(plain.stderr, preloaded.stderr, "{command}");
    }
}

/// Its functions are snmalloc's, and no library comes with it.
#[test]
fn it_brings_the_functions_and_nothing_else() {
    let names = run(Command::new("nm")
        .args(["-D", "--defined-only", "--format=just-symbols"])
        .arg(library()));
    let names = String::from_utf8(names.stdout).unwrap();
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    let expected = [
        "aligned_alloc",
        "calloc",
        "cfree",
        "free",
        "free_aligned_sized",
        "free_sized",
        "malloc",
        "malloc_usable_size",
        "memalign",
        "posix_memalign",
        "pvalloc",
        "realloc",
        "reallocarray",
        "valloc",
    ];
    assert_eq!(names, expected);
    let needed = run(Command::new("readelf").arg("-d").arg(library()));
    let needed = String::from_utf8(needed.stdout).unwrap();
    let needed: Vec<&str> = needed.lines().filter(|l| l.contains("NEEDED")).collect();
    let is_of_c = |line: &&str| line.contains("[libc.so") || line.contains("[ld-linux");
    assert!(
        !needed.is_empty() && needed.iter().all(is_of_c),
        "{needed:?}"
    );
}

/// Blocks before main and in destructors, threads that leave their blocks to others, and forks while threads allocate.
#[test]
fn programs_fork_while_threads_allocate() {
    let output = run(Command::new(workload("alloc_forks"))
        .arg("300")
        .env("LD_PRELOAD", library()));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "hung 0, crashed 0, kept 300\nlate\n");
}

/// Threads that map memory for long hold their locks for long: without its guard against forks children hang then.
#[test]
fn programs_fork_while_threads_map() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(Command::new("strace")
        .args([
            "-f",
            "-qq",
            "-e",
            "trace=mmap,madvise",
            "-e",
            "inject=mmap,madvise:delay_exit=3000",
            "-o",
        ])
        .arg(folder.path().join("calls"))
        .arg("-E")
        .arg(format!("LD_PRELOAD={}", library().display()))
        .arg(workload("alloc_forks"))
        .arg("40"));
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "hung 0, crashed 0, kept 40\nlate\n");
    let calls = std::fs::read_to_string(folder.path().join("calls")).unwrap();
    assert!(calls.contains("(DELAYED)"), "calls are delayed");
}
