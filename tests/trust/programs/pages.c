// Touches so many pages, says where they are, and ends with 7 after so many milliseconds.
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **words) {
  long pages = atol(words[1]), ms = count > 2 ? atol(words[2]) : 0;
  char *memory = mmap(0, pages << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 99;
  madvise(memory, pages << 12, MADV_NOHUGEPAGE);
  printf("%d %lx\n", getpid(), (unsigned long)memory >> 12);
  fflush(stdout);
  for (long past = 0;; past += 20) {
    for (long i = 0; i < pages; i++) memory[i << 12]++;
    if (past >= ms) return 7;
    struct timespec nap = {0, 20000000};
    nanosleep(&nap, 0);
  }
}
