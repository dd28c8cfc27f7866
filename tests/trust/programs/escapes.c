// Threads, a function and a file whose names act on a terminal.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static void *work(void *area) {
    // ESC ] 0 ; x BEL sets a window's title; U+009B is CSI; U+202E turns text around.
    prctl(PR_SET_NAME, "\x1b]0;x\x07\xc2\x9b\xe2\x80\xae!");
    memset(area, 1, 1 << 20);
    usleep(150000);
    return NULL;
}

int main(void) {
    const char *path = "\x1b[31mred\nfile";
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || ftruncate(file, 1 << 20))
        return 2;
    char *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    memset(map, 1, 1 << 20);
    char *area = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t thread;
    pthread_create(&thread, NULL, work, area);
    usleep(100000);
    pthread_join(thread, NULL);
    unlink(path);
    return 0;
}
