/* SAID: waits until its memory was taken aside, moves it to another address and forks at once, again and again: a child must
   find what its parent had, however far the fault handler has come with bringing it home. Writes "kept" to SAID in the end.
   Every other child is made past the C library. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moved.h"

enum { PAGES = 3000, TURNS = 20 };

static char *fresh(void)
{
  char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) die("mmap");
  return memory;
}

static uint64_t *word(char *memory, uint64_t page)
{
  return (uint64_t *)(memory + page * PAGE + 8 * (page % 500));
}

static void look(char *memory, uint64_t salt, const char *whose)
{
  for (uint64_t i = 0; i < PAGES; i++)
    if (*word(memory, i) != salt + i) {
      fprintf(stderr, "turn %d: page %d of the %s is lost\n", (int)(salt >> 32), (int)i, whose);
      _exit(4);
    }
}

int main(int count, char **arguments)
{
  if (count != 2) return 2;
  int pagemap = open("/proc/self/pagemap", O_RDONLY);
  if (pagemap < 0) die("pagemap");
  char *memory = fresh();
  for (uint64_t turn = 1; turn <= TURNS; turn++) {
    for (uint64_t i = 0; i < PAGES; i++) *word(memory, i) = (turn << 32) + i;
    while (!is_moved(pagemap, memory, PAGES)) usleep(500);
    char *place = fresh();
    memory = mremap(memory, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
    if (memory == MAP_FAILED) die("mremap");
    pid_t child = turn % 2 ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child < 0) die("fork");
    if (!child) {
      look(memory, turn << 32, "child");
      _exit(0);
    }
    int status;
    if (waitpid(child, &status, 0) != child) die("waitpid");
    if (status) exit(5);
    look(memory, turn << 32, "parent");
  }
  FILE *said = fopen(arguments[1], "w");
  if (!said || fputs("kept\n", said) < 0 || fclose(said)) die("SAID");
  return 0;
}
