// generations COUNT: makes a child, which makes a child, and so on. Each allocates, and prints how many pages of address space it has.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(void) {
    char text[64] = {0};
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0)
        _exit(3);
    close(file);
    printf("%lu\n", strtoul(text, NULL, 10));
    fflush(stdout);
}

int main(int count, char **words) {
    if (count != 2)
        return 2;
    for (long left = atol(words[1]); left > 0; left--) {
        void *volatile block = malloc(5000);
        if (!block)
            return 4;
        say();
        if (left == 1)
            return 0;
        pid_t child = fork();
        if (child < 0)
            return 5;
        if (child > 0) {
            int status;
            return waitpid(child, &status, 0) != child || status ? 6 : 0;
        }
    }
    return 0;
}
