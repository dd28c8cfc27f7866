// locker USER KIB FLAGS BLOCKS HOW: allocates so many blocks, sets a limit of locked memory (0: none), becomes a user (0: stays), locks its
// memory, and takes some more. Prints what came of it, and whether it is as small as such a program is. HOW: "itself"; "called", by
// syscall; "forked", in a child; "vforked", in a child that has its parent's memory.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MORE = 2 << 20, SMALL_KIB = 100 << 10 };

static long status_kib(const char *name) {
    char line[256];
    long found = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
            found = atol(line + strlen(name) + 1);
    if (file)
        fclose(file);
    return found;
}

int main(int count, char **words) {
    if (count != 6)
        return 2;
    unsigned user = atoi(words[1]);
    struct rlimit limit = {strtoul(words[2], NULL, 10) << 10, strtoul(words[2], NULL, 10) << 10};
    int flags = atoi(words[3]);
    for (int i = 0; i < atoi(words[4]); i++) {
        char *volatile block = malloc(i % 1000 + 1);
        free(block);
    }
    if (limit.rlim_cur && setrlimit(RLIMIT_MEMLOCK, &limit))
        return 3;
    if (user && (setresgid(user, user, user) || setresuid(user, user, user)))
        return 4;
    const char *how = words[5];
    if (!strcmp(how, "forked")) {
        int status;
        pid_t child = fork();
        if (child < 0)
            return 8;
        if (child > 0)
            return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 9;
    }
    if (!strcmp(how, "vforked")) {
        int status;
        pid_t child = vfork();
        if (child < 0)
            return 8;
        if (child == 0)
            _exit(mlockall(flags) ? errno : 0);
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
            return 9;
        errno = WEXITSTATUS(status);
    } else {
        errno = (!strcmp(how, "called") ? syscall(SYS_mlockall, flags) : mlockall(flags)) ? errno : 0;
    }
    if (errno) {
        printf("refused: %s\n", strerror(errno));
        return 5;
    }
    // More than malloc keeps: a mapping of its own.
    char *volatile more = malloc(MORE);
    if (!more) {
        printf("no memory: %s\n", strerror(errno));
        return 6;
    }
    memset(more, 1, MORE);
    printf("locked, %s, %s\n", status_kib("VmLck") > 0 ? "which shows" : "and nothing is",
           status_kib("VmRSS") < SMALL_KIB ? "small" : "large");
    return 7;
}
