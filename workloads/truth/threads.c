/* N threads, each with a part of its own and a part that all share, in step by barriers. */
#include "oracle.h"
#include <pthread.h>

enum { OWN = 256, SHARED = 128, MAX_THREADS = 512 };

static pthread_barrier_t barrier;
static char *own, *shared;

static void *worker(void *argument)
{
    size_t index = (size_t)(uintptr_t)argument;
    char *mine = own + index * 2 * OWN * PAGE;
    pthread_barrier_wait(&barrier);

    struct oracle_phase *phase = oracle_begin("own");
    oracle_set(phase, 'w', mine, OWN * PAGE);
    while (oracle_again(phase)) {
        write_pages(mine, OWN, 1);
        oracle_looped(phase);
    }
    pthread_barrier_wait(&barrier);
    oracle_end(phase);
    pthread_barrier_wait(&barrier);

    phase = oracle_begin("shared");
    oracle_set_strided(phase, 'r', shared, SHARED, 2);
    while (oracle_again(phase)) {
        read_pages(shared, SHARED, 2);
        oracle_looped(phase);
    }
    pthread_barrier_wait(&barrier);
    oracle_end(phase);
    return NULL;
}

int main(int count, char **arguments)
{
    size_t threads = count > 1 ? strtoull(arguments[1], NULL, 0) : 4;
    if (threads == 0 || threads > MAX_THREADS) {
        fprintf(stderr, "threads: give a count from 1 to %d\n", MAX_THREADS);
        return 2;
    }
    oracle_init("threads");
    own = resident_arena("own", threads * 2 * OWN);
    shared = resident_arena("shared", 2 * SHARED);
    rest("idle");
    pthread_t thread[MAX_THREADS];
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (size_t i = 0; i < threads; i++)
        if ((errno = pthread_create(&thread[i], NULL, worker, (void *)(uintptr_t)i)) != 0)
            die("pthread_create");
    for (size_t i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    puts("threads done");
    return 0;
}
