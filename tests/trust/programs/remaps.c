// remaps: threads that map, fill, move and unmap memory, so that one gets the addresses that another has just left, also
// those of stacks of threads that have ended; looks after each move whether all is there.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS = 8, ROUNDS = 1500, PAGE = 4096, LINE = 512, STACK = 64 << 20 };

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void look(const char *at, size_t bytes, char value, const char *when) {
  for (size_t i = 0; i < bytes; i += LINE) {
    if (at[i] == value) continue;
    printf("after %s: %d at byte %zu of %zu, not %d\n", when, at[i], i, bytes, value);
    exit(1);
  }
}

static void *go(void *seed) {
  unsigned state = (unsigned)(size_t)seed;
  for (int i = 0; i < ROUNDS; i++) {
    size_t bytes = (size_t)PAGE * (1 + (unsigned)rand_r(&state) % 64);
    char value = (char)(1 + i % 100);
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) die("mmap");
    memset(at, value, bytes);
    if (mprotect(at, bytes, PROT_READ)) die("mprotect");
    look(at, bytes, value, "mprotect");
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE)) die("mprotect");
    char *moved = mremap(at, bytes, bytes * 2, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED) die("mremap");
    look(moved, bytes, value, "mremap");
    if (munmap(moved, bytes * 2)) die("munmap");
  }
  return NULL;
}

static void *nothing(void *unused) { return unused; }

// Threads that come and go, with stacks that the C library does not keep for others.
static volatile int is_over;

static void *come_and_go(void *unused) {
  pthread_attr_t large;
  if (pthread_attr_init(&large) || pthread_attr_setstacksize(&large, STACK)) die("pthread_attr_setstacksize");
  while (!is_over) {
    pthread_t thread;
    if (pthread_create(&thread, &large, nothing, NULL)) die("pthread_create");
    pthread_join(thread, NULL);
  }
  return unused;
}

int main(void) {
  pthread_t threads[THREADS], others;
  if (pthread_create(&others, NULL, come_and_go, NULL)) die("pthread_create");
  for (size_t i = 0; i < THREADS; i++) {
    if (pthread_create(&threads[i], NULL, go, (void *)i)) die("pthread_create");
  }
  for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  is_over = 1;
  pthread_join(others, NULL);
  puts("all there");
  return 0;
}
