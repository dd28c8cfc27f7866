/*
 * The oracle: a workload's own account of the pages it accessed, and when.
 *
 * A program maps arenas and accesses them only within phases. A phase knows the pages that every one
 * of its loops accesses (oracle_set), pages that were accessed exactly once (oracle_once) and pages
 * that it may access (oracle_may). oracle_end writes the phase to $ORACLE_LOG with one write(2), so
 * that several threads and processes can share the file. Without $ORACLE_LOG nothing is written.
 *
 * The log, one record per line; times are CLOCK_MONOTONIC ns, pages are address >> 12:
 *   program NAME PID PARENT TIME
 *   arena PID TIME FIRST PAGES KIND NAME      accessed only within phases from TIME on; KIND anon|file|shared
 *   gone PID TIME FIRST PAGES                 no longer an arena from TIME on; PAGES 0: all of the process
 *   skip PID SENTENCE                         the part that could not run here, and why
 *   phase PID TID START END NAME              the lines up to `end` belong to this phase
 *   set KIND FIRST PAGES STRIDE               accessed in every loop: PAGES pages, STRIDE pages apart
 *   may FIRST PAGES                           may be accessed within the phase
 *   loop T0 T1                                one complete loop ran from T0 to T1
 *   once T0 T1 KIND FIRST PAGES               accessed once, between T0 and T1
 *   end LOOPS                                 how many loops ran (not every one is logged)
 * KIND of an access: r read, w written, k by the kernel on the program's behalf.
 */
#ifndef VARVE_ORACLE_H
#define VARVE_ORACLE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PAGE ((size_t)4096)
#define HUGE_PAGE ((size_t)2 << 20)
#define NOINLINE __attribute__((noinline))

enum { ORACLE_SETS = 64, ORACLE_LOOPS = 20000, ORACLE_LINE = 160 };

struct oracle_set {
    char kind; /* r, w, k; m for may */
    uint64_t first, pages, stride;
};

struct oracle_span {
    uint64_t t0, t1;
};

struct oracle_event {
    uint64_t t0, t1, first, pages;
    char kind;
};

/* Lives in a populated mapping of its own, so that logging faults nothing in while a phase runs. */
struct oracle_phase {
    const char *name;
    uint64_t start, until, gap, loop_start, last_logged, loops;
    size_t bytes, sets, spans, events, event_cap;
    struct oracle_set set[ORACLE_SETS];
    struct oracle_span span[ORACLE_LOOPS];
    struct oracle_event event[];
};

static int oracle_fd = -1;

/*
 * With $ORACLE_MARKS each phase stores to this page at its start and at its end, so that a full trace
 * of the program's accesses can be cut into phases.
 */
#define ORACLE_MARK_PAGE ((volatile uint64_t *)0x200000000)
static bool oracle_marks;

static inline void oracle_mark(void)
{
    if (oracle_marks)
        *ORACLE_MARK_PAGE = 1;
}

static inline void die(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
    exit(1);
}

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t page_of(const volatile void *address)
{
    return (uint64_t)(uintptr_t)address >> 12;
}

/* The whole number in an environment variable, or `otherwise`. */
static inline uint64_t env_u64(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static inline uint64_t phase_ms(void)
{
    return env_u64("ORACLE_PHASE_MS", 200);
}

static inline void sleep_ms(uint64_t ms)
{
    struct timespec t = { .tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000 };
    while (nanosleep(&t, &t) == -1 && errno == EINTR)
        ;
}

static inline void oracle_write(const char *text, size_t bytes)
{
    if (oracle_fd >= 0 && write(oracle_fd, text, bytes) != (ssize_t)bytes)
        die("oracle log");
}

__attribute__((format(printf, 1, 2))) static inline void oracle_line(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    oracle_write(line, (size_t)bytes);
}

/* Memory beside the arenas that is resident and lies idle: $ORACLE_BALLAST pages of this process alone. */
static inline void oracle_ballast(size_t pages)
{
    char *ballast = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ballast == MAP_FAILED || madvise(ballast, pages * PAGE, MADV_DONTFORK) != 0)
        die("ballast");
    madvise(ballast, pages * PAGE, MADV_NOHUGEPAGE);
    memset(ballast, 1, pages * PAGE);
}

/*
 * With $ORACLE_AWAITS_MOVES: waits until a page of this process was moved away. The handler that moves pages is a process of its
 * own, which is ready when the machine has let it run; from then on pages are moved at the end of each interval.
 */
static inline void oracle_await_moves(void)
{
    enum { LIMIT_MS = 120000 };
    const uint64_t present_or_swapped = (uint64_t)3 << 62;
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (page == MAP_FAILED || pagemap < 0)
        die("/proc/self/pagemap");
    madvise(page, PAGE, MADV_NOHUGEPAGE);
    *page = 1;
    uint64_t entry = 0;
    for (int ms = 0; ms < LIMIT_MS; ms++) {
        if (pread(pagemap, &entry, sizeof entry, (off_t)(page_of(page) * sizeof entry)) != (ssize_t)sizeof entry)
            die("/proc/self/pagemap");
        if (!(entry & present_or_swapped)) {
            close(pagemap);
            return;
        }
        sleep_ms(1);
    }
    errno = ETIMEDOUT;
    die("no page was moved");
}

/* Opens the log and names the program. Call again after a fork, in the child. */
static inline void oracle_init(const char *program)
{
    const char *path = getenv("ORACLE_LOG");
    if (path && oracle_fd < 0) {
        oracle_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (oracle_fd < 0)
            die(path);
    }
    if (getenv("ORACLE_MARKS") && !oracle_marks) {
        if (mmap((void *)ORACLE_MARK_PAGE, PAGE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != (void *)ORACLE_MARK_PAGE)
            die("mmap of the page for marks");
        oracle_marks = true;
    }
    if (getenv("ORACLE_BALLAST"))
        oracle_ballast(env_u64("ORACLE_BALLAST", 0));
    if (getenv("ORACLE_AWAITS_MOVES"))
        oracle_await_moves();
    oracle_line("program %s %d %d %llu\n", program, getpid(), getppid(), (unsigned long long)now_ns());
}

/* From now on these pages are accessed within phases only. */
static inline void oracle_arena(const char *name, const char *kind, const volatile void *start, size_t bytes)
{
    oracle_line("arena %d %llu %llu %llu %s %s\n", getpid(), (unsigned long long)now_ns(),
                (unsigned long long)page_of(start), (unsigned long long)(bytes / PAGE), kind, name);
}

/* The range is about to stop being an arena: unmapped, replaced, moved. */
static inline void oracle_gone(const volatile void *start, size_t bytes)
{
    oracle_line("gone %d %llu %llu %llu\n", getpid(), (unsigned long long)now_ns(),
                (unsigned long long)page_of(start), (unsigned long long)(bytes / PAGE));
}

static inline void oracle_skip(const char *sentence)
{
    fprintf(stderr, "%s\n", sentence);
    oracle_line("skip %d %s\n", getpid(), sentence);
}

static inline struct oracle_phase *oracle_begin_events(const char *name, size_t events)
{
    size_t bytes = sizeof(struct oracle_phase) + events * sizeof(struct oracle_event);
    struct oracle_phase *phase =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (phase == MAP_FAILED)
        die("mmap of a phase");
    uint64_t length = phase_ms() * 1000000u;
    phase->name = name;
    phase->bytes = bytes;
    phase->event_cap = events;
    /* A few loops per millisecond suffice: each whole interval then holds many logged ones. */
    phase->gap = length / (ORACLE_LOOPS / 4) > 100000 ? length / (ORACLE_LOOPS / 4) : 100000;
    phase->start = now_ns();
    phase->until = phase->start + length;
    oracle_mark();
    return phase;
}

static inline struct oracle_phase *oracle_begin(const char *name)
{
    return oracle_begin_events(name, 16);
}

static inline void oracle_set_strided(struct oracle_phase *phase, char kind, const volatile void *start,
                                      size_t pages, size_t stride)
{
    if (phase->sets == ORACLE_SETS) {
        errno = ENOSPC;
        die("oracle sets");
    }
    phase->set[phase->sets++] =
        (struct oracle_set){ .kind = kind, .first = page_of(start), .pages = pages, .stride = stride };
}

/* Every loop of the phase accesses all bytes' pages of [start, start + bytes). */
static inline void oracle_set(struct oracle_phase *phase, char kind, const volatile void *start, size_t bytes)
{
    const volatile char *last = (const volatile char *)start + bytes - 1;
    oracle_set_strided(phase, kind, start, page_of(last) - page_of(start) + 1, 1);
}

static inline void oracle_may(struct oracle_phase *phase, const volatile void *start, size_t bytes)
{
    oracle_set(phase, 'm', start, bytes);
}

/* Starts the next loop; false once the phase has run its time. At least one loop always runs. */
static inline bool oracle_again(struct oracle_phase *phase)
{
    phase->loop_start = now_ns();
    return phase->loops == 0 || phase->loop_start < phase->until;
}

/* The loop that oracle_again started is complete. */
static inline void oracle_looped(struct oracle_phase *phase)
{
    phase->loops++;
    if (phase->spans < ORACLE_LOOPS && (phase->spans == 0 || phase->loop_start >= phase->last_logged + phase->gap)) {
        phase->span[phase->spans++] = (struct oracle_span){ .t0 = phase->loop_start, .t1 = now_ns() };
        phase->last_logged = phase->loop_start;
    }
}

/* [start, start + bytes) has been accessed once since t0. */
static inline void oracle_once(struct oracle_phase *phase, char kind, uint64_t t0, const volatile void *start,
                               size_t bytes)
{
    const volatile char *last = (const volatile char *)start + bytes - 1;
    if (phase->events == phase->event_cap) {
        errno = ENOSPC;
        die("oracle events");
    }
    phase->event[phase->events++] = (struct oracle_event){
        .t0 = t0, .t1 = now_ns(), .first = page_of(start), .pages = page_of(last) - page_of(start) + 1, .kind = kind
    };
}

/* Writes the phase to the log and frees it. */
static inline void oracle_end(struct oracle_phase *phase)
{
    oracle_mark();
    uint64_t end = now_ns();
    size_t lines = phase->sets + phase->spans + phase->events + 2, room = lines * ORACLE_LINE, used = 0;
    char *text = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (text == MAP_FAILED)
        die("mmap of the oracle text");
#define ORACLE_PUT(...) used += (size_t)snprintf(text + used, room - used, __VA_ARGS__)
    typedef unsigned long long ull;
    ORACLE_PUT("phase %d %ld %llu %llu %s\n", getpid(), syscall(SYS_gettid), (ull)phase->start, (ull)end, phase->name);
    for (size_t i = 0; i < phase->sets; i++) {
        const struct oracle_set *s = &phase->set[i];
        if (s->kind == 'm')
            ORACLE_PUT("may %llu %llu\n", (ull)s->first, (ull)s->pages);
        else
            ORACLE_PUT("set %c %llu %llu %llu\n", s->kind, (ull)s->first, (ull)s->pages, (ull)s->stride);
    }
    for (size_t i = 0; i < phase->spans; i++)
        ORACLE_PUT("loop %llu %llu\n", (ull)phase->span[i].t0, (ull)phase->span[i].t1);
    for (size_t i = 0; i < phase->events; i++) {
        const struct oracle_event *e = &phase->event[i];
        ORACLE_PUT("once %llu %llu %c %llu %llu\n", (ull)e->t0, (ull)e->t1, e->kind, (ull)e->first, (ull)e->pages);
    }
    ORACLE_PUT("end %llu\n", (ull)phase->loops);
#undef ORACLE_PUT
    oracle_write(text, used);
    munmap(text, room);
    munmap(phase, phase->bytes);
}

/* Anonymous private memory in 4 KiB pages, not yet touched. */
static inline char *map_pages(size_t pages)
{
    char *p = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    madvise(p, pages * PAGE, MADV_NOHUGEPAGE);
    return p;
}

static inline void read_page(const volatile char *page)
{
    (void)*(page + 128);
}

static inline void write_page(volatile char *page)
{
    *(page + 256) = 1;
}

/* Reads (or writes) one byte in each of `pages` pages that lie `stride` pages apart. */
static inline void read_pages(const volatile char *start, size_t pages, size_t stride)
{
    for (size_t i = 0; i < pages; i++)
        read_page(start + i * stride * PAGE);
}

static inline void write_pages(volatile char *start, size_t pages, size_t stride)
{
    for (size_t i = 0; i < pages; i++)
        write_page(start + i * stride * PAGE);
}

/* Maps an arena of `pages` 4 KiB pages and makes each resident by a write, in a phase `birth`. */
static inline char *resident_arena(const char *name, size_t pages)
{
    char *arena = map_pages(pages);
    oracle_arena(name, "anon", arena, pages * PAGE);
    struct oracle_phase *birth = oracle_begin("birth");
    uint64_t t0 = now_ns();
    write_pages(arena, pages, 1);
    oracle_once(birth, 'w', t0, arena, pages * PAGE);
    oracle_end(birth);
    return arena;
}

/* A phase in which nothing of the arenas is accessed, long enough to age everything. */
static inline void rest(const char *name)
{
    struct oracle_phase *phase = oracle_begin(name);
    sleep_ms(phase_ms());
    oracle_end(phase);
}

/* A file for this run in $ORACLE_DIR (or /tmp), already unlinked, filled with `pages` pages of data. */
static inline int scratch_file(size_t pages)
{
    char path[4096];
    const char *folder = getenv("ORACLE_DIR");
    snprintf(path, sizeof path, "%s/varve-oracle-XXXXXX", folder ? folder : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0)
        die(path);
    unlink(path);
    static char data[4096];
    memset(data, 'v', sizeof data);
    for (size_t i = 0; i < pages; i++)
        if (write(fd, data, sizeof data) != (ssize_t)sizeof data)
            die("fill of the scratch file");
    fsync(fd);
    return fd;
}

#endif
