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

static void advise(const char *name, char *arena, int advice, bool all)
{
    size_t pages = all ? PAGES : PAGES / 2;
    struct oracle_phase *phase = oracle_begin(name);
    uint64_t t0 = now_ns();
    write_pages(arena, pages, 1);
    oracle_once(phase, 'w', t0, arena, pages * PAGE);
    if (madvise(arena, PAGES * PAGE, advice) != 0)
        oracle_skip(name);
    sleep_ms(phase_ms());
    oracle_end(phase);

    rest("idle after the advice");
    phase = oracle_begin("touch again");
    oracle_set_strided(phase, 'r', arena, PAGES / 4, 4);
    while (oracle_again(phase)) {
        read_pages(arena, PAGES / 4, 4);
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

int main(void)
{
    oracle_init("dontneed");
    char *arena = resident_arena("arena", PAGES);
    int fd = memfd_create("varve-oracle", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, PAGES * PAGE) != 0)
        die("memfd_create");
    char *shared = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        die("mmap of the memfd");
    oracle_arena("shared", "shared", shared, PAGES * PAGE);
    rest("idle");
    advise("MADV_DONTNEED", arena, MADV_DONTNEED, true);
    advise("MADV_FREE", arena, MADV_FREE, true);
    advise("MADV_COLD", arena, MADV_COLD, false);
    advise("MADV_PAGEOUT", arena, MADV_PAGEOUT, false);
    advise("MADV_REMOVE", shared, MADV_REMOVE, true);
    struct oracle_phase *phase = oracle_begin("touch and punch a hole");
    uint64_t t0 = now_ns();
    write_pages(shared, PAGES / 2, 1);
    oracle_once(phase, 'w', t0, shared, PAGES / 2 * PAGE);
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGES * PAGE) != 0)
        die("fallocate");
    sleep_ms(phase_ms());
    oracle_end(phase);
    come_back(fd, shared);
    hide(arena);
    puts("dontneed done");
    return 0;
}
