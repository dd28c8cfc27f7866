/* Half of the resident pages are only read. */
#include "oracle.h"

int main(void)
{
    enum { PAGES = 2000 };
    oracle_init("readonly");
    char *arena = resident_arena("arena", PAGES);
    rest("idle");
    struct oracle_phase *phase = oracle_begin("read");
    oracle_set_strided(phase, 'r', arena, PAGES / 2, 2);
    while (oracle_again(phase)) {
        read_pages(arena, PAGES / 2, 2);
        oracle_looped(phase);
    }
    oracle_end(phase);
    puts("readonly done");
    return 0;
}
