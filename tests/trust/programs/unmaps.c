// unmaps: maps three areas of different sizes, touches all of them, unmaps the second and the middle of the third, and touches the rest.
//
// Prints the time before and after each of both calls, CLOCK_MONOTONIC, nanoseconds. Nothing is mapped in the place of what was unmapped.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MIB = 1 << 20 };

static void die(const char *what) {
  perror(what);
  exit(1);
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static char *map(size_t bytes) {
  char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) die("mmap");
  memset(at, 1, bytes);
  return at;
}

static void unmap(char *at, size_t bytes) {
  uint64_t before = now();
  if (munmap(at, bytes)) die("munmap");
  printf("%" PRIu64 " %" PRIu64 "\n", before, now());
}

int main(void) {
  char *first = map(5 * MIB), *second = map(7 * MIB), *third = map(11 * MIB);
  unmap(second, 7 * MIB);
  unmap(third + 2 * MIB, 6 * MIB);
  memset(first, 2, 5 * MIB);
  memset(third, 2, 2 * MIB);
  memset(third + 8 * MIB, 2, 3 * MIB);
  return 0;
}
