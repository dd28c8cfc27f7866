// leader FILE [alone]: its first thread ends at once; another, or the only one, touches one block until there is FILE.two, and then only a second one
// until there is FILE.over. FILE gets the address of each block, when the second began, and when that was over, in nanoseconds of the monotonic
// clock. Ends with 9.
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 64

static const char *path;

static long long now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static void touch_until(volatile char *block, const char *ending) {
  char end[PATH_MAX];
  snprintf(end, sizeof end, "%s%s", path, ending);
  while (access(end, F_OK)) {
    for (int i = 0; i < PAGES; i++) block[i * PAGE]++;
    usleep(10000);
  }
}

static void *work(void *unused) {
  char *blocks[2];
  FILE *out;
  (void)unused;
  for (int i = 0; i < 2; i++) {
    blocks[i] = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(blocks[i], PAGES * PAGE, MADV_NOHUGEPAGE);
  }
  touch_until(blocks[0], ".two");
  out = fopen(path, "w");
  if (!out) exit(1);
  fprintf(out, "%lu %lu %lld ", (unsigned long)blocks[0], (unsigned long)blocks[1], now());
  fflush(out);
  touch_until(blocks[1], ".over");
  fprintf(out, "%lld\n", now());
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
