/* Deep recursion on the main stack and on the stacks of two threads, touching every page on the way. */
#include "oracle.h"
#include <pthread.h>

enum { DEPTH = 400, FRAME = 2 * 4096 };

static NOINLINE uintptr_t descend(size_t depth)
{
    volatile char frame[FRAME];
    frame[FRAME - 1] = 1;
    frame[FRAME / 2] = 1;
    frame[0] = 1;
    uintptr_t lowest = (uintptr_t)frame;
    if (depth > 1)
        lowest = descend(depth - 1);
    frame[1] = frame[0];
    return lowest;
}

static void run(const char *first, const char *again)
{
    volatile char here = 1;
    struct oracle_phase *phase = oracle_begin(first);
    uint64_t t0 = now_ns();
    uintptr_t lowest = descend(DEPTH);
    size_t bytes = (uintptr_t)&here - lowest;
    oracle_once(phase, 'w', t0, (char *)lowest, bytes);
    oracle_end(phase);
    rest("idle");
    phase = oracle_begin(again);
    oracle_set(phase, 'w', (char *)lowest, bytes);
    while (oracle_again(phase)) {
        descend(DEPTH);
        oracle_looped(phase);
    }
    oracle_end(phase);
}

static void *worker(void *unused)
{
    run("thread stack grows", "thread stack again");
    return unused;
}

int main(void)
{
    oracle_init("stackgrow");
    run("main stack grows", "main stack again");
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, (size_t)8 << 20);
    pthread_t thread[2];
    for (int i = 0; i < 2; i++)
        if ((errno = pthread_create(&thread[i], &attributes, worker, NULL)) != 0)
            die("pthread_create");
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    puts("stackgrow done");
    return 0;
}
