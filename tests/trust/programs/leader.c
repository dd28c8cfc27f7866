// leader FILE [alone]: its first thread ends at once; another, or the only one, touches one block for 300 ms, and then only a second one for 700 ms.
// FILE gets the address of each block, and when the second began, in nanoseconds of the monotonic clock. Ends with 9.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 64

static const char *path;

static void touch(volatile char *block, int rounds) {
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < PAGES; i++) block[i * PAGE]++;
    usleep(10000);
  }
}

static void *work(void *unused) {
  char *blocks[2];
  struct timespec now;
  FILE *out;
  (void)unused;
  for (int i = 0; i < 2; i++) {
    blocks[i] = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(blocks[i], PAGES * PAGE, MADV_NOHUGEPAGE);
  }
  touch(blocks[0], 30);
  clock_gettime(CLOCK_MONOTONIC, &now);
  touch(blocks[1], 70);
  out = fopen(path, "w");
  if (!out) exit(1);
  fprintf(out, "%lu %lu %lld\n", (unsigned long)blocks[0], (unsigned long)blocks[1],
          now.tv_sec * 1000000000ll + now.tv_nsec);
  fclose(out);
  exit(9);
}

int main(int count, char **words) {
  pthread_t thread;
  if (count < 2) return 2;
  path = words[1];
  if (count == 3) work(NULL);
  if (pthread_create(&thread, NULL, work, NULL)) return 3;
  pthread_exit(NULL);
}
