//! Programs that cannot have the preload library: they do what they do alone, as the command and as a child that inherits the list, and
//! the trace says why their objects are seen by the kernel alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use varve_faults::{Stage, check_trace, varve_binary};
use varve_trace::Trace;
use varve_trace::tables::ProcessRow;

mod releases;

const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **words) {
    char *block = memset(malloc(1 << 20), 1, 1 << 20);
    printf("%d %d\n", count, block[1234]);
    fflush(stdout);
    fprintf(stderr, "%s\n", words[count - 1]);
    free(block);
    return 5;
}
"#;

/// The same for a 32-bit C library, of which there are no headers here.
const SHORT_SOURCE: &str = r#"
extern int puts(const char *), write(int, const void *, unsigned), fflush(void *);
extern void exit(int);
void _start(void) {
    puts("2 1");
    fflush(0);
    write(2, "word\n", 5);
    exit(5);
}
"#;

/// The same without any C library.
const BARE_SOURCE: &str = r#"
static int call(int number, int a, const void *b, int c) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}
void _start(void) {
    call(4, 1, "2 1\n", 4);
    call(4, 2, "word\n", 5);
    call(1, 5, 0, 0);
}
"#;

fn build(stage: &Stage, compiler: &str, options: &[&str], source: &str) -> PathBuf {
    let (file, program) = (stage.path("program.c"), stage.path("program"));
    std::fs::write(&file, source).unwrap();
    let done = Command::new(compiler)
        .args(["-O1", "-fno-builtin"])
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .args(options)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{compiler} {options:?}: {said}");
    program
}

/// Who saw the objects of the program, which is the last image of its process, and why not the library.
fn sources(stage: &Stage, program: &Path) -> (String, Option<String>) {
    check_trace(&stage.path("trace.varve")).expect("a trace");
    let trace = Trace::open(&stage.path("trace.varve")).unwrap();
    let rows: Vec<ProcessRow> = trace.rows().unwrap();
    let of_program = || rows.iter().filter(|row| Path::new(&row.exe) == program);
    // Some sanitizers look for leaks in a second process as the first one ends.
    let first = of_program().min_by_key(|row| row.born_ns);
    let pid = first.expect("a row of the program").pid;
    let last = of_program().rfind(|row| row.pid == pid).unwrap().clone();
    (last.objects.unwrap(), last.objects_why)
}

/// Records it twice: as the command, and as the child of a shell.
fn as_alone(stage: &Stage, program: &Path, options: &[&str], from: &str, why: Option<&str>) {
    let path = program.to_str().unwrap();
    let record = |words: &[&str]| {
        let _ = std::fs::remove_dir_all(stage.path("trace.varve"));
        stage.run(stage.record(options, words))
    };
    let right = (from.to_owned(), why.map(str::to_owned));
    let ended = record(&[path, "word"]).require(5);
    assert_eq!(ended.text(), "2 1\n");
    assert!(!ended.stderr.contains("ERROR: ld.so"), "{}", ended.stderr);
    assert_eq!(sources(stage, program), right);
    // What it says itself goes into a file.
    let script = format!("{path} word 2>said; code=$?; cat said; exit $code");
    let ended = record(&["sh", "-c", &script]).require(5);
    assert_eq!(ended.text(), "2 1\nword\n");
    assert_eq!(sources(stage, program), right);
    // What counts allocator operations is inherited as well.
    let mut counted = stage.command(varve_binary());
    counted
        .args(["alloc", "record", "--force", "-o", "trace.varve", "--"])
        .args(["sh", "-c", &script]);
    let ended = stage.run(counted).require(5);
    assert_eq!(ended.text(), "2 1\nword\n");
    assert!(!ended.stderr.contains("ERROR: ld.so"), "{}", ended.stderr);
}

#[test]
fn a_program_of_musl() {
    let stage = Stage::new();
    let program = build(&stage, "musl-gcc", &[], SOURCE);
    as_alone(&stage, &program, &[], "kernel", Some("musl"));
}

#[test]
fn a_32_bit_program() {
    let stage = Stage::new();
    let options = [
        "-m32",
        "-fno-pie",
        "-no-pie",
        "-nostdlib",
        "/usr/lib32/libc.so.6",
        "-Wl,-dynamic-linker,/lib/ld-linux.so.2",
    ];
    let program = build(&stage, "gcc", &options, SHORT_SOURCE);
    as_alone(&stage, &program, &[], "kernel", Some("bits"));
}

#[test]
fn a_32_bit_program_that_loads_nothing() {
    for how in ["-static", "-static-pie"] {
        let stage = Stage::new();
        let program = build(&stage, "gcc", &["-m32", how, "-nostdlib"], BARE_SOURCE);
        as_alone(&stage, &program, &[], "kernel", Some("bits"));
    }
}

/// Builds it with each of these kinds of sanitizer. What stands in front of the allocator must stand there alone.
fn with_sanitizers(compiler: &str, kinds: &[&str]) {
    for kind in kinds {
        let stage = Stage::new();
        let program = build(&stage, compiler, &[&format!("-fsanitize={kind}")], SOURCE);
        as_alone(&stage, &program, &[], "kernel", Some("sanitizer"));
    }
}

#[test]
fn programs_with_gccs_sanitizers() {
    with_sanitizers("gcc", &["address", "thread", "leak", "address,undefined"]);
}

#[test]
fn programs_with_clangs_sanitizers() {
    let kinds = ["address", "thread", "leak", "memory", "address,undefined"];
    with_sanitizers("clang", &kinds);
}

/// gcc's linker exports its allocator and not its start, so that it counts as a program with an allocator of its own.
#[test]
fn a_program_that_has_its_sanitizer_in_itself() {
    let stage = Stage::new();
    let options = ["-fsanitize=address", "-static-libasan"];
    let program = build(&stage, "gcc", &options, SOURCE);
    as_alone(&stage, &program, &[], "preload", None);
}

/// This one leaves the allocator alone.
#[test]
fn programs_with_a_sanitizer_of_undefined_behaviour() {
    for compiler in ["gcc", "clang"] {
        let stage = Stage::new();
        let program = build(&stage, compiler, &["-fsanitize=undefined"], SOURCE);
        as_alone(&stage, &program, &[], "preload", None);
        as_alone(&stage, &program, &["--backend", "fault"], "preload", None);
    }
}

#[test]
fn static_programs() {
    for (compiler, how) in [
        ("gcc", "-static"),
        ("gcc", "-static-pie"),
        ("musl-gcc", "-static"),
    ] {
        let stage = Stage::new();
        let program = build(&stage, compiler, &[how], SOURCE);
        as_alone(&stage, &program, &[], "kernel", Some("static"));
    }
}

/// The control: what can have the library has it.
#[test]
fn a_program_of_the_same_c_library() {
    let stage = Stage::new();
    let program = build(&stage, "gcc", &[], SOURCE);
    as_alone(&stage, &program, &[], "preload", None);
    as_alone(&stage, &program, &["--backend", "fault"], "preload", None);
}

/// `--backend fault` needs the library in the command itself, and says so.
#[test]
fn pages_of_a_program_that_cannot_have_the_library_are_not_moved() {
    let stage = Stage::new();
    let program = build(&stage, "musl-gcc", &[], SOURCE);
    let words = [program.to_str().unwrap(), "word"];
    let ended = stage.run(stage.record(&["--backend", "fault"], &words));
    assert_ne!(ended.code, 5);
    ended.require_complaint(&["musl"]);
}
