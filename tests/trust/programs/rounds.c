// rounds FOLDER PAGES THREADS [GROUP]: touches all of its pages again and again, and notes when.
//
// FOLDER/started has the address of the pages. FOLDER/rounds has the times of each round of the first thread, begin and end, CLOCK_MONOTONIC
// nanoseconds. After 40 rounds it moves itself to the cgroup GROUP. SIGTERM ends it with 7.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

// Minutes: what waits for it may be slow.
#define ROUNDS 150000

static volatile sig_atomic_t over;
static size_t pages;

static void die(const char *what) {
  perror(what);
  exit(99);
}

static void end(int number) {
  (void)number;
  over = 1;
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void nap(void) {
  struct timespec t = {0, 1000000};
  nanosleep(&t, NULL);
}

static void touch(volatile char *memory) {
  for (size_t i = 0; i < pages; i++) memory[i * 4096]++;
}

static void *beside(void *memory) {
  while (!over) {
    touch(memory);
    nap();
  }
  return NULL;
}

int main(int count, char **a) {
  char path[4096], text[64];
  if (count < 4) return 98;
  pages = strtoul(a[2], NULL, 10);
  int threads = atoi(a[3]);
  signal(SIGTERM, end);
  char *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("mmap");
  madvise(memory, pages * 4096, MADV_NOHUGEPAGE);
  snprintf(path, sizeof path, "%s/rounds", a[1]);
  int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || ftruncate(fd, ROUNDS * 16)) die(path);
  uint64_t *times = mmap(NULL, ROUNDS * 16, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (times == MAP_FAILED) die("mmap");
  touch(memory);
  for (int i = 1; i < threads; i++) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, beside, memory)) die("pthread_create");
  }
  snprintf(path, sizeof path, "%s/started", a[1]);
  int started = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0644);
  snprintf(text, sizeof text, "%lu\n", (unsigned long)memory);
  if (started < 0 || write(started, text, strlen(text)) < 0) die(path);
  for (int round = 0; round < ROUNDS && !over; round++) {
    uint64_t began = now();
    touch(memory);
    times[2 * round + 1] = now();
    times[2 * round] = began;
    if (round == 40 && count > 4) {
      snprintf(path, sizeof path, "%s/cgroup.procs", a[4]);
      int group = open(path, O_WRONLY);
      if (group < 0 || write(group, "0", 1) != 1) die(path);
      close(group);
    }
    nap();
  }
  return 7;
}
