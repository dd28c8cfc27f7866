// A child runs code that it generated for a second of its CPU time, and tells its name: `generated map|memfd|shared|link|fifo|foreign
// FOLDER`: in a memfd that is mapped a second time to be written, in shared anonymous memory, else in private memory. Prints the pid of the child,
// whose map stays.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Reads *rdi rsi times.
static const unsigned char code[] = {0x48, 0x8b, 0x07, 0x48, 0xff, 0xce, 0x75, 0xf8, 0xc3};

static void tell(const char *kind, const char *folder, const char *map, const void *at) {
    char written[4096];
    snprintf(written, sizeof written, "%s/reported", folder);
    int is_link = !strcmp(kind, "link");
    if (!strcmp(kind, "fifo") && mkfifo(map, 0666) == 0)
        return;
    FILE *file = fopen(is_link ? written : map, "w");
    if (!file)
        _exit(3);
    fprintf(file, "%lx %zx spinning\x1b[31m\n", (unsigned long)at, sizeof code);
    fclose(file);
    if (is_link && symlink(written, map))
        _exit(4);
    if (!strcmp(kind, "foreign") && chown(map, 64202, 64202))
        _exit(5);
}

// A page that can be executed; `write` is where it can be written.
static char *code_page(const char *kind, char **write) {
    int all = PROT_READ | PROT_WRITE | PROT_EXEC;
    if (!strcmp(kind, "memfd")) {
        int file = memfd_create("doublemapper", 0);
        if (file < 0 || ftruncate(file, 4096))
            _exit(6);
        *write = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    }
    int how = !strcmp(kind, "shared") ? MAP_SHARED : MAP_PRIVATE;
    return *write = mmap(NULL, 4096, all, how | MAP_ANONYMOUS, -1, 0);
}

int main(int count, char **words) {
    if (count < 3)
        return 2;
    pid_t child = fork();
    char map[64];
    if (child == 0) {
        snprintf(map, sizeof map, "/tmp/perf-%d.map", getpid());
        unlink(map);
        char *write, *page = code_page(words[1], &write);
        if (page == MAP_FAILED || write == MAP_FAILED)
            _exit(7);
        // Whatever lies before the code decides how it is decoded.
        memset(write, 0x90, 4096);
        memcpy(write + 2048, code, sizeof code);
        void *at = page + 2048;
        tell(words[1], words[2], map, at);
        static uint64_t data;
        void (*spin)(uint64_t *, uint64_t) = (void (*)(uint64_t *, uint64_t))at;
        struct timespec used;
        do {
            spin(&data, 1000000);
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        } while (used.tv_sec < 1);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("%d\n", child);
    return WEXITSTATUS(status);
}
