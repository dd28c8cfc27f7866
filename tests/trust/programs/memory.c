// Memory of several processes, memory that grows, and memory that is used again and again.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include "intervals.h"

enum { PAGE = 4096, SIZE = 8 << 20, USERS = 4 };

static void pause_ms(int ms) { usleep(ms * 1000); }

static volatile char sink;

static void touch(volatile char *memory, size_t bytes, int write) {
    for (size_t at = 0; at < bytes; at += PAGE) {
        if (write) memory[at] = 1;
        else sink = memory[at];
    }
}

static void *die(const char *what) {
    perror(what);
    exit(1);
}

// Each process maps the memory for itself; the addresses are apart.
static char *attach(const char *kind, int fd, int segment, char *inherited, int user) {
    char *hint = (char *)0x200000000000 + ((size_t)user << 32);
    char *memory = inherited;
    if (!strcmp(kind, "sysv")) memory = shmat(segment, hint, 0);
    else if (strcmp(kind, "anonymous")) memory = mmap(hint, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == (char *)-1) die(kind);
    return memory;
}

static int share(const char *kind, const char *path) {
    int fd = -1, segment = -1;
    char *inherited = NULL;
    if (!strcmp(kind, "memfd")) fd = memfd_create("buffer", 0);
    if (!strcmp(kind, "file")) fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd >= 0 && ftruncate(fd, SIZE)) die("ftruncate");
    if (!strcmp(kind, "sysv")) segment = shmget(IPC_PRIVATE, SIZE, 0600);
    if (!strcmp(kind, "anonymous"))
        inherited = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    // One after the other, and all are there until the last one is done.
    int turns[USERS + 1][2], over[2];
    for (int turn = 0; turn <= USERS; turn++)
        if (pipe(turns[turn])) die("pipe");
    if (pipe(over)) die("pipe");
    pid_t users[USERS];
    for (int user = 0; user < USERS; user++) {
        users[user] = fork();
        if (users[user] == 0) {
            char *memory = attach(kind, fd, segment, inherited, user), turn;
            close(over[1]);
            if (read(turns[user][0], &turn, 1) != 1) die("read");
            // Each in intervals of its own
            an_interval_ends("trace.varve");
            touch(memory, SIZE, user == 0);
            if (write(turns[user + 1][1], "", 1) != 1) die("write");
            _exit((int)read(over[0], &turn, 1));
        }
    }
    char turn;
    if (write(turns[0][1], "", 1) != 1 || read(turns[USERS][0], &turn, 1) != 1) die("turns");
    an_interval_ends("trace.varve");
    close(over[1]);
    for (int user = 0; user < USERS; user++) waitpid(users[user], NULL, 0);
    if (segment >= 0) shmctl(segment, IPC_RMID, NULL);
    return 0;
}

static int copies(void) {
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, SIZE, MADV_NOHUGEPAGE);
    touch(memory, SIZE, 1);
    for (int user = 0; user < 2; user++) {
        if (fork() == 0) {
            touch(memory, SIZE, 1);
            an_interval_ends("trace.varve");
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {}
    return 0;
}

static int grow(void) {
    size_t size = 4 << 20;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int step = 0; step < 3; step++) {
        madvise(memory, size, MADV_NOHUGEPAGE);
        touch(memory, size, 1);
        pause_ms(200);
        // Something in the way, so that it has to move.
        mmap(memory + size, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        memory = mremap(memory, size, size * 2, MREMAP_MAYMOVE);
        if (memory == MAP_FAILED) die("mremap");
        size *= 2;
    }
    madvise(memory, size, MADV_NOHUGEPAGE);
    touch(memory, size, 1);
    pause_ms(200);
    return 0;
}

static char *request(size_t bytes) {
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static int lives(void) {
    for (int i = 0; i < 10000; i++) {
        size_t bytes = 64 << 10;
        char *memory = request(bytes);
        touch(memory, bytes, 1);
        munmap(memory, bytes);
    }
    return 0;
}

static int reserve(void) {
    size_t size = 1 << 30;
    char *arena = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < 8; i++) {
        size_t bytes = 256 << 10;
        char *memory = mmap(arena + i * bytes, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        touch(memory, bytes, 1);
        pause_ms(30);
    }
    pause_ms(200);
    return 0;
}

// More and more, until the kernel ends it; the file says from where and how many pages.
static int eat(const char *path) {
    size_t size = 1 << 30;
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, PAGE)) die(path);
    size_t *note = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (note == MAP_FAILED) die(path);
    char *memory = request(size);
    madvise(memory, size, MADV_NOHUGEPAGE);
    note[0] = (size_t)memory / PAGE;
    for (size_t page = 0; page < size / PAGE; page++) {
        touch(memory + page * PAGE, PAGE, 1);
        note[1] = page + 1;
        if (page % 256 == 0) pause_ms(5);
    }
    return 0;
}

int main(int count, char **words) {
    if (count > 2 && !strcmp(words[1], "eat")) return eat(words[2]);
    if (count > 2 && !strcmp(words[1], "share")) return share(words[2], "buffer.bin");
    if (count > 1 && !strcmp(words[1], "copies")) return copies();
    if (count > 1 && !strcmp(words[1], "grow")) return grow();
    if (count > 1 && !strcmp(words[1], "lives")) return lives();
    if (count > 1 && !strcmp(words[1], "reserve")) return reserve();
    fprintf(stderr, "usage: memory share KIND | copies | grow | lives | reserve | eat NOTES\n");
    return 2;
}
