/* After a fork the child writes and reads some pages, the parent others, at the same time. */
#include "oracle.h"
#include <sys/wait.h>

enum { PART = 128, PARTS = 6 };

static void run(const char *name, char *arena, size_t write_part, size_t read_part)
{
    char *written = arena + write_part * PART * PAGE, *read = arena + read_part * PART * PAGE;
    struct oracle_phase *phase = oracle_begin(name);
    oracle_set(phase, 'w', written, PART * PAGE);
    oracle_set(phase, 'r', read, PART * PAGE);
    while (oracle_again(phase)) {
        write_pages(written, PART, 1);
        read_pages(read, PART, 1);
        oracle_looped(phase);
    }
    oracle_end(phase);
}

int main(void)
{
    oracle_init("cow_fork");
    char *arena = resident_arena("arena", PARTS * PART);
    rest("idle");
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        oracle_init("cow_fork child");
        oracle_arena("arena of the child", "anon", arena, PARTS * PART * PAGE);
        run("child", arena, 0, 1);
        _exit(0);
    }
    run("parent", arena, 2, 3);
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        die("the child");
    run("parent after the child", arena, 0, 4);
    puts("cow_fork done");
    return 0;
}
