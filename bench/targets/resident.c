/*
 * resident MIB THREADS busy|idle SECONDS: keeps MIB of memory resident in 4 KiB pages. Each thread owns
 * a part of it; a busy one reads and writes its part over and over, an idle one a page a millisecond.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, STACK = 65536 };

static char *memory;
static size_t pages, threads;
static int busy;
static atomic_int over;

static void *work(void *argument)
{
    size_t self = (size_t)argument, first = self * pages / threads, last = (self + 1) * pages / threads;
    uint64_t sum = 0;
    if (first == last)
        last = first + 1;
    while (!atomic_load_explicit(&over, memory_order_relaxed)) {
        for (size_t page = first; page < last; page++) {
            if (atomic_load_explicit(&over, memory_order_relaxed))
                break;
            volatile uint64_t *word = (uint64_t *)(memory + page * PAGE);
            sum += ++*word;
            if (!busy)
                usleep(1000);
        }
    }
    return (void *)sum;
}

int main(int count, char **arguments)
{
    if (count != 5) {
        fprintf(stderr, "usage: %s MIB THREADS busy|idle SECONDS\n", arguments[0]);
        return 2;
    }
    pages = strtoull(arguments[1], NULL, 10) << 8;
    threads = strtoull(arguments[2], NULL, 10);
    busy = strcmp(arguments[3], "busy") == 0;
    double seconds = strtod(arguments[4], NULL);
    if (!pages || !threads)
        return 2;
    memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
    for (size_t page = 0; page < pages; page++)
        memory[page * PAGE] = 1;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_t *started = calloc(threads, sizeof *started);
    for (size_t i = 1; i < threads; i++)
        if (pthread_create(&started[i], &attributes, work, (void *)i) != 0) {
            perror("pthread_create");
            return 1;
        }
    /* The main thread is one of them: it works until the time is over, in pieces. */
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    double until = (double)end.tv_sec + (double)end.tv_nsec / 1e9 + seconds;
    for (size_t page = 0;; page = (page + 1) % (pages / threads + 1)) {
        memory[page % pages * PAGE]++;
        if (!busy)
            usleep(1000);
        else if (page % 64 != 0)
            continue;
        clock_gettime(CLOCK_MONOTONIC, &now);
        if ((double)now.tv_sec + (double)now.tv_nsec / 1e9 > until)
            break;
    }
    atomic_store(&over, 1);
    for (size_t i = 1; i < threads; i++)
        pthread_join(started[i], NULL);
    return 0;
}
