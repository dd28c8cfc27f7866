/* Reads of anonymous memory that was never written: every page maps the one zero page. */
#include "oracle.h"

int main(void)
{
    enum { PAGES = 1000 };
    oracle_init("zeropage");
    char *arena = map_pages(2 * PAGES);
    oracle_arena("arena", "anon", arena, 2 * PAGES * PAGE);
    rest("idle");
    struct oracle_phase *phase = oracle_begin("read the zero page");
    oracle_set_strided(phase, 'r', arena, PAGES, 2);
    while (oracle_again(phase)) {
        read_pages(arena, PAGES, 2);
        oracle_looped(phase);
    }
    oracle_end(phase);
    rest("idle after the reads");
    phase = oracle_begin("write over the zero page");
    oracle_set_strided(phase, 'w', arena, PAGES / 2, 4);
    while (oracle_again(phase)) {
        write_pages(arena, PAGES / 2, 4);
        oracle_looped(phase);
    }
    oracle_end(phase);
    puts("zeropage done");
    return 0;
}
