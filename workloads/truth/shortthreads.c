/* 300 short-lived threads; each writes one page that is its own, reads one, and ends. */
#include "oracle.h"
#include <pthread.h>

enum { THREADS = 300 };

static char *arena;

static void *worker(void *argument)
{
    char *mine = arena + (size_t)(uintptr_t)argument * 4 * PAGE;
    struct oracle_phase *phase = oracle_begin("short thread");
    uint64_t t0 = now_ns();
    write_page(mine);
    read_page(mine + 2 * PAGE);
    oracle_once(phase, 'w', t0, mine, PAGE);
    oracle_once(phase, 'r', t0, mine + 2 * PAGE, PAGE);
    oracle_end(phase);
    return NULL;
}

int main(void)
{
    oracle_init("shortthreads");
    arena = resident_arena("arena", THREADS * 4);
    rest("idle");
    for (size_t i = 0; i < THREADS; i += 3) {
        pthread_t thread[3];
        for (size_t j = 0; j < 3; j++)
            if ((errno = pthread_create(&thread[j], NULL, worker, (void *)(uintptr_t)(i + j))) != 0)
                die("pthread_create");
        for (size_t j = 0; j < 3; j++)
            pthread_join(thread[j], NULL);
        sleep_ms(1);
    }
    rest("idle after");
    puts("shortthreads done");
    return 0;
}
