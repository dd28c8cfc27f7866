/* Touch, move, touch at the new place; grow in place or away; shrink right after a touch. */
#include "oracle.h"

enum { PAGES = 256 };

static char *target(size_t pages)
{
    char *p = map_pages(pages);
    munmap(p, pages * PAGE);
    return p;
}

int main(void)
{
    oracle_init("mremap");
    char *arena = resident_arena("arena", PAGES);
    rest("idle");

    struct oracle_phase *phase = oracle_begin("touch and move");
    char *place = target(PAGES);
    /* The accessed bits move along with the pages, so the new place may show the old place's touches. */
    oracle_may(phase, place, PAGES * PAGE);
    uint64_t t0 = now_ns();
    read_pages(arena, PAGES / 2, 1);
    oracle_once(phase, 'r', t0, arena, PAGES / 2 * PAGE);
    oracle_gone(arena, PAGES * PAGE);
    char *moved = mremap(arena, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (moved != place)
        die("mremap");
    oracle_arena("moved", "anon", moved, PAGES * PAGE);
    sleep_ms(phase_ms());
    oracle_end(phase);

    phase = oracle_begin("touch at the new place");
    oracle_set_strided(phase, 'w', moved, PAGES / 4, 4);
    while (oracle_again(phase)) {
        write_pages(moved, PAGES / 4, 4);
        oracle_looped(phase);
    }
    oracle_end(phase);

    phase = oracle_begin("touch and shrink");
    t0 = now_ns();
    read_pages(moved, PAGES, 1);
    oracle_once(phase, 'r', t0, moved, PAGES * PAGE);
    oracle_gone(moved + PAGES / 2 * PAGE, PAGES / 2 * PAGE);
    if (mremap(moved, PAGES * PAGE, PAGES / 2 * PAGE, 0) != moved)
        die("mremap to half");
    oracle_end(phase);
    rest("idle after the shrink");

    phase = oracle_begin("touch and grow");
    place = target(2 * PAGES);
    oracle_may(phase, place, 2 * PAGES * PAGE);
    t0 = now_ns();
    write_pages(moved, PAGES / 2, 1);
    oracle_once(phase, 'w', t0, moved, PAGES / 2 * PAGE);
    oracle_gone(moved, PAGES / 2 * PAGE);
    char *grown = mremap(moved, PAGES / 2 * PAGE, 2 * PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (grown != place)
        die("mremap to more");
    t0 = now_ns();
    write_pages(grown, 2 * PAGES, 1);
    oracle_once(phase, 'w', t0, grown, 2 * PAGES * PAGE);
    oracle_arena("grown", "anon", grown, 2 * PAGES * PAGE);
    sleep_ms(phase_ms());
    oracle_end(phase);
    puts("mremap done");
    return 0;
}
