// private PAGES FILE: makes a child whose files in /proc are root's (PR_SET_DUMPABLE), and says where the pages are once it is so. Both touch
// pages until the file is there; the parent ends with 7.
// private PAGES FILE alone: is so itself, and makes no child.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char *pages;
static long count;

static void touch_until(const char *file) {
    do {
        for (long i = 0; i < count; i++)
            pages[i << 12]++;
        usleep(1000);
    } while (access(file, F_OK));
}

static void say_where(void) {
    printf("%d %lx\n", getpid(), (unsigned long)pages >> 12);
    fflush(stdout);
}

int main(int words, char **word) {
    int is_alone = words == 4 && !strcmp(word[3], "alone");
    if (words != 3 && !is_alone)
        return 2;
    count = atol(word[1]);
    pages = mmap(0, count << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        return 3;
    madvise(pages, count << 12, MADV_NOHUGEPAGE);
    if (is_alone) {
        if (prctl(PR_SET_DUMPABLE, 0))
            return 4;
        say_where();
        touch_until(word[2]);
        return 7;
    }
    int is_private[2];
    char byte;
    if (pipe(is_private))
        return 3;
    pid_t child = fork();
    if (child == 0) {
        if (prctl(PR_SET_DUMPABLE, 0) || write(is_private[1], "", 1) != 1)
            _exit(4);
        touch_until(word[2]);
        _exit(0);
    }
    if (child < 0 || read(is_private[0], &byte, 1) != 1)
        return 4;
    say_where();
    touch_until(word[2]);
    int status;
    return waitpid(child, &status, 0) != child || status ? 5 : 7;
}
