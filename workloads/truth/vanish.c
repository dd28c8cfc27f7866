/*
 * Pages that are gone before an interval ends: mapped, touched, unmapped (2,000 times, at addresses
 * never used twice); replaced by MAP_FIXED; grown, touched and shrunk with brk; and resident pages
 * that are touched once more right before they go, where no page fault tells of the touch.
 */
#include "oracle.h"

enum { ROUNDS = 2000, FIXED = 200, LATE = 512, HEAP = 64, BURSTS = 4 };

/* A range of addresses that nothing else is likely to be placed in, for MAP_FIXED_NOREPLACE. */
static char *free_addresses(size_t pages)
{
    char *p = mmap(NULL, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        die("mmap of a free range");
    munmap(p, pages * PAGE);
    return p;
}

static void map_at(char *address, size_t pages)
{
    char *got = mmap(address, pages * PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != address)
        die("mmap at a chosen address");
}

static void map_touch_unmap(void)
{
    struct oracle_phase *phase = oracle_begin_events("map, touch, unmap", ROUNDS);
    char *at = free_addresses((size_t)ROUNDS * 4);
    for (size_t i = 0; i < ROUNDS; i++, at += 4 * PAGE) {
        uint64_t t0 = now_ns();
        map_at(at, 3);
        write_pages(at, 2, 1);
        oracle_once(phase, 'w', t0, at, 2 * PAGE);
        munmap(at, 3 * PAGE);
    }
    oracle_end(phase);
}

static void fixed_over(void)
{
    char *arena = map_pages(FIXED * 4);
    struct oracle_phase *phase = oracle_begin_events("replaced by MAP_FIXED", FIXED);
    for (size_t i = 0; i < FIXED; i++) {
        char *at = arena + i * 4 * PAGE;
        uint64_t t0 = now_ns();
        write_pages(at, 2, 1);
        oracle_once(phase, 'w', t0, at, 2 * PAGE);
        if (mmap(at, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at)
            die("mmap over");
    }
    oracle_end(phase);
    munmap(arena, FIXED * 4 * PAGE);
}

static void brk_bursts(void)
{
    struct oracle_phase *phase = oracle_begin_events("brk grows, touched, shrinks", BURSTS);
    for (size_t i = 0; i < BURSTS; i++) {
        uint64_t t0 = now_ns();
        char *start = sbrk(HEAP * PAGE);
        if (start == (char *)-1)
            die("sbrk");
        /* Whole pages of the growth only: the break need not be aligned. */
        char *first = (char *)(((uintptr_t)start + PAGE - 1) & ~(PAGE - 1));
        write_pages(first, HEAP - 1, 1);
        oracle_once(phase, 'w', t0, first, (HEAP - 1) * PAGE);
        sbrk(-(intptr_t)(HEAP * PAGE));
        sleep_ms(phase_ms());
    }
    oracle_end(phase);
}

static void late(char *arena)
{
    struct oracle_phase *phase = oracle_begin_events("touched once more, then unmapped", LATE);
    for (size_t i = 0; i < LATE; i++) {
        char *at = arena + i * PAGE;
        uint64_t t0 = now_ns();
        read_page(at);
        oracle_once(phase, 'r', t0, at, PAGE);
        oracle_gone(at, PAGE);
        munmap(at, PAGE);
    }
    oracle_end(phase);
}

int main(void)
{
    oracle_init("vanish");
    char *arena = resident_arena("late", LATE);
    rest("idle");
    map_touch_unmap();
    fixed_over();
    brk_bursts();
    late(arena);
    rest("idle after");
    puts("vanish done");
    return 0;
}
