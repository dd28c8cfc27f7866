// A process, its child, and the program that the child becomes; or a process that kills itself.
// Prints the ids. tests/truth/tests/exact.rs knows the numbers.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

volatile uint64_t array[4][512] __attribute__((aligned(4096)));

static void store(int page, int times) {
    for (int i = 0; i < times; i++)
        array[page][i % 512] = 1;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "again") == 0) {
        store(2, 250);
        return 5;
    }
    store(0, 1000);
    if (argc > 1 && strcmp(argv[1], "killed") == 0)
        kill(getpid(), SIGKILL);
    pid_t child = fork();
    if (child == 0) {
        store(1, 500);
        char *const script[] = {argv[0], argv[1], NULL};
        char *const again[] = {argv[0], "again", NULL};
        if (argc > 1)
            execv(argv[1], script);
        else
            execv(argv[0], again);
        return 1;
    }
    int status = 0;
    waitpid(child, &status, 0);
    store(0, 24);
    printf("%d %d %d\n", getpid(), child, WEXITSTATUS(status));
    return 0;
}
