/* Every third page is only written; then pages that were never touched before are. */
#include "oracle.h"

int main(void)
{
    enum { PAGES = 3000, FRESH = 500 };
    oracle_init("writeonly");
    char *arena = resident_arena("arena", PAGES);
    char *fresh = map_pages(2 * FRESH);
    oracle_arena("fresh", "anon", fresh, 2 * FRESH * PAGE);
    rest("idle");
    struct oracle_phase *phase = oracle_begin("write");
    oracle_set_strided(phase, 'w', arena, PAGES / 3, 3);
    while (oracle_again(phase)) {
        write_pages(arena, PAGES / 3, 3);
        oracle_looped(phase);
    }
    oracle_end(phase);
    phase = oracle_begin("first write");
    oracle_set_strided(phase, 'w', fresh, FRESH, 2);
    while (oracle_again(phase)) {
        write_pages(fresh, FRESH, 2);
        oracle_looped(phase);
    }
    oracle_end(phase);
    puts("writeonly done");
    return 0;
}
