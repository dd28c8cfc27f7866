//! What a recorded program gets and gives: the same as an unrecorded one.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use varve_faults::{Stage, actor, check_trace};

/// Runs the words with and without a recorder, in folders of their own with the same input.
fn same(words: &[&str], input: &[u8], prepare: &[(&str, &[u8])], results: &[&str]) {
    let run = |recorded: bool| {
        let stage = Stage::new();
        for (name, text) in prepare {
            fs::write(stage.path(name), text).expect("an input file");
        }
        fs::write(stage.path("input"), input).expect("an input file");
        let mut command = if recorded {
            stage.record(&[], words)
        } else {
            let mut command = stage.command(words[0]);
            command.args(&words[1..]);
            command
        };
        command.stdin(File::open(stage.path("input")).expect("the input"));
        let ended = stage.start(command).end();
        stage.require_clean(ended.pid);
        let files: Vec<Vec<u8>> = results
            .iter()
            .map(|name| fs::read(stage.path(name)).expect("a result"))
            .collect();
        if recorded {
            check_trace(&stage.path("trace.varve")).expect("a trace");
        }
        (ended.code, ended.stdout, files)
    };
    let (native, recorded) = (run(false), run(true));
    assert_eq!(native.0, recorded.0, "exit codes of {words:?}");
    assert!(native.1 == recorded.1, "standard output of {words:?}");
    assert!(native.2 == recorded.2, "files of {words:?}");
    assert!(
        !native.1.is_empty() || !native.2.is_empty(),
        "{words:?} says something"
    );
}

fn numbers(n: u64) -> Vec<u8> {
    let mut text = Vec::new();
    let mut x = 12345u64;
    for _ in 0..n {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        writeln!(text, "{}", x >> 33).expect("memory");
    }
    text
}

#[test]
fn real_programs_print_the_same() {
    let text = numbers(60_000);
    let script =
        b"import hashlib, sys\nd = [i * i for i in range(200000)]\nt = sys.stdin.buffer.read()\n\
        print(hashlib.sha256(t).hexdigest(), sum(d), len({str(x) for x in d}))\n";
    let c = b"#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n";
    same(&["sort", "-n"], &text, &[], &[]);
    same(&["gzip", "-nc"], &text, &[], &[]);
    same(
        &["python3", "-S", "script.py"],
        &text,
        &[("script.py", script)],
        &[],
    );
    same(
        &["gcc", "-O2", "-c", "hello.c", "-o", "hello.o"],
        b"",
        &[("hello.c", c)],
        &["hello.o"],
    );
    same(
        &[
            "tar",
            "--mtime=@0",
            "--owner=0",
            "--group=0",
            "-cf",
            "out.tar",
            "hello.c",
        ],
        b"",
        &[("hello.c", c)],
        &["out.tar"],
    );
    same(
        &[
            "perl",
            "-ne",
            "$h{$_ % 997} += $_; END { print map { \"$_ $h{$_}\\n\" } sort keys %h }",
        ],
        &text,
        &[],
        &[],
    );
    same(
        &["bash", "-c", "sort | uniq -c | head -100 | md5sum; exit 3"],
        &text,
        &[],
        &[],
    );
    same(&["awk", "{ s += $1 } END { print s }"], &text, &[], &[]);
}

#[test]
fn binary_data_passes_through_pipes() {
    let stage = Stage::new();
    let data: Vec<u8> = (0..3_000_000u32)
        .map(|i| (i.wrapping_mul(2654435761) >> 24) as u8)
        .collect();
    let mut command = stage.record(&[], &["cat"]);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("varve");
    let pid = child.id();
    let mut input = child.stdin.take().expect("a pipe");
    let writer = {
        let data = data.clone();
        std::thread::spawn(move || input.write_all(&data))
    };
    let output = child.wait_with_output().expect("its output");
    writer.join().expect("a thread").expect("all written");
    assert!(output.status.success());
    assert!(
        output.stdout == data,
        "{} bytes came out",
        output.stdout.len()
    );
    stage.require_clean(pid);
}

#[test]
fn a_reader_that_goes_away_ends_the_program_as_ever() {
    let stage = Stage::new();
    let mut command = stage.command("bash");
    command.args([
        "-c",
        "\"$0\" record -o trace.varve -- yes | head -2; echo ${PIPESTATUS[0]}",
    ]);
    command.arg(varve_faults::varve_binary());
    let text = stage.run(command).require(0).text();
    assert_eq!(text, "y\ny\n141\n", "SIGPIPE is 13");
}

#[test]
fn a_terminal_stays_one() {
    let stage = Stage::new();
    // script(1) gives a terminal of its own.
    let mut command = stage.command("script");
    let words = format!(
        "{} record -o trace.varve -- sh -c 'test -t 0 && test -t 1 && test -t 2 && echo all terminals; stty size'",
        varve_faults::varve_binary().display()
    );
    command.args(["-qec", &words, "/dev/null"]);
    let ended = stage.run(command).require(0);
    assert!(ended.text().contains("all terminals"), "{}", ended.text());
}

/// What differs in the environment is LD_PRELOAD and VARVE_*, and nothing else.
fn states(prepare: impl Fn(&mut Command)) -> (String, String) {
    let mut texts = [false, true].map(|recorded| {
        let stage = Stage::new();
        let mut command = if recorded {
            stage.record_actor(&[], &["state"])
        } else {
            stage.actor(&["state"])
        };
        // The same folder and mark for both.
        command
            .current_dir("/usr/share")
            .env("FAULTS_SHOWN", "a b\n c=d ");
        if recorded {
            let output = stage.path("trace.varve");
            let mut again = stage.command(varve_faults::varve_binary());
            again
                .args(["record", "--force", "-o"])
                .arg(output)
                .arg("--")
                .arg(actor())
                .arg("state");
            again
                .current_dir("/usr/share")
                .env("FAULTS_SHOWN", "a b\n c=d ");
            command = again;
        }
        prepare(&mut command);
        let ended = stage.run(command).require(0);
        stage.require_clean(ended.pid);
        let lines: Vec<String> = ended
            .text()
            .lines()
            .filter(|l| !l.starts_with("FAULTS_STAGE"))
            .map(str::to_owned)
            .collect();
        lines.join("\n")
    });
    (std::mem::take(&mut texts[0]), std::mem::take(&mut texts[1]))
}

#[test]
fn the_state_that_a_program_inherits_is_unchanged() {
    let (native, recorded) = states(|_| ());
    assert_eq!(native, recorded);
    assert!(native.contains("FAULTS_SHOWN"));
}

#[test]
fn an_unusual_state_is_unchanged_too() {
    let (native, recorded) = states(|command| {
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setpriority(libc::PRIO_PROCESS, 0, 7);
                libc::umask(0o027);
                libc::signal(libc::SIGUSR1, libc::SIG_IGN);
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                libc::signal(libc::SIGINT, libc::SIG_IGN);
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, libc::SIGUSR2);
                libc::sigaddset(&raw mut set, libc::SIGTERM);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut());
                let limit = |n| libc::rlimit {
                    rlim_cur: n,
                    rlim_max: n,
                };
                let files = limit(200);
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
                let core = limit(0);
                libc::setrlimit(libc::RLIMIT_CORE, &raw const core);
                let stack = limit(16 << 20);
                libc::setrlimit(libc::RLIMIT_STACK, &raw const stack);
                let locked = limit(64 << 10);
                libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const locked);
                libc::prctl(libc::PR_SET_TIMERSLACK, 77_777);
                let adjust = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
                libc::write(adjust, c"321".as_ptr().cast(), 3);
                libc::close(adjust);
                Ok(())
            })
        };
    });
    assert_eq!(native, recorded);
    assert!(
        native.contains("321") && native.contains("77777"),
        "{native}"
    );
}

#[test]
fn only_the_named_variables_are_added() {
    let stage = Stage::new();
    let names = |ended: varve_faults::Ended| -> Vec<String> {
        let text = ended.require(0).text();
        text.lines()
            .map(str::to_owned)
            .filter(|l| !l.starts_with("_="))
            .collect()
    };
    let native = names(stage.run(stage.command("env")));
    let recorded = names(stage.run(stage.record(&[], &["env"])));
    let added: Vec<&String> = recorded.iter().filter(|l| !native.contains(l)).collect();
    assert!(
        native.iter().all(|l| recorded.contains(l)),
        "something is missing: {recorded:?}"
    );
    assert!(
        added
            .iter()
            .all(|l| l.starts_with("LD_PRELOAD=") || l.starts_with("VARVE_")),
        "{added:?}"
    );
    let without = names(stage.run(stage.record(&["--no-preload"], &["env"])));
    assert_eq!(
        native, without,
        "without the preload library nothing is added"
    );
}
