/*
 * More than 4 GiB of touched memory, dense, and a far larger sparse mapping with one page touched in
 * each 2 MiB. BIG_DENSE_MB and BIG_SPARSE_GB change the sizes.
 */
#include "oracle.h"

int main(void)
{
    size_t dense_pages = env_u64("BIG_DENSE_MB", 4352) << 8;
    size_t sparse_bytes = env_u64("BIG_SPARSE_GB", 64) << 30, sparse_pages = sparse_bytes / HUGE_PAGE;
    oracle_init("big");
    char *dense = map_pages(dense_pages);
    oracle_arena("dense", "anon", dense, dense_pages * PAGE);
    char *sparse = map_pages(sparse_bytes / PAGE);
    oracle_arena("sparse", "anon", sparse, sparse_bytes);

    struct oracle_phase *phase = oracle_begin_events("birth", dense_pages / 4096 + 1);
    for (size_t at = 0; at < dense_pages; at += 4096) {
        size_t pages = dense_pages - at < 4096 ? dense_pages - at : 4096;
        uint64_t t0 = now_ns();
        write_pages(dense + at * PAGE, pages, 1);
        oracle_once(phase, 'w', t0, dense + at * PAGE, pages * PAGE);
    }
    oracle_end(phase);

    phase = oracle_begin("sparse");
    oracle_set_strided(phase, 'w', sparse + 77 * PAGE, sparse_pages, HUGE_PAGE / PAGE);
    while (oracle_again(phase)) {
        write_pages(sparse + 77 * PAGE, sparse_pages, HUGE_PAGE / PAGE);
        oracle_looped(phase);
    }
    oracle_end(phase);
    rest("idle");

    phase = oracle_begin("one dense page in 64");
    oracle_set_strided(phase, 'r', dense, dense_pages / 64, 64);
    while (oracle_again(phase)) {
        read_pages(dense, dense_pages / 64, 64);
        oracle_looped(phase);
    }
    oracle_end(phase);

    phase = oracle_begin_events("all dense pages once", dense_pages / 4096 + 1);
    for (size_t at = 0; at < dense_pages; at += 4096) {
        size_t pages = dense_pages - at < 4096 ? dense_pages - at : 4096;
        uint64_t t0 = now_ns();
        read_pages(dense + at * PAGE, pages, 1);
        oracle_once(phase, 'r', t0, dense + at * PAGE, pages * PAGE);
    }
    oracle_end(phase);
    puts("big done");
    return 0;
}
