// exhausted KIND KIB: may have so much memory ("data" or "space"), takes blocks until there are no more, starts a thread, maps a page, gives all
// back and goes on. Prints which of these it could do, and ends with 7.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { SMALL = 200, LARGE = 20000 };

struct block {
    struct block *next;
};

static struct block *all;

static void *idle(void *argument) {
    return argument;
}

// As many blocks as there are. From another function for each size, so that call stacks differ.
static unsigned long take(size_t bytes) {
    unsigned long count = 0;
    for (struct block *block; (block = malloc(bytes)); count++) {
        block->next = all;
        all = block;
    }
    return count;
}

static unsigned long __attribute__((noinline)) take_large(void) {
    return take(LARGE) + 1;
}

static unsigned long __attribute__((noinline)) take_small(void) {
    return take(SMALL) + 2;
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    struct rlimit limit = {strtoul(words[2], NULL, 10) << 10, RLIM_INFINITY};
    if (setrlimit(strcmp(words[1], "data") ? RLIMIT_AS : RLIMIT_DATA, &limit))
        return 3;
    // A small stack: under the limit there is room for it.
    pthread_attr_t small;
    if (pthread_attr_init(&small) || pthread_attr_setstacksize(&small, 64 << 10))
        return 6;
    unsigned long taken = take_large() + take_small();
    pthread_t thread;
    int has_thread = !pthread_create(&thread, &small, idle, NULL);
    if (has_thread)
        pthread_join(thread, NULL);
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED)
        munmap(page, 4096);
    while (all) {
        struct block *next = all->next;
        free(all);
        all = next;
    }
    for (int i = 0; i < 1000; i++) {
        void *volatile again = malloc(SMALL + i);
        if (!again)
            return 4;
        free(again);
    }
    // There may be no room for a stack still, where malloc keeps what it was given back.
    if (!pthread_create(&thread, &small, idle, NULL))
        pthread_join(thread, NULL);
    printf("%s\n", taken > 100 ? "used up, and goes on" : "nothing");
    return 7;
}
