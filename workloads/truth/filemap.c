/* A file mapped three times: private and read, private and written (copy on write), shared and written. */
#include "oracle.h"

enum { PAGES = 512, STRIDE = 32, TOUCHED = PAGES / STRIDE };

static char *map_file(const char *name, int fd, int flags)
{
    char *map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (map == MAP_FAILED)
        die("mmap of a file");
    oracle_arena(name, "file", map, PAGES * PAGE);
    return map;
}

static void run(const char *name, char kind, char *start, size_t pages, size_t stride)
{
    struct oracle_phase *phase = oracle_begin(name);
    oracle_set_strided(phase, kind, start, pages, stride);
    while (oracle_again(phase)) {
        if (kind == 'w')
            write_pages(start, pages, stride);
        else
            read_pages(start, pages, stride);
        oracle_looped(phase);
    }
    oracle_end(phase);
}

int main(void)
{
    oracle_init("filemap");
    int fd = scratch_file(PAGES);
    char *private_read = map_file("private read", fd, MAP_PRIVATE);
    char *private_write = map_file("private write", fd, MAP_PRIVATE);
    char *shared_write = map_file("shared write", fd, MAP_SHARED);
    run("private read, far apart", 'r', private_read, TOUCHED, STRIDE);
    run("private read, dense", 'r', private_read, PAGES / 2, 1);
    run("private read before the copy", 'r', private_write, TOUCHED, STRIDE);
    run("copy on write", 'w', private_write, TOUCHED, STRIDE);
    run("shared write", 'w', shared_write, TOUCHED, STRIDE);
    run("shared write, dense", 'w', shared_write, PAGES / 2, 1);

    struct oracle_phase *phase = oracle_begin("truncate what was just read");
    uint64_t t0 = now_ns();
    read_pages(shared_write + (PAGES - 64) * PAGE, 64, 1);
    oracle_once(phase, 'r', t0, shared_write + (PAGES - 64) * PAGE, 64 * PAGE);
    if (ftruncate(fd, (PAGES - 64) * (off_t)PAGE) != 0)
        die("ftruncate");
    oracle_end(phase);
    rest("idle after the truncation");
    puts("filemap done");
    return 0;
}
