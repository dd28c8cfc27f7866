// Maps a file as code, then puts something else in the place of its name: `names fifo|device|link|shrink FILE`
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static volatile char sink;

int main(int count, char **words) {
    if (count < 3)
        return 2;
    const char *kind = words[1], *path = words[2];
    int file = open(path, O_RDWR);
    struct stat about;
    if (file < 0 || fstat(file, &about))
        return 3;
    char *map = mmap(NULL, about.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    if (map == MAP_FAILED)
        return 4;
    sink = map[0];
    // Long enough for a look at the mappings, with the file as it is.
    usleep(60000);
    if (!strcmp(kind, "shrink")) {
        if (ftruncate(file, 8192))
            return 5;
    } else {
        unlink(path);
        int bad = 0;
        if (!strcmp(kind, "fifo"))
            bad = mkfifo(path, 0666);
        else if (!strcmp(kind, "device"))
            bad = symlink("/dev/zero", path);
        else
            bad = symlink("/bin/sh", path);
        if (bad)
            return 6;
    }
    // Another mapping of that name, which the recorder has not seen before.
    char *again = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    sink = again[0];
    usleep(200000);
    puts("done");
    return 0;
}
