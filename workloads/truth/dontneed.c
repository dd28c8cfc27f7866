/*
 * Pages dropped or aged by advice right after a touch: MADV_DONTNEED, FREE, REMOVE, COLD, PAGEOUT; and
 * pages that mprotect(PROT_NONE) hides. Each is touched again later where it still can be, or at once.
 */
#include "oracle.h"

enum { PAGES = 256, COMES_BACK = 8 };

#ifndef MADV_COLD
#define MADV_COLD 20
#define MADV_PAGEOUT 21
#endif

/* Memory of which some pages are touched right before an advice. */
struct advised {
    const char *name;
    int advice;
    size_t touched;
    char *arena;
};

static void advise(const struct advised *one)
{
    struct oracle_phase *phase = oracle_begin(one->name);
    uint64_t t0 = now_ns();
    write_pages(one->arena, one->touched, 1);
    oracle_once(phase, 'w', t0, one->arena, one->touched * PAGE);
    if (madvise(one->arena, PAGES * PAGE, one->advice) != 0)
        oracle_skip(one->name);
    sleep_ms(phase_ms());
    oracle_end(phase);
}

static void touch_again(const struct advised *all, size_t count)
{
    struct oracle_phase *phase = oracle_begin("touch again");
    for (size_t i = 0; i < count; i++)
        oracle_set_strided(phase, 'r', all[i].arena, PAGES / 4, 4);
    while (oracle_again(phase)) {
        for (size_t i = 0; i < count; i++)
            read_pages(all[i].arena, PAGES / 4, 4);
        oracle_looped(phase);
    }
    oracle_end(phase);
}

static void hide(char *arena)
{
    struct oracle_phase *phase = oracle_begin("touch and mprotect(PROT_NONE)");
    uint64_t t0 = now_ns();
    read_pages(arena, PAGES / 2, 1);
    oracle_once(phase, 'r', t0, arena, PAGES / 2 * PAGE);
    if (mprotect(arena, PAGES * PAGE, PROT_NONE) != 0)
        die("mprotect");
    sleep_ms(phase_ms());
    oracle_end(phase);
    if (mprotect(arena, PAGES * PAGE, PROT_READ | PROT_WRITE) != 0)
        die("mprotect back");
    phase = oracle_begin("touch what was hidden");
    oracle_set(phase, 'w', arena, PAGES / 4 * PAGE);
    while (oracle_again(phase)) {
        write_pages(arena, PAGES / 4, 1);
        oracle_looped(phase);
    }
    oracle_end(phase);
}

/* Written, gone, and there again by a read, faster than any interval: nothing of the page that is there was written. */
static void come_back(int fd, char *shared)
{
    rest("idle before pages come back");
    struct oracle_phase *phase = oracle_begin("write, punch a hole and read");
    for (int i = 0; i < COMES_BACK; i++) {
        uint64_t t0 = now_ns();
        write_pages(shared, PAGES / 4, 1);
        oracle_once(phase, 'w', t0, shared, PAGES / 4 * PAGE);
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGES * PAGE) != 0)
            die("fallocate");
        t0 = now_ns();
        read_pages(shared, PAGES / 4, 1);
        oracle_once(phase, 'r', t0, shared, PAGES / 4 * PAGE);
    }
    sleep_ms(phase_ms());
    oracle_end(phase);
}

static char *map_shared(const char *name, int *fd)
{
    *fd = memfd_create("varve-oracle", MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, PAGES * PAGE) != 0)
        die("memfd_create");
    char *shared = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (shared == MAP_FAILED)
        die("mmap of the memfd");
    oracle_arena(name, "shared", shared, PAGES * PAGE);
    return shared;
}

int main(void)
{
    oracle_init("dontneed");
    int removed, fd;
    struct advised all[] = {
        { "MADV_DONTNEED", MADV_DONTNEED, PAGES, resident_arena("not needed", PAGES) },
        { "MADV_FREE", MADV_FREE, PAGES, resident_arena("free", PAGES) },
        { "MADV_COLD", MADV_COLD, PAGES / 2, resident_arena("cold", PAGES) },
        { "MADV_PAGEOUT", MADV_PAGEOUT, PAGES / 2, resident_arena("paged out", PAGES) },
        { "MADV_REMOVE", MADV_REMOVE, PAGES, map_shared("removed", &removed) },
    };
    enum { COUNT = sizeof all / sizeof *all };
    char *arena = resident_arena("hidden", PAGES);
    char *shared = map_shared("shared", &fd);
    rest("idle");
    for (size_t i = 0; i < COUNT; i++)
        advise(&all[i]);
    struct oracle_phase *phase = oracle_begin("touch and punch a hole");
    uint64_t t0 = now_ns();
    write_pages(shared, PAGES / 2, 1);
    oracle_once(phase, 'w', t0, shared, PAGES / 2 * PAGE);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGES * PAGE) != 0)
        die("fallocate");
    sleep_ms(phase_ms());
    oracle_end(phase);
    /* All that was advised ages in one rest. */
    rest("idle after the advice");
    touch_again(all, COUNT);
    come_back(fd, shared);
    hide(arena);
    puts("dontneed done");
    return 0;
}
