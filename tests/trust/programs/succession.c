// succession: a mapping takes the place of the stack of a thread that has just
// ended, and is moved in one piece a little later; looks after each move
// whether all is there.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ROUNDS = 100, LINE = 512, BYTES = 64 * 4096 };

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void nap(long us) {
  struct timespec time = {.tv_nsec = us * 1000};
  nanosleep(&time, NULL);
}

static void *live(void *unused) {
  nap(4000);
  return unused;
}

static char *map(char *at, int flags) {
  char *made = mmap(at, BYTES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (made == MAP_FAILED)
    die("mmap");
  return made;
}

int main(void) {
  char *at = map(NULL, 0);
  for (int i = 0; i < ROUNDS; i++) {
    char value = (char)(1 + i % 100);
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) ||
        pthread_attr_setstack(&attributes, at, BYTES))
      die("pthread_attr_setstack");
    if (pthread_create(&thread, &attributes, live, NULL))
      die("pthread_create");
    pthread_join(thread, NULL);
    if (munmap(at, BYTES))
      die("munmap");
    at = map(at, MAP_FIXED);
    memset(at, value, BYTES);
    nap(6000);
    char *moved = mremap(at, BYTES, (size_t)BYTES * 2, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
      die("mremap");
    for (int j = 0; j < BYTES; j += LINE) {
      if (moved[j] == value)
        continue;
      printf("%d at byte %d, not %d\n", moved[j], j, value);
      return 1;
    }
    if (munmap(moved + BYTES, BYTES))
      die("munmap");
    at = moved;
  }
  puts("all there");
  return 0;
}
