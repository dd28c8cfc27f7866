// Has memory from code whose file goes: `leaves LIBRARY early|late|stays`, `leaves LIBRARY replaced FILE` or `leaves - memory`. The library is unlinked
// before it is used, or after an interval, or FILE takes its name then; or the program goes on as a copy of itself that is a file in memory. What stays
// works for 0.3 s of its processor's time, so that it is sampled.
// Ends with 7. As a library (-DLIBRARY) it has the function that takes the memory.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "intervals.h"

enum { BLOCK = 5 << 20 };

#ifdef LIBRARY
__attribute__((noinline)) char *made_by_library(void) {
    char *block = malloc(BLOCK);
    return memset(block, 1, BLOCK);
}
#else
__attribute__((noinline)) static char *made_in_memory(void) {
    char *block = malloc(BLOCK);
    return memset(block, 1, BLOCK);
}

// Runs this program from a file in memory.
static int go_on_in_memory(char **words) {
    int own = open("/proc/self/exe", O_RDONLY), memory = memfd_create("program", MFD_CLOEXEC);
    struct stat about;
    if (own < 0 || memory < 0 || fstat(own, &about)) return 2;
    if (sendfile(memory, own, NULL, (size_t)about.st_size) != about.st_size) return 3;
    words[2] = "copy";
    fexecve(memory, words, environ);
    return 4;
}

static void work(void) {
    struct timespec used = {0};
    for (volatile int step = 0; !used.tv_sec && used.tv_nsec < 300000000;) {
        for (int round = 0; round < 100000; round++) step++;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    }
}

int main(int count, char **words) {
    if (count < 3) return 1;
    const char *library = words[1], *how = words[2];
    if (!strcmp(how, "memory")) return go_on_in_memory(words);
    char *(*make)(void) = made_in_memory;
    if (strcmp(how, "copy")) {
        void *handle = dlopen(library, RTLD_NOW);
        if (!handle) return 5;
        make = (char *(*)(void))dlsym(handle, "made_by_library");
    }
    if (!strcmp(how, "early")) unlink(library);
    volatile char *block = make();
    if (!strcmp(how, "stays")) work();
    an_interval_ends("trace.varve");
    if (!strcmp(how, "late")) unlink(library);
    if (!strcmp(how, "replaced") && rename(words[3], library)) return 6;
    return block[BLOCK / 2] == 1 ? 7 : 8;
}
#endif
