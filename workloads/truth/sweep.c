/*
 * One thread sweeps over a large resident arena, so that each page is accessed a single time in about
 * one sweep: an access that falls between the reading and the clearing of its bit is lost unless the
 * program is held meanwhile.
 */
#include "oracle.h"

int main(void)
{
    enum { CHUNK = 256 };
    size_t pages = env_u64("SWEEP_MB", 256) << 8, sweeps = env_u64("SWEEPS", 12);
    size_t chunks = pages / CHUNK;
    oracle_init("sweep");
    char *arena = resident_arena("arena", pages);
    rest("idle");
    struct oracle_phase *phase = oracle_begin_events("sweep", chunks * sweeps);
    for (size_t sweep = 0; sweep < sweeps; sweep++) {
        for (size_t i = 0; i < chunks; i++) {
            char *chunk = arena + i * CHUNK * PAGE;
            uint64_t t0 = now_ns();
            read_pages(chunk, CHUNK, 1);
            oracle_once(phase, 'r', t0, chunk, CHUNK * PAGE);
            /* A sweep lasts some intervals, whatever the machine. */
            while (now_ns() < t0 + 100000)
                ;
        }
    }
    oracle_end(phase);
    puts("sweep done");
    return 0;
}
