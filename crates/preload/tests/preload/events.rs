//! What programs do, and that the library tells exactly that.

use std::collections::{HashMap, HashSet};
use std::process::Command;

use crate::common::{Bench, lines};
use varve_preload_abi::{Event, MapOperation, OwnMemory, StartCause};

/// The lines of a program's own account that are births and deaths.
fn heap_account(lines: &[String]) -> Vec<String> {
    lines
        .iter()
        .filter(|line| line.starts_with("A ") || line.starts_with("F "))
        .cloned()
        .collect()
}

/// The hexadecimal number on the line that starts with `key`.
fn reported(lines: &[String], key: &str) -> u64 {
    let line = lines
        .iter()
        .find(|line| line.split(' ').next() == Some(key))
        .unwrap();
    u64::from_str_radix(line.split(' ').nth(1).unwrap(), 16).unwrap()
}

#[test]
fn every_function_of_the_malloc_family() {
    let bench = Bench::new();
    let program = bench.compile(
        "family",
        r#"
    int main(void) {
        void *p = born("Malloc", malloc(4096), 4096);
        malloc(4095);
        void *q = born("Calloc", calloc(3, 5000), 15000);
        dies(q); free(q);
        dies(p); p = born("Realloc", realloc(p, 20000), 20000);
        void *blocker = born("Malloc", malloc(5000), 5000);
        dies(p); p = born("Realloc", realloc(p, 3000000), 3000000);
        dies(p); p = born("ReallocArray", reallocarray(p, 1000, 10), 10000);
        dies(p); p = realloc(p, 100);
        p = born("Realloc", realloc(p, 9000), 9000);
        dies(p); realloc(p, 0);
        p = born("Realloc", realloc(0, 7000), 7000); dies(p); free(p);
        if (reallocarray(0, ~0ul / 2, 4)) return 1;
        p = born("Memalign", memalign(64, 6000), 6000); dies(p); free(p);
        p = born("AlignedAlloc", aligned_alloc(4096, 8192), 8192); dies(p); free(p);
        errno = 77;
        if (posix_memalign(&p, 1 << 16, 4097) || errno != 77) return 2;
        born("PosixMemalign", p, 4097); dies(p); free(p);
        if (posix_memalign(&p, 3, 4097) != EINVAL) return 3;
        p = born("Valloc", valloc(4100), 4100); dies(p); free(p);
        p = born("Pvalloc", pvalloc(5100), 5100); dies(p); free(p);
        free(0);
        /* A reallocation that fails leaves the object: it dies and is reborn at its usable size. */
        size_t usable = malloc_usable_size(blocker);
        dies(blocker); if (realloc(blocker, 1ul << 60) || errno != ENOMEM) return 4;
        born("Realloc", blocker, usable); dies(blocker); free(blocker);
        if (malloc(1ul << 60)) return 5;
        return 0;
    }"#,
        &[],
    );
    let (account, ring) = bench.run_one(&program);
    assert_eq!(ring.heap_lines(), heap_account(&account));
    assert_eq!(ring.cause(), StartCause::Exec);
    let stacks = ring.stacks();
    for (record, ..) in ring.births() {
        assert!(stacks.contains_key(&record.site), "{record:?} has no stack");
    }
    assert_eq!(ring.losses.stackless, 0);
}

#[test]
fn operator_new_and_its_caller() {
    let bench = Bench::new();
    let program = bench.compile("new++", r#"
    #include <new>
    #include <vector>
    #include <thread>
    struct alignas(256) Wide { char bytes[8192]; };
    static unsigned long here;
    __attribute__((noinline)) char *make(size_t bytes) {
        here = (unsigned long)__builtin_return_address(0);
        char *object = new char[bytes]; asm volatile("" : "+r"(object)); return object;
    }
    int main() {
        char *object = make(10000); born("Malloc", object, 10000); say("caller %lx\n", here);
        dies(object); delete[] object;
        Wide *wide = new Wide; born("AlignedAlloc", wide, 8192); dies(wide); delete wide;
        { std::vector<int> list(5000); asm volatile("" :: "r"(list.data()) : "memory");
          born("Malloc", list.data(), 20000); dies(list.data()); }
        void *raw = ::operator new(4096, std::nothrow); born("Malloc", raw, 4096); dies(raw); ::operator delete(raw);
        try { ::operator new(1ul << 60); return 1; } catch (std::bad_alloc &) {}
    }"#, &[]);
    let (account, ring) = bench.run_one(&program);
    // libstdc++ 12 brings a start-up pool for exceptions of its own.
    let mine: Vec<String> = ring
        .heap_lines()
        .into_iter()
        .skip_while(|line| !line.ends_with(" 10000"))
        .collect();
    assert_eq!(mine, heap_account(&account));
    let caller = reported(&account, "caller");
    let (record, ..) = ring.births().find(|(.., bytes)| *bytes == 10000).unwrap();
    let frames = ring.stacks()[&record.site];
    let place = frames.iter().position(|frame| *frame == caller);
    assert!(
        place.is_some_and(|place| (2..=4).contains(&place)),
        "{frames:x?} without {caller:x}"
    );
}

#[test]
fn stacks_through_a_loaded_library_without_frame_pointers() {
    let bench = Bench::new();
    let source = r#"
    void *middle(void *(*call)(size_t), size_t bytes, unsigned long *above) {
        volatile char space[PAD]; space[0] = 1;
        *above = (unsigned long)__builtin_return_address(0);
        void *result = call(bytes); space[1] = 2; return result;
    }"#;
    let flags = |pad| ["-fomit-frame-pointer".to_owned(), format!("-DPAD={pad}")];
    let mut libraries = Vec::new();
    for pad in [40, 5000, 72] {
        let flags = flags(pad);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        libraries.push(bench.compile(&format!("middle{pad}.so"), source, &flags));
    }
    let program = bench.compile(
        "outer",
        r#"
    static unsigned long within, above;
    __attribute__((noinline)) void *inner(size_t bytes) {
        within = (unsigned long)__builtin_return_address(0);
        void *object = malloc(bytes); asm volatile("" : "+r"(object)); return object;
    }
    int main(int count, char **names) {
        /* One after the other at the same place, with other frame sizes. */
        for (int i = 1; i < count; i++) for (int round = 0; round < 3; round++) {
            void *library = dlopen(names[i], RTLD_NOW);
            void *(*middle)(void *(*)(size_t), size_t, unsigned long *) = dlsym(library, "middle");
            void *object = middle(inner, 10000 + i, &above);
            say("stack%d %lx\nabove%d %lx\n", i, within, i, above);
            free(object); dlclose(library);
        }
        return 0;
    }"#,
        &["-fomit-frame-pointer"],
    );
    let (output, rings) = bench.run(Command::new(program).args(&libraries));
    assert!(output.status.success());
    let (account, ring) = (lines(&output), &rings[0]);
    let stacks = ring.stacks();
    for index in 1..=3u64 {
        let expected = [
            reported(&account, &format!("stack{index}")),
            reported(&account, &format!("above{index}")),
        ];
        let births: Vec<_> = ring
            .births()
            .filter(|(.., bytes)| *bytes == 10000 + index)
            .collect();
        assert_eq!(births.len(), 3);
        for (record, ..) in births {
            let frames = stacks[&record.site];
            assert_eq!(frames[1..3], expected, "{frames:x?}");
        }
    }
}

#[test]
fn every_page_of_small_objects_has_an_owner() {
    let bench = Bench::new();
    let program = bench.compile(
        "small",
        r#"
    int main(void) {
        for (int i = 0; i < 30000; i++) {
            size_t bytes = 1 + i * 7919 % 1500; char *p = malloc(bytes);
            say("S %lx %zu\n", (unsigned long)p, bytes);
            if (i % 3 == 0) free(p);
        }
        return 0;
    }"#,
        &[],
    );
    let (account, ring) = bench.run_one(&program);
    let owned: HashSet<u64> = ring
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::PageOwner { page } => Some(page),
            _ => None,
        })
        .collect();
    let mut pages = HashSet::new();
    for line in &account {
        let mut words = line.split(' ').skip(1);
        let address = u64::from_str_radix(words.next().unwrap(), 16).unwrap();
        let bytes: u64 = words.next().unwrap().parse().unwrap();
        pages.extend((address >> 12)..=((address + bytes - 1) >> 12));
    }
    let missing: Vec<_> = pages.difference(&owned).collect();
    assert!(missing.is_empty(), "pages without an owner: {missing:x?}");
    // Owners are reported once per page, not once per object.
    let reported = ring
        .records
        .iter()
        .filter(|record| matches!(record.event, Event::PageOwner { .. }))
        .count();
    assert_eq!(reported, owned.len());
    assert!(ring.heap_lines().is_empty());
}

#[test]
fn a_forked_child_has_a_ring_of_its_own() {
    let bench = Bench::new();
    let program = bench.compile(
        "fork",
        r#"
    int main(void) {
        void *inherited = born("Malloc", malloc(5000), 5000);
        pid_t child = fork();
        if (!child) {
            dies(inherited); free(inherited);
            void *own = born("Malloc", malloc(6000), 6000);
            if (!fork()) { dies(own); free(own); _exit(0); }
            wait(0); _exit(0);
        }
        wait(0); say("child %x\n", child);
        /* A child made behind the C library's back. */
        pid_t raw = syscall(SYS_fork);
        if (!raw) { born("Malloc", malloc(7000), 7000); _exit(0); }
        wait(0);
        dies(inherited); free(inherited);
        return 0;
    }"#,
        &[],
    );
    let (output, rings) = bench.run(&mut Command::new(program));
    assert!(output.status.success());
    let account = lines(&output);
    assert_eq!(rings.len(), 4);
    let child = reported(&account, "child") as u32;
    assert_eq!(rings[1].pid, child);
    assert!(
        rings[1..]
            .iter()
            .all(|ring| ring.cause() == StartCause::Fork)
    );
    assert!(
        matches!(rings[1].records[0].event, Event::Init { parent, .. } if parent == rings[0].pid)
    );
    // The first record of a process names its thread, not its parent's.
    assert!(
        rings
            .iter()
            .all(|ring| { ring.records.iter().all(|record| record.tid == ring.pid) })
    );
    let all = heap_account(&account);
    assert_eq!(rings[0].heap_lines(), [&all[..1], &all[5..]].concat());
    assert_eq!(rings[1].heap_lines(), all[1..3]);
    assert_eq!(rings[2].heap_lines(), all[3..4]);
    assert_eq!(rings[3].heap_lines(), all[4..5]);
    let stacks = rings[1].stacks();
    assert!(
        rings[1]
            .births()
            .all(|(record, ..)| stacks.contains_key(&record.site))
    );
}

#[test]
fn exec_starts_anew_and_vfork_does_not() {
    let bench = Bench::new();
    let program = bench.compile("exec", r#"
    int main(int count, char **names) {
        if (count > 1) { void *p = born("Malloc", malloc(9000), 9000); return 0; }
        born("Malloc", malloc(8000), 8000);
        pid_t child = vfork();
        if (!child) { volatile void *p = malloc(7777); execl(names[0], names[0], "again", NULL); _exit(1); }
        wait(0);
        execl(names[0], names[0], "again", NULL); return 1;
    }"#, &[]);
    let (output, rings) = bench.run(&mut Command::new(program));
    assert!(output.status.success());
    assert_eq!(rings.len(), 3);
    assert!(rings.iter().all(|ring| ring.cause() == StartCause::Exec));
    assert_eq!(rings[0].pid, rings[2].pid);
    // The object made between vfork and exec lives in the parent's memory.
    let sizes: Vec<u64> = rings[0].births().map(|(.., bytes)| bytes).collect();
    assert_eq!(sizes, [8000, 7777]);
    assert!(
        rings[1..]
            .iter()
            .all(|ring| ring.births().map(|(.., bytes)| bytes).eq([9000]))
    );
}

#[test]
fn three_hundred_threads_and_their_stacks() {
    threads_and_their_stacks("-DIS_SMALL(i)=((i) % 2)");
}

/// No thread has the room to make an unwinder on its own stack.
#[test]
fn three_hundred_threads_with_small_stacks() {
    threads_and_their_stacks("-DIS_SMALL(i)=1");
}

fn threads_and_their_stacks(sizes: &str) {
    let bench = Bench::new();
    let program = bench.compile("threads", r#"
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static void *work(void *argument) {
        pthread_attr_t attributes; void *low; size_t bytes, guard;
        for (int i = 0; i < 50; i++) free(malloc(5000 + (long)argument));
        pthread_getattr_np(pthread_self(), &attributes);
        pthread_attr_getstack(&attributes, &low, &bytes); pthread_attr_getguardsize(&attributes, &guard);
        say("T %d %lx %zu %zu\n", (int)syscall(SYS_gettid), (unsigned long)low, bytes, guard);
        if ((long)argument % 3 == 0) pthread_exit(argument);
        if ((long)argument % 3 == 1) { pthread_cancel(pthread_self()); pthread_testcancel(); }
        return argument;
    }
    int main(void) {
        pthread_t threads[300]; void *result; int cancelled = 0, returned = 0;
        pthread_attr_t small; pthread_attr_init(&small); pthread_attr_setstacksize(&small, 64 << 10);
        for (long i = 0; i < 300; i++) if (pthread_create(&threads[i], IS_SMALL(i) ? &small : 0, work, (void *)i)) return 1;
        for (long i = 0; i < 300; i++) {
            pthread_join(threads[i], &result);
            if (result == PTHREAD_CANCELED) cancelled++; else if (result == (void *)i) returned++;
        }
        say("ended %x\n", cancelled * 1000 + returned);
        return 0;
    }"#, &[sizes]);
    let (account, ring) = bench.run_one(&program);
    assert_eq!(reported(&account, "ended"), 100 * 1000 + 200);
    let stacks: HashMap<u32, String> = ring
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::ThreadStack { low, bytes, guard } => {
                Some((record.tid, format!("{low:x} {bytes} {guard}")))
            }
            _ => None,
        })
        .collect();
    let mut births: HashMap<u32, u32> = HashMap::new();
    for (record, ..) in ring.births() {
        *births.entry(record.tid).or_default() += 1;
        assert_ne!(record.site, 0);
    }
    let mut threads = 0;
    for line in account.iter().filter(|line| line.starts_with("T ")) {
        let (tid, bounds) = line[2..].split_once(' ').unwrap();
        let tid: u32 = tid.parse().unwrap();
        assert_eq!(stacks[&tid], bounds);
        assert_eq!(births[&tid], 50);
        threads += 1;
    }
    assert_eq!((threads, stacks.len()), (300, 301));
}

/// What the library asks the C library about a new thread is no allocation of the program's: glibc makes no arena for it.
#[test]
fn a_thread_that_allocates_nothing_has_no_arena() {
    let bench = Bench::new();
    let program = bench.compile("idle", r#"
    static pthread_barrier_t begun, over;
    static void *idle(void *argument) { pthread_barrier_wait(&begun); pthread_barrier_wait(&over); return argument; }
    int main(void) {
        pthread_t threads[4]; pthread_barrier_init(&begun, 0, 5); pthread_barrier_init(&over, 0, 5);
        for (int i = 0; i < 4; i++) if (pthread_create(&threads[i], 0, idle, 0)) return 1;
        pthread_barrier_wait(&begun); malloc_info(0, stdout); fflush(stdout); pthread_barrier_wait(&over);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
        return 0;
    }"#, &[]);
    let (account, ring) = bench.run_one(&program);
    let arenas = account.iter();
    let arenas = arenas.filter(|line| line.starts_with("<heap nr="));
    assert_eq!(arenas.count(), 1, "{account:?}");
    let stacks = ring.records.iter();
    let stacks = stacks.filter(|record| matches!(record.event, Event::ThreadStack { .. }));
    assert_eq!(stacks.count(), 5);
}

#[test]
fn the_main_threads_stack_holds_its_variables() {
    let bench = Bench::new();
    let program = bench.compile("main", r#"
    int main(int count, char **names) { int local; free(malloc(5000)); say("local %lx\n", &local); say("name %lx\n", names[0]); return 0; }"#, &[]);
    let (account, ring) = bench.run_one(&program);
    let bounds = ring
        .records
        .iter()
        .find_map(|record| match record.event {
            Event::ThreadStack { low, bytes, .. } => Some(low..low + bytes),
            _ => None,
        })
        .unwrap();
    assert!(
        bounds.contains(&reported(&account, "local"))
            && bounds.contains(&reported(&account, "name"))
    );
    let own: Vec<OwnMemory> = ring
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::PreloadMapping { purpose, .. } => Some(purpose),
            _ => None,
        })
        .collect();
    assert!(own.contains(&OwnMemory::Ring) && own.contains(&OwnMemory::Heap));
}

#[test]
fn allocations_in_signal_handlers() {
    let bench = Bench::new();
    let program = bench.compile("signals", r#"
    static volatile long count;
    static void handler(int number) { free(malloc(6000 + ++count % 7)); }
    int main(void) {
        struct sigaction action = { .sa_handler = handler }; sigaction(SIGALRM, &action, 0);
        struct itimerval often = { { 0, 200 }, { 0, 200 } }; setitimer(ITIMER_REAL, &often, 0);
        /* The main flow is in the library all the time, but never in malloc. */
        while (count < 2000) munmap(mmap(0, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 8192);
        struct itimerval never = { 0 }; setitimer(ITIMER_REAL, &never, 0);
        say("count %lx\n", count); return 0;
    }"#, &[]);
    let (account, ring) = bench.run_one(&program);
    assert_eq!(ring.births().count() as u64, reported(&account, "count"));
}

#[test]
fn mappings_and_the_break() {
    let bench = Bench::new();
    let program = bench.compile(
        "maps",
        r#"
    int main(void) {
        char *p = mmap(0, 40960, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *q = mremap(p, 40960, 1 << 26, MREMAP_MAYMOVE);
        munmap(q, 1 << 26); if (munmap((void *)1, 5) != -1 || errno != EINVAL) return 1;
        if (mmap(0, 0, 0, 0, -1, 0) != MAP_FAILED) return 2;
        char *before = sbrk(0); sbrk(8192); brk(before);
        say("p %lx\nq %lx\nbefore %lx\n", p, q, before); return 0;
    }"#,
        &[],
    );
    let (account, ring) = bench.run_one(&program);
    let (p, q, before) = (
        reported(&account, "p"),
        reported(&account, "q"),
        reported(&account, "before"),
    );
    let calls: Vec<_> = ring
        .records
        .iter()
        .filter_map(|record| match record.event {
            Event::Map {
                operation,
                address,
                bytes,
                old_address,
                old_bytes,
                ..
            } => {
                assert_ne!(record.site, 0);
                Some((operation, address, bytes, old_address, old_bytes))
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        calls,
        [
            (MapOperation::Mmap, p, 40960, 0, 0),
            (MapOperation::Mremap, q, 1 << 26, p, 40960),
            (MapOperation::Munmap, q, 1 << 26, 0, 0),
            (MapOperation::Sbrk, before + 8192, 0, before, 0),
            (MapOperation::Brk, before, 0, before + 8192, 0),
        ]
    );
}

#[test]
fn coroutine_stacks_are_walked_too() {
    let bench = Bench::new();
    let program = bench.compile("coroutine", r#"
    #include <ucontext.h>
    static ucontext_t outer, inner; static unsigned long here; static char stack[1 << 16];
    __attribute__((noinline)) void make(void) { here = (unsigned long)__builtin_return_address(0);
        void *p = malloc(12345); asm volatile("" :: "r"(p)); }
    static void body(void) { make(); say("here %lx\n", here); }
    int main(void) {
        free(malloc(5000));
        getcontext(&inner); inner.uc_stack.ss_sp = stack; inner.uc_stack.ss_size = sizeof stack; inner.uc_link = &outer;
        makecontext(&inner, body, 0); swapcontext(&outer, &inner); return 0;
    }"#, &[]);
    let (account, ring) = bench.run_one(&program);
    let (record, ..) = ring.births().find(|(.., bytes)| *bytes == 12345).unwrap();
    let stacks = ring.stacks();
    assert_eq!(stacks[&record.site][1], reported(&account, "here"));
}

#[test]
fn births_agree_with_valgrind() {
    let bench = Bench::new();
    let program = bench.compile("random", r#"
    int main(void) {
        void *live[64] = { 0 }; unsigned seed = 7;
        for (int i = 0; i < 4000; i++) {
            seed = seed * 1103515245 + 12345; int place = seed >> 16 & 63; size_t bytes = seed >> 8 & 0x3fff;
            if (i % 5 == 0) live[place] = realloc(live[place], bytes + 1); else { free(live[place]); live[place] = malloc(bytes); }
        }
        return 0;
    }"#, &[]);
    let Ok(output) = Command::new("valgrind")
        .arg("--trace-malloc=yes")
        .arg(&program)
        .output()
    else {
        eprintln!("skipped: valgrind is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    // "--123-- malloc(5000) = 0x..." and "--123-- realloc(0x4A9,700)" followed by " = 0x...".
    let mut sizes = Vec::new();
    for line in text.lines() {
        let inside = |name: &str| {
            Some(
                line.split_once(&format!(" {name}("))?
                    .1
                    .split_once(')')?
                    .0
                    .to_owned(),
            )
        };
        let size = inside("malloc")
            .or_else(|| Some(inside("realloc")?.split_once(',')?.1.trim().to_owned()));
        sizes.extend(
            size.and_then(|size| size.parse::<u64>().ok())
                .filter(|size| *size >= 4096),
        );
    }
    assert!(
        sizes.len() > 1000,
        "valgrind's trace was not understood: {text:.1000}"
    );
    let (_, ring) = bench.run_one(&program);
    let ours: Vec<u64> = ring.births().map(|(.., bytes)| bytes).collect();
    // realloc(NULL, n) shows twice in Valgrind's trace: as itself and as the malloc it becomes.
    let mut unmatched = sizes.clone();
    for size in &ours {
        let place = unmatched.iter().position(|other| other == size);
        assert!(
            place.is_some(),
            "a birth of {size} bytes that valgrind did not see"
        );
        unmatched.remove(place.unwrap());
    }
    assert!(unmatched.len() <= 64, "{} births unseen", unmatched.len());
}
