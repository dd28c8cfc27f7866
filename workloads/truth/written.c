/*
 * Writes that are easily taken for something else: by the kernel into a buffer of the program, after a
 * fork, to memory that moved, that was protected, that was dropped or that grew; and reads of pages
 * that were written before.
 */
#include "oracle.h"
#include <sys/wait.h>

#define PAGES ((size_t)256)

static void loop(const char *name, char kind, char *start, size_t pages)
{
    struct oracle_phase *phase = oracle_begin(name);
    oracle_set(phase, kind, start, pages * PAGE);
    while (oracle_again(phase)) {
        if (kind == 'w')
            write_pages(start, pages, 1);
        else
            read_pages(start, pages, 1);
        oracle_looped(phase);
    }
    oracle_end(phase);
}

/* The kernel writes (or reads) the buffer, and the program does not touch it. */
static void direct(const char *name, char kind, int fd, char *buffer)
{
    struct oracle_phase *phase = oracle_begin(name);
    oracle_set(phase, kind, buffer, PAGES * PAGE);
    while (oracle_again(phase)) {
        ssize_t done = kind == 'w' ? pread(fd, buffer, PAGES * PAGE, 0) : pwrite(fd, buffer, PAGES * PAGE, 0);
        if (done != (ssize_t)(PAGES * PAGE))
            die(name);
        oracle_looped(phase);
    }
    oracle_end(phase);
}

static void kernel_writes(void)
{
    int fd = scratch_file(PAGES);
    char *buffer = resident_arena("buffer", PAGES);
    direct("read into a buffer", 'w', fd, buffer);
    loop("read of the buffer", 'r', buffer, PAGES);
    direct("write from a buffer", 'r', fd, buffer);
    char *trial = map_pages(1);
    if (fcntl(fd, F_SETFL, O_DIRECT) == 0 && pread(fd, trial, PAGE, 0) == (ssize_t)PAGE) {
        rest("before O_DIRECT");
        direct("O_DIRECT read into a buffer", 'w', fd, buffer);
        loop("read after O_DIRECT", 'r', buffer, PAGES);
        direct("O_DIRECT write from a buffer", 'r', fd, buffer);
    } else {
        oracle_skip("O_DIRECT is not possible in the folder for scratch files.");
    }
    oracle_gone(buffer, PAGES * PAGE);
    munmap(buffer, PAGES * PAGE);
    close(fd);
}

static void forked(void)
{
    char *arena = resident_arena("shared by fork", PAGES);
    rest("before fork");
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        oracle_init("child");
        oracle_arena("child's copy", "anon", arena, PAGES * PAGE);
        loop("child reads", 'r', arena, PAGES);
        loop("child writes", 'w', arena, PAGES / 2);
        loop("child reads again", 'r', arena, PAGES);
        _exit(0);
    }
    loop("parent reads", 'r', arena, PAGES);
    loop("parent writes", 'w', arena, PAGES / 2);
    loop("parent reads again", 'r', arena, PAGES);
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        die("child");
    oracle_gone(arena, PAGES * PAGE);
    munmap(arena, PAGES * PAGE);
}

static void moved(void)
{
    char *arena = resident_arena("to be moved", PAGES);
    rest("before mremap");
    oracle_gone(arena, PAGES * PAGE);
    char *to = mremap(arena, PAGES * PAGE, 4 * PAGES * PAGE, MREMAP_MAYMOVE);
    if (to == MAP_FAILED)
        die("mremap");
    oracle_arena("moved", "anon", to, 4 * PAGES * PAGE);
    loop("read where it moved", 'r', to, PAGES);
    loop("write where it moved", 'w', to, 4 * PAGES);
    loop("read all of it", 'r', to, 4 * PAGES);
    mprotect(to, PAGES * PAGE, PROT_READ);
    loop("read what is read-only", 'r', to, PAGES);
    mprotect(to, PAGES * PAGE, PROT_READ | PROT_WRITE);
    loop("write what was read-only", 'w', to, PAGES);
    struct oracle_phase *phase = oracle_begin("drop and read");
    oracle_set(phase, 'r', to, PAGES * PAGE);
    while (oracle_again(phase)) {
        madvise(to, PAGES * PAGE, MADV_DONTNEED);
        read_pages(to, PAGES, 1);
        oracle_looped(phase);
    }
    oracle_end(phase);
    loop("write what was dropped", 'w', to, PAGES);
    oracle_gone(to, 4 * PAGES * PAGE);
    munmap(to, 4 * PAGES * PAGE);
}

static void grown(void)
{
    char *start = sbrk(0);
    start += -(uintptr_t)start & (PAGE - 1);
    if (brk(start + PAGES * PAGE) != 0)
        die("brk");
    oracle_arena("break", "anon", start, 2 * PAGES * PAGE);
    loop("write below the break", 'w', start, PAGES);
    if (brk(start + 2 * PAGES * PAGE) != 0)
        die("brk");
    loop("write below the new break", 'w', start, 2 * PAGES);
    loop("read below the new break", 'r', start, 2 * PAGES);
    oracle_gone(start, 2 * PAGES * PAGE);
    if (brk(start) != 0)
        die("brk");
}

int main(void)
{
    oracle_init("written");
    kernel_writes();
    forked();
    moved();
    grown();
    return 0;
}
