// stacks DEPTH: makes an object with each of 2^DEPTH different call stacks, and keeps every eighth.
#include <stdlib.h>

static void *volatile kept;
static unsigned long number;

static void left(int depth);
static void right(int depth);

static void make(void) {
  void *made = malloc(64);
  kept = made;
  if (number++ % 8) free(made);
}

// The empty statements keep a call from becoming a jump
__attribute__((noinline)) static void left(int depth) {
  if (depth == 0) return make();
  left(depth - 1);
  right(depth - 1);
  __asm__ volatile("");
}

__attribute__((noinline)) static void right(int depth) {
  if (depth == 0) return make();
  left(depth - 1);
  right(depth - 1);
  __asm__ volatile("nop");
}

int main(int count, char **words) {
  left(count > 1 ? atoi(words[1]) : 10);
  return 0;
}
