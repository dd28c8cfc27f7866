// jailed FOLDER: goes below a folder, and forks a child that allocates there.
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **words) {
    if (count != 2 || chroot(words[1]) || chdir("/"))
        return 2;
    pid_t child = fork();
    if (child == 0) {
        char *volatile block = malloc(1 << 20);
        memset(block, 1, 1 << 20);
        free(block);
        _exit(0);
    }
    int status;
    return child < 0 || waitpid(child, &status, 0) != child || status ? 3 : 7;
}
