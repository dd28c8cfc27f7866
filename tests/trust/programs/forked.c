// Forks children one after the other. Each works for so many milliseconds of its own CPU time, in one function and over one array, and
// ends: `forked COUNT MILLISECONDS`. Prints the number of each.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS = 1 << 16 };
static volatile uint64_t worked[WORDS];

static int64_t used(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static __attribute__((noinline)) uint64_t work(int64_t until) {
    uint64_t sum = 0;
    do
        for (int i = 0; i < WORDS; i++)
            sum += worked[i];
    while (used() < until);
    return sum;
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    for (int i = 0; i < WORDS; i++)
        worked[i] = i;
    int64_t until = atoll(words[2]) * 1000000LL;
    for (int left = atoi(words[1]); left > 0; left--) {
        pid_t child = fork();
        if (child == 0)
            _exit(work(until) == 0);
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status)
            return 3;
        printf("%d\n", child);
    }
    return 0;
}
