// Threads that access known parts of an array a known number of times, one after the other or all at once.
// Prints the thread ids. tests/truth/tests/exact.rs knows the numbers.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGES = 8, WORDS = 512, ROUNDS = 1000 };

volatile uint64_t array[PAGES][WORDS] __attribute__((aligned(4096)));
// Counted up by everybody at once.
volatile uint64_t together[WORDS] __attribute__((aligned(4096)));
static long ids[2];

// Writes each word of pages 0 to 3 once.
static void *writer(void *unused) {
    (void)unused;
    ids[0] = syscall(SYS_gettid);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < WORDS; i++)
            array[p][i] = 1;
    for (int i = 0; i < ROUNDS; i++)
        __atomic_fetch_add(&together[0], 1, __ATOMIC_RELAXED);
    return NULL;
}

// Reads each word of pages 2 to 5 once.
static void *reader(void *unused) {
    (void)unused;
    ids[1] = syscall(SYS_gettid);
    for (int p = 2; p < 6; p++)
        for (int i = 0; i < WORDS; i++)
            (void)array[p][i];
    for (int i = 0; i < ROUNDS; i++)
        __atomic_fetch_add(&together[0], 1, __ATOMIC_RELAXED);
    return NULL;
}

static void *idle(void *unused) {
    return unused;
}

int main(int argc, char **argv) {
    pthread_t one, two;
    if (argc > 2 && strcmp(argv[1], "many") == 0) {
        // So many threads, each of which ends at once.
        for (int i = atoi(argv[2]); i > 0; i--) {
            if (pthread_create(&one, NULL, idle, NULL) != 0 || pthread_join(one, NULL) != 0)
                return 1;
        }
        return 0;
    }
    int at_once = argc > 1 && strcmp(argv[1], "at-once") == 0;
    pthread_create(&one, NULL, writer, NULL);
    if (!at_once)
        pthread_join(one, NULL);
    pthread_create(&two, NULL, reader, NULL);
    pthread_join(two, NULL);
    if (at_once)
        pthread_join(one, NULL);
    // The first thread: page 6, 512 reads and as many writes.
    for (int i = 0; i < WORDS; i++)
        array[6][i] = array[6][i] + 1;
    printf("%d %ld %ld %llu\n", getpid(), ids[0], ids[1], (unsigned long long)together[0]);
    return 0;
}
