// A function whose unwind table never ends: its canonical frame address is an expression that jumps to its own beginning.
// `endless heap|map|spin`
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

// DW_CFA_def_cfa_expression, 3 bytes: DW_OP_skip -3.
#define ENDLESS __asm__ volatile(".cfi_escape 0x0f, 0x03, 0x2f, 0xfd, 0xff")

static volatile char sink;

__attribute__((noinline)) static void *heap(size_t bytes) {
    ENDLESS;
    void *block = malloc(bytes);
    memset(block, 1, bytes);
    sink = *(char *)block;
    return block;
}

__attribute__((noinline)) static void *map(size_t bytes) {
    ENDLESS;
    char *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    block[0] = 1;
    sink = block[0];
    return block;
}

__attribute__((noinline)) static void spin(void) {
    ENDLESS;
    static char area[1 << 20];
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do {
        for (int i = 0; i < (1 << 20); i += 64)
            area[i]++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - from.tv_sec) * 1000000000L + now.tv_nsec - from.tv_nsec < 300000000L);
    sink = area[0];
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "heap";
    for (int i = 0; i < 50; i++) {
        if (!strcmp(what, "heap"))
            free(heap(100000));
        else if (!strcmp(what, "map"))
            munmap(map(1 << 20), 1 << 20);
    }
    if (!strcmp(what, "spin"))
        spin();
    puts("done");
    return 0;
}
