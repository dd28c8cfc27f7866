/* Transparent huge pages, 2 MiB aligned: one byte in every second one; then one byte of a split one. */
#include "oracle.h"

enum { HUGE = 16 };

int main(void)
{
    oracle_init("thp");
    size_t bytes = HUGE * HUGE_PAGE;
    char *raw = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED)
        die("mmap");
    char *arena = (char *)(((uintptr_t)raw + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (madvise(arena, bytes, MADV_HUGEPAGE) != 0)
        oracle_skip("No transparent huge pages in this kernel: 4 KiB pages are used.");
    oracle_arena("arena", "anon", arena, bytes);

    struct oracle_phase *phase = oracle_begin("birth");
    uint64_t t0 = now_ns();
    write_pages(arena, bytes / PAGE, 1);
    oracle_once(phase, 'w', t0, arena, bytes);
    oracle_end(phase);
    rest("idle");

    phase = oracle_begin("one byte of each second huge page");
    oracle_set_strided(phase, 'r', arena + 5 * PAGE, HUGE / 2, 2 * HUGE_PAGE / PAGE);
    while (oracle_again(phase)) {
        read_pages(arena + 5 * PAGE, HUGE / 2, 2 * HUGE_PAGE / PAGE);
        oracle_looped(phase);
    }
    oracle_end(phase);

    /* A hole in a huge page splits its mapping: the rest of it is then seen in 4 KiB pages. */
    char *split = arena + HUGE_PAGE;
    oracle_gone(split, HUGE_PAGE);
    madvise(split, HUGE_PAGE, MADV_NOHUGEPAGE);
    munmap(split + 100 * PAGE, PAGE);
    oracle_arena("split", "anon", split, 100 * PAGE);
    rest("idle after the split");
    phase = oracle_begin("pages of a split huge page");
    oracle_set_strided(phase, 'w', split, 25, 4);
    while (oracle_again(phase)) {
        write_pages(split, 25, 4);
        oracle_looped(phase);
    }
    oracle_end(phase);
    puts("thp done");
    return 0;
}
