/* The same pages are read for a while, then written, then read again. */
#include "oracle.h"

int main(void)
{
    enum { PAGES = 1024 };
    oracle_init("read_then_write");
    char *arena = resident_arena("arena", 2 * PAGES);
    rest("idle");
    static const char *const names[] = { "read", "write", "read again" };
    for (int i = 0; i < 3; i++) {
        struct oracle_phase *phase = oracle_begin(names[i]);
        char kind = i == 1 ? 'w' : 'r';
        oracle_set(phase, kind, arena, PAGES * PAGE);
        while (oracle_again(phase)) {
            if (kind == 'w')
                write_pages(arena, PAGES, 1);
            else
                read_pages(arena, PAGES, 1);
            oracle_looped(phase);
        }
        oracle_end(phase);
    }
    puts("read_then_write done");
    return 0;
}
