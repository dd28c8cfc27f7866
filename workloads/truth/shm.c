/* Shared memory: POSIX (mapped twice) and System V, which is detached right after a touch. */
#include "oracle.h"
#include <sys/ipc.h>
#include <sys/shm.h>

enum { PAGES = 400 };

static void run(const char *name, char kind, char *start, size_t pages)
{
    struct oracle_phase *phase = oracle_begin(name);
    oracle_set_strided(phase, kind, start, pages, 2);
    while (oracle_again(phase)) {
        if (kind == 'w')
            write_pages(start, pages, 2);
        else
            read_pages(start, pages, 2);
        oracle_looped(phase);
    }
    oracle_end(phase);
}

int main(void)
{
    oracle_init("shm");
    char name[64];
    snprintf(name, sizeof name, "/varve-oracle-%d", getpid());
    int fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0)
        die("shm_open");
    shm_unlink(name);
    if (ftruncate(fd, PAGES * PAGE) != 0)
        die("ftruncate of shared memory");
    char *one = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *two = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (one == MAP_FAILED || two == MAP_FAILED)
        die("mmap of shared memory");
    oracle_arena("posix one", "shared", one, PAGES * PAGE);
    oracle_arena("posix two", "shared", two, PAGES * PAGE);
    run("write through one", 'w', one, PAGES / 2);
    run("read through two", 'r', two, PAGES / 4);

    int id = shmget(IPC_PRIVATE, PAGES * PAGE, IPC_CREAT | 0600);
    if (id < 0)
        die("shmget");
    char *sysv = shmat(id, NULL, 0);
    /* Removed at once: the segment lives on until the last detach, also if this program is killed. */
    char *again = shmat(id, NULL, 0);
    shmctl(id, IPC_RMID, NULL);
    if (sysv == (char *)-1 || again == (char *)-1)
        die("shmat");
    oracle_arena("sysv", "shared", sysv, PAGES * PAGE);
    oracle_arena("sysv again", "shared", again, PAGES * PAGE);
    run("write to sysv", 'w', sysv, PAGES / 2);
    rest("idle");
    struct oracle_phase *phase = oracle_begin("touch and detach");
    uint64_t t0 = now_ns();
    write_pages(again, PAGES, 1);
    oracle_once(phase, 'w', t0, again, PAGES * PAGE);
    oracle_gone(again, PAGES * PAGE);
    shmdt(again);
    oracle_end(phase);
    rest("idle after the detach");
    puts("shm done");
    return 0;
}
