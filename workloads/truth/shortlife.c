/* A process that lives a few milliseconds, with children that live about one. */
#include "oracle.h"
#include <sys/wait.h>

enum { CHILDREN = 5, PAGES = 32 };

int main(void)
{
    oracle_init("shortlife");
    char *arena = map_pages((CHILDREN + 2) * PAGES);
    struct oracle_phase *phase = oracle_begin("parent");
    uint64_t t0 = now_ns();
    write_pages(arena, PAGES, 1);
    oracle_once(phase, 'w', t0, arena, PAGES * PAGE);
    oracle_end(phase);
    for (size_t i = 1; i <= CHILDREN; i++) {
        pid_t child = fork();
        if (child < 0)
            die("fork");
        if (child == 0) {
            oracle_init("shortlife child");
            phase = oracle_begin("child");
            t0 = now_ns();
            write_pages(arena + i * PAGES * PAGE, PAGES, 1);
            read_pages(arena, PAGES, 1);
            oracle_once(phase, 'w', t0, arena + i * PAGES * PAGE, PAGES * PAGE);
            oracle_once(phase, 'r', t0, arena, PAGES * PAGE);
            oracle_end(phase);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    phase = oracle_begin("parent before its end");
    t0 = now_ns();
    write_pages(arena + (CHILDREN + 1) * PAGES * PAGE, PAGES, 1);
    oracle_once(phase, 'w', t0, arena + (CHILDREN + 1) * PAGES * PAGE, PAGES * PAGE);
    oracle_end(phase);
    return 0;
}
