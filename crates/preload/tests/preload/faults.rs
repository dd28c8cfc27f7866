//! The library never changes what a program does, whatever happens to it or to the recorder.

use std::path::Path;
use std::process::Command;

use crate::common::{Bench, Reader, library, lines};

/// Runs a shell command without and with the library; both must do the same.
fn does_the_same(script: &str) {
    let bench = Bench::new();
    let command = |folder: &str| {
        let folder = bench.folder.path().join(folder);
        std::fs::create_dir(&folder).unwrap();
        let mut command = Command::new("bash");
        command.args(["-c", script]).current_dir(folder);
        command
    };
    let plain = command("plain").output().unwrap();
    let (watched, rings) = bench.run(&mut command("watched"));
    assert!(!rings.is_empty());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&watched.stderr), text(&plain.stderr), "{script}");
    assert!(
        watched.stdout == plain.stdout,
        "{script} printed something else"
    );
    assert_eq!(watched.status.code(), plain.status.code());
}

#[test]
fn real_programs_print_the_same() {
    does_the_same("seq 200000 | sort -R --random-source=/bin/ls | sort -n | md5sum");
    does_the_same(
        "python3 -c 'import json, threading, ctypes; print(json.dumps({str(i): [i] * 9 for i in range(9999)}))'",
    );
    does_the_same(
        "echo 'int f(int x) { return x * 3; }' > f.c && gcc -O2 -c f.c -o f.o && objdump -d f.o",
    );
    does_the_same(
        "ls -l /proc/self/fd | wc -l; exec 0<&-; ls /proc/self/fd | tr '\\n' ' '; ls /nowhere; exit 7",
    );
    does_the_same(
        "perl -e 'my @a = map { \"x\" x $_ } 1..3000; print length(join \"\", @a), \"\\n\"; print `echo child`' || true",
    );
    does_the_same(
        "tar cf - /usr/include 2>/dev/null | gzip -c | wc -c; find /usr/share -name '*.h' | sort | md5sum",
    );
}

#[test]
fn a_repositorys_log_reads_the_same() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    does_the_same(&format!(
        "git -C {} --no-pager log --stat -20",
        root.display()
    ));
}

#[test]
fn a_daemon_that_closes_everything_is_still_heard() {
    let bench = Bench::new();
    let program = bench.compile(
        "daemon",
        r#"
    int main(void) {
        int closed = 0; for (int fd = 3; fd < 1024; fd++) closed += close(fd) == 0;
        say("closed %d\n", closed);
        for (int fd = 0; fd < 3; fd++) if (fd != 1) close(fd);
        if (open("/dev/null", O_RDWR) != 0) return 2;
        born("Malloc", malloc(5000), 5000);
        pid_t child = fork();
        if (!child) {
            setsid(); void *p = born("Malloc", malloc(6000), 6000);
            if (open("/dev/null", O_RDWR) != 2) _exit(3);
            _exit(0);
        }
        int status; wait(&status); return status ? 4 : 0;
    }"#,
        &[],
    );
    let plain = Command::new(&program).output().unwrap();
    let (output, rings) = bench.run(&mut Command::new(program));
    assert_eq!(output.status.code(), Some(0));
    let reported = lines(&output);
    assert_eq!(reported[0], lines(&plain)[0], "a descriptor was left open");
    let heard: Vec<String> = rings.iter().flat_map(|ring| ring.heap_lines()).collect();
    assert_eq!(heard, reported[1..]);
}

/// A program whose ring cannot be made, in every way that was thought of.
#[test]
fn without_a_ring_calls_pass_through() {
    let bench = Bench::new();
    let source = r#"
    int main(int count, char **names) {
        struct rlimit none = { 4096, 4096 }, files = { 3, 3 };
        switch (names[1][0]) {
            case 'f': setrlimit(RLIMIT_FSIZE, &none); break;
            case 'n': setrlimit(RLIMIT_NOFILE, &files); break;
            case 'c': if (chroot(names[2])) return 9; break;
        }
        pid_t child = fork();
        if (!child) {
            errno = 55;
            for (int i = 0; i < 1000; i++) free(malloc(100 * i));
            munmap(mmap(0, 4096, 0, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096);
            say("errno %d\n", errno); _exit(0);
        }
        int status; wait(&status); return status;
    }"#;
    let program = bench.compile("limits", source, &[]);
    for way in ["f", "n", "c"] {
        let (output, rings) = bench.run(Command::new(&program).arg(way).arg(bench.folder.path()));
        assert_eq!(
            (output.status.code(), lines(&output)),
            (Some(0), vec!["errno 55".to_owned()]),
            "way {way}"
        );
        // The recorder makes the ring's memory: no limit of the child's own on files counts.
        assert_eq!(rings.len(), if way == "f" { 2 } else { 1 }, "way {way}");
        assert_eq!(rings[0].losses.unheard, u64::from(way != "f"), "way {way}");
        assert_eq!(rings[0].losses.dropped, 0, "way {way}");
    }
    for folder in ["", "relative", "/nowhere/at/all", "/dev/null"] {
        let output = Command::new(&program)
            .arg("-")
            .env("LD_PRELOAD", library())
            .env("VARVE_PRELOAD_DIR", folder)
            .env("VARVE_PRELOAD_ID", "0:1:2:3")
            .output()
            .unwrap();
        assert_eq!(
            (output.status.code(), lines(&output)),
            (Some(0), vec!["errno 55".to_owned()]),
            "folder {folder}"
        );
        assert!(output.stderr.is_empty());
    }
}

#[test]
fn a_confined_program_is_not_killed() {
    let bench = Bench::new()
        .set(crate::common::RING_BYTES, 16384)
        .read_by(Reader::Late);
    let program = bench.compile("confined", r#"
    #include <linux/seccomp.h>
    #include <linux/filter.h>
    int main(int count, char **names) {
        /* Opening files and sleeping is death from here on. */
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 3, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_nanosleep, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS) };
        struct sock_fprog filter = { 6, code };
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (names[1][0] == 'p' ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)
                               : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter)) return 9;
        for (int i = 0; i < 1000; i++) free(malloc(5000 + i));
        pid_t child = fork();
        if (!child) { free(malloc(6000)); _exit(0); }
        int status; wait(&status); if (status) return 1;
        if (names[1][0] == 'p') { prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); free(malloc(5000)); }
        say("alive\n"); syscall(SYS_exit, 0);
    }"#, &[]);
    for way in ["p", "s"] {
        let (output, rings) = bench.run(Command::new(&program).arg(way));
        assert_eq!(
            (output.status.code(), lines(&output)),
            (Some(0), vec!["alive".to_owned()]),
            "way {way}"
        );
        assert!(rings[0].losses.dropped > 0);
    }
}

#[test]
fn a_confined_child_that_is_not_heard_of_is_counted() {
    let bench = Bench::new();
    let program = bench.compile("confined_child", r#"
    #include <linux/seccomp.h>
    #include <linux/filter.h>
    int main(void) {
        /* Neither a ring of its own nor the end of its parent's is allowed. */
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_munmap, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS) };
        struct sock_fprog filter = { 5, code };
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 9;
        free(malloc(5000));
        pid_t child = fork();
        if (!child) { free(malloc(6000)); free(malloc(7000)); _exit(0); }
        int status; wait(&status); if (status) return 1;
        free(malloc(8000));
        say("alive\n"); _exit(0);
    }"#, &[]);
    let (output, rings) = bench.run(&mut Command::new(&program));
    assert_eq!(
        (output.status.code(), lines(&output)),
        (Some(0), vec!["alive".to_owned()])
    );
    assert_eq!(rings.len(), 1);
    assert_eq!(rings[0].losses.unheard, 1, "once for the whole child");
}

#[test]
fn what_a_full_ring_loses_is_counted() {
    let bench = Bench::new()
        .set(crate::common::RING_BYTES, 65536)
        .read_by(Reader::Late);
    let program = bench.compile(
        "flood",
        r#"
    int main(void) {
        for (int i = 0; i < 20000; i++) malloc(4096);
        struct rusage used; getrusage(RUSAGE_SELF, &used); say("%ld\n", used.ru_nvcsw); return 0;
    }"#,
        &[],
    );
    let (output, rings) = bench.run(&mut Command::new(program));
    assert!(output.status.success());
    let births = rings[0].births().count() as u64;
    assert!(births > 500);
    // Whatever else was lost is counted too: a few stacks or mappings at most.
    let total = births + rings[0].losses.dropped;
    assert!((20000..20100).contains(&total), "{total}");
    // Some twelve records wait for a reader that never comes, 20 ms each in naps of 50 µs: 400 of them at most. If all
    // waited, it would be tens of thousands.
    let naps: u64 = lines(&output)[0].parse().unwrap();
    assert!(naps <= 12 * 401 + 500, "{naps}");
}

/// A reader that looks only when the program waits: the ring is full each time. How much is lost depends on how soon it
/// looks, which is the machine's to say; that all of it is counted does not.
#[test]
fn a_slow_reader_makes_the_program_wait_and_losses_are_counted() {
    let bench = Bench::new()
        .set(crate::common::RING_BYTES, 65536)
        .read_by(Reader::Sleepy);
    let program = bench.compile(
        "slow",
        r#"
    int main(void) { for (int i = 0; i < 50000; i++) free(malloc(4096)); return 0; }"#,
        &[],
    );
    let (output, rings) = bench.run(&mut Command::new(program));
    assert!(output.status.success());
    assert!(
        rings[0].losses.waited_ns > 0,
        "the test did not fill the ring"
    );
    let (births, dropped) = (rings[0].births().count() as u64, rings[0].losses.dropped);
    let reported = rings[0].heap_lines().len() as u64;
    // A birth that was lost takes its death with it.
    assert!(
        reported + dropped <= 100_100 && reported + 2 * dropped >= 100_000,
        "{reported} reported, {dropped} lost"
    );
    // The ring holds some hundreds, and was read.
    assert!(births > 1000, "{births}");
}

#[test]
fn threads_forks_and_libraries_in_a_storm() {
    let bench = Bench::new().set(crate::common::RING_BYTES, 1 << 20);
    let library = bench.compile(
        "storm_library.so",
        "void *get(size_t n) { return malloc(n); }",
        &[],
    );
    let program = bench.compile("storm", r#"
    static char *name; static volatile int stop;
    static void *allocate(void *seed) {
        unsigned long x = (unsigned long)seed; void *live[32] = { 0 };
        while (!stop) { x = x * 6364136223846793005ul + 1; int i = x >> 60; free(live[i]); live[i] = malloc(x >> 40 & 0x7fff); }
        for (int i = 0; i < 32; i++) free(live[i]); return 0;
    }
    static void *load(void *unused) {
        while (!stop) { void *library = dlopen(name, RTLD_NOW); void *(*get)(size_t) = dlsym(library, "get");
            free(get(9000)); dlclose(library); }
        return 0;
    }
    static void handler(int number) { int before = errno; close(open("/nowhere", 0)); errno = before; }
    int main(int count, char **names) {
        name = names[1]; pthread_t threads[10]; signal(SIGALRM, handler);
        struct itimerval often = { { 0, 1000 }, { 0, 1000 } }; setitimer(ITIMER_REAL, &often, 0);
        for (long i = 0; i < 8; i++) pthread_create(&threads[i], 0, allocate, (void *)i);
        for (long i = 8; i < 10; i++) pthread_create(&threads[i], 0, load, 0);
        for (int i = 0; i < 150; i++) {
            pid_t child = fork();
            if (!child) { alarm(300); for (int k = 0; k < 50; k++) free(malloc(5000)); pthread_t t; stop = 1;
                if (pthread_create(&t, 0, allocate, 0) || pthread_join(t, 0)) _exit(2); _exit(0); }
            int status; while (waitpid(child, &status, 0) < 0); if (status) { say("status %x\n", status); return 1; }
        }
        stop = 1; for (int i = 0; i < 10; i++) pthread_join(threads[i], 0);
        say("done\n"); return 0;
    }"#, &[]);
    let (output, rings) = bench.run(Command::new("timeout").arg("600").arg(program).arg(library));
    assert_eq!(
        (output.status.code(), lines(&output)),
        (Some(0), vec!["done".to_owned()])
    );
    // One each for `timeout`, the child before and after its exec, and 150 children.
    assert!(rings.len() >= 152, "{}", rings.len());
    for ring in rings.iter().filter(|ring| ring.losses.dropped == 0) {
        let stacks = ring.stacks();
        for (record, ..) in ring.births().filter(|(record, ..)| record.site != 0) {
            assert!(stacks.contains_key(&record.site));
        }
    }
}
