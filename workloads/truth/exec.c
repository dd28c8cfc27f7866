/* Touches pages right before it becomes another program; a vforked child does so too. */
#include "oracle.h"
#include <libgen.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

int main(int count, char **arguments)
{
    enum { PAGES = 300 };
    (void)count;
    char path[4096], self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length < 0)
        die("/proc/self/exe");
    self[length] = 0;
    snprintf(path, sizeof path, "%s/hot64", dirname(self));

    oracle_init("exec");
    char *arena = resident_arena("arena", 2 * PAGES);
    rest("idle");

    pid_t child;
    if ((errno = posix_spawn(&child, path, NULL, NULL, (char *[]){ path, NULL }, environ)) != 0)
        die(path);
    if (waitpid(child, NULL, 0) != child)
        die("the spawned child");

    struct oracle_phase *phase = oracle_begin("touch and exec");
    oracle_set_strided(phase, 'w', arena, PAGES, 2);
    phase->loop_start = now_ns();
    write_pages(arena, PAGES, 2);
    oracle_looped(phase);
    oracle_end(phase);
    oracle_line("gone %d %llu 0 0\n", getpid(), (unsigned long long)now_ns());
    execv(path, (char *[]){ path, NULL });
    die(arguments[0]);
    return 1;
}
