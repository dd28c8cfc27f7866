/* Explicit huge pages. Exits with 77 and a sentence where none are reserved. */
#include "oracle.h"

enum { HUGE = 4 };

int main(void)
{
    size_t bytes = HUGE * HUGE_PAGE;
    char *arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (arena == MAP_FAILED) {
        fprintf(stderr, "hugetlb: no huge pages are reserved (MAP_HUGETLB: %s); "
                        "hint: write 8 to /proc/sys/vm/nr_hugepages\n", strerror(errno));
        return 77;
    }
    oracle_init("hugetlb");
    oracle_arena("arena", "anon", arena, bytes);
    struct oracle_phase *phase = oracle_begin("birth");
    uint64_t t0 = now_ns();
    write_pages(arena, 3, HUGE_PAGE / PAGE);
    for (size_t i = 0; i < 3; i++)
        oracle_once(phase, 'w', t0, arena + i * HUGE_PAGE, PAGE);
    oracle_end(phase);
    rest("idle");
    phase = oracle_begin("read");
    oracle_set_strided(phase, 'r', arena + 7 * PAGE, 2, HUGE_PAGE / PAGE);
    while (oracle_again(phase)) {
        read_pages(arena + 7 * PAGE, 2, HUGE_PAGE / PAGE);
        oracle_looped(phase);
    }
    oracle_end(phase);
    phase = oracle_begin("touch and unmap");
    t0 = now_ns();
    write_page(arena + 3 * HUGE_PAGE);
    oracle_once(phase, 'w', t0, arena + 3 * HUGE_PAGE, PAGE);
    oracle_gone(arena + 3 * HUGE_PAGE, HUGE_PAGE);
    munmap(arena + 3 * HUGE_PAGE, HUGE_PAGE);
    oracle_end(phase);
    puts("hugetlb done");
    return 0;
}
