// A child runs code that it generated for a second of its CPU time, and tells its name: `generated map|link|fifo|foreign FOLDER`. Prints the pid of
// the child, whose map stays.
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

int main(int count, char **words) {
    if (count < 3)
        return 2;
    pid_t child = fork();
    char map[64];
    if (child == 0) {
        snprintf(map, sizeof map, "/tmp/perf-%d.map", getpid());
        unlink(map);
        char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        // Whatever lies before the code decides how it is decoded.
        memset(page, 0x90, 4096);
        void *at = memcpy(page + 2048, code, sizeof code);
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
